//! A connection that no application has accepted, as plain data for another listener.
//!
//! As in [`export`](super::export), [`Stack::export_unaccepted`] copies the state, and [`Stack::move_out_unaccepted`] removes
//! the connection when the other listener has it. Such a connection has sent nothing but its SYN-ACK and acknowledgements. So the
//! new owner can repeat the end of the handshake, and then what the peer has sent since
//! ([`UnacceptedConnection::segments`]).
//!
//! | state | |
//! | --- | --- |
//! | SYN-RECEIVED | moves: the end of the handshake has still to arrive |
//! | ESTABLISHED, CLOSE-WAIT | moves |
//! | any other | has been reset by the peer, and does not move ([`ExportError::Ended`]) |

use super::{Entry, Socket, Stack, export::ExportedConnection};
use crate::{
    demux::Target,
    error::{ExportError, IoError},
    event::SocketId,
    packet::MacAddr,
    tcp::{
        connection::{Owner, State},
        segment::Flags,
        seq::Seq,
    },
    time::Instant,
};

/// State of a connection that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnacceptedConnection {
    /// The state. Nothing was sent.
    pub connection: ExportedConnection,
    /// Whether both ends use ECN.
    pub ecn: bool,
    /// The end of the handshake has still to arrive.
    pub is_half_open: bool,
}

impl UnacceptedConnection {
    /// Returns the first sequence number of the peer's data.
    #[must_use]
    pub fn receive_first(&self) -> u32 {
        let receive = &self.connection.receive;
        receive.next.wrapping_sub(receive.unread.len() as u32)
    }

    /// Returns the segment that ended the handshake as an Ethernet frame to `mac`; `None` if it has still to arrive.
    #[must_use]
    pub fn ack(&self, mac: MacAddr) -> Option<Vec<u8>> {
        let first = Seq(self.receive_first());
        (!self.is_half_open).then(|| self.connection.frame_from_peer(mac, first, Flags::default(), &[]))
    }

    /// Returns what the peer has sent since, as Ethernet frames to `mac`. Of ranges beyond a gap, at most `limit` segments are
    /// returned; the peer retransmits the rest.
    #[must_use]
    pub fn segments(&self, mac: MacAddr, limit: usize) -> Vec<Vec<u8>> {
        let (first, size) = (Seq(self.receive_first()), self.connection.replay_size());
        let pieces = self.connection.receive.unread.chunks(size).enumerate();
        let unread = pieces.map(|(index, piece)| {
            let at = first.plus((index * size) as u32);
            self.connection.frame_from_peer(mac, at, Flags::PSH, piece)
        });
        unread.chain(self.connection.replay(mac, limit)).collect()
    }
}

impl Stack {
    /// Returns the state of a connection that a listener holds.
    ///
    /// # Errors
    ///
    /// It has ended, was accepted, or the id is stale.
    pub fn export_unaccepted(&self, now: Instant, id: SocketId) -> Result<UnacceptedConnection, ExportError> {
        let connection = match self.sockets.get(id) {
            Some(Entry { socket: Socket::Stream(connection), .. }) => connection,
            Some(_) => return Err(IoError::WrongKind.into()),
            None => return Err(IoError::NoSuchSocket.into()),
        };
        if !matches!(connection.owner, Owner::HalfOpen(_) | Owner::Queued(_)) {
            return Err(IoError::NoSuchSocket.into());
        }
        let is_half_open = match connection.state {
            State::SynReceived { .. } => true,
            State::Established | State::CloseWait => false,
            _ => return Err(ExportError::Ended),
        };
        Ok(UnacceptedConnection { connection: connection.export(now), ecn: connection.ecn.is_agreed(), is_half_open })
    }

    /// Removes a connection that another listener has now, with the state that [`Stack::export_unaccepted`] returned. Nothing
    /// is sent. Segments that still arrive are dropped for two seconds.
    ///
    /// # Errors
    ///
    /// It was accepted, or the id is stale.
    pub fn move_out_unaccepted(&mut self, now: Instant, id: SocketId) -> Result<(), IoError> {
        let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get(id) else {
            return Err(IoError::NoSuchSocket);
        };
        let (flow, owner) = (connection.flow, connection.owner);
        let (Owner::HalfOpen(listener) | Owner::Queued(listener)) = owner else { return Err(IoError::NoSuchSocket) };
        if let Some(Entry { socket: Socket::Listener(listening), .. }) = self.sockets.get_mut(listener) {
            listening.half_open -= usize::from(matches!(owner, Owner::HalfOpen(_)));
            listening.queue.retain(|waiting| waiting.id != id);
        }
        self.wheel.remove(id);
        self.sockets.remove(id);
        if self.flows.find(&flow) == Some(Target::Connection(id)) {
            self.flows.insert(flow, Target::Moved(super::export::moved_until(now)));
        }
        self.counters.tcp_moved_unaccepted += 1;
        Ok(())
    }
}
