//! Small epoll servers as targets of a load: [`kv`] speaks memcached's text protocol, [`rr`] answers requests of a fixed
//! size.
//!
//! They are ordinary level-triggered epoll servers without any support of delivery modes. Over the
//! [`Kernel`](crate::Kernel) they call `epoll_create1` and `epoll_wait` of the C library, so that a preloaded library
//! interposes them, and an idle thread blocks in `epoll_wait(-1)`. Each thread has a listener (SO_REUSEPORT if there are
//! several) and an epoll instance of its own.

pub mod kv;
pub mod rr;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::network::{Interest, Network, Socket, Stop};

/// Events that one `epoll_wait` takes.
const EVENTS: usize = 128;
/// The tokens of the stop and of the listener (or UDP socket).
const STOP: u64 = 0;
const LISTENER: u64 = 1;

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is in use.
    #[error("{listen} is in use by another program: choose another port, or stop that program")]
    PortInUse {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// The address belongs to no interface of this machine (or network namespace).
    #[error("{listen} is not an address of this machine: use one that `ip address` shows, or 0.0.0.0 for all")]
    NoSuchAddress {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// Ports below 1024 need a capability.
    #[error("no permission to listen on {listen}: use a port above 1023, or run as root")]
    NotPermitted {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// Another error of listening.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Where to listen.
        listen: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The number of threads is out of range.
    #[error("{0} threads are out of range: a server can have 1 to 1024")]
    Threads(usize),
    /// The sizes of `rr` are out of range.
    #[error(transparent)]
    Sizes(#[from] crate::config::ConfigError),
    /// A thread or its epoll instance failed.
    #[error("the server failed: {0}")]
    Failed(#[from] io::Error),
}

/// Where a server listens and how many threads it has.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Address and port; port 0 takes a free one ([`Server::local_addr`]).
    pub address: SocketAddr,
    /// Threads, each with its own listener and epoll instance.
    pub threads: usize,
}

/// A running server. Dropping it, like [`Server::stop`], ends its threads and closes its connections.
pub struct Server {
    address: SocketAddr,
    raise_stop: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    threads: Vec<Thread>,
}

struct Thread {
    handle: Option<JoinHandle<Result<(), ServeError>>>,
    answered: Arc<AtomicU64>,
}

/// The state of a server thread.
struct Worker<N: Network, S> {
    network: N,
    /// The listener or UDP socket.
    socket: S,
    stop: N::Stop,
    /// Requests answered; only this thread writes it.
    answered: Arc<AtomicU64>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of requests answered so far.
    pub fn answered(&self) -> u64 {
        self.threads.iter().map(|thread| thread.answered.load(Ordering::Relaxed)).sum()
    }

    /// Ends the server, waits for its threads, and returns how many requests it has answered.
    ///
    /// # Errors
    ///
    /// [`ServeError::Failed`] if a thread had failed before.
    pub fn stop(mut self) -> Result<u64, ServeError> {
        self.end().map(|()| self.answered())
    }

    fn end(&mut self) -> Result<(), ServeError> {
        (self.raise_stop)()?;
        let mut result = Ok(());
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            result = result.and(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    }

    /// Opens a socket per thread with `open` and starts the threads; `work` returns what each runs.
    fn start<N: Network, S: Send + 'static, W>(
        network: &N,
        listen: Listen,
        open: impl FnOnce(&N, SocketAddr, usize) -> io::Result<(SocketAddr, Vec<S>)>,
        mut work: impl FnMut() -> W,
    ) -> Result<Self, ServeError>
    where
        W: FnOnce(Worker<N, S>) -> Result<(), ServeError> + Send + 'static,
    {
        if !(1..=1024).contains(&listen.threads) {
            return Err(ServeError::Threads(listen.threads));
        }
        let failed = |source| listen_error(listen.address, source);
        let (address, sockets) = open(network, listen.address, listen.threads).map_err(failed)?;
        let stop = network.stop()?;
        let raise_stop = Box::new({
            let stop = stop.clone();
            move || stop.raise()
        });
        let mut server = Self { address, raise_stop, threads: Vec::new() };
        for (number, socket) in sockets.into_iter().enumerate() {
            let answered = Arc::<AtomicU64>::default();
            let worker =
                Worker { network: network.clone(), socket, stop: stop.clone(), answered: Arc::clone(&answered) };
            let work = work();
            let builder = std::thread::Builder::new().name(format!("serve-{number}"));
            let handle = Some(builder.spawn(move || work(worker))?);
            server.threads.push(Thread { handle, answered });
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failure without a call of `stop` is not reported.
        let _ = self.end();
    }
}

fn listen_error(listen: SocketAddr, source: io::Error) -> ServeError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::PortInUse { listen },
        io::ErrorKind::AddrNotAvailable => ServeError::NoSuchAddress { listen },
        io::ErrorKind::PermissionDenied => ServeError::NotPermitted { listen },
        _ => ServeError::Listen { listen, source },
    }
}

impl<N: Network, S: Socket<N::Epoll>> Worker<N, S> {
    /// Returns an epoll instance with the stop and the socket.
    fn epoll(&self) -> io::Result<N::Epoll> {
        let mut epoll = self.network.epoll(EVENTS)?;
        self.stop.watch(&mut epoll, STOP)?;
        self.socket.watch(&epoll, LISTENER, Interest::Read)?;
        Ok(epoll)
    }

    /// Counts answered requests.
    fn count(&self, requests: u64) {
        self.answered.store(self.answered.load(Ordering::Relaxed) + requests, Ordering::Relaxed);
    }
}
