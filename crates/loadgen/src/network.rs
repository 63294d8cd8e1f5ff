//! The network that the generator and the servers use: the kernel's ([`Kernel`](crate::Kernel)), or that of another stack.
//!
//! Everything is chosen at compile time, so the hot paths cost what they would with the sockets written into them. Errors
//! are [`io::Error`]s with the [kinds](io::ErrorKind) that the standard library's sockets use.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// An event of one socket, as a wait reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token under which the socket is registered.
    pub token: u64,
    /// The socket can be read: data, a connection, the end, or an error.
    pub readable: bool,
    /// The socket can be written, and the interest includes that.
    pub writable: bool,
}

/// The conditions to report of a socket; errors are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable.
    Read,
    /// Writable.
    Write,
    /// Both.
    ReadWrite,
}

/// The user of a socket, by which a network with several queues distributes its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The thread that uses the socket, from 0.
    pub thread: usize,
    /// Number of threads.
    pub threads: usize,
    /// The number of the socket, from 1, unique among the threads.
    pub number: usize,
}

/// A network, which makes sockets.
pub trait Network: Clone + Debug + Send + Sync + 'static {
    /// Whether [`Epoll::wait`] ends exactly at its timeout, and notices arrivals as fast as repeated waits with timeout zero
    /// would. The generator then waits until its next request is due in one call.
    const PUNCTUAL: bool;

    /// An epoll instance.
    type Epoll: Epoll;
    /// A TCP connection: non-blocking, without Nagle's algorithm.
    type Stream: Socket<Self::Epoll> + Read + Write;
    /// A non-blocking TCP listener.
    type Listener: Socket<Self::Epoll>;
    /// A non-blocking UDP socket.
    type Datagrams: Datagrams + Socket<Self::Epoll>;
    /// Ends the waits of a server's threads.
    type Stop: Stop<Self::Epoll>;

    /// Returns an epoll instance whose waits return at most `capacity` events, at least 1.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn epoll(&self, capacity: usize) -> io::Result<Self::Epoll>;

    /// Returns a value that ends waits.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn stop(&self) -> io::Result<Self::Stop>;

    /// Connects within `timeout`.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if nothing listens there, `TimedOut`, and other errors of the system.
    fn connect(&self, target: SocketAddr, timeout: Duration, seat: Seat) -> io::Result<Self::Stream>;

    /// Returns a listener for each of `threads` on one address, and the address. Port 0 chooses a free port.
    ///
    /// # Errors
    ///
    /// `AddrInUse`, `AddrNotAvailable` and `PermissionDenied`, with the meaning that they have for the kernel's sockets.
    fn listen(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Self::Listener>)>;

    /// Accepts the next connection.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none, `ConnectionAborted` if the connection was closed before it was accepted.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;

    /// Returns a UDP socket for each of `threads`, as [`Self::listen`] does.
    ///
    /// # Errors
    ///
    /// As [`Self::listen`].
    fn bind(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Self::Datagrams>)>;

    /// Returns a UDP socket on a free port, connected to `target`.
    ///
    /// # Errors
    ///
    /// No route to the target, or another error of the system.
    fn connect_datagrams(&self, target: SocketAddr) -> io::Result<Self::Datagrams>;

    /// Returns an error if it is known that no peer can be reached any more, before requests time out.
    fn lost(&self) -> Option<io::Error> {
        None
    }
}

/// A socket that can be registered with an epoll instance. Closing it removes it.
pub trait Socket<E>: Debug + Send + 'static {
    /// Registers the socket, level-triggered.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn watch(&self, epoll: &E, token: u64, interest: Interest) -> io::Result<()>;

    /// Changes the interest.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn rewatch(&self, epoll: &E, token: u64, interest: Interest) -> io::Result<()>;
}

/// An epoll instance.
pub trait Epoll: Debug + Send + 'static {
    /// Waits until there are events or `timeout` has passed (`None`: without a timeout; zero: polls once), and
    /// replaces the contents of `events`. A wait may end early without events.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn wait(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()>;

    /// Returns how long waits have been busy without finding anything; the rest of the thread's CPU time was work. Returns
    /// `None` if other threads than the waiting ones do the network's work.
    fn time_spun(&self) -> Option<Duration>;
}

/// A UDP socket.
pub trait Datagrams {
    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    ///
    /// `WouldBlock`, and the error of an earlier datagram.
    fn send(&self, payload: &[u8]) -> io::Result<usize>;

    /// Receives a datagram, and returns its size.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none, and the error of a datagram that was sent.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a datagram to `peer`.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    fn send_to(&self, payload: &[u8], peer: SocketAddr) -> io::Result<usize>;

    /// Receives a datagram, and returns its size and sender.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
}

/// Ends the waits of threads permanently.
pub trait Stop<E>: Clone + Send + Sync + 'static {
    /// Registers with `epoll`: every wait ends with an event of `token` once [`Self::raise`] was called.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn watch(&self, epoll: &mut E, token: u64) -> io::Result<()>;

    /// Ends all waits, now and later.
    ///
    /// # Errors
    ///
    /// An error of the system.
    fn raise(&self) -> io::Result<()>;
}
