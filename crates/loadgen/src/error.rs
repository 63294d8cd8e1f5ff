//! Errors that end a load without a report.

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
        /// The system's error.
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
        /// The system's error.
        source: io::Error,
    },
    /// The server's answer is an error, or not one of the protocol.
    #[error("{target}: {source}")]
    Protocol {
        /// The server.
        target: SocketAddr,
        /// The answer.
        source: ProtocolError,
    },
    /// A UDP answer of the wrong size.
    #[error(
        "{target} answered with a datagram of {got} bytes where {wanted} were asked for: tell the server the same response size"
    )]
    AnswerSize {
        /// The server.
        target: SocketAddr,
        /// Bytes received.
        got: usize,
        /// Bytes expected.
        wanted: usize,
    },
    /// TCP bytes that answer no request.
    #[error("{target} sent more than was asked for: tell the server the same request and response sizes")]
    Unasked {
        /// The server.
        target: SocketAddr,
    },
    /// The HTTP answer is invalid, or an error.
    #[error("{target}: {source}")]
    Http {
        /// The server.
        target: SocketAddr,
        /// The HTTP error.
        source: HttpError,
    },
    /// The server stopped answering.
    #[error("{target} stopped answering: {outstanding} requests are outstanding, without an answer for {silent:.1?}")]
    Silent {
        /// The server.
        target: SocketAddr,
        /// Requests without an answer.
        outstanding: usize,
        /// How long there was no answer.
        silent: Duration,
    },
    /// The network to the server is lost.
    #[error("{target} cannot be reached any more: {source}")]
    Lost {
        /// The server.
        target: SocketAddr,
        /// The network's error.
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
