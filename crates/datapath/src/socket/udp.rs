//! UDP sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::Readiness;

use super::{Handle, Parts, Source, sealed};
use crate::error::{Error, OpenError};
use crate::runtime::Runtime;
use crate::wait::Part;

/// A UDP socket. It has a part in every shard, and datagrams are received wherever they arrive.
#[derive(Debug)]
pub struct UdpSocket(Handle);

impl UdpSocket {
    /// Binds at an address; port 0 chooses one.
    ///
    /// # Errors
    /// An address that is taken or not the runtime's; a port that another program has, where the device is shared with
    /// the kernel.
    pub fn bind(runtime: &Runtime, at: SocketAddr) -> Result<Self, OpenError> {
        Self::open(runtime, at, 0..runtime.shards())
    }

    /// Binds in one shard only, as one of a group of sockets with SO_REUSEPORT that has one for each shard: it gets the
    /// datagrams that arrive there.
    ///
    /// # Errors
    /// As [`Self::bind`], or a shard that is not there.
    pub fn bind_reuse_port(runtime: &Runtime, at: SocketAddr, shard: usize) -> Result<Self, OpenError> {
        runtime.shared().shard(shard)?;
        Self::open(runtime, at, shard..shard + 1)
    }

    fn open(runtime: &Runtime, mut at: SocketAddr, shards: std::ops::Range<usize>) -> Result<Self, OpenError> {
        let runtime = runtime.shared();
        let lease = runtime.reserve(Protocol::Udp, at.port())?;
        if let Some(lease) = &lease {
            at.set_port(lease.port());
        }
        let mut handle = Handle::new(runtime, Vec::new());
        for shard in &runtime.shards[shards] {
            let (socket, bound) = runtime.open(shard, |core| {
                let socket = core.stack.bind(at)?;
                Ok((socket, core.stack.local_addr(socket).unwrap_or(at)))
            })?;
            // The first shard chooses the port for all.
            at.set_port(bound.port());
            handle.parts.push(Part { shard: shard.clone(), socket });
        }
        let parts = std::mem::take(&mut handle.parts);
        let mut handle = Handle::new(runtime, parts);
        handle.lease = lease;
        Ok(Self(handle))
    }

    /// Sends to, and hears, `peer` only from now on; `None` undoes it.
    ///
    /// # Errors
    /// If no route leads there.
    pub fn connect(&self, peer: Option<SocketAddr>) -> Result<(), Error> {
        for part in &self.0.parts {
            super::on(&part.shard, |core| core.stack.connect_datagram(part.socket, peer))?;
        }
        Ok(())
    }

    /// Sends one datagram, to `peer` or to whom the socket is connected.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the socket is non-blocking and too much waits to be sent; a datagram longer than a
    /// packet; what happened to an earlier one.
    pub fn send_to(&self, payload: &[u8], peer: Option<SocketAddr>) -> Result<usize, Error> {
        self.0.when(Readiness::WRITABLE, |_, core, socket| core.stack.send_to(socket, payload, peer))
    }

    /// Receives one datagram: how many of its bytes were copied (the rest is lost), from whom, and to which own address.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the socket is non-blocking and there is none; what happened to an earlier one.
    pub fn recv_from(&self, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), Error> {
        self.0.when(Readiness::READABLE, |_, core, socket| core.stack.recv_from(socket, to))
    }

    /// The address it is bound at.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// The kernel socket that holds the port, where the device is shared with the kernel (AF_XDP).
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
}

impl sealed::Sealed for UdpSocket {}

impl Source for UdpSocket {
    fn parts(&self) -> Parts<'_> {
        Parts { runtime: &self.0.runtime, parts: &self.0.parts }
    }
}
