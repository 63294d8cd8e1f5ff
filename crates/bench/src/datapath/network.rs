//! The network of `abey-loadgen` over a runtime of `abey-datapath`.
//!
//! The shards are distributed over the server threads, each with its own listeners. The connections of a generator's thread
//! are distributed round-robin over the shards of the thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abey_datapath::{Error, LinkState, OpenError, Runtime, TcpListener, TcpStream, UdpSocket, Waker};
use abey_loadgen::network::{self, Event, Interest, Network, Seat, Socket};

/// The network of a runtime. Clones share the runtime, which ends when its last clone and its last socket are dropped.
#[derive(Clone, Debug)]
pub struct Datapath(Arc<Runtime>);

impl Datapath {
    /// Creates the network of a runtime.
    pub fn new(runtime: Runtime) -> Self {
        Self(Arc::new(runtime))
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.0
    }

    /// Returns the shards of a thread: several if there are more shards than threads, otherwise one, which threads may share.
    fn shards_of(&self, thread: usize, threads: usize) -> impl ExactSizeIterator<Item = usize> + use<> {
        let shards = self.0.shards();
        (thread % shards..shards).step_by(threads.min(shards))
    }

    /// Opens a socket in each shard of each thread.
    fn open_for_threads<S>(
        &self,
        threads: usize,
        mut open: impl FnMut(usize) -> Result<S, OpenError>,
    ) -> Result<Vec<Vec<S>>, OpenError> {
        (0..threads).map(|thread| self.shards_of(thread, threads).map(&mut open).collect()).collect()
    }

    fn check_threads(&self, threads: usize) -> io::Result<()> {
        let shards = self.0.shards();
        if threads <= shards {
            return Ok(());
        }
        let message = format!("{threads} threads cannot share {shards} queues: each thread needs a queue of its own");
        Err(io::Error::new(ErrorKind::InvalidInput, message))
    }

    fn listen_at(&self, at: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Listener>)> {
        let listeners = self.open_for_threads(threads, |shard| {
            let listener = TcpListener::bind_reuse_port(&self.0, at, shard)?;
            listener.set_nonblocking(true);
            Ok(listener)
        })?;
        Ok((at, listeners.into_iter().map(Listener).collect()))
    }
}

/// The ports that are tried for port 0 (the dynamic ports of RFC 6335).
const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

impl Network for Datapath {
    const PUNCTUAL: bool = true;

    type Epoll = Epoll;
    type Stream = Stream;
    type Listener = Listener;
    type Datagrams = Datagrams;
    type Stop = Stop;

    fn epoll(&self, capacity: usize) -> io::Result<Epoll> {
        Ok(Epoll { epoll: self.0.epoll(), capacity, raw: Vec::with_capacity(capacity), stop: None })
    }

    fn stop(&self) -> io::Result<Stop> {
        Ok(Stop::default())
    }

    fn connect(&self, target: SocketAddr, timeout: Duration, seat: Seat) -> io::Result<Stream> {
        let mut shards = self.shards_of(seat.thread, seat.threads);
        let nth = seat.number % shards.len();
        let shard = shards.nth(nth).expect("less than the number of shards");
        let stream = TcpStream::connect_in(&self.0, target, shard, Some(timeout))?;
        Stream::ready(stream)
    }

    fn listen(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Listener>)> {
        self.check_threads(threads)?;
        if address.port() != 0 {
            return self.listen_at(address, threads);
        }
        for port in DYNAMIC_PORTS {
            match self.listen_at(SocketAddr::new(address.ip(), port), threads) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                done => return done,
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }

    fn accept(listener: &Listener) -> io::Result<Stream> {
        for listener in &listener.0 {
            match listener.accept() {
                Ok((stream, _)) => return Stream::ready(stream),
                Err(error) if error.is_would_block() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    fn bind(&self, mut address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<Datagrams>)> {
        self.check_threads(threads)?;
        let sockets = if threads == 1 {
            vec![vec![UdpSocket::bind(&self.0, address)?]]
        } else {
            let bind = |shard| {
                let socket = UdpSocket::bind_reuse_port(&self.0, address, shard)?;
                // The first socket chooses the port of all.
                address = socket.local_addr().unwrap_or(address);
                Ok(socket)
            };
            self.open_for_threads(threads, bind)?
        };
        let address = sockets[0][0].local_addr().map_err(io_error)?;
        for socket in sockets.iter().flatten() {
            socket.set_nonblocking(true);
        }
        Ok((address, sockets.into_iter().map(Datagrams).collect()))
    }

    fn connect_datagrams(&self, target: SocketAddr) -> io::Result<Datagrams> {
        let any: SocketAddr =
            if target.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(&self.0, any)?;
        socket.connect(Some(target)).map_err(io_error)?;
        socket.set_nonblocking(true);
        Ok(Datagrams(vec![socket]))
    }

    fn lost(&self) -> Option<io::Error> {
        let is_down = self.0.link() == LinkState::Down;
        is_down.then(|| io::Error::new(ErrorKind::NetworkDown, "the link is down: the other end has closed it"))
    }
}

/// An epoll instance of the runtime.
#[derive(Debug)]
pub struct Epoll {
    epoll: abey_datapath::Epoll,
    capacity: usize,
    raw: Vec<abey_datapath::Event>,
    stop: Option<(Arc<Stopping>, u64)>,
}

impl network::Epoll for Epoll {
    fn wait(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        self.epoll.wait(&mut self.raw, self.capacity, timeout).map_err(io::Error::other)?;
        events.clear();
        if let Some((stopping, token)) = &self.stop
            && stopping.raised.load(Ordering::Acquire)
        {
            events.push(Event { token: *token, readable: true, writable: false });
        }
        events.extend(self.raw.iter().map(|event| {
            let failed = event.is_error() || event.is_hung_up();
            Event { token: event.token, readable: event.is_readable() || failed, writable: event.is_writable() }
        }));
        Ok(())
    }

    fn time_spun(&self) -> Option<Duration> {
        Some(self.epoll.time_spun())
    }
}

fn interest(interest: Interest) -> abey_datapath::Interest {
    use abey_datapath::Interest as Flags;
    match interest {
        Interest::Read => Flags::IN,
        Interest::Write => Flags::OUT,
        Interest::ReadWrite => Flags::IN | Flags::OUT,
    }
}

/// A connection.
#[derive(Debug)]
pub struct Stream(TcpStream);

impl Stream {
    fn ready(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true);
        // Fails only on a closed connection.
        stream.set_nodelay(true).map_err(|error| match error {
            Error::Socket(_) => ErrorKind::ConnectionAborted.into(),
            error => io::Error::from(error),
        })?;
        Ok(Self(stream))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(io_error)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket<Epoll> for Stream {
    fn watch(&self, epoll: &Epoll, token: u64, wanted: Interest) -> io::Result<()> {
        epoll.epoll.add(&self.0, token, interest(wanted)).map_err(io::Error::other)
    }

    fn rewatch(&self, epoll: &Epoll, token: u64, wanted: Interest) -> io::Result<()> {
        epoll.epoll.modify(&self.0, token, interest(wanted)).map_err(io::Error::other)
    }
}

/// The listeners of a server thread, one for each of its shards.
#[derive(Debug)]
pub struct Listener(Vec<TcpListener>);

impl Socket<Epoll> for Listener {
    fn watch(&self, epoll: &Epoll, token: u64, wanted: Interest) -> io::Result<()> {
        self.0.iter().try_for_each(|one| epoll.epoll.add(one, token, interest(wanted))).map_err(io::Error::other)
    }

    fn rewatch(&self, epoll: &Epoll, token: u64, wanted: Interest) -> io::Result<()> {
        self.0.iter().try_for_each(|one| epoll.epoll.modify(one, token, interest(wanted))).map_err(io::Error::other)
    }
}

/// The UDP sockets of a port, or a server thread's part of them.
#[derive(Debug)]
pub struct Datagrams(Vec<UdpSocket>);

impl Socket<Epoll> for Datagrams {
    fn watch(&self, epoll: &Epoll, token: u64, wanted: Interest) -> io::Result<()> {
        self.0.iter().try_for_each(|one| epoll.epoll.add(one, token, interest(wanted))).map_err(io::Error::other)
    }

    fn rewatch(&self, epoll: &Epoll, token: u64, wanted: Interest) -> io::Result<()> {
        self.0.iter().try_for_each(|one| epoll.epoll.modify(one, token, interest(wanted))).map_err(io::Error::other)
    }
}

impl network::Datagrams for Datagrams {
    fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.0[0].send_to(payload, None).map_err(io_error)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_from(buffer).map(|(size, _)| size)
    }

    fn send_to(&self, payload: &[u8], peer: SocketAddr) -> io::Result<usize> {
        self.0[0].send_to(payload, Some(peer)).map_err(io_error)
    }

    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        for socket in &self.0 {
            match socket.recv_from(buffer) {
                Ok((size, peer, _)) => return Ok((size, peer)),
                Err(error) if error.is_would_block() => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }
}

/// A stop flag that wakes waits on its epoll instances.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Stopping>);

#[derive(Debug, Default)]
struct Stopping {
    raised: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl network::Stop<Epoll> for Stop {
    fn watch(&self, epoll: &mut Epoll, token: u64) -> io::Result<()> {
        epoll.stop = Some((Arc::clone(&self.0), token));
        // If the flag was raised before, wake the first wait so that it reads the flag.
        let waker = epoll.epoll.waker();
        let mut wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.raised.load(Ordering::Acquire) {
            waker.wake();
        }
        wakers.push(waker);
        Ok(())
    }

    fn raise(&self) -> io::Result<()> {
        let wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.raised.store(true, Ordering::Release);
        wakers.iter().for_each(Waker::wake);
        Ok(())
    }
}

/// Converts an error, without an allocation for `WouldBlock`.
fn io_error(error: Error) -> io::Error {
    if error.is_would_block() { ErrorKind::WouldBlock.into() } else { error.into() }
}
