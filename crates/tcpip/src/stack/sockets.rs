//! What an application does to TCP sockets. Nothing here blocks, and an id that is stale is an error, never another socket.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{Entry, Socket, Stack};
use crate::{
    config::{EPHEMERAL_LAST, Keepalive},
    error::{IoError, OpenError, SocketError},
    event::{Readiness, SocketId},
    flow::{Flow, Target},
    listener::Listener,
    tcp::{
        connection::{Connection, Owner, State},
        handshake::Start,
        keepalive::Prober,
        seq::Seq,
    },
    time::{Instant, nanos},
};

/// Which direction to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Read no more.
    Read,
    /// Write no more: the peer sees the end of the stream.
    Write,
    /// Both.
    Both,
}

/// The local end of a connection to be made; what is `None` is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// One of the host's addresses.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: Option<u16>,
}

impl Stack {
    pub(super) fn insert(&mut self, socket: Socket) -> SocketId {
        self.sockets.insert(Entry { socket, has_event: false, is_sending: false })
    }

    pub(super) fn check_room(&self) -> Result<(), OpenError> {
        let limit = self.config().settings().sockets;
        if self.sockets.len() >= limit { Err(OpenError::TooManySockets(limit)) } else { Ok(()) }
    }

    pub(super) fn check_local(&self, address: IpAddr) -> Result<(), OpenError> {
        if address.is_unspecified() || self.config().is_own(address) {
            Ok(())
        } else {
            Err(OpenError::AddressNotAvailable(address))
        }
    }

    fn stream_mut(&mut self, id: SocketId) -> Result<&mut Connection, IoError> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Stream(connection), .. }) if is_visible(connection) => Ok(connection),
            Some(Entry { socket: Socket::Stream(_), .. }) | None => Err(IoError::NoSuchSocket),
            Some(_) => Err(IoError::WrongKind),
        }
    }

    pub(super) fn entry(&self, id: SocketId) -> Result<&Entry, IoError> {
        match self.sockets.get(id) {
            Some(Entry { socket: Socket::Stream(connection), .. }) if !is_visible(connection) => {
                Err(IoError::NoSuchSocket)
            }
            entry => entry.ok_or(IoError::NoSuchSocket),
        }
    }

    /// Listens at `at`; port 0 is not chosen for you. `[::]` takes IPv4 too, unless another socket listens on `0.0.0.0`.
    /// At most `backlog` connections wait to be accepted, and as many are half open before SYNs are answered with cookies.
    ///
    /// # Errors
    ///
    /// An address that is taken or not the host's, or too many sockets.
    pub fn listen(&mut self, at: SocketAddr, backlog: usize) -> Result<SocketId, OpenError> {
        self.check_room()?;
        self.check_local(at.ip())?;
        if self.listening.is_taken(at) || at.port() == 0 {
            return Err(OpenError::AddressInUse(at));
        }
        let id = self.insert(Socket::Listener(Box::new(Listener::new(at, backlog))));
        self.listening.insert(at, id);
        Ok(id)
    }

    /// Takes the first connection that waits at `listener`.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if none does.
    pub fn accept(&mut self, listener: SocketId) -> Result<SocketId, IoError> {
        let entry = self.sockets.get_mut(listener).ok_or(IoError::NoSuchSocket)?;
        let Socket::Listener(listening) = &mut entry.socket else { return Err(IoError::WrongKind) };
        let id = listening.queue.pop_front().ok_or(IoError::WouldBlock)?;
        if let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) {
            connection.owner = Owner::Application;
        }
        self.announce(id);
        Ok(id)
    }

    /// Begins a connection to `remote`, which is established, or failed, when the socket becomes writable.
    ///
    /// # Errors
    ///
    /// What is known to be impossible at once.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<SocketId, OpenError> {
        self.connect_from(now, Local::default(), remote, |_| true)
    }

    /// As [`Stack::connect`], from `local`, with a port that `accepts` likes if it is chosen: a NIC with several queues
    /// must bring the answers to this shard.
    ///
    /// # Errors
    ///
    /// What is known to be impossible at once.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: Local,
        remote: SocketAddr,
        accepts: impl FnMut(u16) -> bool,
    ) -> Result<SocketId, OpenError> {
        self.check_room()?;
        let ip = remote.ip();
        let config = self.config();
        if remote.port() == 0
            || ip.is_unspecified()
            || ip.is_multicast()
            || config.is_broadcast(ip)
            || config.is_own(ip)
        {
            return Err(OpenError::BadDestination(remote));
        }
        config.next_hop(ip).ok_or(OpenError::NoRoute(ip))?;
        let address = match local.address {
            Some(address) if config.is_own(address) && address.is_ipv4() == ip.is_ipv4() => address,
            Some(address) => return Err(OpenError::AddressNotAvailable(address)),
            None => config.source_for(ip).ok_or(OpenError::NoRoute(ip))?,
        };
        let flow = Flow { local: address, remote: ip, local_port: 0, remote_port: remote.port() };
        let (flow, from) = match local.port {
            Some(port) => {
                let flow = Flow { local_port: port, ..flow };
                let from = self.claim(now, &flow).ok_or(OpenError::AddressInUse(flow.local()))?;
                (flow, from)
            }
            None => self.choose_port(now, flow, accepts).ok_or(OpenError::NoPort(remote))?,
        };
        Ok(self.open(now, flow, from))
    }

    fn open(&mut self, now: Instant, flow: Flow, from: Option<Seq>) -> SocketId {
        let start = self.start(now, &flow);
        let start = Start { initial: from.map_or(start.initial, |from| start.initial.later(from)), ..start };
        if let Some(Target::TimeWait(id)) = self.flows.find(&flow) {
            self.time_waits.remove(id);
        }
        self.counters.tcp_active_opens += 1;
        let connection = Connection::active(self.config().settings(), flow, start);
        let id = self.insert(Socket::Stream(Box::new(connection)));
        self.flows.insert(flow, Target::Connection(id));
        self.settle(now, id);
        id
    }

    /// Whether `flow` is free, and from which number on if it was used before.
    #[expect(clippy::option_option, reason = "taken; free; free from a number on")]
    fn claim(&self, now: Instant, flow: &Flow) -> Option<Option<Seq>> {
        match self.flows.find(flow) {
            None => Some(None),
            Some(Target::TimeWait(id)) => self.time_waits.reuse(now, id).map(Some),
            Some(Target::Connection(_)) => None,
        }
    }

    /// RFC 6056, algorithm 3: a start that is a keyed hash of the flow, and a counter.
    fn choose_port(
        &mut self,
        now: Instant,
        flow: Flow,
        mut accepts: impl FnMut(u16) -> bool,
    ) -> Option<(Flow, Option<Seq>)> {
        let first = self.config().settings().ephemeral_from;
        let count = u32::from(EPHEMERAL_LAST - first) + 1;
        let start = (self.ports.hash(flow) as u32).wrapping_add(self.port_counter);
        for step in 0..count {
            let port = first + (start.wrapping_add(step) % count) as u16;
            let flow = Flow { local_port: port, ..flow };
            if !accepts(port) {
                continue;
            }
            if let Some(from) = self.claim(now, &flow) {
                self.port_counter = self.port_counter.wrapping_add(step + 1);
                return Some((flow, from));
            }
        }
        None
    }

    /// Reads from a connection; 0 is the end of the stream.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if nothing is there; what happened to the connection, once.
    pub fn read(&mut self, id: SocketId, to: &mut [u8]) -> Result<usize, IoError> {
        let connection = self.stream_mut(id)?;
        let read = connection.read(to, false);
        if read.is_ok() {
            connection.window_opened();
            self.announce(id);
        }
        read
    }

    /// As [`Stack::read`], without taking the bytes away.
    ///
    /// # Errors
    ///
    /// As [`Stack::read`].
    pub fn peek(&mut self, id: SocketId, to: &mut [u8]) -> Result<usize, IoError> {
        self.stream_mut(id)?.read(to, true)
    }

    /// Writes to a connection; how many bytes were taken.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if there is no room; [`IoError::BrokenPipe`] after a shutdown; what happened to the
    /// connection, once.
    pub fn write(&mut self, id: SocketId, bytes: &[u8]) -> Result<usize, IoError> {
        let written = self.stream_mut(id)?.write(bytes);
        if written.is_ok() {
            self.announce(id);
        }
        written
    }

    /// Bytes that can be read now.
    ///
    /// # Errors
    ///
    /// A stale id, or not a connection.
    pub fn readable_bytes(&mut self, id: SocketId) -> Result<usize, IoError> {
        Ok(self.stream_mut(id)?.inbox.readable())
    }

    /// Bytes that were written and not acknowledged yet.
    ///
    /// # Errors
    ///
    /// A stale id, or not a connection.
    pub fn unacknowledged_bytes(&mut self, id: SocketId) -> Result<usize, IoError> {
        Ok(self.stream_mut(id)?.outbox.len())
    }

    /// Bytes that were written and never sent.
    ///
    /// # Errors
    ///
    /// A stale id, or not a connection.
    pub fn unsent_bytes(&mut self, id: SocketId) -> Result<usize, IoError> {
        Ok(self.stream_mut(id)?.outbox.unsent() as usize)
    }

    /// Shuts a direction of a connection or a UDP socket down.
    ///
    /// # Errors
    ///
    /// A connection that is not established, a stale id, a listener.
    pub fn shutdown(&mut self, now: Instant, id: SocketId, how: Shutdown) -> Result<(), IoError> {
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        self.entry(id)?;
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Stream(connection)) => {
                if !connection.is_synchronized() {
                    return Err(IoError::NotConnected);
                }
                if read && !connection.shut_read {
                    connection.shut_read = true;
                    connection.edges |= Readiness::READABLE | Readiness::READ_CLOSED;
                }
                if write {
                    connection.shut_write();
                }
            }
            Some(Socket::Datagram(socket)) => {
                socket.shut_read |= read;
                socket.shut_write |= write;
                socket.edges |= Readiness::READABLE.when(read) | Readiness::WRITABLE.when(write);
            }
            _ => return Err(IoError::WrongKind),
        }
        self.settle(now, id);
        Ok(())
    }

    /// Closes a socket. A connection finishes by itself, unless data was not read or it lingers for no time: then it is
    /// reset. The connections that wait at a listener are reset. The id is stale from here on.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn close(&mut self, now: Instant, id: SocketId) -> Result<(), IoError> {
        self.entry(id)?;
        let fin_wait_2 = nanos(self.config().settings().fin_wait_2);
        let too_many = self.orphans >= self.config().settings().orphans;
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Stream(connection)) => {
                let reset = connection.close(now, fin_wait_2);
                self.orphans += 1;
                if too_many && !reset {
                    self.counters.tcp_aborted_on_memory += 1;
                }
                if reset || too_many {
                    self.abort_connection(now, id);
                }
                self.settle(now, id);
            }
            Some(Socket::Listener(_)) => self.close_listener(now, id),
            Some(Socket::Datagram(_)) => {
                self.leave(id);
                self.sockets.remove(id);
            }
            None => {}
        }
        Ok(())
    }

    fn close_listener(&mut self, now: Instant, id: SocketId) {
        let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.remove(id) else { return };
        self.listening.remove(listener.local);
        let mut children = Vec::from(listener.queue);
        if listener.half_open > 0 {
            let half_open = self.sockets.iter().filter(|(_, entry)| {
                matches!(&entry.socket, Socket::Stream(connection) if connection.owner == Owner::HalfOpen(id))
            });
            children.extend(half_open.map(|(child, _)| child));
        }
        for child in children {
            if let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(child) {
                connection.owner = Owner::Nobody;
                self.orphans += 1;
            }
            self.abort_connection(now, child);
            self.settle(now, child);
        }
    }

    /// Closes a connection with a reset; any other socket as [`Stack::close`] does.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn abort(&mut self, now: Instant, id: SocketId) -> Result<(), IoError> {
        if let Ok(connection) = self.stream_mut(id) {
            connection.linger = Some(Duration::ZERO);
        }
        self.close(now, id)
    }

    /// What socket `id` is ready for; [`Readiness::NONE`] if it is gone.
    #[must_use]
    pub fn readiness(&self, id: SocketId) -> Readiness {
        match self.entry(id).map(|entry| &entry.socket) {
            Ok(Socket::Stream(connection)) => connection.readiness(),
            Ok(Socket::Listener(listener)) => listener.readiness(),
            Ok(Socket::Datagram(socket)) => socket.readiness(),
            Err(_) => Readiness::NONE,
        }
    }

    /// Whether a connection is established (or was, and is not over yet).
    #[must_use]
    pub fn is_connected(&self, id: SocketId) -> bool {
        matches!(self.entry(id).map(|entry| &entry.socket), Ok(Socket::Stream(connection)) if connection.is_synchronized())
    }

    /// The error that waits, if any; it waits no more.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<SocketError>, IoError> {
        self.entry(id)?;
        Ok(match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Stream(connection)) => connection.error.take(),
            Some(Socket::Datagram(socket)) => socket.error.take(),
            _ => None,
        })
    }

    /// The own address of a socket.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn local_addr(&self, id: SocketId) -> Result<SocketAddr, IoError> {
        Ok(match &self.entry(id)?.socket {
            Socket::Stream(connection) => connection.flow.local(),
            Socket::Listener(listener) => listener.local,
            Socket::Datagram(socket) => socket.local,
        })
    }

    /// The peer's address.
    ///
    /// # Errors
    ///
    /// [`IoError::NotConnected`] for a socket without one.
    pub fn peer_addr(&self, id: SocketId) -> Result<SocketAddr, IoError> {
        match &self.entry(id)?.socket {
            Socket::Stream(connection) => Ok(connection.flow.remote()),
            Socket::Datagram(socket) => socket.peer.ok_or(IoError::NotConnected),
            Socket::Listener(_) => Err(IoError::NotConnected),
        }
    }

    /// TCP_NODELAY: small segments do not wait for acknowledgements. Connections inherit it from their listener.
    ///
    /// # Errors
    ///
    /// A stale id, or a UDP socket.
    pub fn set_nodelay(&mut self, id: SocketId, nodelay: bool) -> Result<(), IoError> {
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.nodelay = nodelay,
            Some(Socket::Datagram(_)) => return Err(IoError::WrongKind),
            _ => {
                self.stream_mut(id)?.nodelay = nodelay;
                self.announce(id);
            }
        }
        Ok(())
    }

    /// SO_KEEPALIVE and its times. Connections inherit it from their listener.
    ///
    /// # Errors
    ///
    /// A stale id, or a UDP socket.
    pub fn set_keepalive(&mut self, now: Instant, id: SocketId, keepalive: Option<Keepalive>) -> Result<(), IoError> {
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.keepalive = keepalive,
            Some(Socket::Datagram(_)) => return Err(IoError::WrongKind),
            _ => {
                let prober = keepalive.map(|keepalive| Box::new(Prober::new(keepalive, now)));
                self.stream_mut(id)?.prober = prober;
                self.settle(now, id);
            }
        }
        Ok(())
    }

    /// SO_LINGER, without blocking: `Some(0)` makes closing a reset; `Some(t)` resets what is not acknowledged `t` after
    /// closing; `None` lets the connection finish in its own time.
    ///
    /// # Errors
    ///
    /// A stale id, or not a connection.
    pub fn set_linger(&mut self, id: SocketId, linger: Option<Duration>) -> Result<(), IoError> {
        self.stream_mut(id)?.linger = linger;
        Ok(())
    }

    /// SO_RCVBUF, in bytes: no more tuning. Clamped to 2 KiB .. 256 MiB. Connections inherit it from their listener; the
    /// window scale that was agreed on bounds what it can do later.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn set_receive_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), IoError> {
        let bytes = bytes.clamp(2048, 1 << 28);
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.receive_buffer = Some(bytes as u32),
            Some(Socket::Datagram(socket)) => socket.receive_limit = bytes,
            _ => self.stream_mut(id)?.inbox.set_limit(bytes as u32),
        }
        Ok(())
    }

    /// SO_SNDBUF, in bytes, clamped to 2 KiB .. 256 MiB. Connections inherit it from their listener.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn set_send_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), IoError> {
        let bytes = bytes.clamp(2048, 1 << 28);
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.send_buffer = Some(bytes),
            Some(Socket::Datagram(socket)) => socket.send_limit = bytes,
            _ => self.stream_mut(id)?.outbox.set_limit(bytes),
        }
        Ok(())
    }
}

/// Whether an application may use the connection: it is not half open, waiting, or left behind.
fn is_visible(connection: &Connection) -> bool {
    connection.owner == Owner::Application || connection.state == State::SynSent && connection.owner != Owner::Nobody
}
