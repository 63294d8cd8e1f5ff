//! Queue pair of the NIC: a receive ring, interrupt moderation for received packets and for completed transmissions,
//! and the adaptation of the former to the traffic.
//!
//! Both directions share one interrupt and one NAPI instance. An interrupt for a completed transmission therefore
//! polls the receive ring too, often long before moderation would have announced its packets.

use std::collections::VecDeque;

use crate::adaptation::Adaptation;
use crate::profile::{Nic, RxTimer};
use crate::random::Random;
use crate::waits::Waits;

/// Received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// Data of this connection: the last of this many segments that arrived together.
    Data { conn: u32, segments: u32 },
    /// Earlier segment of the data.
    Segment,
    /// Acknowledgement without data.
    Ack,
    /// Last acknowledgement of this many segments of an answer, which lets the connection send more.
    Window { conn: u32, segments: u32 },
}

/// Result of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The ring was full.
    Dropped,
    /// The packet waits in the ring without an interrupt.
    Quiet,
    /// Like [`Self::Quiet`], and the moderation timer must be started for this time.
    StartTimer(u64),
    /// The NIC interrupts now.
    Interrupt,
}

/// Interrupt moderation: after `usecs`, counted as [`RxTimer`] defines, or at once after `frames` packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moderation {
    pub(crate) usecs: u64,
    pub(crate) frames: u32,
}

#[derive(Debug)]
pub(crate) struct RxQueue {
    /// Packets with the times of their arrival.
    pub(crate) ring: VecDeque<(u64, Packet)>,
    /// Times that packets waited in the ring.
    pub(crate) waits: Waits,
    capacity: usize,
    pub(crate) masked: bool,
    rx_timer: RxTimer,
    last_interrupt: u64,
    moderation: Moderation,
    frames: u32,
    /// When the NIC interrupts for received packets.
    deadline: Option<u64>,
    tx_moderation: Moderation,
    tx_frames: u32,
    /// When the NIC interrupts for completed transmissions.
    tx_deadline: Option<u64>,
    /// When the pending timer event comes; perhaps too early.
    timer: Option<u64>,
    adaptation: Option<Adaptation>,
    received: u64,
}

impl RxQueue {
    pub(crate) fn new(nic: &Nic, random: Random) -> Self {
        let adaptation = nic.adaptive.then(|| Adaptation::new(nic.adaptation_noise_percent, random));
        let moderation = match &adaptation {
            Some(adaptation) => adaptation.moderation(),
            None => Moderation { usecs: nic.rx_usecs, frames: nic.rx_frames },
        };
        Self {
            ring: VecDeque::new(),
            waits: Waits::default(),
            capacity: nic.ring_packets,
            masked: true,
            rx_timer: nic.rx_timer,
            last_interrupt: 0,
            moderation,
            frames: 0,
            deadline: None,
            tx_moderation: Moderation { usecs: nic.tx_usecs, frames: nic.tx_frames },
            tx_frames: 0,
            tx_deadline: None,
            timer: None,
            adaptation,
            received: 0,
        }
    }

    /// Takes up to `most` packets for a poll. Returns their number.
    #[inline]
    pub(crate) fn take(&mut self, now: u64, most: usize, packets: &mut Vec<Packet>) -> usize {
        let count = self.ring.len().min(most);
        for (at, packet) in self.ring.drain(..count) {
            self.waits.record(now - at);
            packets.push(packet);
        }
        count
    }

    /// Returns how many packets fit into the ring.
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.ring.len()
    }

    /// Puts `count` packets and the `last` one into the ring, or none if there is no room for all.
    #[inline]
    pub(crate) fn arrive_after(&mut self, now: u64, before: Packet, count: u32, last: Packet) -> Arrival {
        if self.room() <= count as usize {
            return Arrival::Dropped;
        }
        for _ in 0..count {
            self.ring.push_back((now, before));
        }
        self.ring.push_back((now, last));
        self.received += u64::from(count) + 1;
        if self.masked {
            return Arrival::Quiet;
        }
        self.frames += count + 1;
        if self.moderation.usecs == 0 || self.frames >= self.moderation.frames {
            return self.fire(now, true);
        }
        let span = self.moderation.usecs * 1_000;
        match self.rx_timer {
            RxTimer::Restart => self.deadline = Some(now + span),
            RxTimer::FirstPacket => _ = self.deadline.get_or_insert(now + span),
            RxTimer::Throttle if now >= self.last_interrupt + span => return self.fire(now, true),
            RxTimer::Throttle => _ = self.deadline.get_or_insert(self.last_interrupt + span),
        }
        self.start_timer()
    }

    /// Completes a transmission.
    pub(crate) fn transmitted(&mut self, now: u64) -> Arrival {
        if self.masked {
            return Arrival::Quiet;
        }
        self.tx_frames += 1;
        if self.tx_moderation.usecs == 0 || self.tx_frames >= self.tx_moderation.frames {
            return self.fire(now, false);
        }
        self.tx_deadline.get_or_insert(now + self.tx_moderation.usecs * 1_000);
        self.start_timer()
    }

    fn start_timer(&mut self) -> Arrival {
        match self.next_deadline() {
            Some(at) if self.timer.is_none_or(|pending| pending > at) => {
                self.timer = Some(at);
                Arrival::StartTimer(at)
            }
            _ => Arrival::Quiet,
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        self.deadline.into_iter().chain(self.tx_deadline).min()
    }

    /// Handles the moderation timer.
    pub(crate) fn timer(&mut self, now: u64) -> Arrival {
        if self.timer != Some(now) {
            return Arrival::Quiet;
        }
        self.timer = None;
        let due = |deadline: Option<u64>| deadline.is_some_and(|at| at <= now);
        if due(self.deadline) || due(self.tx_deadline) {
            return self.fire(now, due(self.deadline));
        }
        self.start_timer()
    }

    fn fire(&mut self, now: u64, received: bool) -> Arrival {
        self.forget();
        self.last_interrupt = now;
        if let Some(adaptation) = self.adaptation.as_mut().filter(|_| received) {
            adaptation.interrupts += 1;
        }
        Arrival::Interrupt
    }

    /// Clears pending moderation, because the following poll takes everything.
    fn forget(&mut self) {
        self.deadline = None;
        self.frames = 0;
        self.tx_deadline = None;
        self.tx_frames = 0;
    }

    /// Returns whether moderation delays an interrupt.
    pub(crate) fn is_interrupt_due(&self) -> bool {
        self.next_deadline().is_some()
    }

    pub(crate) fn mask(&mut self) {
        self.masked = true;
        self.forget();
    }

    pub(crate) fn unmask(&mut self, now: u64) {
        self.masked = false;
        if let Some(adaptation) = &mut self.adaptation {
            adaptation.handle_poll(now, self.received);
            self.moderation = adaptation.moderation();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    impl RxQueue {
        fn arrive(&mut self, now: u64, packet: Packet) -> Arrival {
            self.arrive_after(now, Packet::Ack, 0, packet)
        }
    }

    fn queue(rx_timer: RxTimer) -> RxQueue {
        let mut nic = Profile::load("e5-2680").expect("shipped").nic;
        nic = Nic { ring_packets: 4, rx_timer, rx_usecs: 10, rx_frames: 3, tx_usecs: 5, tx_frames: 2, ..nic };
        let mut queue = RxQueue::new(&nic, Random::new(1, 1));
        queue.unmask(0);
        queue
    }

    #[test]
    fn every_packet_starts_the_timer_anew_or_only_the_first() {
        for (rx_timer, due) in [(RxTimer::Restart, 114_000), (RxTimer::FirstPacket, 110_000)] {
            let mut queue = queue(rx_timer);
            assert_eq!(queue.arrive(100_000, Packet::Ack), Arrival::StartTimer(110_000));
            assert_eq!(queue.arrive(104_000, Packet::Ack), Arrival::Quiet);
            let mut at = 110_000;
            let mut arrival = queue.timer(at);
            while let Arrival::StartTimer(next) = arrival {
                at = next;
                arrival = queue.timer(at);
            }
            assert_eq!((arrival, at), (Arrival::Interrupt, due), "{rx_timer:?}");
        }
    }

    #[test]
    fn a_throttled_interrupt_is_at_once_after_a_pause_and_late_after_another() {
        let mut queue = queue(RxTimer::Throttle);
        assert_eq!(queue.arrive(100_000, Packet::Ack), Arrival::Interrupt);
        assert_eq!(queue.arrive(103_000, Packet::Ack), Arrival::StartTimer(110_000));
    }

    #[test]
    fn enough_frames_interrupt_at_once_masked_ones_never_and_a_full_ring_drops() {
        let mut queue = queue(RxTimer::Restart);
        assert!(matches!(queue.arrive(1, Packet::Ack), Arrival::StartTimer(_)));
        assert_eq!(queue.arrive(2, Packet::Ack), Arrival::Quiet);
        assert_eq!(queue.arrive(3, Packet::Ack), Arrival::Interrupt);
        queue.mask();
        assert_eq!(queue.arrive(4, Packet::Ack), Arrival::Quiet);
        assert_eq!(queue.arrive(5, Packet::Ack), Arrival::Dropped);
        assert_eq!(queue.timer(10_001), Arrival::Quiet, "what was due is being looked at");
    }

    #[test]
    fn completed_transmissions_interrupt_too() {
        let mut queue = queue(RxTimer::Restart);
        assert_eq!(queue.transmitted(1_000), Arrival::StartTimer(6_000));
        assert_eq!(queue.timer(6_000), Arrival::Interrupt);
        assert!(matches!(queue.transmitted(7_000), Arrival::StartTimer(_)));
        assert_eq!(queue.transmitted(8_000), Arrival::Interrupt, "two frames");
    }
}
