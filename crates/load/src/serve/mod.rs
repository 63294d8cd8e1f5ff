//! Small epoll servers to point a load at: [`kv`] speaks memcached's text protocol, [`rr`] answers requests of a fixed
//! size.
//!
//! They are ordinary level-triggered epoll servers that know nothing of delivery modes: `epoll_create1` and
//! `epoll_wait` are called through the C library, so that a preloaded library sees them, and an idle thread blocks in
//! `epoll_wait(-1)`. Each thread has a listener (SO_REUSEPORT if there are several) and an epoll instance of its own.

pub mod kv;
pub mod rr;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{Domain, Protocol, Socket, Type};

/// Events that one `epoll_wait` takes.
const EVENTS: usize = 128;
/// The epoll data of the descriptor that ends the server, and of the listener (or UDP socket).
const STOP: u64 = 0;
const LISTENER: u64 = 1;

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Something else has the port.
    #[error("{listen} is in use by another program: choose another port, or stop that program")]
    PortInUse {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// The address belongs to no interface of this machine (or network namespace).
    #[error("{listen} is no address of this machine: use one that `ip address` shows, or 0.0.0.0 for all")]
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
    /// Listening failed otherwise.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Where to listen.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A server without threads, or with more than can be meant.
    #[error("{0} threads are out of range: a server can have 1 to 1024")]
    Threads(usize),
    /// The sizes of `rr` are out of range.
    #[error(transparent)]
    Sizes(#[from] crate::config::ConfigError),
    /// A thread or its epoll instance failed.
    #[error("the server failed: {0}")]
    Failed(#[from] io::Error),
}

impl From<Errno> for ServeError {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.into())
    }
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
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<EventFd>,
    threads: Vec<JoinHandle<Result<(), ServeError>>>,
}

impl Server {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server and waits for its threads.
    ///
    /// # Errors
    ///
    /// [`ServeError::Failed`] if a thread had failed before.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServeError> {
        self.stop.write(1)?;
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            result = result.and(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    }

    /// Opens a socket per thread and starts the threads; `work` is given each thread's.
    fn start<S: Send + 'static>(
        listen: Listen,
        kind: Type,
        wrap: impl Fn(Socket) -> S,
        mut work: impl FnMut() -> Box<dyn FnOnce(S, &EventFd) -> Result<(), ServeError> + Send>,
    ) -> Result<Self, ServeError> {
        if !(1..=1024).contains(&listen.threads) {
            return Err(ServeError::Threads(listen.threads));
        }
        let (address, sockets) = sockets(listen, kind)?;
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let mut server = Self { address, stop, threads: Vec::new() };
        for (number, socket) in sockets.into_iter().enumerate() {
            let (stop, socket, work) = (Arc::clone(&server.stop), wrap(socket), work());
            let builder = std::thread::Builder::new().name(format!("serve-{number}"));
            server.threads.push(builder.spawn(move || work(socket, &stop))?);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failure that nobody asked about: `stop` is the way to ask.
        let _ = self.end();
    }
}

/// One bound socket per thread, all on one port.
fn sockets(listen: Listen, kind: Type) -> Result<(SocketAddr, Vec<Socket>), ServeError> {
    let failed = |source| listen_error(listen.address, source);
    // The first socket does not share its port, so that a port in use is noticed even if its owner would share.
    let first = bound(listen.address, kind, false).map_err(failed)?;
    let address = first.local_addr().map_err(failed)?.as_socket().expect("an internet address");
    if listen.threads == 1 {
        return Ok((address, vec![first]));
    }
    drop(first);
    let shared = (0..listen.threads).map(|_| bound(address, kind, true));
    Ok((address, shared.collect::<io::Result<_>>().map_err(failed)?))
}

fn bound(address: SocketAddr, kind: Type, shared: bool) -> io::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), Some(protocol))?;
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?; // connections of the server before it may still be in TIME_WAIT
    }
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    if kind == Type::STREAM {
        socket.listen(1024)?;
    }
    Ok(socket)
}

fn listen_error(listen: SocketAddr, source: io::Error) -> ServeError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::PortInUse { listen },
        io::ErrorKind::AddrNotAvailable => ServeError::NoSuchAddress { listen },
        io::ErrorKind::PermissionDenied => ServeError::NotPermitted { listen },
        _ => ServeError::Listen { listen, source },
    }
}

/// An epoll instance that watches `stop` and `listener`.
fn epoll_with(stop: &EventFd, listener: impl AsFd) -> nix::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(stop, EpollEvent::new(EpollFlags::EPOLLIN, STOP))?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    Ok(epoll)
}

/// Blocks until there are events.
fn wait<'a>(epoll: &Epoll, events: &'a mut [EpollEvent]) -> nix::Result<&'a [EpollEvent]> {
    loop {
        match epoll.wait(events, EpollTimeout::NONE) {
            Ok(count) => return Ok(&events[..count]),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}
