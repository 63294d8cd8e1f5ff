//! TCP connections: what is done with one. How one is made is in [`connect`](super::connect).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_tcpip::{IoError, Keepalive, Readiness, Shutdown, SocketError, SocketId};

use super::{Handle, Parts, Source, sealed};
use crate::error::Error;
use crate::shard::Core;

/// A TCP connection. All methods take `&self`; several threads may use it.
#[derive(Debug)]
pub struct TcpStream(pub(super) Handle);

impl TcpStream {
    /// Reads what is there; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the stream is non-blocking and nothing is there; what happened to the connection.
    pub fn read(&self, to: &mut [u8]) -> Result<usize, Error> {
        self.0.when(Readiness::READABLE, |_, core, socket| core.stack.read(socket, to).map_err(established))
    }

    /// As [`Self::read`], without taking the bytes away.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn peek(&self, to: &mut [u8]) -> Result<usize, Error> {
        self.0.when(Readiness::READABLE, |_, core, socket| core.stack.peek(socket, to).map_err(established))
    }

    /// Writes what there is room for, and sends what the windows allow.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the stream is non-blocking and there is no room; what happened to the connection.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        self.0.when(Readiness::WRITABLE, |_, core, socket| write(core, socket, bytes))
    }

    /// As [`Self::read`], without waiting, whatever [`Self::set_nonblocking`] says (MSG_DONTWAIT).
    ///
    /// # Errors
    /// As [`Self::read`] of a stream that is non-blocking.
    pub fn try_read(&self, to: &mut [u8]) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.read(socket, to).map_err(established))
    }

    /// As [`Self::peek`], without waiting.
    ///
    /// # Errors
    /// As [`Self::peek`] of a stream that is non-blocking.
    pub fn try_peek(&self, to: &mut [u8]) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.peek(socket, to).map_err(established))
    }

    /// As [`Self::write`], without waiting.
    ///
    /// # Errors
    /// As [`Self::write`] of a stream that is non-blocking.
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, Error> {
        self.0.now(|core, socket| write(core, socket, bytes))
    }

    /// How many bytes are there to read (FIONREAD).
    ///
    /// # Errors
    /// If the connection or the runtime is gone.
    pub fn readable_bytes(&self) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.readable_bytes(socket))
    }

    /// What it is ready for at the moment.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    /// Writes everything.
    ///
    /// # Errors
    /// As [`Self::write`]; how much was written before is not told.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let written = self.write(bytes)?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Reads until `to` is full.
    ///
    /// # Errors
    /// As [`Self::read`]; [`IoError::NotConnected`] if the stream ends before.
    pub fn read_exact(&self, to: &mut [u8]) -> Result<(), Error> {
        let mut filled = 0;
        while filled < to.len() {
            match self.read(&mut to[filled..])? {
                0 => return Err(IoError::NotConnected.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Shuts one direction or both.
    ///
    /// # Errors
    /// If the connection is not established.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        self.0.now(|core, socket| {
            let now = core.stack_now();
            core.stack.shutdown(now, socket, how)
        })
    }

    /// The error that waits, if any (SO_ERROR); it waits no more.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn take_error(&self) -> Result<Option<SocketError>, Error> {
        self.0.now(|core, socket| core.stack.take_error(socket))
    }

    /// Whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn set_nodelay(&self, on: bool) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_nodelay(socket, on))
    }

    /// Probes of an idle connection (SO_KEEPALIVE).
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> Result<(), Error> {
        self.0.now(|core, socket| {
            let now = core.stack_now();
            core.stack.set_keepalive(now, socket, keepalive)
        })
    }

    /// How closing ends the connection (SO_LINGER); zero resets it. Closing never waits.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn set_linger(&self, linger: Option<Duration>) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_linger(socket, linger))
    }

    /// Bytes that were written and that the peer has not acknowledged.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn unacknowledged_bytes(&self) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.unacknowledged_bytes(socket))
    }

    /// Bytes that were written and never sent.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn unsent_bytes(&self) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.unsent_bytes(socket))
    }

    /// The own end's address.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// The peer's address.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.peer_addr(socket))
    }

    /// The NAPI instance its packets arrive through (SO_INCOMING_NAPI_ID).
    pub fn incoming_napi_id(&self) -> u32 {
        self.0.part().shard.id.get()
    }

    /// The kernel socket that holds the own port, if this end connected and the device is shared with the kernel (AF_XDP).
    pub fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.lease.as_ref()?.kernel_socket()
    }

    /// Whether calls wait.
    pub fn set_nonblocking(&self, on: bool) {
        self.0.set_nonblocking(on);
    }

    /// How long one call waits at most.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.0.set_timeout(timeout);
    }

    /// How long one call that reads waits at most (SO_RCVTIMEO).
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.0.set_read_timeout(timeout);
    }

    /// How long one call that writes waits at most (SO_SNDTIMEO).
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.0.set_write_timeout(timeout);
    }

    /// The bytes it takes before its program reads them (SO_RCVBUF), from now on fixed.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_receive_buffer(socket, bytes))
    }

    /// The bytes that may be written before the peer acknowledges them (SO_SNDBUF).
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn set_send_buffer(&self, bytes: usize) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_send_buffer(socket, bytes))
    }
}

fn write(core: &mut Core, socket: SocketId, bytes: &[u8]) -> Result<usize, IoError> {
    let written = core.stack.write(socket, bytes)?;
    core.note_answer(socket);
    Ok(written)
}

/// A connection that is still being made has nothing to read *yet*.
fn established(error: IoError) -> IoError {
    if error == IoError::NotConnected { IoError::WouldBlock } else { error }
}

impl io::Read for &TcpStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(TcpStream::read(self, to)?)
    }
}

impl io::Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(TcpStream::write(self, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl sealed::Sealed for TcpStream {}

impl Source for TcpStream {
    fn parts(&self) -> Parts<'_> {
        Parts { runtime: &self.0.runtime, parts: &self.0.parts, listens: false }
    }
}
