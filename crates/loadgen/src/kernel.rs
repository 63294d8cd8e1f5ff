//! The sockets of the kernel.
//!
//! A wait without a timeout, as servers make it, uses the C library (`epoll_create1`, `epoll_wait`), so that a preloaded
//! library interposes it. A wait with a timeout is an `epoll_pwait2`, which takes nanoseconds.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll as Instance, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};

use crate::network::{Datagrams, Epoll, Event, Interest, Network, Seat, Socket, Stop};

/// The most events that a wait with a timeout returns.
const TIMED: usize = 16;

/// The sockets of the kernel, in the calling thread's network namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

/// An epoll instance of the kernel.
#[derive(Debug)]
pub struct KernelEpoll {
    instance: Instance,
    blocking: Vec<EpollEvent>,
}

/// An eventfd that ends waits.
#[derive(Clone, Debug)]
pub struct KernelStop(Arc<EventFd>);

impl Network for Kernel {
    const PUNCTUAL: bool = false;

    type Epoll = KernelEpoll;
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Datagrams = UdpSocket;
    type Stop = KernelStop;

    fn epoll(&self, capacity: usize) -> io::Result<KernelEpoll> {
        let instance = Instance::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(KernelEpoll { instance, blocking: vec![EpollEvent::empty(); capacity] })
    }

    fn stop(&self) -> io::Result<KernelStop> {
        Ok(KernelStop(Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)))
    }

    fn connect(&self, target: SocketAddr, timeout: Duration, _: Seat) -> io::Result<TcpStream> {
        ready(TcpStream::connect_timeout(&target, timeout)?)
    }

    fn listen(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
        let (address, sockets) = sockets(address, threads, Type::STREAM)?;
        Ok((address, sockets.into_iter().map(TcpListener::from).collect()))
    }

    fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        ready(listener.accept()?.0)
    }

    fn bind(&self, address: SocketAddr, threads: usize) -> io::Result<(SocketAddr, Vec<UdpSocket>)> {
        let (address, sockets) = sockets(address, threads, Type::DGRAM)?;
        Ok((address, sockets.into_iter().map(UdpSocket::from).collect()))
    }

    fn connect_datagrams(&self, target: SocketAddr) -> io::Result<UdpSocket> {
        let any: SocketAddr =
            if target.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

fn ready(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns one bound socket per thread, all on one port.
fn sockets(address: SocketAddr, threads: usize, kind: Type) -> io::Result<(SocketAddr, Vec<RawSocket>)> {
    // The first socket does not set SO_REUSEPORT, so that a port in use is noticed even if its owner set it.
    let first = bound(address, kind, false)?;
    let address = first.local_addr()?.as_socket().expect("an internet address");
    if threads == 1 {
        return Ok((address, vec![first]));
    }
    drop(first);
    let shared: io::Result<_> = (0..threads).map(|_| bound(address, kind, true)).collect();
    Ok((address, shared?))
}

fn bound(address: SocketAddr, kind: Type, shared: bool) -> io::Result<RawSocket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let socket = RawSocket::new(Domain::for_address(address), kind.nonblocking().cloexec(), Some(protocol))?;
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?; // connections of an earlier server may be in TIME_WAIT
    }
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    if kind == Type::STREAM {
        socket.listen(1024)?;
    }
    Ok(socket)
}

impl Epoll for KernelEpoll {
    fn wait(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        let Some(timeout) = timeout else { return self.block(events) };
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); TIMED];
        let room = self.blocking.len().min(TIMED);
        let ready = match epoll::wait(&self.instance.0, &mut buffer[..room], Some(&timeout)) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        events.extend(ready.iter().map(|event| {
            // The structure is packed, and is copied before the comparison.
            let flags = event.flags;
            let (readable, writable) = (flags != EventFlags::OUT, flags.contains(EventFlags::OUT));
            Event { token: event.data.u64(), readable, writable }
        }));
        Ok(())
    }

    fn time_spun(&self) -> Option<Duration> {
        None
    }
}

impl KernelEpoll {
    fn block(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let count = loop {
            match self.instance.wait(&mut self.blocking, EpollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                done => break done?,
            }
        };
        events.extend(self.blocking[..count].iter().map(|event| Event {
            token: event.data(),
            readable: event.events() != EpollFlags::EPOLLOUT,
            writable: event.events().contains(EpollFlags::EPOLLOUT),
        }));
        Ok(())
    }
}

impl<S: AsFd + std::fmt::Debug + Send + 'static> Socket<KernelEpoll> for S {
    fn watch(&self, epoll: &KernelEpoll, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll.instance.add(self, EpollEvent::new(flags(interest), token))?)
    }

    fn rewatch(&self, epoll: &KernelEpoll, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll.instance.modify(self, &mut EpollEvent::new(flags(interest), token))?)
    }
}

fn flags(interest: Interest) -> EpollFlags {
    match interest {
        Interest::Read => EpollFlags::EPOLLIN,
        Interest::Write => EpollFlags::EPOLLOUT,
        Interest::ReadWrite => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
    }
}

impl Datagrams for UdpSocket {
    fn send(&self, payload: &[u8]) -> io::Result<usize> {
        Self::send(self, payload)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn send_to(&self, payload: &[u8], peer: SocketAddr) -> io::Result<usize> {
        Self::send_to(self, payload, peer)
    }

    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }
}

impl Stop<KernelEpoll> for KernelStop {
    fn watch(&self, epoll: &mut KernelEpoll, token: u64) -> io::Result<()> {
        Socket::watch(&*self.0, epoll, token, Interest::Read)
    }

    fn raise(&self) -> io::Result<()> {
        self.0.write(1)?;
        Ok(())
    }
}
