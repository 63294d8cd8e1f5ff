//! Descriptions of sockets, for status reports.

use core::{fmt, net::SocketAddr};

use super::Socket;
use crate::tcp::connection::{Connection, Owner, State};

/// Description of one socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// Transport protocol.
    pub transport: Transport,
    /// Local address.
    pub local: SocketAddr,
    /// Peer's address, if there is one.
    pub remote: Option<SocketAddr>,
    /// State.
    pub state: SocketState,
    /// Bytes that the application has not read. For a listener: connections that were not accepted.
    pub unread: usize,
    /// Bytes that are not acknowledged (TCP) or not sent (UDP). For a listener: its backlog.
    pub unsent: usize,
    /// Current owner.
    pub holder: Holder,
}

/// Transport protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Transport {
    Tcp,
    Udp,
}

/// States of RFC 9293, section 3.3.2, except TIME-WAIT, which has no socket; and the states of a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the RFC's")]
#[non_exhaustive]
pub enum SocketState {
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    Closed,
    /// Moved to another owner, such as the kernel.
    Moved,
    /// UDP socket without a peer.
    Unconnected,
    /// UDP socket with a peer.
    Connected,
}

/// Owner of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The application.
    Application,
    /// A listener: the connection is half open, or was not accepted yet.
    Listener,
    /// None: the application closed the connection, which finishes by itself.
    Orphan,
}

impl From<&Socket> for SocketInfo {
    fn from(socket: &Socket) -> Self {
        match socket {
            Socket::Listener(listener) => Self {
                transport: Transport::Tcp,
                local: listener.local,
                remote: None,
                state: SocketState::Listen,
                unread: listener.queue.len(),
                unsent: listener.backlog,
                holder: Holder::Application,
            },
            Socket::Stream(connection) => stream(connection),
            Socket::Moved(moved) => Self {
                transport: Transport::Tcp,
                local: moved.flow.local(),
                remote: Some(moved.flow.remote()),
                state: SocketState::Moved,
                unread: 0,
                unsent: 0,
                holder: Holder::Application,
            },
            Socket::Datagram(socket) => Self {
                transport: Transport::Udp,
                local: socket.local,
                remote: socket.peer,
                state: if socket.peer.is_some() { SocketState::Connected } else { SocketState::Unconnected },
                unread: socket.unread(),
                unsent: socket.unsent(),
                holder: Holder::Application,
            },
        }
    }
}

/// Returns the state of a connection.
pub(super) fn state(connection: &Connection) -> SocketState {
    match connection.state {
        State::SynSent => SocketState::SynSent,
        State::SynReceived { .. } => SocketState::SynReceived,
        State::Established => SocketState::Established,
        State::FinWait1 => SocketState::FinWait1,
        State::FinWait2 { .. } => SocketState::FinWait2,
        State::CloseWait => SocketState::CloseWait,
        State::Closing => SocketState::Closing,
        State::LastAck => SocketState::LastAck,
        State::TimeWait | State::Closed => SocketState::Closed,
    }
}

fn stream(connection: &Connection) -> SocketInfo {
    SocketInfo {
        transport: Transport::Tcp,
        local: connection.flow.local(),
        remote: Some(connection.flow.remote()),
        state: state(connection),
        unread: connection.receive_buffer.readable(),
        unsent: connection.send_buffer.len(),
        holder: match connection.owner {
            Owner::HalfOpen(_) | Owner::Queued(_) => Holder::Listener,
            Owner::Application => Holder::Application,
            Owner::Orphan => Holder::Orphan,
        },
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl fmt::Display for SocketState {
    /// Writes the name of the RFC in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Listen => "listen",
            Self::SynSent => "syn-sent",
            Self::SynReceived => "syn-received",
            Self::Established => "established",
            Self::FinWait1 => "fin-wait-1",
            Self::FinWait2 => "fin-wait-2",
            Self::CloseWait => "close-wait",
            Self::Closing => "closing",
            Self::LastAck => "last-ack",
            Self::Closed => "closed",
            Self::Moved => "moved",
            Self::Unconnected => "unconnected",
            Self::Connected => "connected",
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Application => "application",
            Self::Listener => "listener",
            Self::Orphan => "nobody",
        })
    }
}
