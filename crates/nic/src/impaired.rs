//! An impaired wire: drops, delays, reorders, duplicates and corrupts frames, deterministically for a seed and times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::counters::Counters;
use crate::frame::{Checksum, Frame};
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};

/// Impairment of the frames of one direction. Shares are probabilities from 0 to 1, drawn for each frame independently.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairment {
    /// Share of frames that are dropped.
    pub loss: f64,
    /// Delay of each frame.
    pub delay: Duration,
    /// Maximum additional delay, uniformly distributed; it reorders frames.
    pub jitter: Duration,
    /// Share of frames that are delayed by `reorder_by` more, so that later frames overtake them.
    pub reorder: f64,
    /// Additional delay of these frames.
    pub reorder_by: Duration,
    /// Share of frames that are duplicated.
    pub duplicate: f64,
    /// Share of frames with one flipped bit.
    pub corrupt: f64,
}

/// Maximum number of delayed frames in one direction; further frames are dropped.
const MAX_DELAYED: usize = 65_536;

/// A delayed frame.
#[derive(Debug)]
struct Held {
    due: Duration,
    /// Keeps frames that are due at the same time in order.
    number: u64,
    frame: Frame,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// One direction of the wire.
#[derive(Debug)]
struct Lane {
    impairment: Impairment,
    random: Xoshiro256PlusPlus,
    held: BinaryHeap<Reverse<Held>>,
    number: u64,
    dropped: u64,
}

impl Lane {
    fn new(impairment: Impairment, seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self { impairment, random, held: BinaryHeap::new(), number: 0, dropped: 0 }
    }

    fn happens(&mut self, share: f64) -> bool {
        self.random.random_bool(share.clamp(0.0, 1.0))
    }

    /// Puts a frame on the wire.
    fn enter(&mut self, frame: &Frame, now: Duration) {
        // Every share is drawn for every frame, so that one of them does not change which frames another one hits.
        let wire = self.impairment;
        let [lost, twice, corrupt, late] =
            [wire.loss, wire.duplicate, wire.corrupt, wire.reorder].map(|share| self.happens(share));
        if lost {
            self.dropped += 1;
            return;
        }
        let mut frame = Frame::from(&**frame).with_checksum(frame.checksum);
        if corrupt && !frame.is_empty() {
            let bit = self.random.random_range(0..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
            // The receiver must be able to detect it.
            frame.checksum = Checksum::Complete;
        }
        for copy in 0..1 + u8::from(twice) {
            if self.held.len() >= MAX_DELAYED {
                self.dropped += 1;
                return;
            }
            let jitter = wire.jitter.mul_f64(self.random.random());
            let back = if late && copy == 0 { wire.reorder_by } else { Duration::ZERO };
            self.number += 1;
            let due = now + wire.delay + jitter + back;
            self.held.push(Reverse(Held { due, number: self.number, frame: frame.clone() }));
        }
    }

    fn due(&self) -> Option<Duration> {
        self.held.peek().map(|Reverse(held)| held.due)
    }

    fn is_due(&self, now: Duration) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Takes a frame off the wire, if one is due.
    fn leave(&mut self, now: Duration) -> Option<Frame> {
        if self.is_due(now) { self.held.pop().map(|Reverse(held)| held.frame) } else { None }
    }
}

/// A queue pair behind an impaired wire in both directions.
///
/// The caller sets the time with [`set_time`](QueuePair::set_time) and polls at [`deadline`](QueuePair::deadline), when the
/// next frame is due. Counters are those of the inner queue pair plus the frames that the wire dropped.
#[derive(Debug)]
pub struct Impaired<Q> {
    inner: Q,
    receive: Lane,
    transmit: Lane,
    /// Frames on their way from the inner queue pair to the lane.
    scratch: Vec<Frame>,
    /// Whether the inner queue pair had no room. Its interrupt signals when it has.
    stalled: bool,
    now: Duration,
}

impl<Q: QueuePair> Impaired<Q> {
    /// Wraps `inner`, with impairments of received and of transmitted frames.
    pub fn new(inner: Q, receive: Impairment, transmit: Impairment, seed: u64) -> Self {
        Self {
            inner,
            receive: Lane::new(receive, seed),
            // Another seed, so that the two directions are not impaired in step.
            transmit: Lane::new(transmit, seed ^ 0x9e37_79b9_7f4a_7c15),
            scratch: Vec::new(),
            stalled: false,
            now: Duration::ZERO,
        }
    }

    /// Transmits frames that are due through the inner queue pair.
    fn flush(&mut self) -> Result<(), TransmitError> {
        self.stalled = false;
        while self.transmit.is_due(self.now) {
            let Some(Reverse(next)) = self.transmit.held.peek() else { break };
            if self.inner.transmit(std::slice::from_ref(&next.frame))? == 0 {
                self.stalled = true;
                break;
            }
            self.transmit.leave(self.now);
        }
        Ok(())
    }
}

impl<Q: QueuePair> QueuePair for Impaired<Q> {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        // A poll advances both directions; an error of transmission is returned by the next kick again.
        let _ = self.kick();
        let mtu = self.inner.capabilities().mtu;
        if self.scratch.len() < frames.len() {
            self.scratch.extend(Frame::burst(frames.len() - self.scratch.len(), mtu));
        }
        let arrived = self.inner.receive(&mut self.scratch[..frames.len()])?;
        for frame in &self.scratch[..arrived] {
            self.receive.enter(frame, self.now);
        }
        let mut count = 0;
        while count < frames.len() {
            let Some(frame) = self.receive.leave(self.now) else { break };
            if frame.len() > frames[count].capacity() {
                self.receive.dropped += 1;
                continue;
            }
            frames[count].set(&frame);
            frames[count].checksum = frame.checksum;
            count += 1;
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        // Back-pressure of the device stops the wire too, which would otherwise be an unlimited queue.
        self.flush()?;
        if self.stalled {
            return Ok(0);
        }
        for frame in frames {
            self.transmit.enter(frame, self.now);
        }
        self.flush()?;
        Ok(frames.len())
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        self.flush()?;
        self.inner.kick()
    }

    fn mask(&mut self) {
        self.inner.mask();
    }

    fn unmask(&mut self) -> bool {
        let transmit = self.transmit.is_due(self.now) && !self.stalled;
        self.inner.unmask() || self.receive.is_due(self.now) || transmit
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        self.inner.acknowledge()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.inner.counters();
        counters.drops.impairment += self.receive.dropped + self.transmit.dropped;
        counters
    }

    fn system_calls(&self) -> u64 {
        self.inner.system_calls()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn link(&self) -> LinkState {
        self.inner.link()
    }

    fn warning(&self) -> Option<Warning> {
        self.inner.warning()
    }

    fn set_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.inner.set_time(now);
    }

    fn deadline(&self) -> Option<Duration> {
        let transmit = self.transmit.due().filter(|_| !self.stalled);
        [self.receive.due(), transmit, self.inner.deadline()].into_iter().flatten().min()
    }
}

impl<Q: QueuePair> AsFd for Impaired<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
