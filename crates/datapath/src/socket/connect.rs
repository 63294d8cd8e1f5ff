//! How a connection is made: in which shard, from which port, and waiting until it is established.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::{Local, Readiness, SocketId};

use super::{Handle, TcpStream};
use crate::error::{Error, OpenError};
use crate::kernel::{Lease, Users};
use crate::runtime::{Runtime, Shared};
use crate::shard::{Core, Shard};
use crate::wait::{Part, wait_for};

/// How often who waits to be connected looks whether the link is still there: it may be a system call.
const LOOK_AT_LINK: Duration = Duration::from_millis(100);

impl TcpStream {
    /// Connects, and waits until the connection is established. Successive connections use the shards in turn.
    ///
    /// # Errors
    /// What is known to be impossible, or what happened.
    pub fn connect(runtime: &Runtime, remote: SocketAddr) -> Result<Self, OpenError> {
        Self::connect_timeout(runtime, remote, None)
    }

    /// As [`Self::connect`], waiting no longer than `timeout`.
    ///
    /// # Errors
    /// As [`Self::connect`], or the time is over.
    pub fn connect_timeout(
        runtime: &Runtime,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Self, OpenError> {
        Self::connect_to(runtime, runtime.shared().next_shard(), remote, timeout)
    }

    /// As [`Self::connect_timeout`], in a given shard.
    ///
    /// # Errors
    /// As [`Self::connect_timeout`], or a shard that is not there.
    pub fn connect_in(
        runtime: &Runtime,
        remote: SocketAddr,
        shard: usize,
        timeout: Option<Duration>,
    ) -> Result<Self, OpenError> {
        Self::connect_to(runtime, runtime.shared().shard(shard)?, remote, timeout)
    }

    fn connect_to(
        runtime: &Runtime,
        shard: &Arc<Shard>,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<Self, OpenError> {
        let stream = Self::start(runtime.shared(), shard, remote)?;
        stream.wait_until_connected(timeout)?;
        match stream.take_error() {
            Ok(None) => Ok(stream),
            Ok(Some(error)) => Err(error.into()),
            Err(Error::Nic(reason)) => Err(OpenError::Nic(reason)),
            Err(_) => Err(OpenError::RuntimeGone),
        }
    }

    /// Whether the connection was established, and is not over since; its data may still be read when it is.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn is_connected(&self) -> Result<bool, Error> {
        self.0.now(|core, socket| Ok(core.stack.is_connected(socket)))
    }

    /// Whether the link of the connection's NIC was there and is no more: nobody will answer.
    pub fn link_is_lost(&self) -> bool {
        self.0.part().shard.with(Core::link_is_lost)
    }

    /// Waits until the connection is established or has failed. A peer at the other end of the wire that has gone will not
    /// answer; one that was never there may still come.
    ///
    /// # Errors
    /// The time is over, or the link is lost.
    pub fn wait_until_connected(&self, timeout: Option<Duration>) -> Result<(), OpenError> {
        let clock = self.0.runtime.clock;
        let until = timeout.map(|timeout| clock.after(timeout));
        loop {
            let look = clock.after(LOOK_AT_LINK);
            let next = until.map_or(look, |until| until.min(look));
            if wait_for(&self.0.parts, Readiness::WRITABLE, Some(next), None)? {
                return Ok(());
            }
            if until.is_some_and(|until| clock.now() >= until) {
                return Err(OpenError::TimedOut);
            }
            if self.link_is_lost() {
                return Err(OpenError::LinkDown { device: self.0.runtime.device.clone() });
            }
        }
    }

    /// Begins to connect, in a given shard or the next one, and returns a non-blocking stream: it is established, or has
    /// failed ([`Self::take_error`]), when it becomes writable.
    ///
    /// # Errors
    /// What is known to be impossible.
    pub fn connect_nonblocking(runtime: &Runtime, remote: SocketAddr, shard: Option<usize>) -> Result<Self, OpenError> {
        let shared = runtime.shared();
        let shard = match shard {
            None => shared.next_shard(),
            Some(index) => shared.shard(index)?,
        };
        let stream = Self::start(shared, shard, remote)?;
        stream.set_nonblocking(true);
        Ok(stream)
    }

    /// As [`Self::connect_nonblocking`], from an end that is given in part or whole. A port that is given was bound by a
    /// kernel socket of the caller's, which is its reservation where the device is shared with the kernel (AF_XDP) and
    /// stays open as long as the stream; the shard is then the one that the answers arrive in.
    ///
    /// # Errors
    /// What is known to be impossible; an address that is not the runtime's, or two equal connections.
    pub fn connect_from(
        runtime: &Runtime,
        address: Option<IpAddr>,
        port: Option<u16>,
        remote: SocketAddr,
    ) -> Result<Self, OpenError> {
        let shared = runtime.shared();
        let address = address.or_else(|| shared.source_for(remote.ip()));
        let stream = match port {
            None => Self::start_from(shared, shared.next_shard(), address, remote)?,
            Some(port) => Self::start_bound(shared, address, port, remote)?,
        };
        stream.set_nonblocking(true);
        Ok(stream)
    }

    fn start(runtime: &Arc<Shared>, shard: &Arc<Shard>, remote: SocketAddr) -> Result<Self, OpenError> {
        Self::start_from(runtime, shard, runtime.source_for(remote.ip()), remote)
    }

    /// From a port that the caller holds in the kernel.
    fn start_bound(
        runtime: &Arc<Shared>,
        address: Option<IpAddr>,
        port: u16,
        remote: SocketAddr,
    ) -> Result<Self, OpenError> {
        let mut fits = None;
        for shard in runtime.shards.iter() {
            if runtime.steering(remote, address, shard.index.as_usize())?(port) {
                fits = Some(shard);
                break;
            }
        }
        let shard = fits.ok_or(OpenError::NoSteering(remote))?;
        let lease = runtime.kernel.as_ref().map(|kernel| kernel.adopt(Protocol::Tcp, port)).transpose()?;
        if let Some(lease) = &lease {
            lease.set_shard(shard.index);
        }
        let socket = runtime.open(shard, |core| {
            let now = core.stack_now();
            core.stack.connect_from(now, Local { address, port: Some(port) }, remote, |_| true)
        })?;
        let own = address.map(|address| SocketAddr::new(address, port));
        Ok(Self::started(runtime, shard, socket, lease, own, remote))
    }

    /// A connection that was begun, whose port is needed as long as the stack knows it.
    fn started(
        runtime: &Arc<Shared>,
        shard: &Arc<Shard>,
        socket: SocketId,
        lease: Option<Lease>,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Self {
        let mut handle = Handle::new(runtime, vec![Part { shard: shard.clone(), socket }]);
        shard.with(|core| core.note_outgoing(socket));
        handle.lease = lease.map(|mut lease| {
            if let Some(local) = local {
                lease.set_users(Users::Flow { shard: Arc::downgrade(shard), local, remote });
            }
            lease
        });
        Self(handle)
    }

    /// The port is chosen so that the NIC steers the answers to this shard.
    fn start_from(
        runtime: &Arc<Shared>,
        shard: &Arc<Shard>,
        address: Option<IpAddr>,
        remote: SocketAddr,
    ) -> Result<Self, OpenError> {
        let steers = runtime.steering(remote, address, shard.index.as_usize())?;
        let connect = |core: &mut Core, port, accepts: &dyn Fn(u16) -> bool| {
            let now = core.stack_now();
            let socket = core.stack.connect_from(now, Local { address, port }, remote, accepts)?;
            Ok((socket, core.stack.local_addr(socket).ok()))
        };
        let Some(kernel) = &runtime.kernel else {
            let (socket, _) = runtime.open(shard, |core| connect(core, None, &steers))?;
            return Ok(Self::started(runtime, shard, socket, None, None, remote));
        };
        let (socket, local, lease) = match kernel.reserve_any(Protocol::Tcp, &steers) {
            Ok(lease) => {
                lease.set_shard(shard.index);
                let (socket, local) = runtime.open(shard, |core| connect(core, Some(lease.port()), &steers))?;
                (socket, local, Some(lease))
            }
            // There are fewer ports than connections can be made: one of ours has room for another peer.
            Err(exhausted @ OpenError::NoKernelPort { .. }) => {
                let ours = |port| kernel.has_in(shard.index, port) && steers(port);
                let opened = runtime.open(shard, |core| {
                    let (socket, local) = connect(core, None, &ours)?;
                    Ok((socket, (local, local.and_then(|local| kernel.share(Protocol::Tcp, local.port())))))
                });
                match opened {
                    Ok((socket, (local, lease))) => (socket, local, lease),
                    Err(OpenError::Stack(abey_tcpip::OpenError::NoPort(_))) => return Err(exhausted),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        Ok(Self::started(runtime, shard, socket, lease, local, remote))
    }
}
