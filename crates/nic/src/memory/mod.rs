//! The shared-memory NIC: two processes and a wire between them that is a memfd.
//!
//! One end *creates* the NIC under a name and the other *attaches*; after that they are alike. The name is an abstract
//! Unix socket of the user (`unix(7)`), which needs no privilege and vanishes with the process. Over it the creator
//! passes the memory and both pass the eventfds they want to be woken by; from then on the socket only tells that the
//! other end is still alive. When it is not, the link goes down, frames to transmit are dropped and counted, and a new
//! peer can attach, to fresh memory.
//!
//! Each end has N queue pairs. The sender steers: the Toeplitz hash of a frame chooses the receiver's queue. A ring has
//! one consumer, the queue pair it belongs to; its producer is shared by the queue pairs of the other end under a lock,
//! which under a [symmetric key](crate::rss::SYMMETRIC_KEY) nobody else wants.
//!
//! *Trust.* Peers are processes of the same user (or root). The other end may still be wrong or malicious in all it
//! writes to the memory: that drops frames and is counted. It could stall us by making the eventfds we share blocking,
//! as it could with a signal.

mod attach;
mod handshake;
mod link;
mod mapping;
mod queue;
mod session;
#[cfg(test)]
mod tests;

use std::io;

use rustix::event::{EventfdFlags, eventfd};

pub use queue::MemoryQueue;

pub(crate) use attach::{MemoryNic, listener, open, open_claimed};

use crate::ring::Layout;
use crate::rss::{KEY_BYTES, SYMMETRIC_KEY};
use link::Shared as LinkShared;
use session::Session;

/// Most queue pairs of a shared-memory NIC.
pub const MAX_QUEUES: usize = 32;

/// Which end of a shared-memory NIC to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryEnd {
    /// Create the NIC under its name and wait for peers. The shape is what the options say.
    Create,
    /// Attach to a NIC that another process created. The shape is what that process said.
    #[default]
    Attach,
}

/// The shape of a shared-memory NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShape {
    /// Queue pairs at each end, 1 to 32.
    pub queues: usize,
    /// Frames in each ring: a power of two from 2 to 65,536.
    pub slots: u32,
    /// Longest packet in bytes, 1280 (the least that IPv6 allows) to 65,535.
    pub mtu: usize,
    /// The key that steers frames to queues.
    pub key: [u8; KEY_BYTES],
    /// Whether senders may leave transport checksums out, since memory does not corrupt them.
    pub checksum_offload: bool,
}

impl Default for MemoryShape {
    fn default() -> Self {
        Self { queues: 1, slots: 512, mtu: 1500, key: SYMMETRIC_KEY, checksum_offload: true }
    }
}

impl MemoryShape {
    /// What is wrong with the shape, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return Some(format!("{} queues, but a shared-memory NIC has 1 to {MAX_QUEUES}", self.queues));
        }
        if !(1280..=65_535).contains(&self.mtu) {
            return Some(format!("an MTU of {} bytes, but it must be from 1280 to 65535", self.mtu));
        }
        match Layout::new(self.slots, self.mtu + crate::ETHERNET_HEADER) {
            None => {
                Some(format!("{} slots, but a ring has a power of two from 2 to {}", self.slots, Layout::MAX_SLOTS))
            }
            Some(_) => None,
        }
    }

    /// The layout of each ring.
    fn layout(&self) -> Layout {
        Layout::new(self.slots, self.mtu + crate::ETHERNET_HEADER).expect("the shape was checked")
    }

    /// Bytes of memory in all: a ring for each queue of each end.
    fn bytes(&self) -> usize {
        2 * self.queues * self.layout().bytes()
    }
}

/// Two ends of a shared-memory NIC in one process, for tests and benchmarks: the same rings, without the handshake.
///
/// # Errors
/// When the system has no memory or descriptors left.
///
/// # Panics
/// When the shape is not possible.
pub fn pair(shape: MemoryShape) -> io::Result<(Vec<MemoryQueue>, Vec<MemoryQueue>)> {
    if let Some(problem) = shape.problem() {
        panic!("a pair cannot have {problem}");
    }
    let memory = mapping::Mapping::create(shape.bytes())?.1;
    let [left, right] = [LinkShared::new(shape, "pair")?, LinkShared::new(shape, "pair")?];
    let [left_events, right_events] = [left.share_events()?, right.share_events()?];
    left.install(Session::new(&shape, &memory, session::End::Creator, right_events));
    right.install(Session::new(&shape, &memory, session::End::Attacher, left_events));
    Ok((MemoryQueue::all(&left, None), MemoryQueue::all(&right, None)))
}

/// A non-blocking eventfd.
fn event() -> io::Result<std::os::fd::OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
