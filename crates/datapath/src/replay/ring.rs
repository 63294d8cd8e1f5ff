//! A NIC that is a ring in memory and interrupts when it is told to.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use abey_nic::{Capabilities, Counters, Frame, LinkState, MemoryShape, QueuePair, ReceiveError, TransmitError};
use rustix::event::{EventfdFlags, eventfd};

/// The station whose ring it is.
pub(super) const STATION: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The peer's side.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Vec<u8>>,
    raised: bool,
}

/// The queue pair.
#[derive(Debug)]
pub(super) struct RingQueue {
    ring: Ring,
    /// Never readable: who sleeps is told in another way.
    event: OwnedFd,
    capabilities: Capabilities,
}

impl Ring {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arrive(&self, others: u32, requests: u32) {
        let frames = &mut self.state().frames;
        frames.extend((0..others).map(|_| datagram([2, 0, 0, 0, 0, 99])));
        frames.extend((0..requests).map(|_| datagram(STATION)));
    }

    pub(super) fn raise(&self) {
        self.state().raised = true;
    }

    pub(super) fn queue(&self) -> RingQueue {
        // What it can do is what a shared-memory NIC can.
        let pair = abey_nic::pair(MemoryShape::default()).expect("memory");
        let capabilities = pair.0[0].capabilities();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
        RingQueue { ring: self.clone(), event, capabilities }
    }
}

/// A datagram from 10.0.0.1 to port 7 of 10.0.0.2, whose stack takes it if the station is its own.
fn datagram(station: [u8; 6]) -> Vec<u8> {
    let mut frame = [&station[..], &[2, 0, 0, 0, 0, 1], &[0x08, 0x00]].concat();
    let mut header = [0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    frame.extend(header);
    // Port 9 to port 7, 9 bytes, no checksum, one byte of data.
    frame.extend([0, 9, 0, 7, 0, 9, 0, 0, 1]);
    frame
}

impl AsFd for RingQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl QueuePair for RingQueue {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        let mut state = self.ring.state();
        let count = frames.len().min(state.frames.len());
        for (frame, bytes) in frames.iter_mut().zip(state.frames.drain(..count)) {
            frame.set(&bytes);
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        Ok(frames.len())
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        Ok(())
    }

    fn mask(&mut self) {}

    fn unmask(&mut self) -> bool {
        !self.ring.state().frames.is_empty()
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        Ok(std::mem::take(&mut self.ring.state().raised))
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn system_calls(&self) -> u64 {
        0
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn link(&self) -> LinkState {
        LinkState::Up
    }
}
