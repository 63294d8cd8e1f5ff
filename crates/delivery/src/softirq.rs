//! The softirq of one CPU: the poll list, the budget of a run, and the hand-over to the CPU's softirq thread.
//!
//! A run has no right to the CPU for ever: it ends when its packets (300) or its time (2 ms) are spent, counts a
//! *squeeze*, and leaves the rest to a thread that competes with everybody else under the scheduler (`net_rx_action` and
//! ksoftirqd in Linux).

use std::collections::VecDeque;

use crate::fault::{Fault, Faults, Sound};
use crate::{Nanos, NapiIndex, Outcome, SoftirqLimits};

/// The poll list of one CPU.
///
/// Order of calls: [`handle_schedule`](Self::handle_schedule) for every instance that is to run here; if it says so, raise
/// the softirq. When that runs, [`begin_run`](Self::begin_run), then [`next`](Self::next) until it ends; after each poll
/// [`handle_polled`](Self::handle_polled) with what the instance said. If the end says so, wake the CPU's softirq thread,
/// which does the same again whenever the scheduler lets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Softirq<F = Sound> {
    limits: SoftirqLimits,
    list: VecDeque<Entry>,
    phase: Phase,
    /// How many entries were held in this run.
    holding: usize,
    squeezes: u64,
    faults: F,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    napi: NapiIndex,
    /// The instance was polled in this run, found nothing, and holds on.
    held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Raised,
    Running {
        packets_left: u32,
        deadline: Nanos,
    },
    /// The rest is the softirq thread's.
    HandedOver,
}

/// What a softirq run does next.
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
    /// Only instances that hold on without packets are left.
    OnlyHolding,
}

impl Softirq {
    /// An empty list.
    pub fn new(limits: SoftirqLimits) -> Self {
        Self::with_faults(limits, Sound)
    }
}

impl<F: Faults> Softirq<F> {
    /// As [`Softirq::new`], with a deliberate fault for the checks.
    pub fn with_faults(limits: SoftirqLimits, faults: F) -> Self {
        Self { limits, list: VecDeque::new(), phase: Phase::Idle, holding: 0, squeezes: 0, faults }
    }

    /// Puts an instance at the end of the list. True: raise the softirq; it is neither raised nor running.
    ///
    /// A list that was handed over to the thread is raised again: an interrupt does not wait for the scheduler.
    pub fn handle_schedule(&mut self, napi: NapiIndex) -> bool {
        self.list.push_back(Entry { napi, held: false });
        let raise = matches!(self.phase, Phase::Idle | Phase::HandedOver);
        if raise {
            self.phase = Phase::Raised;
        }
        raise
    }

    /// A run begins, in the softirq or in the thread. Harmless if there is nothing to do.
    pub fn begin_run(&mut self, now: Nanos) {
        self.holding = 0;
        for entry in &mut self.list {
            entry.held = false;
        }
        self.phase = Phase::Running { packets_left: self.limits.packets, deadline: now + self.limits.time };
    }

    /// What the run does next.
    pub fn next(&mut self, now: Nanos) -> SoftirqStep {
        let Phase::Running { packets_left, deadline } = self.phase else { return SoftirqStep::Done };
        let end = if self.list.is_empty() {
            self.phase = Phase::Idle;
            return SoftirqStep::Done;
        } else if packets_left == 0 || now >= deadline {
            self.squeezes += 1;
            HandOver::Squeezed
        } else if self.holding == self.list.len() {
            HandOver::OnlyHolding
        } else {
            let entry = self.list.pop_front().expect("the list is not empty");
            self.holding -= usize::from(entry.held);
            return SoftirqStep::Poll(entry.napi);
        };
        self.phase = Phase::HandedOver;
        SoftirqStep::HandOver(end)
    }

    /// A poll of `napi` is over: it took `work` packets, and the instance said what becomes of it.
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

    /// How many runs ended because their packets or time were spent, since this was asked last.
    pub fn take_squeezes(&mut self) -> u64 {
        std::mem::take(&mut self.squeezes)
    }

    /// Moves the origin of time, as [`Napi::rebase`](crate::Napi::rebase) does.
    pub fn rebase(&mut self, by: Nanos) {
        if let Phase::Running { deadline, .. } = &mut self.phase {
            *deadline = deadline.saturating_sub(by);
        }
    }

    /// How many instances are on the list.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing is on the list.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The instances on the list, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = NapiIndex> + '_ {
        self.list.iter().map(|entry| entry.napi)
    }
}
