//! Frames on their way out: the burst between the stack and the transmit ring, which outlives back-pressure.

use abey_nic::{Checksum, Frame, QueuePair, TransmitError};
use abey_tcpip::{FrameInfo, FrameSink, Stack};

use abey_delivery::Nanos;

use crate::clock::stack_time;

/// Frames of a burst.
const BURST: usize = 64;

/// The burst.
#[derive(Debug)]
pub(super) struct Transmit {
    frames: Vec<Frame>,
    /// Frames before this one are gone.
    head: usize,
    len: usize,
}

impl FrameSink for Transmit {
    fn slot(&mut self) -> Option<&mut [u8]> {
        self.frames.get_mut(self.len).map(Frame::buffer_mut)
    }

    fn commit(&mut self, len: usize, info: FrameInfo) {
        let frame = &mut self.frames[self.len];
        frame.set_len(len);
        // The stack fills checksums in unless it was told that frames never leave memory.
        frame.checksum = if info.checksum.is_some() { Checksum::NotNeeded } else { Checksum::Complete };
        self.len += 1;
    }
}

impl Transmit {
    pub(super) fn new(mtu: usize) -> Self {
        Self { frames: Frame::burst(BURST, mtu), head: 0, len: 0 }
    }

    /// Whether frames wait for room in the ring.
    pub(super) fn is_held_up(&self) -> bool {
        self.head < self.len
    }

    /// Forgets what waits.
    pub(super) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }

    /// Moves what the stack has into the ring: how many frames. The device is not told.
    pub(super) fn flush(
        &mut self,
        now: Nanos,
        stack: &mut Stack,
        nic: &mut dyn QueuePair,
    ) -> Result<u64, TransmitError> {
        let mut sent = 0;
        loop {
            if !self.is_held_up() {
                self.clear();
                if stack.poll_transmit_burst(stack_time(now), self, BURST) == 0 {
                    break;
                }
            }
            let taken = nic.transmit(&self.frames[self.head..self.len])?;
            self.head += taken;
            sent += taken as u64;
            if self.is_held_up() {
                break;
            }
        }
        Ok(sent)
    }
}
