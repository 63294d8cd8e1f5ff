//! UDP sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abey_nic::Protocol;
use abey_tcpip::{IoError, Message, Readiness, Sharing, Shutdown, SocketError, SocketId, datagram_frame};

use super::handle::{Handle, on};
use crate::error::{Error, OpenError};
use crate::handover::HandOverError;
use crate::host::Host;
use crate::kernel::Kernel;
use crate::kernel::ports::Lease;
use crate::runtime::Runtime;
use crate::shard::{Core, ShardSocket};
use crate::source::{Source, SourceInfo, sealed};

/// Returns the datagrams that a socket has not received, as frames.
fn unread_frames(core: &mut Core, id: SocketId) -> Vec<Vec<u8>> {
    let (mac, mut frames) = (core.mac(), Vec::new());
    let Ok(local) = core.stack.local_addr(id) else { return frames };
    while let Ok(Some(_)) = core.stack.next_datagram_bytes(id) {
        let frame = core.stack.receive_with(id, false, |message| {
            datagram_frame(mac, message.peer, SocketAddr::new(message.local, local.port()), message.payload)
        });
        // An error of the socket is reported first, once.
        frames.extend(frame.ok());
    }
    frames
}

/// A UDP socket. It has a part in every shard, so that it receives datagrams on any queue.
#[derive(Debug)]
pub struct UdpSocket(Handle);

impl UdpSocket {
    /// Binds to an address. For port 0 a free port is chosen.
    ///
    /// # Errors
    /// The address is in use or not the runtime's. If the device is shared with the kernel: another program uses the port.
    pub fn bind(runtime: &Runtime, address: SocketAddr) -> Result<Self, OpenError> {
        Self::open(runtime, address, 0..runtime.shards())
    }

    /// Binds in one shard, as one socket of an SO_REUSEPORT group that has one for each shard. It receives the datagrams
    /// that arrive in that shard.
    ///
    /// # Errors
    /// Those of [`Self::bind`], or there is no such shard.
    pub fn bind_reuse_port(runtime: &Runtime, address: SocketAddr, shard: usize) -> Result<Self, OpenError> {
        runtime.host().shard(shard)?;
        Self::open(runtime, address, shard..shard + 1)
    }

    /// Binds in every shard to a port to which `reserved_by`, a kernel socket of the caller, is bound.
    ///
    /// If the device is shared with the kernel (AF_XDP), the kernel socket reserves the port, and this call redirects it.
    /// The caller keeps the kernel socket open as long as this socket. Sockets that share the address do so in each shard.
    ///
    /// # Errors
    /// Those of [`Self::bind`].
    pub fn bind_reserved(
        runtime: &Runtime,
        address: SocketAddr,
        sharing: Sharing,
        reserved_by: BorrowedFd<'_>,
    ) -> Result<Self, OpenError> {
        let host = runtime.host();
        let adopt = |kernel: &Arc<Kernel>| kernel.ports.adopt(Protocol::Udp, address.port(), Some(reserved_by));
        let lease = host.kernel().map(adopt).transpose()?;
        Self::open_with(host, address, 0..runtime.shards(), lease, sharing)
    }

    fn open(runtime: &Runtime, address: SocketAddr, shards: Range<usize>) -> Result<Self, OpenError> {
        let host = runtime.host();
        let lease = host.reserve(Protocol::Udp, address.port())?;
        Self::open_with(host, address, shards, lease, Sharing::default())
    }

    fn open_with(
        host: &Arc<Host>,
        mut address: SocketAddr,
        shards: Range<usize>,
        lease: Option<Lease>,
        sharing: Sharing,
    ) -> Result<Self, OpenError> {
        if let Some(lease) = &lease {
            address.set_port(lease.port());
        }
        // If one of the sockets cannot be opened, the handle closes the others.
        let mut handle = Handle::new(host, Vec::new());
        for shard in &host.shards()[shards] {
            let (id, bound) = host.open(shard, |core| {
                let socket = core.stack.bind_shared(address, sharing)?;
                Ok((socket, core.stack.local_addr(socket).unwrap_or(address)))
            })?;
            // The first shard chooses the port for all.
            address.set_port(bound.port());
            handle.sockets.push(ShardSocket { shard: shard.clone(), id });
        }
        handle.lease = lease;
        Ok(Self(handle))
    }

    /// Passes the port to the kernel, whose socket the caller has [bound to it](Self::bind_reserved). Later calls on this
    /// socket fail with [`IoError::Moved`]. Datagrams that were not received here are given to the kernel; those that it
    /// refuses are lost, as UDP's may be.
    ///
    /// # Errors
    /// The device is not shared with the kernel, or other sockets here use the port; then nothing changes.
    pub fn hand_over(&self) -> Result<(), HandOverError> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let kernel = self.0.host.kernel().ok_or_else(unsupported)?;
        let lease = self.0.lease.as_ref().ok_or_else(unsupported)?;
        if self.is_handed_over() {
            return Ok(());
        }
        let pass_unread = || {
            for ShardSocket { shard, id } in &self.0.sockets {
                let frames = shard.with(|core| {
                    core.drain_ring();
                    unread_frames(core, *id)
                });
                // This fails if the kernel is older than Linux 5.18, or a frame is too long.
                let _ = frames.iter().try_for_each(|frame| kernel.ports.redirected().inject(frame));
            }
        };
        kernel.ports.check_single(lease)?;
        // A broker injects frames only to ports that are redirected, so most of them go before the port.
        pass_unread();
        kernel.ports.pass(lease)?;
        pass_unread();
        for ShardSocket { shard, id } in &self.0.sockets {
            // It fails if another thread was faster.
            let _ = shard.with(|core| core.stack.move_out_datagrams(*id));
        }
        Ok(())
    }

    /// Returns whether the port was [passed to the kernel](Self::hand_over).
    pub fn is_handed_over(&self) -> bool {
        let ShardSocket { shard, id } = self.0.first();
        shard.with(|core| core.stack.is_moved(*id))
    }

    /// Connects the socket: it sends to `peer` and receives from `peer` only. `None` disconnects it. If the socket was bound
    /// to no address, its local address becomes the source address for `peer`.
    ///
    /// # Errors
    /// There is no route to `peer`.
    pub fn connect(&self, peer: Option<SocketAddr>) -> Result<(), Error> {
        for socket in &self.0.sockets {
            on(socket, |core| core.stack.connect_datagram(socket.id, peer))?;
        }
        Ok(())
    }

    /// Returns whether a socket of this runtime receives what this one sends to `to`, one of the host's own addresses.
    pub fn has_receiver(&self, to: SocketAddr) -> bool {
        let Some(from) = self.local_addr().ok() else { return false };
        let host = &self.0.host;
        let ip = if from.ip().is_unspecified() { host.source_for(to.ip()) } else { Some(from.ip()) };
        let from = ip.map(|ip| SocketAddr::new(ip, from.port()));
        from.is_some_and(|from| host.has_receiver(from, to))
    }

    /// Sends one datagram to `peer`, or to the peer to which the socket is connected.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the socket is non-blocking and the send buffer is full; the datagram does not fit into
    /// a packet; an ICMP error about an earlier datagram.
    pub fn send_to(&self, payload: &[u8], peer: Option<SocketAddr>) -> Result<usize, Error> {
        self.send_from(payload, peer, None)
    }

    /// Sends one datagram from a given local address (IP_PKTINFO).
    ///
    /// # Errors
    /// Those of [`Self::send_to`], or the address is not the runtime's.
    pub fn send_from(&self, payload: &[u8], peer: Option<SocketAddr>, from: Option<IpAddr>) -> Result<usize, Error> {
        self.reported(self.0.blocking(Readiness::WRITABLE, |_, core, socket| send(core, socket, (payload, peer, from))))
    }

    /// Sends as [`Self::send_from`] does, and never waits.
    ///
    /// # Errors
    /// Those of [`Self::send_from`] for a non-blocking socket.
    pub fn try_send_from(
        &self,
        payload: &[u8],
        peer: Option<SocketAddr>,
        from: Option<IpAddr>,
    ) -> Result<usize, Error> {
        self.reported(self.0.try_now(|_, core, socket| send(core, socket, (payload, peer, from))))
    }

    /// Receives one datagram. Returns the number of bytes that were copied (the rest is lost), the sender's address, and the
    /// local address.
    ///
    /// # Errors
    /// [`Error::is_would_block`] if the socket is non-blocking and has none; an ICMP error about an earlier datagram.
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), Error> {
        self.reported(self.0.blocking(Readiness::READABLE, |_, core, socket| core.stack.recv_from(socket, buffer)))
    }

    /// Passes the first received datagram to `take`, and removes it unless `peek` (MSG_PEEK). `take` runs under the shard's
    /// lock, and at most once.
    ///
    /// # Errors
    /// Those of [`Self::recv_from`]; [`IoError::Ended`] if the socket was shut down for reading.
    pub fn recv_with<R>(&self, peek: bool, take: impl FnOnce(&Message<'_>) -> R) -> Result<R, Error> {
        let mut take = Some(take);
        self.reported(self.0.blocking(Readiness::READABLE, |_, core, socket| receive(core, socket, peek, &mut take)))
    }

    /// Receives as [`Self::recv_with`] does, and never waits.
    ///
    /// # Errors
    /// Those of [`Self::recv_with`] for a non-blocking socket.
    pub fn try_recv_with<R>(&self, peek: bool, take: impl FnOnce(&Message<'_>) -> R) -> Result<R, Error> {
        let mut take = Some(take);
        self.reported(self.0.try_now(|_, core, socket| receive(core, socket, peek, &mut take)))
    }

    /// Returns the length in bytes of the next datagram, if there is one (FIONREAD).
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn next_bytes(&self) -> Result<Option<usize>, Error> {
        for socket in &self.0.sockets {
            let found = on(socket, |core| core.stack.next_datagram_bytes(socket.id))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns what the socket is ready for.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    /// Returns and clears the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn take_error(&self) -> Result<Option<SocketError>, Error> {
        let mut first = None;
        // An ICMP error is passed to all shards.
        for socket in &self.0.sockets {
            let error = on(socket, |core| core.stack.take_error(socket.id))?;
            first = first.or(error);
        }
        Ok(first)
    }

    /// Clears what other shards have of an error that a call reports.
    fn reported<R>(&self, answer: Result<R, Error>) -> Result<R, Error> {
        if matches!(answer, Err(Error::Socket(IoError::Network(_)))) {
            // Fails only if the runtime was dropped.
            let _ = self.take_error();
        }
        answer
    }

    /// Shuts down one direction or both.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        for socket in &self.0.sockets {
            on(socket, |core| {
                let now = core.stack_now();
                core.stack.shutdown(now, socket.id, how)
            })?;
        }
        Ok(())
    }

    /// Sets the size of the receive buffer in each shard, in bytes (SO_RCVBUF). Clamped to 2 KiB .. 256 MiB.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        for socket in &self.0.sockets {
            on(socket, |core| core.stack.set_receive_buffer(socket.id, bytes))?;
        }
        Ok(())
    }

    /// Sets whether datagrams that are longer than a packet are sent in fragments (IP_MTU_DISCOVER), or refused.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_fragmentation(&self, is_allowed: bool) -> Result<(), Error> {
        for socket in &self.0.sockets {
            on(socket, |core| core.stack.set_fragmentation(socket.id, is_allowed))?;
        }
        Ok(())
    }

    /// Sets the traffic class of the datagrams that are sent: IP_TOS for IPv4, IPV6_TCLASS for IPv6.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn set_traffic_classes(&self, v4: u8, v6: u8) -> Result<(), Error> {
        for socket in &self.0.sockets {
            on(socket, |core| core.stack.set_traffic_classes(socket.id, v4, v6))?;
        }
        Ok(())
    }

    /// Returns the peer to which the socket is connected.
    ///
    /// # Errors
    /// [`IoError::NotConnected`], or the runtime was dropped.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.peer_addr(socket))
    }

    /// Returns the address to which the socket is bound, or from which it sends.
    ///
    /// # Errors
    /// The runtime was dropped.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.0.now(|core, socket| core.stack.local_addr(socket))
    }

    /// Returns the kernel socket that reserves the port, if the device is shared with the kernel (AF_XDP).
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
}

fn receive<R>(
    core: &mut Core,
    socket: SocketId,
    peek: bool,
    take: &mut Option<impl FnOnce(&Message<'_>) -> R>,
) -> Result<R, IoError> {
    core.stack.receive_with(socket, peek, |message| {
        let take = take.take().expect("the first datagram ends the call");
        take(message)
    })
}

impl sealed::Sealed for UdpSocket {}

impl Source for UdpSocket {
    fn info(&self) -> SourceInfo<'_> {
        SourceInfo { host: &self.0.host, sockets: &self.0.sockets, is_listener: false }
    }
}

/// A payload, the peer to which it is sent, and the local address from which it is sent.
type Outgoing<'a> = (&'a [u8], Option<SocketAddr>, Option<IpAddr>);

fn send(core: &mut Core, socket: SocketId, (payload, peer, from): Outgoing<'_>) -> Result<usize, IoError> {
    let sent = core.stack.send_from(socket, payload, peer, from)?;
    core.note_answer(socket);
    Ok(sent)
}
