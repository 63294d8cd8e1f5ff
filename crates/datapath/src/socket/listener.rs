//! Listening TCP sockets.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::{IoError, Overflow, Readiness, SocketId, TcpOptions};

use super::handle::{Handle, on};
use super::stream::TcpStream;
use crate::error::{Error, OpenError};
use crate::handover::offer;
use crate::kernel::ports::{Lease, PortUsers};
use crate::runtime::Runtime;
use crate::shard::{Core, Shard, ShardSocket};
use crate::source::{Source, SourceInfo, sealed};

/// How often, and with what pause, the handshakes of half-open connections are waited for.
const HALF_OPEN_CHECKS: u32 = 20;
const HALF_OPEN_INTERVAL: Duration = Duration::from_millis(1);

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpListener(Handle);

impl TcpListener {
    /// The most connections in each shard that wait to be accepted, and the most that are half open.
    pub const BACKLOG: usize = 1024;

    /// Listens in every shard, so that connections are accepted on any queue.
    ///
    /// # Errors
    /// The address is in use or not the runtime's. If the device is shared with the kernel: another program uses the port.
    pub fn bind(runtime: &Runtime, address: SocketAddr) -> Result<Self, OpenError> {
        let shards: Vec<_> = (0..runtime.shards()).collect();
        Self::open(runtime, &[address], &shards, Self::BACKLOG, None)
    }

    /// Listens in one shard, as one listener of an SO_REUSEPORT group that has one for each shard.
    ///
    /// It accepts the connections whose packets arrive in that shard. A shard without a listener refuses connections.
    ///
    /// # Errors
    /// Those of [`Self::bind`], or there is no such shard.
    pub fn bind_reuse_port(runtime: &Runtime, address: SocketAddr, shard: usize) -> Result<Self, OpenError> {
        Self::open(runtime, &[address], &[shard], Self::BACKLOG, None)
    }

    /// Listens on a port on which `reserved_by`, a kernel socket of the caller, listens too.
    ///
    /// If the device is shared with the kernel (AF_XDP), the kernel socket reserves the port, and this call redirects it.
    /// The caller keeps the socket open as long as the listener. Connections that the kernel socket has already stay in
    /// the kernel.
    ///
    /// Listens on all `addresses`, which have the same port, in each of `shards`. In each shard up to `backlog`
    /// connections may wait to be accepted.
    ///
    /// # Errors
    /// Those of [`Self::bind`], no address, or there is no such shard.
    pub fn bind_reserved(
        runtime: &Runtime,
        addresses: &[SocketAddr],
        shards: &[usize],
        backlog: usize,
        reserved_by: BorrowedFd<'_>,
    ) -> Result<Self, OpenError> {
        Self::open(runtime, addresses, shards, backlog, Some(reserved_by))
    }

    fn open(
        runtime: &Runtime,
        addresses: &[SocketAddr],
        shards: &[usize],
        backlog: usize,
        reserved_by: Option<BorrowedFd<'_>>,
    ) -> Result<Self, OpenError> {
        let host = runtime.host();
        let shards = shards.iter().map(|shard| host.shard(*shard)).collect::<Result<Vec<_>, _>>()?;
        let port = addresses.first().ok_or(OpenError::NoAddress)?.port();
        // A port that the caller holds is redirected when all shards listen: before, they would refuse connections.
        let adopting = host.kernel().filter(|_| reserved_by.is_some());
        let reserved = if adopting.is_some() { None } else { host.reserve(Protocol::Tcp, port)? };
        // If one of the sockets cannot be opened, the handle closes the others.
        let mut handle = Handle::new(host, Vec::new());
        for address in addresses {
            for shard in &shards {
                let id = host.open(shard, |core| core.stack.listen(*address, backlog))?;
                handle.sockets.push(ShardSocket { shard: (*shard).clone(), id });
            }
        }
        let adopted = adopting.map(|kernel| kernel.ports.adopt(Protocol::Tcp, port, reserved_by)).transpose()?;
        handle.lease = adopted.or(reserved).map(|mut lease| {
            // Accepted connections outlive their listener.
            let shards = host.shards().iter().map(Arc::downgrade).collect();
            lease.set_users(PortUsers::Port { shards, port });
            lease
        });
        let listener = Self(handle);
        if reserved_by.is_some() && listener.0.lease.is_some() {
            listener.apply_overflow(Overflow { limit: usize::MAX, accept_timeout: None });
        }
        Ok(listener)
    }

    /// Sets the options that connections inherit whose SYN arrives from now on.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_options(&self, options: &TcpOptions) -> Result<(), Error> {
        for socket in &self.0.sockets {
            on(socket, |core| {
                let now = core.stack_now();
                core.stack.set_options(now, socket.id, options)
            })?;
        }
        Ok(())
    }

    /// Sets what each shard leaves to a kernel socket of the caller that [reserves](Self::bind_reserved) the port, where another
    /// process may accept it. New connections go to the kernel when something was left there, until the program accepts here
    /// or calls this with a limit above 0. Before the call, that is what finds the backlog full. No effect on a device that is
    /// not shared with the kernel.
    pub fn set_overflow(&self, overflow: Overflow) {
        let Some(lease) = &self.0.lease else { return };
        self.apply_overflow(overflow);
        if overflow.limit > 0 {
            lease.resume();
        }
    }

    fn apply_overflow(&self, overflow: Overflow) {
        for socket in &self.0.sockets {
            socket.shard.with(|core| {
                let now = core.stack_now();
                // It fails for a listener that was stopped.
                let _ = core.stack.set_overflow(now, socket.id, overflow);
            });
        }
    }

    /// Returns whether new connections go to the kernel, until the program accepts here or [`Self::set_overflow`] is called.
    pub fn is_paused(&self) -> bool {
        self.0.lease.as_ref().is_some_and(Lease::is_paused)
    }

    /// Returns whether connections that were not accepted can be left to the kernel; otherwise only SYNs can.
    pub fn can_leave_connections(&self) -> bool {
        self.0.lease.as_ref().is_some_and(|lease| lease.ports().redirected().can_offer())
    }

    /// Leaves everything that was not accepted to the kernel socket of the caller, before the listener or the process ends.
    /// Connections that arrive later go there, too. Waits for half-open ones, for some milliseconds at most; those that are left
    /// then are the kernel's if the process ends, whose queues are the kernel's from then on.
    pub fn leave_unaccepted(&self, process_ends: bool) {
        let Some(lease) = &self.0.lease else { return };
        self.0.sockets.iter().for_each(|socket| lease.pause(socket.shard.index));
        for check in 1..=HALF_OPEN_CHECKS {
            let is_last = process_ends && check == HALF_OPEN_CHECKS;
            let mut is_waiting = false;
            for socket in &self.0.sockets {
                let all = socket.shard.with(|core| {
                    core.drain_ring();
                    core.stack.take_all_unaccepted(socket.id)
                });
                for one in &all {
                    is_waiting |= offer::pass(&socket.shard, one, lease.ports(), is_last);
                }
            }
            if !is_waiting {
                break;
            }
            std::thread::sleep(HALF_OPEN_INTERVAL);
        }
    }

    /// Stops listening, and resets the connections that wait to be accepted (`shutdown(2)` of a listener).
    pub fn stop(&self) {
        self.0.close();
    }

    /// Accepts the next connection. Returns its stream and the peer's address. The stream is non-blocking if the listener
    /// is.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the listener is non-blocking and no connection waits.
    pub fn accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let (socket, peer) = self.0.blocking(Readiness::READABLE, accept)?;
        let handle = Handle::new(&self.0.host, vec![socket]);
        handle.set_nonblocking(self.0.is_nonblocking());
        Ok((TcpStream(handle), peer))
    }

    /// Returns what the listener is ready for; it is readable if a connection waits to be accepted.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    /// Returns the address on which the listener listens.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// Returns the runtime's kernel socket that reserves the port, bound and not listening, if the device is shared with
    /// the kernel (AF_XDP). `None` if a socket of the caller [reserves](Self::bind_reserved) the port.
    pub fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.lease.as_ref()?.kernel_socket()
    }

    /// Accepts as [`Self::accept`] does, and never waits, even if the listener is blocking.
    ///
    /// # Errors
    /// Those of [`Self::accept`] for a non-blocking listener.
    pub fn try_accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let (socket, peer) = self.0.try_now(accept)?;
        Ok((TcpStream(Handle::new(&self.0.host, vec![socket])), peer))
    }

    /// Sets whether [`Self::accept`] fails instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.0.set_nonblocking(on);
    }

    /// Sets how long [`Self::accept`] waits at most.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.0.set_timeout(timeout);
    }
}

/// Accepts a connection in one shard.
fn accept(shard: &Arc<Shard>, core: &mut Core, listener: SocketId) -> Result<(ShardSocket, SocketAddr), IoError> {
    let id = core.stack.accept(listener)?;
    let peer = core.stack.peer_addr(id)?;
    Ok((ShardSocket { shard: shard.clone(), id }, peer))
}

impl sealed::Sealed for TcpListener {}

impl Source for TcpListener {
    fn info(&self) -> SourceInfo<'_> {
        SourceInfo { host: &self.0.host, sockets: &self.0.sockets, is_listener: true }
    }
}
