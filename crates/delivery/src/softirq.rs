//! The softirq of one CPU: the poll list, the budget of a run, and the hand-over to the CPU's softirq thread.
//!
//! A run ends when its packets (300) or its time (2 ms) are spent. It then counts a *squeeze*, and leaves the rest to a
//! thread that competes with other threads under the scheduler (`net_rx_action` and ksoftirqd in Linux).

use std::collections::VecDeque;

use crate::fault::{Fault, Faults, Sound};
use crate::{Nanos, NapiIndex, Outcome, SoftirqLimits};

/// The poll list of one CPU.
///
/// Order of calls: [`handle_schedule`](Self::handle_schedule) for every instance that is to run here; if it returns
/// true, raise the softirq. When that runs, [`begin_run`](Self::begin_run), then [`next`](Self::next) until it ends; after each poll
/// [`handle_polled`](Self::handle_polled) with the instance's outcome. If the run ends with a hand-over, wake the CPU's softirq
/// thread, which makes further runs when it is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Softirq<F = Sound> {
    limits: SoftirqLimits,
    list: VecDeque<Entry>,
    phase: Phase,
    /// The number of entries that were held in this run.
    holding: usize,
    squeezes: u64,
    faults: F,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    napi: NapiIndex,
    /// The instance was polled in this run, had no packets, and stays in poll mode.
    held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Raised,
    /// `polled` is whether the run has polled yet: each run polls at least once, however short its time.
    Running {
        packets_left: u32,
        deadline: Nanos,
        polled: bool,
    },
    /// The softirq thread polls the rest.
    HandedOver,
}

/// The next step of a softirq run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum SoftirqStep {
    /// Poll this instance, then call [`Softirq::handle_polled`].
    Poll(NapiIndex),
    /// The list is empty.
    Done,
    /// Instances are left: wake the CPU's softirq thread, which continues under the scheduler.
    HandOver(HandOver),
}

/// Why a run left instances to the softirq thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandOver {
    /// The run's packets or time are spent.
    Squeezed,
    /// Only instances that stay in poll mode without packets are left.
    OnlyHolding,
}

impl Softirq {
    /// Returns an empty list.
    pub fn new(limits: SoftirqLimits) -> Self {
        Self::with_faults(limits, Sound)
    }
}

impl<F: Faults> Softirq<F> {
    /// Returns an empty list with a deliberate fault for the checks.
    pub fn with_faults(limits: SoftirqLimits, faults: F) -> Self {
        Self { limits, list: VecDeque::new(), phase: Phase::Idle, holding: 0, squeezes: 0, faults }
    }

    /// Appends an instance to the list. Returns whether to raise the softirq, which is neither raised nor running.
    ///
    /// If the list was handed over to the thread, the softirq is raised again: an interrupt does not wait for the scheduler.
    pub fn handle_schedule(&mut self, napi: NapiIndex) -> bool {
        self.list.push_back(Entry { napi, held: false });
        let raise = matches!(self.phase, Phase::Idle | Phase::HandedOver);
        if raise {
            self.phase = Phase::Raised;
        }
        raise
    }

    /// Begins a run, in the softirq or in the thread. The list may be empty.
    pub fn begin_run(&mut self, now: Nanos) {
        self.holding = 0;
        for entry in &mut self.list {
            entry.held = false;
        }
        let deadline = now + self.limits.time;
        self.phase = Phase::Running { packets_left: self.limits.packets, deadline, polled: false };
    }

    /// Returns the next step of the run.
    pub fn next(&mut self, now: Nanos) -> SoftirqStep {
        let Phase::Running { packets_left, deadline, polled } = self.phase else { return SoftirqStep::Done };
        let end = if self.list.is_empty() {
            self.phase = Phase::Idle;
            return SoftirqStep::Done;
        } else if polled && (packets_left == 0 || now >= deadline) {
            self.squeezes += 1;
            HandOver::Squeezed
        } else if self.holding == self.list.len() {
            HandOver::OnlyHolding
        } else {
            self.phase = Phase::Running { packets_left, deadline, polled: true };
            let entry = self.list.pop_front().expect("the list is not empty");
            self.holding -= usize::from(entry.held);
            return SoftirqStep::Poll(entry.napi);
        };
        self.phase = Phase::HandedOver;
        SoftirqStep::HandOver(end)
    }

    /// Records the end of a poll of `napi` that took `work` packets.
    pub fn handle_polled(&mut self, napi: NapiIndex, work: u16, outcome: Outcome) {
        if let Phase::Running { packets_left, .. } = &mut self.phase {
            *packets_left = packets_left.saturating_sub(u32::from(work));
        }
        match outcome {
            Outcome::Requeue if self.faults.has(Fault::RequeueLost) => {}
            Outcome::Requeue => self.list.push_back(Entry { napi, held: false }),
            Outcome::Holding => {
                self.list.push_back(Entry { napi, held: true });
                self.holding += 1;
            }
            Outcome::Released | Outcome::StillBusy => {}
        }
    }

    /// Returns the number of runs that ended because their packets or time were spent, and resets it.
    pub fn take_squeezes(&mut self) -> u64 {
        std::mem::take(&mut self.squeezes)
    }

    /// Moves the origin of time, as [`Napi::rebase`](crate::Napi::rebase) does.
    pub fn rebase(&mut self, by: Nanos) {
        if let Phase::Running { deadline, .. } = &mut self.phase {
            *deadline = deadline.saturating_sub(by);
        }
    }

    /// Returns the number of instances on the list.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the instances on the list, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = NapiIndex> + '_ {
        self.list.iter().map(|entry| entry.napi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NapiIndex = NapiIndex(0);
    const B: NapiIndex = NapiIndex(1);

    fn us(n: u64) -> Nanos {
        Nanos::from_micros(n)
    }

    fn running() -> Softirq {
        let mut softirq = Softirq::new(SoftirqLimits::default());
        assert!(softirq.handle_schedule(A));
        assert!(!softirq.handle_schedule(B), "raised already");
        softirq.begin_run(us(0));
        softirq
    }

    #[test]
    fn instances_are_polled_in_turn_until_the_list_is_empty() {
        let mut softirq = running();
        assert_eq!(softirq.next(us(0)), SoftirqStep::Poll(A));
        softirq.handle_polled(A, 64, Outcome::Requeue);
        assert_eq!(softirq.next(us(1)), SoftirqStep::Poll(B));
        softirq.handle_polled(B, 3, Outcome::Released);
        assert_eq!(softirq.next(us(2)), SoftirqStep::Poll(A));
        assert!(!softirq.handle_schedule(B), "the run goes on to it");
        softirq.handle_polled(A, 0, Outcome::Released);
        assert_eq!(softirq.next(us(3)), SoftirqStep::Poll(B));
        softirq.handle_polled(B, 0, Outcome::Released);
        assert_eq!(softirq.next(us(3)), SoftirqStep::Done);
        assert_eq!(softirq.take_squeezes(), 0);
    }

    #[test]
    fn packets_and_time_are_limited() {
        let mut softirq = running();
        let mut polls = 0;
        while let SoftirqStep::Poll(napi) = softirq.next(us(1)) {
            softirq.handle_polled(napi, 64, Outcome::Requeue);
            polls += 1;
        }
        assert_eq!((polls, softirq.take_squeezes()), (5, 1), "320 packets, the first multiple of 64 from 300 on");
        assert!(softirq.handle_schedule(NapiIndex(2)), "an interrupt does not wait for the thread");
        softirq.begin_run(us(2));
        assert!(matches!(softirq.next(us(9_000)), SoftirqStep::Poll(_)), "a run gets somewhere");
        assert_eq!(softirq.next(us(9_000)), SoftirqStep::HandOver(HandOver::Squeezed));
        assert_eq!((softirq.take_squeezes(), softirq.take_squeezes()), (1, 0));
    }

    #[test]
    fn a_run_with_only_holding_instances_stops() {
        let mut softirq = running();
        for napi in [A, B] {
            assert_eq!(softirq.next(us(0)), SoftirqStep::Poll(napi));
            softirq.handle_polled(napi, 0, if napi == A { Outcome::Holding } else { Outcome::Requeue });
        }
        assert_eq!(softirq.next(us(0)), SoftirqStep::Poll(A), "B has more packets, so the run goes on");
        softirq.handle_polled(A, 0, Outcome::Holding);
        assert_eq!(softirq.next(us(0)), SoftirqStep::Poll(B));
        softirq.handle_polled(B, 0, Outcome::Holding);
        assert_eq!(softirq.next(us(0)), SoftirqStep::HandOver(HandOver::OnlyHolding));
        assert_eq!((softirq.take_squeezes(), softirq.len()), (0, 2));
        softirq.begin_run(us(5));
        assert_eq!(softirq.next(us(5)), SoftirqStep::Poll(A), "the thread polls each of them once");
    }
}
