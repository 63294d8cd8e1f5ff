//! Errors of sockets, by operation.

use core::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// Network error of a connection or a UDP socket. It is stored until `take_error`, `read` or `write` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer answered with a reset, or the port is unreachable: no socket listens there.
    #[error("the peer refused the connection: no socket listens on that port")]
    Refused,
    /// The peer reset an established connection.
    #[error("the peer reset the connection")]
    Reset,
    /// Too many retransmissions or keep-alive probes went unanswered.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// A router or the peer's host reported the host as unreachable, or address resolution failed.
    #[error("the peer's host cannot be reached")]
    HostUnreachable,
    /// A router reported the network as unreachable.
    #[error("the peer's network cannot be reached")]
    NetworkUnreachable,
    /// A datagram was longer than the path MTU.
    #[error("a datagram was longer than the path allows")]
    MessageTooLong,
}

/// Reason why a socket could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another socket has the address.
    #[error("{0} is in use by another socket of this stack")]
    AddressInUse(SocketAddr),
    /// The address is not one of the host's.
    #[error("{0} is not an address of this host")]
    AddressNotAvailable(IpAddr),
    /// There is no route to the address.
    #[error("no route to {0}: it is on no prefix of this host, and there is no gateway")]
    NoRoute(IpAddr),
    /// No connection can be made to the address.
    #[error(
        "cannot connect to {0}: the address is unspecified, multicast, broadcast or this host's own, or the port is 0"
    )]
    BadDestination(SocketAddr),
    /// Every ephemeral port is in use or was rejected by the caller's filter.
    #[error("no local port is free for a connection to {0}")]
    NoPort(SocketAddr),
    /// The stack has as many sockets as its settings allow.
    #[error("the stack's limit of {0} sockets is reached")]
    TooManySockets(usize),
}

/// Reason why an operation on a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IoError {
    /// The id is stale: the socket was closed.
    #[error("the socket was closed")]
    NoSuchSocket,
    /// The operation does not exist for this kind of socket.
    #[error("the operation is not supported by this kind of socket")]
    WrongKind,
    /// There is nothing to read, no room to write or no connection to accept.
    #[error("the operation would block")]
    WouldBlock,
    /// The connection is not established, or the datagram has no destination.
    #[error("the socket is not connected")]
    NotConnected,
    /// The socket was shut down for writing.
    #[error("the socket was shut down for writing")]
    BrokenPipe,
    /// The datagram does not fit into one packet. The value is the longest payload in bytes.
    #[error("the datagram is too long: at most {0} bytes fit into one packet")]
    MessageTooLong(usize),
    /// There is no route to the destination, or the source address is not the host's.
    #[error("no route to {0}")]
    NoRoute(IpAddr),
    /// The UDP socket was shut down for reading, and every datagram was received.
    #[error("the socket was shut down for reading")]
    Ended,
    /// Another socket has the address.
    #[error("{0} is in use by another socket of this stack")]
    AddressInUse(SocketAddr),
    /// The connection was moved to another owner ([`Stack::export`](crate::Stack::export)), where the operation is to be
    /// repeated.
    #[error("the connection was handed over")]
    Moved,
    /// A network error that occurred earlier.
    #[error(transparent)]
    Network(#[from] SocketError),
}

/// Reason why a connection cannot move to another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The handshake is not over. The caller tries again when the connection is established or has failed.
    #[error("the connection is not established yet")]
    NotEstablished,
    /// The connection has ended: only unread data is left.
    #[error("the connection has ended")]
    Ended,
    /// The id is stale or not a connection, or the connection was moved already.
    #[error(transparent)]
    Socket(#[from] IoError),
}
