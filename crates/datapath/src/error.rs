//! Errors by operation. Each message is one sentence with the cause and the remedy.

use std::io;
use std::sync::Arc;

use abey_delivery::{SettingsError, StoreError};
use abey_tcpip::{ConfigError, SocketError};

/// A call lacks a resource of the system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// No file descriptor to sleep on.
    #[error("cannot create an eventfd to sleep on: {0}; close files or raise the limit (ulimit -n)")]
    Sleep(#[source] io::Error),
}

/// An error of building a runtime. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No NIC was given.
    #[error("a runtime needs a NIC: set its name with `nic`, or queue pairs with `queues`")]
    NoNic,
    /// The NIC could not be opened.
    #[error(transparent)]
    Nic(#[from] abey_nic::OpenError),
    /// The NIC has no free queue pairs.
    #[error("all queue pairs of the NIC {0} are in use by other programs: stop one of them")]
    NoQueues(String),
    /// A netlink request about an interface failed.
    #[error("cannot read the kernel's settings of {device} by netlink: {source}")]
    Netlink {
        /// The interface.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interface has no usable address.
    #[error("{device} has no usable IP address: add one first (ip addr add ADDRESS/PREFIX dev {device})")]
    NoAddress {
        /// The interface.
        device: String,
    },
    /// The interface is down.
    #[error("{device} is down: bring it up first (ip link set {device} up)")]
    Down {
        /// The interface.
        device: String,
    },
    /// No file descriptor to sleep on.
    #[error(transparent)]
    Sleep(#[from] SystemError),
    /// The number of recorders or CPUs is not that of the queue pairs.
    #[error("there are {given} {what} for {queues} queue pairs: give one for each, or none")]
    Count {
        /// What was given (CPUs, recorders).
        what: &'static str,
        /// Their number.
        given: usize,
        /// The number of queue pairs.
        queues: usize,
    },
    /// An address, the MTU or a limit is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The weight is 0.
    #[error("a NAPI weight of 0 receives no packets: choose 1 to 65535")]
    ZeroWeight,
    /// The number of workers is out of range.
    #[error("{0} workers are not possible: choose 1 to 64")]
    Workers(usize),
    /// The CPU does not exist, or the process may not use it.
    #[error("cannot pin {thread} to CPU {cpu}: choose a CPU on which this process may run")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The thread.
        thread: String,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// An error of changing settings. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// No instance has this ID.
    #[error("this runtime has no NAPI {0}: use one of `Runtime::napi_ids`")]
    NoSuchNapi(u32),
    /// The settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store of settings returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An error of opening a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The TCP/IP stack returned an error.
    #[error(transparent)]
    Stack(#[from] abey_tcpip::OpenError),
    /// No shard has this index.
    #[error("there is no shard {index}: this runtime has {count}, numbered from 0")]
    NoSuchShard {
        /// The index that was given.
        index: usize,
        /// The number of shards.
        count: usize,
    },
    /// The list of addresses is empty.
    #[error("there is no address to listen on")]
    NoAddress,
    /// The queue on which answers will arrive is unknown.
    #[error(
        "the queue on which answers from {0} will arrive is unknown, because this NIC does not report how it steers frames: use one queue pair to connect"
    )]
    NoSteering(std::net::SocketAddr),
    /// Another program uses the port.
    #[error(
        "{} port {port} is in use by another program on this machine: stop it (`ss -anp` shows it) or choose another port", name(*.protocol)
    )]
    PortInUse {
        /// The protocol.
        protocol: abey_nic::Protocol,
        /// The port.
        port: u16,
    },
    /// The kernel has no free port.
    #[error("the kernel has no free port on {device} for another connection: widen net.ipv4.ip_local_port_range")]
    NoKernelPort {
        /// The interface.
        device: String,
    },
    /// The kernel refused to reserve the port.
    #[error("cannot reserve {} port {port} on {device}: {source}", name(*.protocol))]
    Reserve {
        /// The protocol.
        protocol: abey_nic::Protocol,
        /// The port; 0 for any.
        port: u16,
        /// The interface.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The XDP program could not redirect the port.
    #[error(transparent)]
    Redirect(#[from] abey_nic::PortsError),
    /// The connection failed.
    #[error(transparent)]
    Network(#[from] SocketError),
    /// The timeout of the connection expired.
    #[error("the connection was not established before the timeout")]
    TimedOut,
    /// The link went down.
    #[error("the link of {device} went down: start the peer again")]
    LinkDown {
        /// The device.
        device: String,
    },
    /// The runtime was dropped.
    #[error("the runtime was dropped before this socket: keep it as long as its sockets")]
    RuntimeDropped,
    /// The device failed.
    #[error("the NIC has failed: {0}")]
    Nic(Arc<str>),
    /// A call lacks a resource of the system.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Returns the standard library's kind of a connection's error.
fn kind_of(error: &SocketError) -> io::ErrorKind {
    match error {
        SocketError::Refused => io::ErrorKind::ConnectionRefused,
        SocketError::Reset => io::ErrorKind::ConnectionReset,
        SocketError::TimedOut => io::ErrorKind::TimedOut,
        SocketError::HostUnreachable => io::ErrorKind::HostUnreachable,
        SocketError::NetworkUnreachable => io::ErrorKind::NetworkUnreachable,
        _ => io::ErrorKind::Other,
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        use abey_tcpip::OpenError as Stack;
        let kind = match &error {
            OpenError::Network(error) => kind_of(error),
            OpenError::TimedOut => io::ErrorKind::TimedOut,
            OpenError::Stack(Stack::AddressInUse(_)) | OpenError::PortInUse { .. } => io::ErrorKind::AddrInUse,
            OpenError::Stack(Stack::AddressNotAvailable(_)) => io::ErrorKind::AddrNotAvailable,
            OpenError::Stack(Stack::NoRoute(_)) => io::ErrorKind::HostUnreachable,
            OpenError::LinkDown { .. } => io::ErrorKind::NetworkDown,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// An error of a call on a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The TCP/IP stack returned an error.
    #[error(transparent)]
    Socket(#[from] abey_tcpip::IoError),
    /// The timeout of a blocking call expired.
    #[error("the call took longer than the socket's timeout")]
    TimedOut,
    /// A signal came. No call of this crate returns it; it is for callers that wait by
    /// [`Runtime::wait_any`](crate::Runtime::wait_any).
    #[error("a signal ended the call")]
    Interrupted,
    /// The runtime was dropped.
    #[error("the runtime was dropped before this socket: keep it as long as its sockets")]
    RuntimeDropped,
    /// The device failed.
    #[error("the NIC has failed: {0}")]
    Nic(Arc<str>),
    /// A call lacks a resource of the system.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl Error {
    /// Returns whether a non-blocking call would have had to wait.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Socket(abey_tcpip::IoError::WouldBlock))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use abey_tcpip::IoError;
        let kind = match &error {
            Error::Socket(IoError::WouldBlock) => io::ErrorKind::WouldBlock,
            Error::Socket(IoError::NotConnected) => io::ErrorKind::NotConnected,
            Error::Socket(IoError::BrokenPipe) => io::ErrorKind::BrokenPipe,
            Error::Socket(IoError::Network(error)) => kind_of(error),
            Error::Socket(IoError::NoRoute(_)) => io::ErrorKind::HostUnreachable,
            Error::TimedOut => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// An error of a call on an epoll.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpollError {
    /// The socket is in the epoll.
    #[error("the socket is in this epoll already: use `modify`")]
    AlreadyAdded,
    /// The socket is not in the epoll.
    #[error("the socket is not in this epoll: use `add`")]
    NotAdded,
    /// The socket belongs to another runtime.
    #[error("the socket belongs to another runtime than this epoll: use an epoll of its own runtime")]
    OtherRuntime,
    /// The combination of flags is invalid, as in Linux.
    #[error("an exclusive socket cannot be modified or one-shot: remove it and add it again")]
    Exclusive,
    /// The most events of a wait is 0.
    #[error("a wait for at most 0 events is not possible: choose 1 or more")]
    NoRoom,
    /// The settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The runtime was dropped.
    #[error("the runtime was dropped before this epoll: keep it as long as its epolls")]
    RuntimeDropped,
    /// A call lacks a resource of the system.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Returns the name of a protocol.
fn name(protocol: abey_nic::Protocol) -> &'static str {
    match protocol {
        abey_nic::Protocol::Tcp => "TCP",
        abey_nic::Protocol::Udp => "UDP",
    }
}
