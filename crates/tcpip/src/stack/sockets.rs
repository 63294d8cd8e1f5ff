//! What an application does to TCP sockets. Nothing here blocks, and an id that is stale is an error, never another socket.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{Entry, Socket, Stack};
use crate::{
    error::{IoError, OpenError, SocketError},
    event::{Readiness, SocketId},
    tcp::connection::{Connection, Owner, State},
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

    pub(super) fn stream_mut(&mut self, id: SocketId) -> Result<&mut Connection, IoError> {
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
}

/// Whether an application may use the connection: it is not half open, waiting, or left behind.
fn is_visible(connection: &Connection) -> bool {
    connection.owner == Owner::Application || connection.state == State::SynSent && connection.owner != Owner::Nobody
}
