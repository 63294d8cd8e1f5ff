//! Leaves what a listener has no room or no time for to the kernel's listener of the same port, which other processes may
//! share: [`abey_tcpip::Overflow`] says what, [`abey_nic::Handshake`] how.
//!
//! A connection that was not accepted has no descriptor, and so no kernel socket to move into. But the kernel's listener
//! accepts it as if the kernel had made the handshake, and every process that waits for that listener is woken. All happens
//! under the lock of the connection's shard:
//!
//! 1. The receive ring is emptied, and the state copied. Nothing has changed yet.
//! 2. The connection is offered, and the end of its handshake repeated: the listener has it. An error changes nothing, and it is
//!    tried again later.
//! 3. Segments of the connection find the kernel's socket from now on. Those that came into the ring meanwhile, and what the peer
//!    has sent before, follow.
//! 4. The stack forgets the connection.
//!
//! *What is lost.* Nothing. The congestion window begins anew.
//!
//! *What stays here.* A connection with more than 48 KiB of unread data, for which a new socket of the kernel has no room, or
//! with a smaller segment size than the kernel takes; all, if the kernel cannot ([`abey_nic::Ports::can_offer`]) or its
//! listener is full. Such connections wait for this process.

use std::io;
use std::sync::Arc;

use abey_nic::{Handshake, Ports};
use abey_tcpip::{Overdue, SocketId, UnacceptedConnection};
use nix::libc;

use super::kernel::MAX_REPLAYED;
use crate::kernel::ports::Reservations;
use crate::shard::{Caller, Core, Shard};

/// Most bytes that a new socket of the kernel takes in its first window.
const MAX_UNREAD: usize = 48 << 10;

/// Gives what is overdue in a shard to the kernel. The port has to be paused. Of a half-open connection the end of the handshake
/// must find the kernel, so those are given only if `with_half_open`. Returns whether such a one was left.
pub(crate) fn pass(shard: &Arc<Shard>, overdue: &Overdue, ports: &Reservations, with_half_open: bool) -> bool {
    let redirected = ports.redirected();
    match overdue {
        Overdue::Syn(syn) => {
            // If this fails, the peer retries. Later segments of the connection find the kernel's socket.
            let _ = redirected.inject(&syn.frame);
            false
        }
        Overdue::Connection(id, _) => {
            let passed = shard.with_caller(Caller::Worker, |core| offer(core, *id, redirected, with_half_open));
            // After another error it is due again.
            passed.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        }
    }
}

fn offer(core: &mut Core, id: SocketId, ports: &Ports, with_half_open: bool) -> io::Result<()> {
    core.drain_ring();
    let now = core.stack_now();
    let unaccepted = core.stack.export_unaccepted(now, id).map_err(io::Error::other)?;
    if unaccepted.is_half_open && !with_half_open {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let connection = &unaccepted.connection;
    if connection.receive.unread.len() > MAX_UNREAD {
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    let (local, remote, mac) = (connection.local, connection.remote, core.mac());
    ports.offer(local, remote, &handshake(&unaccepted), unaccepted.ack(mac).as_deref())?;
    // From here on the connection is the kernel's, whatever happens.
    let late = core.drain_flow(local, remote);
    for frame in unaccepted.segments(mac, MAX_REPLAYED).iter().chain(&late) {
        // A kernel that has taken the end of the handshake takes these, too.
        let _ = ports.inject(frame);
    }
    core.stack.move_out_unaccepted(now, id).map_err(io::Error::other)
}

fn handshake(unaccepted: &UnacceptedConnection) -> Handshake {
    let connection = &unaccepted.connection;
    Handshake {
        send_first: connection.send.next,
        receive_first: unaccepted.receive_first(),
        peer_mss: connection.peer_mss,
        scales: connection.send.scale.map(|peer| (peer, connection.receive.scale)),
        sack: connection.sack,
        timestamps: connection.timestamps.map(|own| (own.now, own.recent)),
        ecn: unaccepted.ecn,
    }
}
