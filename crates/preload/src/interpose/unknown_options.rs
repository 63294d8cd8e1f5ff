//! Options that the kernel socket accepts and that the datapath does not have. They are reported once, in one line.
//!
//! An option is reported when it is set on a datapath socket, or when a socket on which it was set becomes one. It has an effect
//! as soon as the kernel has the connection; what the kernel refuses is an error, as for any socket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::c_int;

use super::context::datapath_config;
use super::socket_options::{congestion_control, int, is_mirrored};
use crate::report::{Topic, print_once};

/// Options that are the same for a datapath socket, or whose effect is another way to do what the datapath does.
const KNOWN: [(c_int, c_int); 20] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, SO_BUF_LOCK),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE),
    // Packets are sent with "don't fragment" in any case.
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, IPV6_FREEBIND),
    // Datagrams are never merged, which the option only allows.
    (libc::IPPROTO_UDP, UDP_GRO),
];

// Constants of `linux/in.h`, `linux/in6.h`, `linux/udp.h` and `asm/socket.h` that libc does not define for every target.
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
const SO_BUF_LOCK: c_int = 72;
const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_FREEBIND: c_int = 78;
const UDP_GRO: c_int = 104;

/// The most sockets that are remembered. Further ones are not reported.
const MOST_PENDING: usize = 1024;

/// An option that was set on a socket of the kernel, which may become a datapath socket.
#[derive(Clone, Copy)]
struct Pending {
    fd: c_int,
    level: c_int,
    option: c_int,
}

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());
/// Whether there may be pending options.
static IS_ANY_PENDING: AtomicBool = AtomicBool::new(false);
/// Whether the line was printed.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Checks an option that was set on socket `fd`, which is a datapath socket if `is_ours`.
pub(super) fn check(fd: c_int, level: c_int, option: c_int, is_ours: bool) {
    if IS_REPORTED.load(Ordering::Relaxed) || datapath_config().is_none() || is_known(fd, level, option) {
        return;
    }
    if is_ours {
        report(level, option);
    } else if is_of_internet(fd) {
        let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() < MOST_PENDING {
            pending.push(Pending { fd, level, option });
            IS_ANY_PENDING.store(true, Ordering::Relaxed);
        }
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

fn is_known(fd: c_int, level: c_int, option: c_int) -> bool {
    if (level, option) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return congestion_control(fd).is_some();
    }
    is_mirrored(level, option) || KNOWN.contains(&(level, option))
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
