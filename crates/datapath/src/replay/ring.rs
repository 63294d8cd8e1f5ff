//! A NIC that is a ring in memory and interrupts on request.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use abey_nic::{Capabilities, Counters, Frame, LinkState, MemoryShape, QueuePair, ReceiveError, TransmitError};
use rustix::event::{EventfdFlags, eventfd};

/// The MAC address of the host with the ring.
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The peer's side.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Vec<u8>>,
    raised: bool,
    /// The conditions under which the descriptor is readable, and the descriptor.
    signals: Option<(Signals, OwnedFd)>,
    is_readable: bool,
    masked: bool,
    /// Datagrams that were taken out of the ring, by the second byte of the port.
    taken: [u32; 16],
}

impl State {
    /// Sets the descriptor to the state of the ring.
    fn sync_descriptor(&mut self) {
        let Some((signals, event)) = &self.signals else { return };
        let readable = if *signals == Signals::Level { !self.frames.is_empty() } else { self.raised };
        if readable != std::mem::replace(&mut self.is_readable, readable) {
            let done = if readable {
                rustix::io::write(event, &1_u64.to_ne_bytes())
            } else {
                rustix::io::read(event, &mut [0; 8])
            };
            assert_eq!(done, Ok(8), "an eventfd");
        }
    }
}

/// When the NIC's descriptor is readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signals {
    /// From the first frame that comes unmasked until the interrupt is taken, as with a NIC in shared memory.
    Unmasked,
    /// While there are frames, masked or not, as with AF_XDP.
    Level,
}

/// The queue pair.
#[derive(Debug)]
pub(super) struct RingQueue {
    ring: Ring,
    /// Never readable without [`Signals`]: the replay wakes sleeping threads itself.
    event: OwnedFd,
    capabilities: Capabilities,
}

impl Ring {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arrive(&self, others: u32, requests: u32) {
        let frames = &mut self.state().frames;
        frames.extend((0..others).map(|_| datagram([2, 0, 0, 0, 0, 99], 7)));
        frames.extend((0..requests).map(|_| datagram(MAC, 7)));
    }

    /// Adds a datagram for this port to the ring.
    pub(super) fn arrive_at(&self, port: u8) {
        let mut state = self.state();
        state.frames.push_back(datagram(MAC, port));
        state.raised |= !state.masked;
        state.sync_descriptor();
    }

    /// Returns how many datagrams for this port were taken out of the ring.
    pub(super) fn taken(&self, port: u8) -> u32 {
        self.state().taken[usize::from(port)]
    }

    pub(super) fn raise(&self) {
        self.state().raised = true;
    }

    pub(super) fn signalling(&self, signals: Signals) -> RingQueue {
        let queue = self.queue();
        self.state().signals = Some((signals, queue.event.try_clone().expect("a descriptor")));
        queue
    }

    pub(super) fn queue(&self) -> RingQueue {
        // Its capabilities are those of a shared-memory NIC.
        static CAPABILITIES: OnceLock<Capabilities> = OnceLock::new();
        let capabilities = CAPABILITIES.get_or_init(|| {
            let pair = abey_nic::pair(MemoryShape::default()).expect("memory");
            pair.0[0].capabilities()
        });
        let capabilities = *capabilities;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
        RingQueue { ring: self.clone(), event, capabilities }
    }
}

/// Returns a datagram from 10.0.0.1 to a port of 10.0.0.2, whose stack accepts it if `mac` is its own.
fn datagram(mac: [u8; 6], port: u8) -> Vec<u8> {
    let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 1], &[0x08, 0x00]].concat();
    let mut header = [0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    frame.extend(header);
    // From port 9, 9 bytes, no checksum, one byte of data.
    frame.extend([0, 9, 0, port, 0, 9, 0, 0, 1]);
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
        for port in frames[..count].iter().filter_map(|frame| frame.get(37)) {
            state.taken[usize::from(*port)] += 1;
        }
        state.sync_descriptor();
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        Ok(frames.len())
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        Ok(())
    }

    fn mask(&mut self) {
        self.ring.state().masked = true;
    }

    fn unmask(&mut self) -> bool {
        let mut state = self.ring.state();
        state.masked = false;
        !state.frames.is_empty()
    }

    fn readable_while_masked(&self) -> bool {
        matches!(self.ring.state().signals, Some((Signals::Level, _)))
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        let mut state = self.ring.state();
        if matches!(state.signals, Some((Signals::Level, _))) {
            return Ok(!state.frames.is_empty());
        }
        let raised = std::mem::take(&mut state.raised);
        state.sync_descriptor();
        Ok(raised)
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
