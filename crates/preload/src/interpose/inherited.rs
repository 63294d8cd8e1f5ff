//! Connections of the parent in a forked child, which has copies of the descriptors and of the table, but no datapath.
//!
//! The child's first call on such a descriptor asks the parent to hand the connection over, and waits for the answer. From
//! then on the descriptor is the kernel's in the child too. Nothing of the table's entries is dropped: they belong to threads
//! and locks of the parent.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use abey_datapath::Runtime;
use abey_datapath::handover::{HandOverAddress, HandedOver};
use libc::c_int;

use super::context::uninterposed;
use super::fd_table::{self, Entry};
use super::handover::{self, Reason};
use super::process;
use super::socket_options::int;
use crate::errno;

/// How long a hand-over by the parent is waited for, and the time between two checks.
const REPAIR_LIMIT: Duration = Duration::from_secs(10);
const REPAIR_CHECK: Duration = Duration::from_micros(200);

/// Where children send their requests.
static PARENT: OnceLock<HandOverAddress> = OnceLock::new();

/// Starts the thread that answers children. Without it their calls fail as on a socket without a connection.
pub(super) fn serve(runtime: &Runtime) {
    if let Ok(server) = runtime.serve_hand_overs() {
        let _ = PARENT.set(server.address().clone());
        // It ends with the process.
        std::mem::forget(server);
    }
}

/// Makes an inherited descriptor the kernel's, before a call of the child.
#[inline]
pub(super) fn prepare_use(fd: c_int) {
    if process::is_child()
        && let Some(object) = fd_table::take(fd)
    {
        errno::preserve_errno(|| uninterposed(|| take_over(fd, &object)));
        put_back(fd, object);
    }
}

/// Forgets an entry that was taken, except in a child of `vfork`, which has taken it from its parent.
fn put_back(fd: c_int, object: Arc<Entry>) {
    if process::is_vforked() {
        fd_table::put(fd, object);
    } else {
        std::mem::forget(object);
    }
}

/// Forgets an inherited descriptor, which the child closes.
#[inline]
pub(super) fn forget(fd: c_int) {
    if process::is_child()
        && let Some(object) = fd_table::take(fd)
    {
        put_back(fd, object);
    }
}

/// Makes every inherited connection that `is` selects the kernel's.
pub(super) fn prepare_all(is: impl Fn(c_int) -> bool) {
    if process::is_child() {
        let is_stream = |object: &Entry| matches!(object, Entry::Socket(socket) if socket.stream().is_some());
        for (fd, object) in fd_table::find(is_stream) {
            std::mem::forget(object);
            if is(fd) {
                prepare_use(fd);
            }
        }
    }
}

#[cold]
fn take_over(fd: c_int, object: &Arc<Entry>) {
    let Entry::Socket(socket) = &**object else { return };
    let Some(stream) = socket.stream() else {
        if socket.role.get().is_some() {
            process::report_orphaned_socket();
        }
        return;
    };
    if is_with_kernel(fd) {
        return Reason::Child.report();
    }
    let Some(parent) = PARENT.get() else { return };
    // SAFETY: open for the rest of the program's call, which names it.
    let request = parent.request(stream.key(), unsafe { BorrowedFd::borrow_raw(fd) });
    if let Ok(HandedOver::Pump(end)) = &request {
        handover::replace(fd, end);
    }
    if request.is_ok() {
        Reason::Child.report();
    }
}

/// Returns whether the connection was handed over before. Waits for a hand-over that is happening.
fn is_with_kernel(fd: c_int) -> bool {
    let end = Instant::now() + REPAIR_LIMIT;
    while has_peer(fd) {
        if int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR) != Some(1) || Instant::now() >= end {
            return true;
        }
        std::thread::sleep(REPAIR_CHECK);
    }
    false
}

/// Returns whether the kernel socket is connected, or in repair mode.
fn has_peer(fd: c_int) -> bool {
    let mut peer = std::mem::MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the buffer has room for any address.
    unsafe { crate::real::GETPEERNAME.get()(fd, peer.as_mut_ptr().cast(), &raw mut length) == 0 }
}
