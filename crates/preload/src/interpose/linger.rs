//! `close(2)` of a connection with SO_LINGER and a time: it waits until everything that was written is acknowledged, the FIN
//! included, or the time is over. The connection then finishes in the background, as any other.
//!
//! As in Linux, only the last descriptor's `close` waits, a non-blocking socket's too; neither `dup2`, `shutdown` nor the end
//! of the process does. A signal ends the wait. With unread data the connection is reset, and there is nothing to wait for.

use std::sync::Arc;

use abey_datapath::{Readiness, Shutdown};
use libc::c_int;

use super::fd_table::{self, Entry};
use super::process;
use super::socket::Socket;
use super::socket_wait::SocketWait;
use crate::errno;

/// References of an entry that has one descriptor: the table's and that of the caller.
const LAST: usize = 2;

/// Waits if the socket of a descriptor that is about to be closed lingers, and the descriptor is its last one.
pub(super) fn before_close(fd: c_int, object: &Arc<Entry>) {
    let Entry::Socket(socket) = &**object else { return };
    // A child of `vfork` closes its own copy. The kernel waits for what was just handed over to it.
    let is_here = fd_table::get(fd).is_some() && !process::is_vforked();
    if socket.lingers() && is_here && Arc::strong_count(object) <= LAST {
        errno::preserve_errno(|| wait_until_drained(fd, socket));
    }
}

fn wait_until_drained(fd: c_int, socket: &Socket) {
    let (Some(stream), Some(time)) = (socket.stream(), socket.options().linger) else { return };
    let is_reset = stream.readable_bytes().is_ok_and(|unread| unread > 0);
    // The call fails if there is no connection.
    if is_reset || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut wait = SocketWait::new(fd, socket, Readiness::DRAINED, Some(time));
    while !stream.readiness().contains(Readiness::DRAINED) && wait.wait(socket, None).is_ok() {}
}
