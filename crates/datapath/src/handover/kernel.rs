//! Moves a connection into a kernel socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use abey_nic::Ports;
use abey_nic::repair::{self, RepairQueues, RepairState};
use abey_tcpip::{ExportError, ExportedConnection, SendEnd, SocketId};
use rustix::net::{Shutdown, shutdown, sockopt};

use super::HandOverError;
use crate::shard::{Core, Shard};

/// The most segments beyond a gap that are repeated to the kernel; the peer retransmits the rest.
pub(super) const MAX_REPLAYED: usize = 64;

/// Reason why a connection did not move.
pub(super) enum Failure {
    /// The connection is in a state that does not move.
    Connection(HandOverError),
    /// The kernel cannot take it.
    Kernel(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Kernel(error)
    }
}

/// Moves a connection into `socket`.
pub(super) fn hand_over(
    (shard, id): (&Arc<Shard>, SocketId),
    ports: &Ports,
    socket: BorrowedFd<'_>,
) -> Result<(), Failure> {
    let reuse_address = sockopt::socket_reuseaddr(socket).unwrap_or(false);
    shard.with(|core| {
        if core.is_shut_down {
            return Err(Failure::Connection(HandOverError::RuntimeDropped));
        }
        core.drain_ring();
        let exported = match core.stack.export(core.stack_now(), id) {
            Ok(exported) => exported,
            // A pump passes on what is left to read.
            Err(ExportError::Ended) => return Err(io::Error::from(io::ErrorKind::NotConnected).into()),
            Err(error) => return Err(Failure::Connection(error.into())),
        };
        let reuse_address = reuse_address || core.sockets.is_incoming(id);
        let state = repair_state(&exported, reuse_address);
        Move { core, ports, socket, exported: &exported, state: &state }.run()?;
        let now = core.stack_now();
        core.stack.move_out(now, id).map_err(|error| Failure::Connection(error.into()))
    })
}

/// A move under the shard's lock.
struct Move<'a, 'fd> {
    core: &'a mut Core,
    ports: &'a Ports,
    socket: BorrowedFd<'fd>,
    exported: &'a ExportedConnection,
    state: &'a RepairState,
}

impl Move<'_, '_> {
    fn run(&mut self) -> io::Result<()> {
        let Self { ports, socket, state, exported, .. } = *self;
        ports.begin_repair(socket, state)?;
        let (local, remote) = (exported.local, exported.remote);
        let queues = RepairQueues { unread: &exported.receive.unread, sent: &exported.send.sent };
        let passed = repair::fill(socket, state, &queues).and_then(|()| ports.pass_flow(local, remote, true));
        let ended = passed.and_then(|()| ports.end_repair(socket, state.reuse_address, true));
        if let Err(error) = ended {
            let _ = ports.pass_flow(local, remote, false);
            let _ = ports.end_repair(socket, state.reuse_address, false);
            let _ = ports.pass_flow(local, remote, true);
            return Err(error);
        }
        // From here on the connection is the kernel's, whatever happens.
        let late = self.core.drain_flow(local, remote);
        self.inject(&late);
        self.complete();
        Ok(())
    }

    /// Writes unsent data, and brings the socket into the state of the connection.
    ///
    /// The order of the two FINs decides between CLOSING and LAST-ACK.
    fn complete(&mut self) {
        let Self { socket, exported, .. } = *self;
        let send = &exported.send;
        // After an error the connection is reset.
        let _ = repair::write_unsent(socket, &send.unsent);
        let ends_here = || {
            if send.end != SendEnd::Open {
                let _ = shutdown(socket, Shutdown::Write);
            }
        };
        let peer_was_first = exported.receive.fin.is_some() && send.end == SendEnd::Queued;
        if !peer_was_first {
            ends_here();
        }
        let replayed = exported.replay(self.core.mac(), MAX_REPLAYED);
        let has_fin = self.inject(&replayed);
        if peer_was_first {
            ends_here();
        }
        // The peer does not repeat a FIN that was acknowledged. Reading ends behind what is in the queue in this way, too; the
        // socket's acknowledgements do not count the FIN, and are old ones for the peer.
        let is_fin_lost = !has_fin && exported.receive.fin == Some(exported.receive.next);
        if exported.receive.is_shut || is_fin_lost {
            let _ = shutdown(socket, Shutdown::Read);
        }
        let _ = sockopt::set_tcp_nodelay(socket, exported.nodelay);
    }

    /// Gives frames to the kernel. Returns whether it has taken them. Data that it refuses is retransmitted by the peer.
    fn inject(&self, frames: &[Vec<u8>]) -> bool {
        frames.iter().all(|frame| self.ports.inject(frame).is_ok())
    }
}

/// Returns the state as TCP_REPAIR takes it.
fn repair_state(exported: &ExportedConnection, reuse_address: bool) -> RepairState {
    let (send, receive) = (&exported.send, &exported.receive);
    // The kernel charges more for a buffer than its bytes.
    let send_bytes = send.buffer.max(send.sent.len() + send.unsent.len());
    let receive_bytes = (receive.buffer as usize).max(receive.unread.len() + receive.window as usize);
    RepairState {
        local: exported.local,
        remote: exported.remote,
        send_next: send.next,
        read_next: receive.next.wrapping_sub(receive.unread.len() as u32),
        receive_next: receive.next,
        peer_mss: exported.peer_mss,
        scales: send.scale.map(|peer| (peer, receive.scale)),
        sack: exported.sack,
        timestamp: exported.timestamps.map(|timestamps| timestamps.now),
        send_window: (send.window, send.window_seq, send.largest_window),
        receive_window: receive.window,
        buffers: (2 * send_bytes, 2 * receive_bytes),
        reuse_address,
    }
}
