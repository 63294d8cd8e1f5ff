//! The hairpin: frames of the host to its own addresses.
//!
//! They do not pass through the NIC. The stack of a shard addresses them to the host's own Ethernet address, and the thread that
//! unlocks the shard passes them back, as the kernel's loopback device does in the softirq of the sender. So a thread that
//! writes to a connection within the host has delivered the bytes when the call returns.
//!
//! Receive side scaling of its own chooses the shard. Its key is symmetric, so that both ends of a connection live in one
//! shard, whatever the NIC's steering is; datagrams and ICMP errors may be forwarded to another one.

use std::net::SocketAddr;

use abey_delivery::NapiIndex;
use abey_nic::rss::{Rss, SYMMETRIC_KEY};

/// Steering of the host's frames to itself.
#[derive(Debug)]
pub(crate) struct Hairpin {
    /// `None` if there is one shard.
    rss: Option<Rss>,
}

impl Hairpin {
    /// Returns the steering to `shards` shards.
    pub(crate) fn new(shards: usize) -> Self {
        Self { rss: (shards > 1).then(|| Rss::new(SYMMETRIC_KEY, shards as u32)) }
    }

    /// Returns the shard of a frame.
    pub(super) fn shard_of(&self, frame: &[u8]) -> NapiIndex {
        NapiIndex(self.rss.as_ref().map_or(0, |rss| rss.queue(frame)))
    }

    /// Returns the shard of both directions of a flow. Both addresses are of the same version.
    pub(crate) fn shard_of_flow(&self, source: SocketAddr, destination: SocketAddr) -> usize {
        self.rss.as_ref().map_or(0, |rss| rss.queue_of_flow(source, destination) as usize)
    }
}
