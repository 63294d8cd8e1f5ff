//! TCP connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abey_tcpip::{IoError, Keepalive, LocalEndpoint, Readiness, Shutdown, SocketError, SocketId, TcpInfo, TcpOptions};

use super::connect;
use super::handle::Handle;
use crate::error::{Error, OpenError};
use crate::handover::{self, ConnectionKey, HandOverError, HandedOver};
use crate::host::Host;
use crate::runtime::Runtime;
use crate::shard::{Core, Shard, ShardSocket};
use crate::source::{Source, SourceInfo, sealed};
use crate::wait::wait_for;

/// How often a thread that waits for a connection checks the link, which may cost a system call.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A TCP connection. All methods take `&self`, so several threads may use it.
#[derive(Debug)]
pub struct TcpStream(pub(super) Handle);

/// Connecting.
impl TcpStream {
    /// Connects, and waits until the connection is established. Successive connections use the shards in turn.
    ///
    /// # Errors
    /// The connection is impossible, or it failed.
    pub fn connect(runtime: &Runtime, remote: SocketAddr) -> Result<Self, OpenError> {
        Self::connect_timeout(runtime, remote, None)
    }

    /// Connects, and waits for at most `timeout`.
    ///
    /// # Errors
    /// Those of [`Self::connect`], or the timeout expired.
    pub fn connect_timeout(
        runtime: &Runtime,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Self, OpenError> {
        Self::connect_and_wait(runtime, runtime.host().next_shard(), remote, timeout)
    }

    /// Connects in a given shard, and waits for at most `timeout`.
    ///
    /// # Errors
    /// Those of [`Self::connect_timeout`], or there is no such shard.
    pub fn connect_in(
        runtime: &Runtime,
        remote: SocketAddr,
        shard: usize,
        timeout: Option<Duration>,
    ) -> Result<Self, OpenError> {
        Self::connect_and_wait(runtime, runtime.host().shard(shard)?, remote, timeout)
    }

    fn connect_and_wait(
        runtime: &Runtime,
        shard: &Arc<Shard>,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Self, OpenError> {
        let host = runtime.host();
        let local = LocalEndpoint { address: host.source_for(remote.ip()), ..LocalEndpoint::default() };
        let stream = Self(connect::connect_in(host, shard, local, remote)?);
        stream.wait_until_connected(timeout)?;
        match stream.take_error() {
            Ok(None) => Ok(stream),
            Ok(Some(error)) => Err(error.into()),
            Err(Error::Nic(reason)) => Err(OpenError::Nic(reason)),
            Err(_) => Err(OpenError::RuntimeDropped),
        }
    }

    /// Starts to connect, in a given shard or in the next one, and returns a non-blocking stream.
    ///
    /// The stream becomes writable when the connection is established or has failed ([`Self::take_error`]).
    ///
    /// # Errors
    /// The connection is impossible.
    pub fn connect_nonblocking(runtime: &Runtime, remote: SocketAddr, shard: Option<usize>) -> Result<Self, OpenError> {
        let host = runtime.host();
        let shard = match shard {
            None => host.next_shard(),
            Some(index) => host.shard(index)?,
        };
        let local = LocalEndpoint { address: host.source_for(remote.ip()), ..LocalEndpoint::default() };
        let stream = Self(connect::connect_in(host, shard, local, remote)?);
        stream.set_nonblocking(true);
        Ok(stream)
    }

    /// Starts to connect from a given local address, port or both, and returns a non-blocking stream.
    ///
    /// A given port must be bound by a kernel socket of the caller. If the device is shared with the kernel (AF_XDP), that
    /// socket reserves the port, and the caller keeps it open as long as the stream. The connection lives in the shard
    /// where the answers arrive.
    ///
    /// # Errors
    /// The connection is impossible, the address is not the runtime's, or there is an equal connection.
    pub fn connect_from(
        runtime: &Runtime,
        address: Option<IpAddr>,
        port: Option<u16>,
        remote: SocketAddr,
    ) -> Result<Self, OpenError> {
        Self::connect_with(runtime, LocalEndpoint { address, port, ..LocalEndpoint::default() }, remote, None)
    }

    /// Starts to connect as [`Self::connect_from`] does, with options that the connection has from its SYN on. If a broker
    /// redirects the ports, `reserved_by` is the socket that has bound the port.
    ///
    /// # Errors
    /// Those of [`Self::connect_from`].
    pub fn connect_with(
        runtime: &Runtime,
        mut local: LocalEndpoint,
        remote: SocketAddr,
        reserved_by: Option<BorrowedFd<'_>>,
    ) -> Result<Self, OpenError> {
        let host = runtime.host();
        local.address = local.address.or_else(|| host.source_for(remote.ip()));
        let stream = Self(match local.port {
            None => connect::connect_in(host, host.next_shard(), local, remote)?,
            Some(port) => connect::connect_from_port(host, local, (port, reserved_by), remote)?,
        });
        stream.set_nonblocking(true);
        Ok(stream)
    }

    /// Returns whether the connection was established and has not ended since. Its data may still be readable when it has.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn is_connected(&self) -> Result<bool, Error> {
        self.0.now(|core, socket| Ok(core.stack.is_connected(socket)))
    }

    /// Returns whether the link of the NIC was up before and is down now, so that no answer will come.
    pub fn link_is_lost(&self) -> bool {
        self.0.first().shard.with(Core::link_is_lost)
    }

    /// Waits until the connection is established or has failed.
    ///
    /// If the link goes down, the call fails at once. If it was never up, the call waits, because it may still come up.
    ///
    /// # Errors
    /// The timeout expired, or the link went down.
    pub fn wait_until_connected(&self, timeout: Option<Duration>) -> Result<(), OpenError> {
        let clock = self.0.host.clock();
        let until = timeout.map(|timeout| clock.after(timeout));
        loop {
            let next_check = clock.after(LINK_CHECK_INTERVAL);
            let next = until.map_or(next_check, |until| until.min(next_check));
            if wait_for(&self.0.sockets, Readiness::WRITABLE, Some(next), None)? {
                return Ok(());
            }
            if until.is_some_and(|until| clock.now() >= until) {
                return Err(OpenError::TimedOut);
            }
            if self.link_is_lost() {
                return Err(OpenError::LinkDown { device: self.0.host.config.device.clone() });
            }
        }
    }
}

/// Transferring data.
impl TcpStream {
    /// Reads the bytes that have arrived. Returns their number; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the stream is non-blocking and has no data; the connection's error.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.0
            .blocking(Readiness::READABLE, |_, core, socket| core.stack.read(socket, buffer).map_err(until_established))
    }

    /// Reads as [`Self::read`] does, and leaves the bytes in the receive buffer.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.0
            .blocking(Readiness::READABLE, |_, core, socket| core.stack.peek(socket, buffer).map_err(until_established))
    }

    /// Writes as many bytes as the send buffer has room for, and sends what the windows allow. Returns their number.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the stream is non-blocking and the buffer is full; the connection's error.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        self.0.blocking(Readiness::WRITABLE, |_, core, socket| write(core, socket, bytes))
    }

    /// Reads as [`Self::read`] does, and never waits, even if the stream is blocking (MSG_DONTWAIT).
    ///
    /// # Errors
    /// Those of [`Self::read`] for a non-blocking stream.
    pub fn try_read(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.read(socket, buffer).map_err(until_established))
    }

    /// Reads as [`Self::peek`] does, and never waits.
    ///
    /// # Errors
    /// Those of [`Self::peek`] for a non-blocking stream.
    pub fn try_peek(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.peek(socket, buffer).map_err(until_established))
    }

    /// Writes as [`Self::write`] does, and never waits.
    ///
    /// # Errors
    /// Those of [`Self::write`] for a non-blocking stream.
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, Error> {
        self.0.now(|core, socket| write(core, socket, bytes))
    }

    /// Writes as [`Self::try_write`] does. A small segment waits for the `more` bytes that follow, for at most 200 ms
    /// (MSG_MORE).
    ///
    /// # Errors
    /// Those of [`Self::try_write`].
    pub fn try_write_more(&self, bytes: &[u8], more: bool) -> Result<usize, Error> {
        self.0.now(|core, socket| {
            let written = core.stack.write_more(socket, bytes, more)?;
            core.note_answer(socket);
            Ok(written)
        })
    }

    /// Returns the number of bytes that can be read (FIONREAD).
    ///
    /// # Errors
    /// The connection has ended, or the runtime was dropped.
    pub fn readable_bytes(&self) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.readable_bytes(socket))
    }

    /// Returns what the stream is ready for.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// Those of [`Self::write`]. Some of the bytes may have been written.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let written = self.write(bytes)?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Reads until `buffer` is full.
    ///
    /// # Errors
    /// Those of [`Self::read`]; [`IoError::NotConnected`] if the stream ends before.
    pub fn read_exact(&self, buffer: &mut [u8]) -> Result<(), Error> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 => return Err(IoError::NotConnected.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Shuts down one direction or both.
    ///
    /// # Errors
    /// The connection is not established.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        self.0.now(|core, socket| {
            let now = core.stack_now();
            core.stack.shutdown(now, socket, how)
        })
    }

    /// Returns and clears the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn take_error(&self) -> Result<Option<SocketError>, Error> {
        self.0.now(|core, socket| core.stack.take_error(socket))
    }

    /// Sets all options. Those that only matter before the handshake have no effect.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_options(&self, options: &TcpOptions) -> Result<(), Error> {
        self.0.now(|core, socket| {
            let now = core.stack_now();
            core.stack.set_options(now, socket, options)
        })
    }

    /// Sends pending acknowledgements at once and delays none, until the connection changes that by itself; or begins to
    /// delay them (TCP_QUICKACK).
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_quick_ack(&self, quick: bool) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_quick_ack(socket, quick))
    }

    /// Returns the state of the connection (TCP_INFO).
    ///
    /// # Errors
    /// The connection has ended and its state is gone, or the runtime was dropped.
    pub fn info(&self) -> Result<TcpInfo, Error> {
        self.0.now(|core, socket| core.stack.tcp_info(socket))
    }

    /// Sets whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_nodelay(&self, on: bool) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_nodelay(socket, on))
    }

    /// Sets the probes of an idle connection (SO_KEEPALIVE); `None` disables them.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> Result<(), Error> {
        self.0.now(|core, socket| {
            let now = core.stack_now();
            core.stack.set_keepalive(now, socket, keepalive)
        })
    }

    /// Sets how closing ends the connection (SO_LINGER); zero resets it. Closing never waits.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_linger(&self, linger: Option<Duration>) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_linger(socket, linger))
    }

    /// Returns the number of bytes that were written and that the peer has not acknowledged.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn unacknowledged_bytes(&self) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.unacknowledged_bytes(socket))
    }

    /// Returns the number of bytes that were written and never sent.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn unsent_bytes(&self) -> Result<usize, Error> {
        self.0.now(|core, socket| core.stack.unsent_bytes(socket))
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.peer_addr(socket))
    }

    /// Returns the ID of the NAPI instance that receives the stream's packets (SO_INCOMING_NAPI_ID).
    pub fn incoming_napi_id(&self) -> u32 {
        self.0.first().shard.id.get()
    }

    /// Returns the kernel socket that reserves the local port, if this end connected and the device is shared with the
    /// kernel (AF_XDP).
    pub fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.lease.as_ref()?.kernel_socket()
    }

    /// Sets whether calls fail instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.0.set_nonblocking(on);
    }

    /// Sets how long a call waits at most.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.0.set_timeout(timeout);
    }

    /// Sets how long a call that reads waits at most (SO_RCVTIMEO).
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.0.set_read_timeout(timeout);
    }

    /// Sets how long a call that writes waits at most (SO_SNDTIMEO).
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.0.set_write_timeout(timeout);
    }

    /// Sets the size of the receive buffer in bytes (SO_RCVBUF), and stops its automatic adjustment.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_receive_buffer(socket, bytes))
    }

    /// Sets the size of the send buffer in bytes (SO_SNDBUF).
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_send_buffer(&self, bytes: usize) -> Result<(), Error> {
        self.0.now(|core, socket| core.stack.set_send_buffer(socket, bytes))
    }
}

/// Handing over to the kernel: see [`handover`].
impl TcpStream {
    /// Returns the connection's name in its runtime. Takes no lock, so that a forked child may call it.
    pub fn key(&self) -> ConnectionKey {
        self.0.key()
    }

    /// Returns a stream for a connection of the stack that no handle has.
    pub(crate) fn adopt(host: &Arc<Host>, socket: ShardSocket) -> Self {
        let handle = Handle::new(host, vec![socket]);
        handle.set_nonblocking(true);
        Self(handle)
    }

    /// Returns the connection's part in its shard.
    pub(crate) fn sockets(&self) -> &[ShardSocket] {
        &self.0.sockets
    }

    /// Moves the connection into `socket`, an unconnected TCP socket of the kernel that is bound to no other port. Every
    /// process that shares the socket then has the connection. If the kernel cannot take it, a socket pair stands for it.
    ///
    /// Later calls on the stream fail with [`IoError::Moved`]. A second hand-over returns the result of the first.
    /// The socket gets the connection's TCP_NODELAY; its other options are its own.
    ///
    /// # Errors
    /// See [`HandOverError`]. Then the stream is unchanged.
    pub fn hand_over(&self, socket: BorrowedFd<'_>) -> Result<HandedOver, HandOverError> {
        handover::hand_over(&self.0.host, self.0.key(), Some(socket), None)
    }

    /// Hands the connection over as [`Self::hand_over`], before this process closes it. `is_inherited` returns whether another
    /// process may still [ask](crate::handover::HandOverAddress) for it: a pump waits for that, and then serves it alone.
    ///
    /// # Errors
    /// See [`HandOverError`]. Then the stream is unchanged.
    pub fn hand_over_inherited(
        &self,
        socket: BorrowedFd<'_>,
        is_inherited: impl Fn() -> bool + Send + 'static,
    ) -> Result<HandedOver, HandOverError> {
        handover::hand_over(&self.0.host, self.0.key(), Some(socket), Some(Box::new(is_inherited)))
    }

    /// Moves the connection into `socket` as [`Self::hand_over`] does, and never makes a socket pair.
    ///
    /// # Errors
    /// See [`HandOverError`], or it was moved elsewhere before. Then the stream is unchanged.
    pub fn hand_over_to_kernel(&self, socket: BorrowedFd<'_>) -> Result<(), HandOverError> {
        handover::hand_over_to_kernel(&self.0.host, self.0.key(), socket)
    }

    /// Returns where the connection was moved to, if it was: also by the [request](crate::handover::HandOverAddress) of another
    /// process.
    pub fn handed_over(&self) -> Option<HandedOver> {
        handover::handed_over(&self.0.host, self.0.key())
    }
}

fn write(core: &mut Core, socket: SocketId, bytes: &[u8]) -> Result<usize, IoError> {
    let written = core.stack.write(socket, bytes)?;
    core.note_answer(socket);
    Ok(written)
}

/// Turns "not connected" into "would block": a connection that is not established has nothing to read *yet*.
fn until_established(error: IoError) -> IoError {
    if error == IoError::NotConnected { IoError::WouldBlock } else { error }
}

impl io::Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(TcpStream::read(self, buffer)?)
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
    fn info(&self) -> SourceInfo<'_> {
        SourceInfo { host: &self.0.host, sockets: &self.0.sockets, is_listener: false }
    }
}
