//! Queue pairs that a broker granted to this process, and requests to that broker. See [`broker`](crate::broker).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::af_xdp::Handshake;
use crate::redirect::{Protocol, Redirected};
#[cfg(doc)]
use crate::repair;
use crate::repair::RepairState;

/// Requests of a process with queue pairs to its broker. Each blocks until the broker has replied, a few seconds at most.
pub trait Broker: fmt::Debug + Send + Sync {
    /// Lets frames arrive on the queue pairs.
    ///
    /// # Errors
    /// When the broker has ended, or the kernel refuses.
    fn engage(&self) -> io::Result<()>;

    /// Sets which packets of a port go to the claimed queue pairs, of those that arrive on their queues. A port that is not
    /// redirected to them yet takes a socket that is [bound to it](crate::PortHolders::check).
    ///
    /// # Errors
    /// As for [`Self::engage`]; EPERM without such a socket.
    fn redirect(
        &self,
        protocol: Protocol,
        port: u16,
        what: Redirected,
        holder: Option<BorrowedFd<'_>>,
    ) -> io::Result<()>;

    /// Sets whether packets to an address go to the claimed queue pairs ([`Ports::serve`](crate::Ports::serve)).
    ///
    /// # Errors
    /// As for [`Self::engage`]; EADDRNOTAVAIL if no device of the broker's network namespace has the address.
    fn serve(&self, address: IpAddr, on: bool) -> io::Result<()>;

    /// Marks a neighbour as used (`NTF_USE`), so that the kernel resolves it or confirms that it is reachable.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn use_neighbor(&self, address: IpAddr) -> io::Result<()>;

    /// Makes a kernel socket one of a connection whose local port is redirected here ([`repair::begin`]). The connection's
    /// segments are redirected all the same until [`Self::pass_flow`]. After an error the socket is as it was before.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn begin_repair(&self, socket: BorrowedFd<'_>, state: &RepairState) -> io::Result<()>;

    /// Ends the repair mode: [`repair::end`] if the hand-over has succeeded, otherwise [`repair::undo`].
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn end_repair(&self, socket: BorrowedFd<'_>, reuse_address: bool, has_succeeded: bool) -> io::Result<()>;

    /// Sets whether the segments of a TCP connection of which the kernel has a socket are passed to it.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn pass_flow(&self, local: SocketAddr, remote: SocketAddr, on: bool) -> io::Result<()>;

    /// Prepares [`Self::offer`].
    ///
    /// # Errors
    /// As for [`Self::engage`], and EOPNOTSUPP if the kernel takes no offers.
    fn prepare_offers(&self) -> io::Result<()>;

    /// Lets the kernel's listener accept a connection whose local port is redirected here
    /// ([`Ports::offer`](crate::Ports::offer)).
    ///
    /// # Errors
    /// As for [`Self::engage`], and those of that call.
    fn offer(&self, local: SocketAddr, remote: SocketAddr, handshake: &Handshake, ack: Option<&[u8]>)
    -> io::Result<()>;

    /// Gives a frame to the kernel as if the device had received it: a TCP segment to a port that is redirected here.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn inject(&self, frame: &[u8]) -> io::Result<()>;

    /// Reports why this process cannot use its queue pairs. The broker prints it, as this process may have closed its
    /// standard error.
    ///
    /// # Errors
    /// When the broker has ended.
    fn report_failure(&self, reason: &str) -> io::Result<()>;

    /// Returns the queue pairs: no more frames arrive on them.
    fn give_back(&self);
}

/// Queue pairs of a NIC that the broker granted to this process.
#[derive(Debug)]
pub struct Claim {
    /// Numbers of the queues, ascending.
    pub queues: Vec<u32>,
    /// Number of queues of the NIC.
    pub of: usize,
    /// Descriptors from [`SharedNic::hand_out`](crate::broker::SharedNic::hand_out).
    pub descriptors: Vec<OwnedFd>,
    /// A listening control socket, if this process cannot create one that the broker's user finds.
    pub control: Option<OwnedFd>,
    /// Whether the AF_XDP sockets are bound to their queues. Not before Linux 6.4, where their rings cannot be mapped afterwards.
    pub is_bound: bool,
    /// The connection to the broker.
    pub broker: Arc<dyn Broker>,
}
