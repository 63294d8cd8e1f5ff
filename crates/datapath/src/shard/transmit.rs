//! The buffer between the TCP/IP stack and the transmit ring. Frames stay here while the ring is full.
//!
//! Frames to the host's own Ethernet address leave the buffer for the hairpin (`hairpin.rs`), and never enter the ring.

use abey_delivery::Nanos;
use abey_nic::{Checksum, Frame, QueuePair, TransmitError};
use abey_tcpip::{FrameInfo, FrameSink, Stack};

use crate::clock::stack_time;

/// The number of frames that the stack writes at a time.
const BURST: usize = 64;

/// A burst of frames.
#[derive(Debug)]
pub(super) struct TransmitBuffer {
    frames: Vec<Frame>,
    /// The index of the first frame that is not in the ring yet.
    head: usize,
    len: usize,
    /// The host's Ethernet address.
    own: [u8; 6],
    /// Frames to that address, in order.
    pub(super) looped: Vec<Vec<u8>>,
}

impl FrameSink for TransmitBuffer {
    fn slot(&mut self) -> Option<&mut [u8]> {
        self.frames.get_mut(self.len).map(Frame::buffer_mut)
    }

    fn commit(&mut self, len: usize, info: FrameInfo) {
        let frame = &mut self.frames[self.len];
        if frame.buffer_mut().starts_with(&self.own) {
            self.looped.push(frame.buffer_mut()[..len].to_vec());
            return;
        }
        frame.set_len(len);
        // The stack fills in checksums, unless its configuration declares that frames never leave memory.
        frame.checksum = if info.checksum.is_some() { Checksum::NotNeeded } else { Checksum::Complete };
        self.len += 1;
    }
}

impl TransmitBuffer {
    pub(super) fn new(mtu: usize, own: [u8; 6]) -> Self {
        Self { frames: Frame::burst(BURST, mtu), head: 0, len: 0, own, looped: Vec::new() }
    }

    /// Returns whether frames wait for room in the ring.
    pub(super) fn is_blocked(&self) -> bool {
        self.head < self.len
    }

    /// Drops the frames that wait.
    pub(super) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }

    /// Moves the stack's frames into the ring, without a kick. Returns the number of frames in the ring.
    pub(super) fn flush(
        &mut self,
        now: Nanos,
        stack: &mut Stack,
        nic: &mut dyn QueuePair,
    ) -> Result<u64, TransmitError> {
        let mut sent = 0;
        loop {
            if !self.is_blocked() {
                self.clear();
                if stack.poll_transmit_burst(stack_time(now), self, BURST) == 0 {
                    break;
                }
            }
            if !self.is_blocked() {
                // All of them were the host's own.
                continue;
            }
            let taken = nic.transmit(&self.frames[self.head..self.len])?;
            self.head += taken;
            sent += taken as u64;
            if self.is_blocked() {
                break;
            }
        }
        Ok(sent)
    }
}
