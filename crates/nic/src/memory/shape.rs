//! The ends of a shared-memory NIC, and its shape.

use crate::ring::Layout;
use crate::rss::{KEY_BYTES, SYMMETRIC_KEY};

/// Maximum number of queue pairs of a shared-memory NIC.
pub const MAX_QUEUES: usize = 32;

/// An end of a shared-memory NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryEnd {
    /// Creates the NIC, with the shape in the options, and waits for peers.
    Create,
    /// Attaches to a NIC that another process created, with the shape of that process.
    #[default]
    Attach,
}

/// The shape of a shared-memory NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShape {
    /// Number of queue pairs at each end, 1 to 32.
    pub queues: usize,
    /// Frames in each ring: a power of two from 2 to 65,536.
    pub slots: u32,
    /// Maximum length of a packet in bytes, 1280 (the least that IPv6 allows) to 65,535.
    pub mtu: usize,
    /// The key that steers frames to queues.
    pub key: [u8; KEY_BYTES],
    /// Whether senders may omit transport checksums, as memory does not corrupt frames.
    pub checksum_offload: bool,
}

impl Default for MemoryShape {
    fn default() -> Self {
        Self { queues: 1, slots: 512, mtu: 1500, key: SYMMETRIC_KEY, checksum_offload: true }
    }
}

impl MemoryShape {
    /// Returns what is wrong with the shape, as part of a sentence.
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

    /// Returns the layout of each ring.
    pub(super) fn layout(&self) -> Layout {
        Layout::new(self.slots, self.mtu + crate::ETHERNET_HEADER).expect("the shape was checked")
    }

    /// Returns the length of the memory in bytes: a ring for each queue of each end.
    pub(super) fn bytes(&self) -> usize {
        2 * self.queues * self.layout().bytes()
    }
}
