//! What can go wrong, by operation. Each message is one sentence that says what to do.

use std::io;
use std::sync::Arc;

use abey_delivery::{NapiId, SettingsError, StoreError};
use abey_tcpip::{ConfigError, SocketError};

/// The system refused something a call needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// No descriptor to sleep on.
    #[error("cannot create an eventfd to sleep on: {0}; are too many files open (ulimit -n)?")]
    Sleep(#[source] io::Error),
}

/// Why a runtime was not built. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No NIC was given.
    #[error("a runtime needs a NIC: give its name with `nic`, or queue pairs with `queues`")]
    NoNic,
    /// The NIC could not be opened.
    #[error(transparent)]
    Nic(#[from] abey_nic::OpenError),
    /// A NIC without queues.
    #[error("the NIC {0} has no queue pairs left: they were taken by somebody else")]
    NoQueues(String),
    /// The kernel does not say what it knows of an interface.
    #[error("cannot ask the kernel (by netlink) about {device}: {source}")]
    AskKernel {
        /// The interface.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// An interface without an address.
    #[error("{device} has no IP address that is ready: give it one first (ip addr add ADDRESS/PREFIX dev {device})")]
    NoAddress {
        /// The interface.
        device: String,
    },
    /// An interface that is down.
    #[error("{device} is down: bring it up first (ip link set {device} up)")]
    Down {
        /// The interface.
        device: String,
    },
    /// No descriptor to sleep on.
    #[error(transparent)]
    Sleep(#[from] SystemError),
    /// Recorders, CPUs and queues must match.
    #[error("there are {given} {what} for {queues} queue pairs: give one for each, or none")]
    Count {
        /// What was given.
        what: &'static str,
        /// How many.
        given: usize,
        /// How many queue pairs there are.
        queues: usize,
    },
    /// The address, the MTU or a limit cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings make no sense together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A weight of 0.
    #[error("a weight of 0 polls nothing: choose 1 to 65535 packets")]
    ZeroWeight,
    /// No worker.
    #[error("a pool of {0} workers: choose 1 to 64")]
    Workers(usize),
    /// A CPU that is not there.
    #[error("there is no CPU {cpu} to pin {thread} to: choose one that this process may run on")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The thread.
        thread: String,
    },
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why settings were not changed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// No instance has that ID.
    #[error("this runtime has no NAPI {0}: `Runtime::napi_ids` lists those it has")]
    NoSuchNapi(u32),
    /// The settings make no sense together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a socket was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The stack refused.
    #[error(transparent)]
    Stack(#[from] abey_tcpip::OpenError),
    /// There is no such shard.
    #[error("there is no shard {index}: this runtime has {count}, numbered from 0")]
    NoSuchShard {
        /// The shard asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// An empty list of addresses.
    #[error("there is no address to listen on")]
    NoAddress,
    /// Nobody knows where the answers will arrive.
    #[error(
        "cannot tell on which queue the answers from {0} would arrive: this NIC does not say how it steers frames; use it with one queue pair to connect"
    )]
    NoSteering(std::net::SocketAddr),
    /// A port that is another program's.
    #[error(
        "{} port {port} is in use by another program on this machine: stop it (`ss -anp` shows it) or choose another port", name(*.protocol)
    )]
    PortInUse {
        /// The protocol.
        protocol: abey_nic::Protocol,
        /// The port.
        port: u16,
    },
    /// The kernel has no port left.
    #[error("the kernel has no free port on {device} for another connection (net.ipv4.ip_local_port_range)")]
    NoKernelPort {
        /// The interface.
        device: String,
    },
    /// A port could not be reserved.
    #[error("cannot reserve {} port {port} on {device}: {source}", name(*.protocol))]
    Reserve {
        /// The protocol.
        protocol: abey_nic::Protocol,
        /// The port; 0: any.
        port: u16,
        /// The interface.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A port could not be redirected.
    #[error(transparent)]
    Redirect(#[from] abey_nic::PortsError),
    /// The connection failed.
    #[error(transparent)]
    Network(#[from] SocketError),
    /// The connection was not made in the time that was given.
    #[error("the connection was not established in time")]
    TimedOut,
    /// Who was at the other end of the wire has gone.
    #[error("the link of {device} went down: nobody is at its other end any more")]
    LinkDown {
        /// The device.
        device: String,
    },
    /// The runtime is gone.
    #[error("the runtime is gone: keep it as long as its sockets")]
    RuntimeGone,
    /// The device failed.
    #[error("the NIC has failed: {0}")]
    Nic(Arc<str>),
    /// The system refused something.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// What the standard library calls that which befell a connection.
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

/// Why a socket did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the stack said.
    #[error(transparent)]
    Socket(#[from] abey_tcpip::IoError),
    /// A blocking call's time is over.
    #[error("the call took longer than the socket's timeout")]
    TimedOut,
    /// A signal came. Calls of this crate's own do not end by one: this is for callers that wait by
    /// [`Runtime::wait_any`](crate::Runtime::wait_any).
    #[error("a signal ended the call")]
    Interrupted,
    /// The runtime is gone.
    #[error("the runtime is gone: keep it as long as its sockets")]
    RuntimeGone,
    /// The device failed.
    #[error("the NIC has failed: {0}")]
    Nic(Arc<str>),
    /// The system refused something.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl Error {
    /// Whether a non-blocking call would have to wait.
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

/// Why an epoll did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpollError {
    /// Added twice.
    #[error("the socket is in this epoll already: use `modify`")]
    AlreadyAdded,
    /// Not added.
    #[error("the socket is not in this epoll: use `add`")]
    NotAdded,
    /// Of another runtime.
    #[error("the socket is of another runtime than this epoll: make an epoll of its own runtime for it")]
    OtherRuntime,
    /// What Linux refuses too.
    #[error("an exclusive socket cannot be modified or one-shot: remove it and add it again")]
    Exclusive,
    /// No room for events.
    #[error("a wait for at most 0 events waits for nothing: choose 1 or more")]
    NoRoom,
    /// The settings make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The runtime is gone.
    #[error("the runtime is gone: keep it as long as its epolls")]
    RuntimeGone,
    /// The system refused something.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Words for the ID of an instance in messages and accessors.
pub(crate) fn number(id: NapiId) -> u32 {
    id.get()
}

/// The name of a protocol.
fn name(protocol: abey_nic::Protocol) -> &'static str {
    match protocol {
        abey_nic::Protocol::Tcp => "TCP",
        abey_nic::Protocol::Udp => "UDP",
    }
}
