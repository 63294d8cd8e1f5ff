//! Hands connections over to the kernel, live.
//!
//! Under AF_XDP the descriptor that a program holds is a kernel socket, which is not connected. A connection moves into this
//! very socket: the same open file description, so that every process that shares the descriptor has the connection at once.
//! Whatever the datapath does not have becomes the kernel's business instead of an error: a child after `fork`, a program after
//! `execve`, a receiver of SCM_RIGHTS, an option or a call that only the kernel has.
//!
//! # Order
//!
//! All of it happens under the lock of the connection's shard, so that no thread sees a half-moved connection:
//!
//! 1. The receive ring is emptied, and the state copied ([`abey_tcpip::Stack::export`]). Nothing has changed yet.
//! 2. The kernel socket becomes one of the connection in repair mode, with its queues and windows ([`abey_nic::repair`]). It
//!    does not send. The XDP program would pass the connection's segments to it, and it would receive them before its queues are
//!    filled; so the program holds the flow, whose segments are redirected meanwhile.
//! 3. The program releases the flow. From here on the connection's segments find an established socket in the kernel, so none
//!    is answered with a reset.
//! 4. The repair mode ends. The kernel sends a window probe, whose answer brings the peer's latest acknowledgement.
//! 5. Segments that came into the ring between 1 and 3 are given to the kernel; so are the ranges beyond a gap and the peer's
//!    FIN, which TCP_REPAIR does not have.
//! 6. Unsent data is written, and shutdowns are repeated.
//! 7. The stack forgets the connection, and wakes the threads that wait for it.
//!
//! An error in 1 to 4 undoes what was done, and the connection stays in the datapath.
//!
//! *What is lost.* Nothing. A segment that the XDP program redirects while step 3 happens may come too late for step 5; it is
//! dropped and retransmitted, as if the network had lost it. A kernel without the injection of frames (before Linux 5.18) loses
//! all segments of step 5, which the peer retransmits. A FIN that was acknowledged it does not: reading is shut down in the kernel's
//! socket instead, so that the program reads what is queued and then the end. The socket is in ESTABLISHED rather than
//! CLOSE-WAIT, and after `close` in FIN-WAIT-2 for `tcp_fin_timeout`.
//!
//! *What it costs.* About a dozen system calls and a copy of the queues, during which the shard stands still; with a broker
//! two round trips more. The kernel begins with the initial congestion window and without a round-trip time.
//!
//! # Pump
//!
//! Where no kernel can take over (a shared-memory NIC, TAP, no CAP_NET_ADMIN and no broker), the connection stays in the
//! datapath, and a thread copies between it and a pair of Unix stream sockets ([`HandedOver::Pump`]), until both directions
//! have ended. Half-close and back-pressure pass through. What differs from a TCP socket: `getsockname` and `getpeername`,
//! the options of TCP, and SO_ERROR: a reset of the peer is seen as the end of the stream when reading, and as EPIPE when
//! writing. A process that ends takes its pumps with it.
//!
//! # Listeners and UDP sockets
//!
//! A listener needs no hand-over: the program's kernel socket listens too. What the datapath's listener has no room or no
//! time for goes there, also connections that are established and not accepted ([`crate::TcpListener::set_overflow`]). A
//! child that shares a listener of its parent asks for the connections that wait here already ([`HandOverAddress::ask`]). A UDP
//! socket has no state but its queue: its port is passed to the kernel ([`crate::UdpSocket::hand_over`]).
//!
//! # Requests of other processes
//!
//! A child has copies of the parent's descriptors, but not its datapath. It asks the parent ([`HandOverAddress::request`]), by
//! the name that the connection has in the parent's memory ([`ConnectionKey`]), of which the child has a copy. A thread of
//! the parent answers, whatever the parent's other threads do.

mod kernel;
pub(crate) mod offer;
mod pump;
mod server;
mod waiting;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use abey_tcpip::{ExportError, IoError, SocketId};
use serde::{Deserialize, Serialize};
use slotmap::{Key, KeyData};

pub(crate) use self::pump::{IsInherited, Pumps};
pub use self::server::{HandOverAddress, HandOverServer, Question, Responder};
use crate::host::Host;
use crate::shard::{Shard, SocketKey};

/// The name of a connection in its runtime. It is never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionKey {
    shard: u32,
    socket: u64,
}

impl From<SocketKey> for ConnectionKey {
    fn from(key: SocketKey) -> Self {
        Self { shard: key.shard, socket: key.socket.data().as_ffi() }
    }
}

impl ConnectionKey {
    fn find(self, host: &Host) -> Result<(&Arc<Shard>, SocketId), HandOverError> {
        let shard = host.shards().get(self.shard as usize).ok_or(IoError::NoSuchSocket)?;
        Ok((shard, KeyData::from_ffi(self.socket).into()))
    }
}

/// Where a connection was moved to.
#[derive(Debug)]
pub enum HandedOver {
    /// Into the kernel socket.
    Kernel,
    /// It is served by a pump: this is the descriptor that stands for it. All copies are of one open file description.
    Pump(OwnedFd),
}

/// Reason why a connection was not handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The handshake is not over. The caller tries again when the connection is established or has failed.
    #[error("the connection is not established yet")]
    NotEstablished,
    /// The connection was closed, or the key is of another runtime.
    #[error(transparent)]
    Socket(#[from] IoError),
    /// The runtime was dropped.
    #[error("the runtime was dropped before this socket: keep it as long as its sockets")]
    RuntimeDropped,
    /// Neither can the kernel take the connection, nor can a pump be made.
    #[error("the connection cannot be handed over: {0}")]
    System(#[from] io::Error),
}

impl From<ExportError> for HandOverError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Socket(error) => error.into(),
            ExportError::NotEstablished => Self::NotEstablished,
            _ => IoError::NotConnected.into(),
        }
    }
}

/// Hands a connection over to the kernel, or fails.
pub(crate) fn hand_over_to_kernel(
    host: &Arc<Host>,
    key: ConnectionKey,
    socket: BorrowedFd<'_>,
) -> Result<(), HandOverError> {
    match handed_over(host, key) {
        Some(HandedOver::Kernel) => return Ok(()),
        Some(HandedOver::Pump(_)) => return Err(IoError::Moved.into()),
        None => {}
    }
    let kernel = host.kernel().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    match kernel::hand_over(key.find(host)?, kernel.ports.redirected(), socket) {
        Ok(()) => {
            kernel.link.parker.unpark();
            Ok(())
        }
        Err(kernel::Failure::Connection(error)) => Err(error),
        Err(kernel::Failure::Kernel(error)) => Err(error.into()),
    }
}

/// Hands a connection over: to the kernel if it can take it and there is a socket for it, otherwise to a pump, which outlives
/// the stream while the connection `is_inherited`.
pub(crate) fn hand_over(
    host: &Arc<Host>,
    key: ConnectionKey,
    socket: Option<BorrowedFd<'_>>,
    is_inherited: Option<IsInherited>,
) -> Result<HandedOver, HandOverError> {
    if host.is_shut_down() {
        return Err(HandOverError::RuntimeDropped);
    }
    if let Some(done) = handed_over(host, key) {
        return Ok(done);
    }
    if let (Some(kernel), Some(socket)) = (host.kernel(), socket) {
        match kernel::hand_over(key.find(host)?, kernel.ports.redirected(), socket) {
            Ok(()) => return Ok(HandedOver::Kernel),
            // Another thread was faster.
            Err(kernel::Failure::Connection(HandOverError::Socket(IoError::Moved))) => {
                return handed_over(host, key).ok_or(IoError::Moved.into());
            }
            Err(kernel::Failure::Connection(error)) => return Err(error),
            Err(kernel::Failure::Kernel(reason)) => host.pumps.record_refusal(reason),
        }
    }
    pump::start(host, key, is_inherited).map(HandedOver::Pump)
}

/// Returns where a connection was moved to, if it was.
pub(crate) fn handed_over(host: &Host, key: ConnectionKey) -> Option<HandedOver> {
    if let Some(end) = host.pumps.end(key) {
        return end.map(HandedOver::Pump);
    }
    let (shard, socket) = key.find(host).ok()?;
    shard.with(|core| core.stack.is_moved(socket)).then_some(HandedOver::Kernel)
}
