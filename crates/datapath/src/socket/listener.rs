//! Listening TCP sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::Readiness;

use super::{Handle, Parts, Source, TcpStream, sealed};
use crate::error::{Error, OpenError};
use crate::kernel::Users;
use crate::runtime::Runtime;
use crate::wait::Part;

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpListener(Handle);

impl TcpListener {
    /// Connections that may wait to be accepted, and be half open, in each shard.
    pub const BACKLOG: usize = 1024;

    /// Listens in every shard: connections are accepted wherever their packets arrive.
    ///
    /// # Errors
    /// An address that is taken or not the runtime's; a port that another program has, where the device is shared with
    /// the kernel.
    pub fn bind(runtime: &Runtime, at: SocketAddr) -> Result<Self, OpenError> {
        Self::open(runtime, at, 0..runtime.shards())
    }

    /// Listens in one shard only, as one of a group of listeners with SO_REUSEPORT that has one for each shard: it gets
    /// the connections whose packets arrive there. Those that arrive in shards where nobody listens are refused.
    ///
    /// # Errors
    /// As [`Self::bind`], or a shard that is not there.
    pub fn bind_reuse_port(runtime: &Runtime, at: SocketAddr, shard: usize) -> Result<Self, OpenError> {
        runtime.shared().shard(shard)?;
        Self::open(runtime, at, shard..shard + 1)
    }

    fn open(runtime: &Runtime, at: SocketAddr, shards: std::ops::Range<usize>) -> Result<Self, OpenError> {
        let runtime = runtime.shared();
        let lease = runtime.reserve(Protocol::Tcp, at.port())?;
        // The parts that exist are closed again if one of them cannot be opened.
        let mut handle = Handle::new(runtime, Vec::new());
        for shard in &runtime.shards[shards] {
            let socket = runtime.open(shard, |core| core.stack.listen(at, Self::BACKLOG))?;
            handle.parts.push(Part { shard: shard.clone(), socket });
        }
        let parts = std::mem::take(&mut handle.parts);
        let mut handle = Handle::new(runtime, parts);
        handle.lease = lease.map(|mut lease| {
            // Accepted connections outlive their listener.
            let shards = runtime.shards.iter().map(Arc::downgrade).collect();
            lease.set_users(Users::Port { shards, port: at.port() });
            lease
        });
        Ok(Self(handle))
    }

    /// Takes the next connection, which inherits whether calls block, and its peer's address.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the listener is non-blocking and there is none.
    pub fn accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let (part, peer) = self.0.when(Readiness::READABLE, |shard, core, socket| {
            let accepted = core.stack.accept(socket)?;
            let peer = core.stack.peer_addr(accepted)?;
            Ok((Part { shard: shard.clone(), socket: accepted }, peer))
        })?;
        let handle = Handle::new(&self.0.runtime, vec![part]);
        handle.set_nonblocking(self.0.is_nonblocking());
        Ok((TcpStream(handle), peer))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// The kernel socket that holds the port, bound and not listening, where the device is shared with the kernel
    /// (AF_XDP).
    pub fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.lease.as_ref()?.kernel_socket()
    }

    /// Whether [`Self::accept`] waits.
    pub fn set_nonblocking(&self, on: bool) {
        self.0.set_nonblocking(on);
    }

    /// How long [`Self::accept`] waits at most.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.0.set_timeout(timeout);
    }
}

impl sealed::Sealed for TcpListener {}

impl Source for TcpListener {
    fn parts(&self) -> Parts<'_> {
        Parts { runtime: &self.0.runtime, parts: &self.0.parts }
    }
}
