//! A connection as plain data, for another TCP to continue: the kernel's, by TCP_REPAIR (`tcp(7)`).
//!
//! [`Stack::export`] copies the state and changes nothing. The caller gives it to the new owner. If that fails, the
//! connection goes on here as if nothing had happened. If it succeeds, [`Stack::move_out`] removes the connection. The
//! caller ensures that the connection does not change between the two calls.
//!
//! # States
//!
//! | state | |
//! | --- | --- |
//! | ESTABLISHED | moves |
//! | CLOSE-WAIT | moves, as ESTABLISHED before the peer's FIN; [`ExportedConnection::replay`] repeats the FIN |
//! | FIN-WAIT-1, LAST-ACK, CLOSING | move, as before this end's FIN; the new owner sends the FIN again, under the same sequence number |
//! | FIN-WAIT-2 | likewise; the peer acknowledges the repeated FIN again |
//! | SYN-SENT, SYN-RECEIVED | not yet ([`ExportError::NotEstablished`]) |
//! | TIME-WAIT, CLOSED | no more ([`ExportError::Ended`]); unread data can still be read |
//!
//! # What is lost
//!
//! No byte. Unread data, data that the peer has not acknowledged and data that was never sent are part of the export. Ranges
//! beyond a gap were reported to the peer by SACK; dropping them would be allowed (RFC 2018, section 8) and would cost the
//! peer a timeout, so `replay` repeats them as the segments in which they arrived. What the network delivers while the
//! connection moves is dropped and counted ([`Counters::tcp_moved_segments`](crate::Counters::tcp_moved_segments)), and
//! retransmitted.
//!
//! # What it costs
//!
//! The new owner begins with the initial congestion window and without a round-trip time: it waits for the initial
//! retransmission timeout (1 second) if the last flight was lost. Segments that arrive while the connection moves have to be
//! retransmitted. The scoreboard is not moved: until the next acknowledgement, bytes that the peer has SACKed count as
//! outstanding. The kernel cannot be told that the connection uses ECN; it sends without, and ignores marks.

use core::{net::SocketAddr, time::Duration};

use smoltcp::wire::IpProtocol;

use super::{Entry, Socket, Stack};
use crate::{
    config::Keepalive,
    demux::Target,
    error::{ExportError, IoError},
    event::{Readiness, SocketId},
    flow::Flow,
    packet::{
        Checksums, ETHERNET_HEADER_LEN, HOP_LIMIT, IpFields, MacAddr, Route, emit_headers, frame_len, parse_v4,
        parse_v6,
    },
    tcp::{
        connection::{Connection, Owner, State},
        isn,
        options::{Options, Timestamp},
        segment::{self, Flags, Header},
        seq::Seq,
    },
    time::{Instant, SECOND},
    udp,
};

/// How long segments of a moved connection are dropped instead of reset. They were in the receive queue when the connection
/// moved.
const MOVED_LIFETIME: u64 = 2 * SECOND;
/// Readiness of a moved connection: every waiting thread wakes, and learns that it moved.
pub(super) const MOVED_READINESS: Readiness = Readiness::ALL;

/// Returns until when segments of a connection that moves now are dropped.
pub(super) fn moved_until(now: Instant) -> Instant {
    now.plus(MOVED_LIFETIME)
}

/// What is left of a connection or of a UDP socket that was moved.
#[derive(Debug)]
pub(super) struct MovedConnection {
    /// The remote port of a UDP socket that was not connected is 0.
    pub(super) flow: Flow,
    pub(super) edges: Readiness,
}

/// State of a connection. Sequence numbers are absolute, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedConnection {
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// What this end sends.
    pub send: SendSide,
    /// What this end receives.
    pub receive: ReceiveSide,
    /// Maximum segment size that the peer accepts.
    pub peer_mss: u16,
    /// Whether both ends use SACK.
    pub sack: bool,
    /// Timestamps, if both ends use them.
    pub timestamps: Option<ExportedTimestamps>,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// SO_KEEPALIVE and its settings.
    pub keepalive: Option<Keepalive>,
    /// SO_LINGER.
    pub linger: Option<Duration>,
}

/// Sending half of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSide {
    /// Sequence number of the first byte of `sent`, or of what follows if that is empty. Everything before was acknowledged.
    pub next: u32,
    /// Bytes that were sent and not acknowledged.
    pub sent: Vec<u8>,
    /// Bytes that were never sent.
    pub unsent: Vec<u8>,
    /// How far the end of the stream is.
    pub end: SendEnd,
    /// Window of the peer (SND.WND), and the sequence number of the segment that carried it (SND.WL1).
    pub window: u32,
    /// See `window`.
    pub window_seq: u32,
    /// Largest window that the peer has offered.
    pub largest_window: u32,
    /// Scale of the peer's window, if both ends use window scaling.
    pub scale: Option<u8>,
    /// Size of the send buffer.
    pub buffer: usize,
}

/// State of this end's FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// The application may write more.
    Open,
    /// The application has shut the stream down, and the FIN was not sent.
    Queued,
    /// The FIN was sent and not acknowledged.
    Sent,
    /// The peer has acknowledged the FIN.
    Acknowledged,
}

/// Receiving half of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveSide {
    /// Sequence number after the last byte of `unread`: RCV.NXT, without the peer's FIN.
    pub next: u32,
    /// Bytes that the application has not read.
    pub unread: Vec<u8>,
    /// Ranges beyond a gap, in order: the sequence number and the bytes.
    pub islands: Vec<(u32, Vec<u8>)>,
    /// Sequence number of the peer's FIN, if it has arrived. It may lie beyond a gap.
    pub fin: Option<u32>,
    /// Window that was advertised, from `next`.
    pub window: u32,
    /// Scale of this end's window; 0 without window scaling.
    pub scale: u8,
    /// Size of the receive buffer.
    pub buffer: u32,
    /// The application has shut down reading.
    pub is_shut: bool,
}

/// Timestamps of a connection (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedTimestamps {
    /// Value of this end's clock now, in milliseconds.
    pub now: u32,
    /// Latest value of the peer's clock (TS.Recent).
    pub recent: u32,
}

/// Returns a received datagram as the Ethernet frame to `mac` in which it could have arrived.
#[must_use]
pub fn datagram_frame(mac: MacAddr, peer: SocketAddr, local: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let addresses = (peer.ip(), local.ip());
    let route = Route { source: addresses.0, destination: addresses.1, source_mac: mac, destination_mac: mac };
    let mut frame = vec![0; frame_len(addresses.1, udp::HEADER_LEN + payload.len())];
    let fields = IpFields { protocol: IpProtocol::Udp, hop_limit: HOP_LIMIT, traffic_class: 0, fragment: None };
    let datagram = emit_headers(&mut frame, &route, fields);
    udp::emit(datagram, (peer.port(), local.port()), payload, addresses, Checksums::Full);
    frame
}

/// Returns whether an Ethernet frame is a TCP segment from `remote` to `local`.
#[must_use]
pub fn is_segment_of(frame: &[u8], local: SocketAddr, remote: SocketAddr) -> bool {
    let Some(ip) = frame.get(ETHERNET_HEADER_LEN..) else { return false };
    let packet = match frame[12..ETHERNET_HEADER_LEN] {
        [0x08, 0x00] => parse_v4(ip),
        [0x86, 0xdd] => parse_v6(ip),
        _ => return false,
    };
    let Ok(packet) = packet else { return false };
    let ports =
        packet.payload.get(..4).map(|at| (u16::from_be_bytes([at[0], at[1]]), u16::from_be_bytes([at[2], at[3]])));
    packet.protocol == IpProtocol::Tcp
        && (packet.source, packet.destination) == (remote.ip(), local.ip())
        && ports == Some((remote.port(), local.port()))
}

impl Stack {
    /// Returns the state of a connection that the application holds.
    ///
    /// # Errors
    ///
    /// The connection is in a state that does not move, or the id is stale.
    pub fn export(&self, now: Instant, id: SocketId) -> Result<ExportedConnection, ExportError> {
        let connection = match &self.entry(id)?.socket {
            Socket::Stream(connection) => connection,
            Socket::Moved(_) => return Err(IoError::Moved.into()),
            _ => return Err(IoError::WrongKind.into()),
        };
        match connection.state {
            State::SynSent | State::SynReceived { .. } => Err(ExportError::NotEstablished),
            State::TimeWait | State::Closed => Err(ExportError::Ended),
            _ => Ok(connection.export(now)),
        }
    }

    /// Removes a connection that continues elsewhere with the state that [`Stack::export`] returned. Nothing is sent. Calls
    /// with the id return [`IoError::Moved`] until it is closed, and every observer gets an event. Segments that still
    /// arrive are dropped for two seconds.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn move_out(&mut self, now: Instant, id: SocketId) -> Result<(), IoError> {
        let flow = self.stream_mut(id)?.flow;
        let Some(entry) = self.sockets.get_mut(id) else { return Err(IoError::NoSuchSocket) };
        entry.socket = Socket::Moved(Box::new(MovedConnection { flow, edges: MOVED_READINESS }));
        self.wheel.remove(id);
        if self.flows.find(&flow) == Some(Target::Connection(id)) {
            self.flows.insert(flow, Target::Moved(moved_until(now)));
        }
        self.counters.tcp_moved += 1;
        self.enqueue(id);
        Ok(())
    }

    /// Removes a UDP socket whose port passes to another owner. Calls with the id return [`IoError::Moved`] until it is closed,
    /// and every observer gets an event. Datagrams that were not received are lost.
    ///
    /// # Errors
    ///
    /// The id is stale or not a UDP socket.
    pub fn move_out_datagrams(&mut self, id: SocketId) -> Result<(), IoError> {
        let (local, remote) = match &self.entry(id)?.socket {
            Socket::Datagram(socket) => (socket.local, socket.peer.unwrap_or(SocketAddr::new(socket.local.ip(), 0))),
            Socket::Moved(_) => return Err(IoError::Moved),
            _ => return Err(IoError::WrongKind),
        };
        self.unbind(id);
        let flow =
            Flow { local: local.ip(), remote: remote.ip(), local_port: local.port(), remote_port: remote.port() };
        let Some(entry) = self.sockets.get_mut(id) else { return Err(IoError::NoSuchSocket) };
        entry.socket = Socket::Moved(Box::new(MovedConnection { flow, edges: MOVED_READINESS }));
        self.enqueue(id);
        Ok(())
    }

    /// Gives a connection another id, for another owner in this process. Calls with the old one return [`IoError::Moved`] until
    /// that is closed.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn reissue(&mut self, now: Instant, id: SocketId) -> Result<SocketId, IoError> {
        let flow = self.stream_mut(id)?.flow;
        let moved = Socket::Moved(Box::new(MovedConnection { flow, edges: MOVED_READINESS }));
        let Some(entry) = self.sockets.get_mut(id) else { return Err(IoError::NoSuchSocket) };
        let connection = core::mem::replace(&mut entry.socket, moved);
        self.wheel.remove(id);
        let new = self.insert(connection);
        if self.flows.find(&flow) == Some(Target::Connection(id)) {
            self.flows.insert(flow, Target::Connection(new));
        }
        self.enqueue(id);
        self.sync_socket(now, new);
        Ok(new)
    }

    /// Returns whether a connection was moved, and not closed since.
    #[must_use]
    pub fn is_moved(&self, id: SocketId) -> bool {
        matches!(self.sockets.get(id), Some(Entry { socket: Socket::Moved(_), .. }))
    }

    /// Returns the connection of the application from `local` to `remote`, if there is one.
    #[must_use]
    pub fn find_connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<SocketId> {
        let (address, peer) = (local.ip(), remote.ip());
        let flow = Flow { local: address, remote: peer, local_port: local.port(), remote_port: remote.port() };
        let Some(Target::Connection(id)) = self.flows.find(&flow) else { return None };
        let entry = self.sockets.get(id)?;
        matches!(entry, Entry { socket: Socket::Stream(connection), .. } if connection.owner == Owner::Application)
            .then_some(id)
    }
}

impl Connection {
    /// Returns a copy of the state, for another TCP to continue.
    pub(super) fn export(&self, now: Instant) -> ExportedConnection {
        let mut receive = self.receive_buffer.export();
        receive.is_shut = self.shut_read;
        ExportedConnection {
            local: self.flow.local(),
            remote: self.flow.remote(),
            send: self.send_buffer.export(),
            receive,
            peer_mss: self.peer_mss,
            sack: self.sack,
            timestamps: self.timestamps.map(|timestamps| ExportedTimestamps {
                now: isn::timestamp(now, self.timestamp_offset),
                recent: timestamps.recent,
            }),
            nodelay: self.nodelay,
            keepalive: self.keepalive_timer.as_ref().map(|timer| timer.settings),
            linger: self.linger,
        }
    }
}

impl ExportedConnection {
    /// Returns whether [`Self::replay`] returns something.
    #[must_use]
    pub fn has_replay(&self) -> bool {
        self.receive.fin.is_some() || !self.receive.islands.is_empty()
    }

    /// Returns the segments to repeat to the new owner as if the peer had sent them again: ranges beyond a gap, and the
    /// peer's FIN. They are Ethernet frames to `mac`. At most `limit` segments with data are returned; the peer retransmits
    /// the rest.
    #[must_use]
    pub fn replay(&self, mac: MacAddr, limit: usize) -> Vec<Vec<u8>> {
        let size = self.replay_size();
        let pieces = self.receive.islands.iter().flat_map(|(start, bytes)| {
            let at = |index: usize| Seq(*start).plus((index * size) as u32);
            bytes.chunks(size).enumerate().map(move |(index, piece)| (at(index), piece))
        });
        let mut frames: Vec<_> =
            pieces.take(limit).map(|(seq, piece)| self.frame_from_peer(mac, seq, Flags::PSH, piece)).collect();
        frames.extend(self.receive.fin.map(|fin| self.frame_from_peer(mac, Seq(fin), Flags::FIN, &[])));
        frames
    }

    /// Returns the most bytes of data of a repeated segment.
    pub(super) fn replay_size(&self) -> usize {
        usize::from(self.peer_mss).clamp(1, 1200)
    }

    /// Builds a frame that the peer could have sent.
    pub(super) fn frame_from_peer(&self, mac: MacAddr, seq: Seq, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let timestamp = self.timestamps.map(|own| Timestamp { value: own.recent, echo: own.now });
        let window = (self.send.window >> self.send.scale.unwrap_or(0)).min(0xffff) as u16;
        let header = Header {
            seq,
            ack: Seq(self.send.next),
            flags: flags.with(Flags::ACK),
            window,
            options: Options { timestamp, ..Options::default() },
            ..Header::default()
        };
        let addresses = (self.remote.ip(), self.local.ip());
        let route = Route { source: addresses.0, destination: addresses.1, source_mac: mac, destination_mac: mac };
        let mut frame = vec![0; frame_len(addresses.1, header.len() + payload.len())];
        let fields = IpFields { protocol: IpProtocol::Tcp, hop_limit: HOP_LIMIT, traffic_class: 0, fragment: None };
        let segment = emit_headers(&mut frame, &route, fields);
        let ports = (self.remote.port(), self.local.port());
        segment::emit(segment, &header, (payload, &[]), ports, addresses, Checksums::Full);
        frame
    }
}
