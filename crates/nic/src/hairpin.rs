//! `memory:self`: a NIC without a peer.
//!
//! Only the host that owns it sends to it, and the datapath delivers a host's frames to its own addresses without the NIC. So
//! nothing ever arrives here, and every transmitted frame (a broadcast, say) is dropped and counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::counters::Counters;
use crate::error::OpenError;
use crate::frame::Frame;
use crate::memory::MAX_QUEUES;
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError};

/// The MTU in bytes: the longest IP packet, as on the kernel's loopback device.
const MTU: usize = 65_535;

/// The host's Ethernet address, locally administered (IEEE 802).
pub(crate) const ADDRESS: [u8; 6] = [0x02, 0xab, 0xe7, 0, 0, 0];

/// A queue pair of `memory:self`.
#[derive(Debug)]
pub struct HairpinQueue {
    /// An eventfd that is never signalled.
    descriptor: Arc<OwnedFd>,
    queues: usize,
    counters: Counters,
}

/// Opens the NIC.
pub(crate) fn open(queues: usize) -> Result<Vec<HairpinQueue>, OpenError> {
    if !(1..=MAX_QUEUES).contains(&queues) {
        let reason = format!("{queues} queues, but memory:self has 1 to {MAX_QUEUES}");
        return Err(OpenError::Options { reason });
    }
    let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let failed = |error: rustix::io::Errno| OpenError::System {
        action: "open",
        device: "memory:self".to_owned(),
        source: error.into(),
    };
    let descriptor = Arc::new(descriptor.map_err(failed)?);
    let queue = |_| HairpinQueue { descriptor: descriptor.clone(), queues, counters: Counters::default() };
    Ok((0..queues).map(queue).collect())
}

impl QueuePair for HairpinQueue {
    fn receive(&mut self, _frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        Ok(0)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        self.counters.drops.link_down += frames.len() as u64;
        Ok(frames.len())
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        Ok(())
    }

    fn mask(&mut self) {}

    fn unmask(&mut self) -> bool {
        false
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        Ok(false)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn system_calls(&self) -> u64 {
        0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: MTU, checksum_offload: true, queues: self.queues, zero_copy: None }
    }

    fn link(&self) -> LinkState {
        LinkState::Up
    }
}

impl AsFd for HairpinQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, open as open_nic};

    #[test]
    fn memory_self_has_no_peer_and_may_be_opened_twice() {
        let mut options = Options::default();
        options.memory.queues = 2;
        let _other = open_nic("memory:self", &options).expect("opened");
        let mut nic = open_nic("memory:self", &options).expect("opened beside another one");
        assert_eq!((nic.name().to_string().as_str(), nic.queues()), ("memory:self", 2));
        let mut queues = nic.take_queues();
        assert_eq!(queues[0].transmit(&[Frame::from(&[0xff; 60][..])]).expect("accepted"), 1);
        let mut burst = Frame::burst(4, MTU);
        for queue in &mut queues {
            assert!(!queue.unmask());
            assert_eq!(queue.receive(&mut burst).expect("works"), 0);
        }
        assert_eq!(queues[0].counters().drops.link_down, 1);
        options.memory.queues = 0;
        assert!(matches!(open_nic("memory:self", &options), Err(OpenError::Options { .. })));
    }
}
