//! UDP sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::{IoError, Message, Readiness, Shutdown, SocketError, SocketId};

use super::{Handle, Parts, Source, sealed};
use crate::error::{Error, OpenError};
use crate::kernel::Lease;
use crate::runtime::{Runtime, Shared};
use crate::shard::Core;
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

    /// Binds in every shard, beside a socket of the kernel's that is the caller's and is bound to this port: where the
    /// device is shared with the kernel (AF_XDP), that socket is the reservation of the port, which this redirects. The
    /// caller keeps it open as long as this one.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_beside(runtime: &Runtime, at: SocketAddr) -> Result<Self, OpenError> {
        let shared = runtime.shared();
        let lease = match &shared.kernel {
            Some(kernel) => Some(kernel.adopt(Protocol::Udp, at.port())?),
            None => None,
        };
        Self::open_with(shared, at, 0..runtime.shards(), lease)
    }

    fn open(runtime: &Runtime, at: SocketAddr, shards: std::ops::Range<usize>) -> Result<Self, OpenError> {
        let runtime = runtime.shared();
        let lease = runtime.reserve(Protocol::Udp, at.port())?;
        Self::open_with(runtime, at, shards, lease)
    }

    fn open_with(
        runtime: &Arc<Shared>,
        mut at: SocketAddr,
        shards: std::ops::Range<usize>,
        lease: Option<Lease>,
    ) -> Result<Self, OpenError> {
        if let Some(lease) = &lease {
            at.set_port(lease.port());
        }
        // The parts that exist are closed again if one of them cannot be opened.
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

    /// Sends to, and hears, `peer` only from now on; `None` undoes it. One that was bound to no address gets the one that
    /// leads there.
    ///
    /// # Errors
    /// If no route leads there.
    pub fn connect(&self, peer: Option<SocketAddr>) -> Result<(), Error> {
        for part in &self.0.parts {
            super::on(part, |core| core.stack.connect_datagram(part.socket, peer))?;
        }
        Ok(())
    }

    /// Sends one datagram, to `peer` or to whom the socket is connected.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the socket is non-blocking and too much waits to be sent; a datagram longer than a
    /// packet; what happened to an earlier one.
    pub fn send_to(&self, payload: &[u8], peer: Option<SocketAddr>) -> Result<usize, Error> {
        self.send_from(payload, peer, None)
    }

    /// As [`Self::send_to`], from a certain own address (IP_PKTINFO).
    ///
    /// # Errors
    /// As [`Self::send_to`], or an address that is not the runtime's.
    pub fn send_from(&self, payload: &[u8], peer: Option<SocketAddr>, from: Option<IpAddr>) -> Result<usize, Error> {
        self.0.when(Readiness::WRITABLE, |_, core, socket| send(core, socket, (payload, peer, from)))
    }

    /// As [`Self::send_from`], without waiting.
    ///
    /// # Errors
    /// As [`Self::send_from`] of a socket that is non-blocking.
    pub fn try_send_from(
        &self,
        payload: &[u8],
        peer: Option<SocketAddr>,
        from: Option<IpAddr>,
    ) -> Result<usize, Error> {
        self.0.at_once(|_, core, socket| send(core, socket, (payload, peer, from)))
    }

    /// Receives one datagram: how many of its bytes were copied (the rest is lost), from whom, and to which own address.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the socket is non-blocking and there is none; what happened to an earlier one.
    pub fn recv_from(&self, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), Error> {
        self.0.when(Readiness::READABLE, |_, core, socket| core.stack.recv_from(socket, to))
    }

    /// Shows the first datagram that was received to `take`, and then forgets it unless it is to `stay` (MSG_PEEK). `take` is
    /// called under the shard's lock, and at most once.
    ///
    /// # Errors
    /// As [`Self::recv_from`]; [`IoError::Ended`] of a socket that was shut down for reading.
    pub fn recv_with<R>(&self, stay: bool, take: impl FnOnce(&Message<'_>) -> R) -> Result<R, Error> {
        let mut take = Some(take);
        self.0.when(Readiness::READABLE, |_, core, socket| show(core, socket, stay, &mut take))
    }

    /// As [`Self::recv_with`], without waiting.
    ///
    /// # Errors
    /// As [`Self::recv_with`] of a socket that is non-blocking.
    pub fn try_recv_with<R>(&self, stay: bool, take: impl FnOnce(&Message<'_>) -> R) -> Result<R, Error> {
        let mut take = Some(take);
        self.0.at_once(|_, core, socket| show(core, socket, stay, &mut take))
    }

    /// Bytes of the datagram that is next to be received, if there is one (FIONREAD).
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn next_bytes(&self) -> Result<Option<usize>, Error> {
        for part in &self.0.parts {
            let found = super::on(part, |core| core.stack.next_datagram_bytes(part.socket))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// What it is ready for at the moment.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    /// The error that waits, if any (SO_ERROR); it waits no more.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn take_error(&self) -> Result<Option<SocketError>, Error> {
        for part in &self.0.parts {
            let error = super::on(part, |core| core.stack.take_error(part.socket))?;
            if error.is_some() {
                return Ok(error);
            }
        }
        Ok(None)
    }

    /// Shuts one direction or both.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        for part in &self.0.parts {
            super::on(part, |core| {
                let now = core.stack_now();
                core.stack.shutdown(now, part.socket, how)
            })?;
        }
        Ok(())
    }

    /// How many bytes wait to be received at most, in each shard (SO_RCVBUF). Clamped to 2 KiB .. 256 MiB.
    ///
    /// # Errors
    /// If the runtime is gone.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        for part in &self.0.parts {
            super::on(part, |core| core.stack.set_receive_buffer(part.socket, bytes))?;
        }
        Ok(())
    }

    /// Whom it is connected to.
    ///
    /// # Errors
    /// [`IoError::NotConnected`], or the runtime is gone.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.peer_addr(socket))
    }

    /// The address it is bound at, or sends from.
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

fn show<R>(
    core: &mut Core,
    socket: SocketId,
    stay: bool,
    take: &mut Option<impl FnOnce(&Message<'_>) -> R>,
) -> Result<R, IoError> {
    core.stack.receive_with(socket, stay, |message| {
        let take = take.take().expect("a datagram was shown, so the call has ended");
        take(message)
    })
}

impl sealed::Sealed for UdpSocket {}

impl Source for UdpSocket {
    fn parts(&self) -> Parts<'_> {
        Parts { runtime: &self.0.runtime, parts: &self.0.parts, listens: false }
    }
}

/// A datagram, to whom, and from which own address.
type Outgoing<'a> = (&'a [u8], Option<SocketAddr>, Option<IpAddr>);

fn send(core: &mut Core, socket: SocketId, (payload, peer, from): Outgoing<'_>) -> Result<usize, IoError> {
    let sent = core.stack.send_from(socket, payload, peer, from)?;
    core.note_answer(socket);
    Ok(sent)
}
