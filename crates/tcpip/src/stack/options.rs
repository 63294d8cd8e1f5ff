//! Socket options.

use core::time::Duration;

use super::{Entry, Socket, Stack};
use crate::{
    TcpOptions, config::Keepalive, error::IoError, event::SocketId, tcp::keepalive::KeepaliveTimer,
    tcp_options::clamp_buffer, time::Instant,
};

impl Stack {
    /// Sets all options of a connection or a listener. What a listener's connections inherited before stays as it is.
    ///
    /// # Errors
    ///
    /// The id is stale, or a UDP socket.
    pub fn set_options(&mut self, now: Instant, id: SocketId, options: &TcpOptions) -> Result<(), IoError> {
        if let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.get_mut(id) {
            listener.options = *options;
            return Ok(());
        }
        self.stream_mut(id)?;
        if let Some((connection, cx)) = self.connection_mut(now, id) {
            connection.configure(now, cx.settings, options);
        }
        self.sync_socket(now, id);
        Ok(())
    }

    /// Leaves the mode in which acknowledgements are delayed, and sends one that is pending, or enters it
    /// (TCP_QUICKACK). The connection changes the mode by itself later.
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn set_quick_ack(&mut self, id: SocketId, quick: bool) -> Result<(), IoError> {
        self.stream_mut(id)?.ack.set_quick(quick);
        self.enqueue(id);
        Ok(())
    }

    /// Sets TCP_NODELAY: small segments do not wait for acknowledgements. Accepted connections inherit the listener's
    /// value.
    ///
    /// # Errors
    ///
    /// The id is stale, or a UDP socket.
    pub fn set_nodelay(&mut self, id: SocketId, nodelay: bool) -> Result<(), IoError> {
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.options.nodelay = nodelay,
            Some(Socket::Datagram(_)) => return Err(IoError::WrongKind),
            _ => {
                self.stream_mut(id)?.set_nodelay(nodelay);
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
            Some(Socket::Listener(listener)) => listener.options.keepalive = keepalive,
            Some(Socket::Datagram(_)) => return Err(IoError::WrongKind),
            _ => {
                let keepalive_timer = keepalive.map(|keepalive| Box::new(KeepaliveTimer::new(keepalive, now)));
                self.stream_mut(id)?.keepalive_timer = keepalive_timer;
                self.sync_socket(now, id);
            }
        }
        Ok(())
    }

    /// Sets SO_LINGER, without blocking; see [`TcpOptions::linger`].
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn set_linger(&mut self, id: SocketId, linger: Option<Duration>) -> Result<(), IoError> {
        self.stream_mut(id)?.linger = linger;
        Ok(())
    }

    /// Sets SO_RCVBUF; see [`TcpOptions::receive_buffer`]. Accepted connections inherit the listener's value.
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn set_receive_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), IoError> {
        let clamped = clamp_buffer(bytes);
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.options.receive_buffer = Some(bytes),
            Some(Socket::Datagram(socket)) => socket.receive_limit = clamped,
            _ => self.stream_mut(id)?.receive_buffer.set_limit(clamped as u32),
        }
        Ok(())
    }

    /// Sets SO_SNDBUF; see [`TcpOptions::send_buffer`]. Accepted connections inherit the listener's value.
    ///
    /// # Errors
    ///
    /// The id is stale.
    pub fn set_send_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), IoError> {
        let clamped = clamp_buffer(bytes);
        match self.sockets.get_mut(id).map(|entry| &mut entry.socket) {
            Some(Socket::Listener(listener)) => listener.options.send_buffer = Some(bytes),
            Some(Socket::Datagram(socket)) => socket.send_limit = clamped,
            _ => self.stream_mut(id)?.send_buffer.set_limit(clamped),
        }
        Ok(())
    }
}
