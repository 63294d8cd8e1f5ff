//! Listening TCP sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::{IoError, Readiness, SocketId};

use super::{Handle, Parts, Source, TcpStream, sealed};
use crate::error::{Error, OpenError};
use crate::kernel::Users;
use crate::runtime::Runtime;
use crate::shard::{Core, Shard};
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
        let shards: Vec<_> = (0..runtime.shards()).collect();
        Self::open(runtime, &[at], &shards, Self::BACKLOG, false)
    }

    /// Listens in one shard only, as one of a group of listeners with SO_REUSEPORT that has one for each shard: it gets
    /// the connections whose packets arrive there. Those that arrive in shards where nobody listens are refused.
    ///
    /// # Errors
    /// As [`Self::bind`], or a shard that is not there.
    pub fn bind_reuse_port(runtime: &Runtime, at: SocketAddr, shard: usize) -> Result<Self, OpenError> {
        Self::open(runtime, &[at], &[shard], Self::BACKLOG, false)
    }

    /// Listens beside a socket of the kernel's that is the caller's, is bound to this port and listens there too: where
    /// the device is shared with the kernel (AF_XDP), that socket is the reservation of the port, which this redirects.
    /// The caller keeps it open as long as the listener.
    ///
    /// At every one of `addresses`, which have one port, in each of `shards`; with room for `backlog` connections that
    /// wait to be accepted in each. Connections that the kernel's socket has already are the kernel's, and stay so.
    ///
    /// # Errors
    /// As [`Self::bind`], no address, or a shard that is not there.
    pub fn bind_beside(
        runtime: &Runtime,
        addresses: &[SocketAddr],
        shards: &[usize],
        backlog: usize,
    ) -> Result<Self, OpenError> {
        Self::open(runtime, addresses, shards, backlog, true)
    }

    fn open(
        runtime: &Runtime,
        addresses: &[SocketAddr],
        shards: &[usize],
        backlog: usize,
        is_held: bool,
    ) -> Result<Self, OpenError> {
        let runtime = runtime.shared();
        let shards = shards.iter().map(|shard| runtime.shard(*shard)).collect::<Result<Vec<_>, _>>()?;
        let port = addresses.first().ok_or(OpenError::NoAddress)?.port();
        let lease = match &runtime.kernel {
            Some(kernel) if is_held => Some(kernel.adopt(Protocol::Tcp, port)?),
            _ => runtime.reserve(Protocol::Tcp, port)?,
        };
        // The parts that exist are closed again if one of them cannot be opened.
        let mut handle = Handle::new(runtime, Vec::new());
        for at in addresses {
            for shard in &shards {
                let socket = runtime.open(shard, |core| core.stack.listen(*at, backlog))?;
                handle.parts.push(Part { shard: (*shard).clone(), socket });
            }
        }
        let parts = std::mem::take(&mut handle.parts);
        let mut handle = Handle::new(runtime, parts);
        handle.lease = lease.map(|mut lease| {
            // Accepted connections outlive their listener.
            let shards = runtime.shards.iter().map(Arc::downgrade).collect();
            lease.set_users(Users::Port { shards, port });
            lease
        });
        Ok(Self(handle))
    }

    /// Listens no more, while this stays: connections that wait to be accepted are reset (`shutdown(2)` of a listener).
    pub fn stop(&self) {
        self.0.close();
    }

    /// Takes the next connection, which inherits whether calls block, and its peer's address.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the listener is non-blocking and there is none.
    pub fn accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let (part, peer) = self.0.when(Readiness::READABLE, take)?;
        let handle = Handle::new(&self.0.runtime, vec![part]);
        handle.set_nonblocking(self.0.is_nonblocking());
        Ok((TcpStream(handle), peer))
    }

    /// What it is ready for at the moment: readable is a connection to accept.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// The runtime's kernel socket that holds the port, bound and not listening, where the device is shared with the kernel
    /// (AF_XDP). `None` for one that [stands beside](Self::bind_beside) the caller's.
    pub fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.0.lease.as_ref()?.kernel_socket()
    }

    /// As [`Self::accept`], without waiting, whatever [`Self::set_nonblocking`] says.
    ///
    /// # Errors
    /// As [`Self::accept`] of a listener that is non-blocking.
    pub fn try_accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let (part, peer) = self.0.at_once(take)?;
        Ok((TcpStream(Handle::new(&self.0.runtime, vec![part])), peer))
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

/// Takes a connection that waits at a part.
fn take(shard: &Arc<Shard>, core: &mut Core, listener: SocketId) -> Result<(Part, SocketAddr), IoError> {
    let accepted = core.stack.accept(listener)?;
    let peer = core.stack.peer_addr(accepted)?;
    Ok((Part { shard: shard.clone(), socket: accepted }, peer))
}

impl sealed::Sealed for TcpListener {}

impl Source for TcpListener {
    fn parts(&self) -> Parts<'_> {
        Parts { runtime: &self.0.runtime, parts: &self.0.parts, listens: true }
    }
}
