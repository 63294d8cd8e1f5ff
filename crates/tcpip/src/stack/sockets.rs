//! Operations on sockets. No call blocks, and a stale id is an error.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{Entry, Socket, Stack, export};
use crate::{
    error::{IoError, OpenError, SocketError},
    event::{Readiness, SocketId},
    tcp::connection::{Connection, Owner, State},
    time::{Instant, nanos},
};

/// Direction to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Reading.
    Read,
    /// Writing: the peer sees the end of the stream.
    Write,
    /// Both directions.
    Both,
}

impl Stack {
    pub(super) fn insert(&mut self, socket: Socket) -> SocketId {
        self.sockets.insert(Entry { socket, in_event_queue: false, in_send_queue: false })
    }

    pub(super) fn check_room(&self) -> Result<(), OpenError> {
        let limit = self.config().settings().sockets;
        if self.sockets.len() >= limit { Err(OpenError::TooManySockets(limit)) } else { Ok(()) }
    }

    pub(super) fn check_local(&self, address: IpAddr) -> Result<(), OpenError> {
        if address.is_unspecified() || self.config().is_local(address) {
            Ok(())
        } else {
            Err(OpenError::AddressNotAvailable(address))
        }
    }

    pub(super) fn stream_mut(&mut self, id: SocketId) -> Result<&mut Connection, IoError> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Stream(connection), .. }) if is_visible(connection) => Ok(connection),
            Some(Entry { socket: Socket::Stream(_), .. }) | None => Err(IoError::NoSuchSocket),
            Some(Entry { socket: Socket::Moved(_), .. }) => Err(IoError::Moved),
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

    /// Reads from a connection. Returns 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if there is no data; the connection's network error, once.
    pub fn read(&mut self, id: SocketId, to: &mut [u8]) -> Result<usize, IoError> {
        let connection = self.stream_mut(id)?;
        let read = connection.read(to, false);
        if read.is_ok() {
            connection.update_peer_window();
            self.enqueue(id);
        }
        read
    }

    /// Like [`Stack::read`], without consuming the bytes.
    ///
    /// # Errors
    ///
    /// As [`Stack::read`].
    pub fn peek(&mut self, id: SocketId, to: &mut [u8]) -> Result<usize, IoError> {
        self.stream_mut(id)?.read(to, true)
    }

    /// Writes to a connection. Returns the number of bytes that fit into the send buffer.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if there is no room; [`IoError::BrokenPipe`] after a shutdown; the connection's
    /// network error, once.
    pub fn write(&mut self, id: SocketId, bytes: &[u8]) -> Result<usize, IoError> {
        self.write_more(id, bytes, false)
    }

    /// Like [`Stack::write`]. If `more` bytes follow soon, a small segment waits for them for at most 200 ms (MSG_MORE).
    ///
    /// # Errors
    ///
    /// As [`Stack::write`].
    pub fn write_more(&mut self, id: SocketId, bytes: &[u8], more: bool) -> Result<usize, IoError> {
        let written = self.stream_mut(id)?.write(bytes, more);
        if written.is_ok() {
            self.enqueue(id);
        }
        written
    }

    /// Returns the number of bytes that can be read now.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn readable_bytes(&mut self, id: SocketId) -> Result<usize, IoError> {
        Ok(self.stream_mut(id)?.receive_buffer.readable())
    }

    /// Returns the number of bytes that were written and not acknowledged.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn unacknowledged_bytes(&mut self, id: SocketId) -> Result<usize, IoError> {
        Ok(self.stream_mut(id)?.send_buffer.len())
    }

    /// Returns the number of bytes that were written and never sent.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn unsent_bytes(&mut self, id: SocketId) -> Result<usize, IoError> {
        Ok(self.stream_mut(id)?.send_buffer.unsent() as usize)
    }

    /// Shuts down one or both directions of a connection or a UDP socket.
    ///
    /// # Errors
    ///
    /// The connection is not established, the id is stale, or it is a listener.
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
            Some(Socket::Moved(_)) => return Err(IoError::Moved),
            _ => return Err(IoError::WrongKind),
        }
        self.sync_socket(now, id);
        Ok(())
    }

    /// Closes a socket; its id becomes stale. A connection finishes by itself, but is reset if there is unread data
    /// or its linger time is zero. The connections in a listener's queue are reset.
    ///
    /// # Errors
    ///
    /// The id is stale.
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
                self.sync_socket(now, id);
            }
            Some(Socket::Listener(_)) => self.close_listener(now, id),
            Some(Socket::Datagram(_)) => {
                self.unbind(id);
                self.sockets.remove(id);
            }
            Some(Socket::Moved(_)) => {
                self.sockets.remove(id);
            }
            None => {}
        }
        Ok(())
    }

    fn close_listener(&mut self, now: Instant, id: SocketId) {
        let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.remove(id) else { return };
        self.listening.remove(listener.local);
        let mut children: Vec<_> = listener.queue.iter().map(|waiting| waiting.id).collect();
        if listener.half_open > 0 {
            let half_open = self.sockets.iter().filter(|(_, entry)| {
                matches!(&entry.socket, Socket::Stream(connection) if connection.owner == Owner::HalfOpen(id))
            });
            children.extend(half_open.map(|(child, _)| child));
        }
        for child in children {
            if let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(child) {
                connection.owner = Owner::Orphan;
                self.orphans += 1;
            }
            self.abort_connection(now, child);
            self.sync_socket(now, child);
        }
    }

    /// Closes a connection with a reset, and any other socket like [`Stack::close`].
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn abort(&mut self, now: Instant, id: SocketId) -> Result<(), IoError> {
        if let Ok(connection) = self.stream_mut(id) {
            connection.linger = Some(Duration::ZERO);
        }
        self.close(now, id)
    }

    /// Returns what socket `id` is ready for, or [`Readiness::NONE`] if the id is stale.
    #[must_use]
    pub fn readiness(&self, id: SocketId) -> Readiness {
        match self.entry(id).map(|entry| &entry.socket) {
            Ok(Socket::Stream(connection)) => connection.readiness(),
            Ok(Socket::Listener(listener)) => listener.readiness(),
            Ok(Socket::Datagram(socket)) => socket.readiness(),
            Ok(Socket::Moved(_)) => export::MOVED_READINESS,
            Err(_) => Readiness::NONE,
        }
    }

    /// Returns whether the handshake of a connection is over and the connection is not closed.
    #[must_use]
    pub fn is_connected(&self, id: SocketId) -> bool {
        matches!(self.entry(id).map(|entry| &entry.socket), Ok(Socket::Stream(connection)) if connection.is_synchronized())
    }

    /// Returns and clears the pending network error.
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<SocketError>, IoError> {
        self.entry(id)?;
        Ok(match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Stream(connection)) => connection.error.take(),
            Some(Socket::Datagram(socket)) => socket.error.take(),
            Some(Socket::Moved(_)) => return Err(IoError::Moved),
            _ => None,
        })
    }

    /// Returns the local address of a socket.
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn local_addr(&self, id: SocketId) -> Result<SocketAddr, IoError> {
        Ok(match &self.entry(id)?.socket {
            Socket::Stream(connection) => connection.flow.local(),
            Socket::Listener(listener) => listener.local,
            Socket::Datagram(socket) => socket.local,
            Socket::Moved(moved) => moved.flow.local(),
        })
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    ///
    /// [`IoError::NotConnected`] if the socket has no peer.
    pub fn peer_addr(&self, id: SocketId) -> Result<SocketAddr, IoError> {
        match &self.entry(id)?.socket {
            Socket::Stream(connection) => Ok(connection.flow.remote()),
            Socket::Datagram(socket) => socket.peer.ok_or(IoError::NotConnected),
            Socket::Moved(moved) if moved.flow.remote_port == 0 => Err(IoError::NotConnected),
            Socket::Moved(moved) => Ok(moved.flow.remote()),
            Socket::Listener(_) => Err(IoError::NotConnected),
        }
    }
}

/// Returns whether the application may use the connection: it is not half open, queued for accept, or orphaned.
fn is_visible(connection: &Connection) -> bool {
    connection.owner == Owner::Application || connection.state == State::SynSent && connection.owner != Owner::Orphan
}
