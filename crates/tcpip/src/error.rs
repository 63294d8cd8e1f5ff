//! What can go wrong, by operation.

use core::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// What happened to a connection or a UDP socket on the network; kept until `take_error`, `read` or `write` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer answered with a reset: nobody listens there.
    #[error("the peer refused the connection: nobody listens on that port")]
    Refused,
    /// The peer reset an established connection.
    #[error("the peer reset the connection")]
    Reset,
    /// Too many retransmissions or keep-alive probes went unanswered.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// A router or the host said that it cannot be reached.
    #[error("the peer's host cannot be reached")]
    HostUnreachable,
    /// A router said that its network cannot be reached.
    #[error("the peer's network cannot be reached")]
    NetworkUnreachable,
    /// A datagram was larger than the path allows.
    #[error("a datagram was longer than the path allows")]
    MessageTooLong,
}

/// Why a socket was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Someone has the address already.
    #[error("{0} is taken by another socket of this stack")]
    AddressInUse(SocketAddr),
    /// Not one of the host's addresses.
    #[error("{0} is not an address of this host")]
    AddressNotAvailable(IpAddr),
    /// No route leads there.
    #[error("no route leads to {0}: it is on no prefix of this host, and there is no gateway")]
    NoRoute(IpAddr),
    /// An address to which no connection can be made.
    #[error("no connection can be made to {0}: it is unspecified, multicast or broadcast, or port 0")]
    BadDestination(SocketAddr),
    /// Every ephemeral port is taken, or refused by the caller's filter.
    #[error("no local port is free for a connection to {0}")]
    NoPort(SocketAddr),
    /// The stack's limit of sockets.
    #[error("the stack's limit of {0} sockets is reached")]
    TooManySockets(usize),
}

/// Why a socket did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IoError {
    /// The id names no socket: it was closed.
    #[error("the socket is gone")]
    NoSuchSocket,
    /// The operation is not one of this kind of socket.
    #[error("this kind of socket cannot do that")]
    WrongKind,
    /// Nothing to read, no room to write, no connection to accept.
    #[error("the operation would block")]
    WouldBlock,
    /// The connection is not established (yet), or a datagram has no destination.
    #[error("the socket is not connected")]
    NotConnected,
    /// This direction was shut down.
    #[error("the socket was shut down for writing")]
    BrokenPipe,
    /// A datagram that no single packet holds.
    #[error("the datagram is longer than a packet on this path can be ({0} bytes)")]
    MessageTooLong(usize),
    /// A datagram to where no route leads.
    #[error("no route leads to {0}")]
    NoRoute(IpAddr),
    /// A UDP socket was shut down for reading, and everything was received.
    #[error("the socket was shut down for reading")]
    Ended,
    /// Another socket of this stack has the address.
    #[error("{0} is taken by another socket of this stack")]
    AddressInUse(SocketAddr),
    /// What happened on the network.
    #[error(transparent)]
    Network(#[from] SocketError),
}
