//! Why a load did not come to its end.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::http::HttpError;
use crate::memcached::ProtocolError;

/// Why a load ended without a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Nothing listens at the address.
    #[error("nothing listens on {target} (connection refused): start the server first, or give its address and port")]
    Refused {
        /// The server.
        target: SocketAddr,
    },
    /// A connection could not be made.
    #[error("cannot connect to {target} (connection {number}): {source}")]
    Connect {
        /// The server.
        target: SocketAddr,
        /// Which connection, from 1.
        number: usize,
        /// What the system said.
        source: io::Error,
    },
    /// This process may not open so many sockets.
    #[error(
        "only {opened} of {wanted} connections fit in this process's limit of open files: raise it (`ulimit -n`) or ask for fewer"
    )]
    TooManyFiles {
        /// Connections that were opened.
        opened: usize,
        /// Connections that were asked for.
        wanted: usize,
    },
    /// The server closed a connection.
    #[error(
        "{target} closed a connection with {outstanding} requests outstanding: see the server's log for the reason"
    )]
    Closed {
        /// The server.
        target: SocketAddr,
        /// Requests on that connection without an answer.
        outstanding: usize,
    },
    /// A socket failed.
    #[error("the connection to {target} failed: {source}")]
    Socket {
        /// The server.
        target: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server's answer is an error, or no answer of this protocol.
    #[error("{target}: {source}")]
    Protocol {
        /// The server.
        target: SocketAddr,
        /// What it said.
        source: ProtocolError,
    },
    /// A UDP answer of the wrong size.
    #[error(
        "{target} answered with a datagram of {got} bytes where {wanted} were asked for: tell the server the same response size"
    )]
    AnswerSize {
        /// The server.
        target: SocketAddr,
        /// Bytes that came.
        got: usize,
        /// Bytes that were expected.
        wanted: usize,
    },
    /// TCP bytes that answer no request.
    #[error("{target} sent more than was asked for: tell the server the same request and response sizes")]
    Unasked {
        /// The server.
        target: SocketAddr,
    },
    /// The server's answer is none of HTTP's, or no good one.
    #[error("{target}: {source}")]
    Http {
        /// The server.
        target: SocketAddr,
        /// What is wrong with it.
        source: HttpError,
    },
    /// The server stopped answering.
    #[error("{target} stopped answering: {outstanding} requests are outstanding and nothing came for {silent:.1?}")]
    Silent {
        /// The server.
        target: SocketAddr,
        /// Requests without an answer.
        outstanding: usize,
        /// How long nothing came.
        silent: Duration,
    },
    /// The network between here and the server is gone.
    #[error("{target} cannot be reached any more: {source}")]
    Lost {
        /// The server.
        target: SocketAddr,
        /// What is known of it.
        source: io::Error,
    },
    /// The stop flag was raised.
    #[error("the run was stopped before its end")]
    Stopped,
    /// Waiting for sockets failed.
    #[error("cannot wait for sockets (epoll): {0}")]
    Epoll(io::Error),
    /// A thread of the generator could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
