//! Options that the kernel socket accepts and that the datapath does not have: [`option_policy`] says which of them make the
//! socket the kernel's. The others are reported once, in one line.
//!
//! An option is reported when it is set on a datapath socket, or when a socket on which it was set becomes one. It has an effect
//! as soon as the kernel has the connection; what the kernel refuses is an error, as for any socket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::c_int;

use super::context::{datapath_config, is_af_xdp};
use super::handover::{self, Reason};
use super::option_policy::{self, Effect};
use super::socket_options::int;
use super::{fd_table, listen};
use crate::errno;
use crate::report::{Topic, print_once};

/// The most options that are remembered for the report.
const MOST_PENDING: usize = 1024;

/// An option that was set on a socket of the kernel, which may become a datapath socket.
#[derive(Clone, Copy)]
struct Pending {
    fd: c_int,
    level: c_int,
    option: c_int,
    /// Only the kernel has it.
    kernels: bool,
}

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());
/// Whether there may be pending options.
static IS_ANY_PENDING: AtomicBool = AtomicBool::new(false);
/// Whether the line was printed.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Checks an option that was set on socket `fd`, which is a datapath socket if `is_ours`.
pub(super) fn check(fd: c_int, level: c_int, option: c_int, is_ours: bool) {
    let Some(config) = datapath_config() else { return };
    let kernels = match option_policy::effect(fd, level, option) {
        Effect::Same => return forget_option(fd, level, option),
        Effect::None => false,
        Effect::Kernel => is_af_xdp(config),
    };
    if !is_ours && is_of_internet(fd) && (kernels || !IS_REPORTED.load(Ordering::Relaxed)) {
        let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
        if kernels || pending.len() < MOST_PENDING {
            pending.push(Pending { fd, level, option, kernels });
            IS_ANY_PENDING.store(true, Ordering::Relaxed);
        }
    } else if is_ours && !(kernels && give_to_kernel(fd, level, option)) {
        report(level, option);
    }
}

/// Makes a datapath socket the kernel's, because of an option that only the kernel has.
fn give_to_kernel(fd: c_int, level: c_int, option: c_int) -> bool {
    let is_listener = fd_table::with_socket(fd, |socket| socket.listening.get().is_some()) == Some(true);
    if !is_listener {
        return handover::hand_over(fd, Reason::Option(option_policy::name(level, option)));
    }
    // A connection inherits the congestion control of its listener, and can be handed over by itself.
    if (level, option) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return false;
    }
    fd_table::with_socket(fd, listen::end);
    report_kernels(level, option);
    true
}

/// Returns whether an option was set on socket `fd` that only the kernel has, so that it does not become a datapath socket.
pub(super) fn is_for_kernel(fd: c_int) -> bool {
    if !IS_ANY_PENDING.load(Ordering::Relaxed) {
        return false;
    }
    let pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let found = pending.iter().find(|one| one.fd == fd && one.kernels).copied();
    drop(pending);
    let listens = || int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1);
    let Some(Pending { level, option, .. }) =
        found.filter(|one| one.option != libc::TCP_CONGESTION || one.level != libc::IPPROTO_TCP || !listens())
    else {
        return false;
    };
    report_kernels(level, option);
    true
}

fn report_kernels(level: c_int, option: c_int) {
    errno::preserve_errno(|| Reason::Option(option_policy::name(level, option)).report());
}

/// Forgets an option that has its default value again.
fn forget_option(fd: c_int, level: c_int, option: c_int) {
    if IS_ANY_PENDING.load(Ordering::Relaxed) {
        let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|one| (one.fd, one.level, one.option) != (fd, level, option));
    }
}

/// Reports the options that were set on socket `fd` before it became a datapath socket.
pub(super) fn becomes_datapath_socket(fd: c_int) {
    for Pending { level, option, .. } in take(fd) {
        report(level, option);
    }
}

/// Forgets the options of a descriptor that is closed.
#[inline]
pub(super) fn forget(fd: c_int) {
    if IS_ANY_PENDING.load(Ordering::Relaxed) {
        take(fd);
    }
}

fn take(fd: c_int) -> Vec<Pending> {
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let (own, others) = pending.iter().partition(|one| one.fd == fd);
    *pending = others;
    IS_ANY_PENDING.store(!pending.is_empty(), Ordering::Relaxed);
    own
}

fn is_of_internet(fd: c_int) -> bool {
    let protocol = int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    matches!(int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6))
        && matches!(protocol, Some(libc::IPPROTO_TCP | libc::IPPROTO_UDP))
}

fn report(level: c_int, option: c_int) {
    IS_REPORTED.store(true, Ordering::Relaxed);
    let level = match level {
        libc::SOL_SOCKET => "SOL_SOCKET".to_owned(),
        libc::IPPROTO_IP => "IPPROTO_IP".to_owned(),
        libc::IPPROTO_IPV6 => "IPPROTO_IPV6".to_owned(),
        libc::IPPROTO_TCP => "IPPROTO_TCP".to_owned(),
        libc::IPPROTO_UDP => "IPPROTO_UDP".to_owned(),
        other => other.to_string(),
    };
    print_once(
        Topic::Option,
        format_args!(
            "socket option {option} at level {level} has no effect on connections of the datapath; further ones are not reported"
        ),
    );
}
