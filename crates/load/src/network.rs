//! What generator and servers need of a network: the kernel's ([`Kernel`](crate::Kernel)), or that of another stack.
//!
//! Everything is chosen at compile time, so the hot paths cost what they would with the sockets written into them. Errors
//! are [`io::Error`]s, told apart by their [kinds](io::ErrorKind) as the standard library's sockets have them.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// What a wait tells of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number the socket is watched under.
    pub token: u64,
    /// There is something to read: data, a connection, the end, or an error.
    pub readable: bool,
    /// There is room to write, and that was asked for.
    pub writable: bool,
}

/// What is to be told of a socket; errors always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
    /// Both.
    ReadWrite,
}

/// Whose socket it is: a network with several queues deals sockets to them by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The thread that will use it, from 0.
    pub thread: usize,
    /// How many threads there are.
    pub threads: usize,
    /// The number of the socket, from 1, unique among the threads.
    pub number: usize,
}

/// A network: where sockets come from.
pub trait Network: Clone + Debug + Send + Sync + 'static {
    /// Whether [`Epoll::wait`] ends exactly when its time is up and notices what arrives as fast as spinning with waits of
    /// no time would: then the generator waits until its next request is due, in one call.
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

    /// An epoll instance whose waits give at most `capacity` events, at least 1.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn epoll(&self, capacity: usize) -> io::Result<Self::Epoll>;

    /// Something to end waits with.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn stop(&self) -> io::Result<Self::Stop>;

    /// Connects, which may take `timeout`.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if nobody listens there, `TimedOut`, and what else can be wrong.
    fn connect(&self, target: SocketAddr, timeout: Duration, seat: Seat) -> io::Result<Self::Stream>;

    /// A listener for each of `threads` on one address; port 0 chooses one. Gives the address with its port.
    ///
    /// # Errors
    ///
    /// `AddrInUse`, `AddrNotAvailable` and `PermissionDenied` say what they do of the kernel's sockets.
    fn listen(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Self::Listener>)>;

    /// The next connection.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none, `ConnectionAborted` if one has gone again.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;

    /// As [`Self::listen`], for UDP.
    ///
    /// # Errors
    ///
    /// As [`Self::listen`].
    fn bind(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Self::Datagrams>)>;

    /// A UDP socket on a free port, which sends to `target` and hears it only.
    ///
    /// # Errors
    ///
    /// No route to it, or what the system refuses.
    fn connect_datagrams(&self, target: SocketAddr) -> io::Result<Self::Datagrams>;

    /// Why nobody can be reached any more, where that is known before requests go unanswered for long.
    fn lost(&self) -> Option<io::Error> {
        None
    }
}

/// A socket that can be watched. A closed one is forgotten by who watched it.
pub trait Socket<E>: Debug + Send + 'static {
    /// Starts to watch it, level-triggered.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn watch(&self, epoll: &E, token: u64, interest: Interest) -> io::Result<()>;

    /// Changes what is told of it.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn rewatch(&self, epoll: &E, token: u64, interest: Interest) -> io::Result<()>;
}

/// Waits for sockets.
pub trait Epoll: Debug + Send + 'static {
    /// Waits until there are events or `timeout` has passed (`None`: for ever; zero: looks once); `events` are emptied and
    /// filled. A wait may end early without events.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn wait(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()>;

    /// How long waits were busy without finding anything, so far; the rest of the thread's CPU time was work. `None` where
    /// the network's work is not done by threads that wait.
    fn time_spun(&self) -> Option<Duration>;
}

/// A UDP socket.
pub trait Datagrams {
    /// Sends a datagram to whom the socket is connected.
    ///
    /// # Errors
    ///
    /// `WouldBlock`, and what happened to an earlier one.
    fn send(&self, payload: &[u8]) -> io::Result<usize>;

    /// Receives a datagram; gives its size.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none, and what happened to one that was sent.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a datagram to `peer`.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    fn send_to(&self, payload: &[u8], peer: SocketAddr) -> io::Result<usize>;

    /// Receives a datagram; gives its size and who sent it.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
}

/// Ends the waits of threads, now and for ever.
pub trait Stop<E>: Clone + Send + Sync + 'static {
    /// Every wait on `epoll` ends with an event under `token` as soon as [`Self::raise`] was called.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn watch(&self, epoll: &mut E, token: u64) -> io::Result<()>;

    /// Ends them.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    fn raise(&self) -> io::Result<()>;
}
