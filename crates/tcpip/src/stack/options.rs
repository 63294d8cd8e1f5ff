//! What an application sets on sockets.

use core::time::Duration;

use super::{Socket, Stack};
use crate::{config::Keepalive, error::IoError, event::SocketId, tcp::keepalive::Prober, time::Instant};

impl Stack {
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
