//! Which sockets there are, for whoever asks what a host does.

use core::{fmt, net::SocketAddr};

use super::{Socket, Stack};
use crate::tcp::connection::{Connection, Owner, State};

/// A socket, looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// TCP or UDP.
    pub transport: Transport,
    /// Its own end.
    pub local: SocketAddr,
    /// The other end, if it has one.
    pub remote: Option<SocketAddr>,
    /// Its state.
    pub state: SocketState,
    /// Bytes that the application has not read; of a listener, connections that it has not accepted.
    pub unread: usize,
    /// Bytes that the other end has not acknowledged, or that have not left; of a listener, the longest queue it may have.
    pub unsent: usize,
    /// Who has it.
    pub holder: Holder,
}

/// What carries a socket's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Transport {
    Tcp,
    Udp,
}

/// The states of RFC 9293, 3.3.2, but for those without a socket; and a UDP socket's.
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
    /// A UDP socket that hears anybody.
    Unconnected,
    /// A UDP socket that hears one peer.
    Connected,
}

/// Who has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The application.
    Application,
    /// A listener: it is half open, or nobody has accepted it.
    Listener,
    /// Nobody: the application closed it, and it finishes alone.
    Nobody,
}

impl Stack {
    /// The sockets, the oldest first as long as none was closed; connections in TIME-WAIT are none any more.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = SocketInfo> + '_ {
        self.sockets.values().map(|entry| info(&entry.socket))
    }
}

fn info(socket: &Socket) -> SocketInfo {
    match socket {
        Socket::Listener(listener) => SocketInfo {
            transport: Transport::Tcp,
            local: listener.local,
            remote: None,
            state: SocketState::Listen,
            unread: listener.queue.len(),
            unsent: listener.backlog,
            holder: Holder::Application,
        },
        Socket::Stream(connection) => stream(connection),
        Socket::Datagram(socket) => SocketInfo {
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

fn stream(connection: &Connection) -> SocketInfo {
    let state = match connection.state {
        State::SynSent => SocketState::SynSent,
        State::SynReceived { .. } => SocketState::SynReceived,
        State::Established => SocketState::Established,
        State::FinWait1 => SocketState::FinWait1,
        State::FinWait2 { .. } => SocketState::FinWait2,
        State::CloseWait => SocketState::CloseWait,
        State::Closing => SocketState::Closing,
        State::LastAck => SocketState::LastAck,
        State::TimeWait | State::Closed => SocketState::Closed,
    };
    SocketInfo {
        transport: Transport::Tcp,
        local: connection.flow.local(),
        remote: Some(connection.flow.remote()),
        state,
        unread: connection.inbox.readable(),
        unsent: connection.outbox.len(),
        holder: match connection.owner {
            Owner::HalfOpen(_) | Owner::Queued(_) => Holder::Listener,
            Owner::Application => Holder::Application,
            Owner::Nobody => Holder::Nobody,
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
    /// As the RFC writes them, in lower case.
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
            Self::Nobody => "nobody",
        })
    }
}
