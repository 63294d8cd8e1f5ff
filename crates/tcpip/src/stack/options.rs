//! Socket options.

use core::time::Duration;

use super::{Socket, Stack};
use crate::{config::Keepalive, error::IoError, event::SocketId, tcp::keepalive::KeepaliveTimer, time::Instant};

impl Stack {
    /// Sets TCP_NODELAY: small segments do not wait for acknowledgements. Accepted connections inherit the listener's
    /// value.
    ///
    /// # Errors
    ///
    /// The id is stale, or a UDP socket.
    pub fn set_nodelay(&mut self, id: SocketId, nodelay: bool) -> Result<(), IoError> {
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.nodelay = nodelay,
            Some(Socket::Datagram(_)) => return Err(IoError::WrongKind),
            _ => {
                self.stream_mut(id)?.nodelay = nodelay;
                self.enqueue(id);
            }
        }
        Ok(())
    }

    /// Sets SO_KEEPALIVE and its times. Accepted connections inherit the listener's value.
    ///
    /// # Errors
    ///
    /// The id is stale, or a UDP socket.
    pub fn set_keepalive(&mut self, now: Instant, id: SocketId, keepalive: Option<Keepalive>) -> Result<(), IoError> {
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.keepalive = keepalive,
            Some(Socket::Datagram(_)) => return Err(IoError::WrongKind),
            _ => {
                let keepalive_timer = keepalive.map(|keepalive| Box::new(KeepaliveTimer::new(keepalive, now)));
                self.stream_mut(id)?.keepalive_timer = keepalive_timer;
                self.sync_socket(now, id);
            }
        }
        Ok(())
    }

    /// Sets SO_LINGER, without blocking. With `Some(0)`, closing resets the connection. With `Some(t)`, the
    /// connection is reset if it has not finished `t` after closing. With `None` it finishes without a limit.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn set_linger(&mut self, id: SocketId, linger: Option<Duration>) -> Result<(), IoError> {
        self.stream_mut(id)?.linger = linger;
        Ok(())
    }

    /// Sets SO_RCVBUF in bytes, clamped to 2 KiB .. 256 MiB, and disables the automatic growth. Accepted connections
    /// inherit the listener's value. The negotiated window scale limits the effect on a connection.
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn set_receive_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), IoError> {
        let bytes = bytes.clamp(2048, 1 << 28);
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.receive_buffer = Some(bytes as u32),
            Some(Socket::Datagram(socket)) => socket.receive_limit = bytes,
            _ => self.stream_mut(id)?.receive_buffer.set_limit(bytes as u32),
        }
        Ok(())
    }

    /// Sets SO_SNDBUF in bytes, clamped to 2 KiB .. 256 MiB. Accepted connections inherit the listener's value.
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn set_send_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), IoError> {
        let bytes = bytes.clamp(2048, 1 << 28);
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.template.send_buffer = Some(bytes),
            Some(Socket::Datagram(socket)) => socket.send_limit = bytes,
            _ => self.stream_mut(id)?.send_buffer.set_limit(bytes),
        }
        Ok(())
    }
}
