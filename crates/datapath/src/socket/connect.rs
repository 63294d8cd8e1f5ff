//! Opening a connection: the choice of its local port, and its first packet.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use abey_nic::Protocol;
use abey_tcpip::{LocalEndpoint, SocketId};

use super::handle::Handle;
use crate::error::OpenError;
use crate::host::Host;
use crate::kernel::ports::{Lease, PortUsers};
use crate::shard::{Core, Shard, ShardSocket};

/// Connects to `remote` in a shard, from the address of `local` and with its options. The local port is one for which the NIC delivers the answers to that
/// shard.
pub(super) fn connect_in(
    host: &Arc<Host>,
    shard: &Arc<Shard>,
    local: LocalEndpoint,
    remote: SocketAddr,
) -> Result<Handle, OpenError> {
    let steers = host.steering(remote, local.address, shard.index.as_usize())?;
    let connect = |core: &mut Core, port, accepts: &dyn Fn(u16) -> bool| {
        let now = core.stack_now();
        let socket = core.stack.connect_from(now, LocalEndpoint { port, ..local }, remote, accepts)?;
        Ok((socket, core.stack.local_addr(socket).ok()))
    };
    let Some(kernel) = host.kernel() else {
        let (socket, _) = host.open(shard, |core| connect(core, None, &steers))?;
        return Ok(handle(host, shard, socket, None));
    };
    let (socket, local, lease) = match kernel.ports.reserve_any(Protocol::Tcp, &steers) {
        Ok(lease) => {
            lease.set_shard(shard.index);
            let (socket, local) = host.open(shard, |core| connect(core, Some(lease.port()), &steers))?;
            (socket, local, Some(lease))
        }
        // The kernel has no free port. A port that is reserved already can serve another connection to another peer.
        Err(exhausted @ OpenError::NoKernelPort { .. }) => {
            let reusable = |port| kernel.ports.can_connect_from(shard.index, port) && steers(port);
            let opened = host.open(shard, |core| {
                let (socket, local) = connect(core, None, &reusable)?;
                Ok((socket, (local, local.and_then(|local| kernel.ports.share(Protocol::Tcp, local.port())))))
            });
            match opened {
                Ok((socket, (local, lease))) => (socket, local, lease),
                Err(OpenError::Stack(abey_tcpip::OpenError::NoPort(_))) => return Err(exhausted),
                Err(error) => return Err(error),
            }
        }
        Err(error) => return Err(error),
    };
    Ok(handle(host, shard, socket, lease.map(|lease| (lease, local, remote))))
}

/// Connects to `remote` from a port that a kernel socket of the caller holds, in the shard where the answers arrive.
pub(super) fn connect_from_port(
    host: &Arc<Host>,
    local: LocalEndpoint,
    (port, holder): (u16, Option<BorrowedFd<'_>>),
    remote: SocketAddr,
) -> Result<Handle, OpenError> {
    let mut fits = None;
    for shard in host.shards().iter() {
        if host.steering(remote, local.address, shard.index.as_usize())?(port) {
            fits = Some(shard);
            break;
        }
    }
    let shard = fits.ok_or(OpenError::NoSteering(remote))?;
    let lease = host.kernel().map(|kernel| kernel.ports.adopt(Protocol::Tcp, port, holder)).transpose()?;
    if let Some(lease) = &lease {
        lease.set_shard(shard.index);
    }
    let socket = host.open(shard, |core| {
        let now = core.stack_now();
        core.stack.connect_from(now, LocalEndpoint { port: Some(port), ..local }, remote, |_| true)
    })?;
    let local = local.address.map(|address| SocketAddr::new(address, port));
    Ok(handle(host, shard, socket, lease.map(|lease| (lease, local, remote))))
}

/// Creates the handle of a new connection. Its port is needed until the stack has forgotten the connection.
fn handle(
    host: &Arc<Host>,
    shard: &Arc<Shard>,
    socket: SocketId,
    lease: Option<(Lease, Option<SocketAddr>, SocketAddr)>,
) -> Handle {
    let mut handle = Handle::new(host, vec![ShardSocket { shard: shard.clone(), id: socket }]);
    shard.with(|core| core.note_outgoing(socket));
    handle.lease = lease.map(|(mut lease, local, remote)| {
        if let Some(local) = local {
            lease.set_users(PortUsers::Flow { shard: Arc::downgrade(shard), local, remote });
        }
        lease
    });
    handle
}
