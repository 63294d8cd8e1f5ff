//! Queue pairs that a broker granted to this process, and requests to that broker. See [`broker`](crate::broker).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::redirect::{Protocol, Redirected};

/// Requests of a process with queue pairs to its broker. Each blocks until the broker has replied.
pub trait Broker: fmt::Debug + Send + Sync {
    /// Lets frames arrive on the queue pairs.
    ///
    /// # Errors
    /// When the broker has ended, or the kernel refuses.
    fn engage(&self) -> io::Result<()>;

    /// Sets which packets of a port go to the claimed queue pairs, of those that arrive on their queues.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn redirect(&self, protocol: Protocol, port: u16, what: Redirected) -> io::Result<()>;

    /// Marks a neighbour as used (`NTF_USE`), so that the kernel resolves it or confirms that it is reachable.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn use_neighbor(&self, address: IpAddr) -> io::Result<()>;

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
    /// The connection to the broker.
    pub broker: Arc<dyn Broker>,
}
