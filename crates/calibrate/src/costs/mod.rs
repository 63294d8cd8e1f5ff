//! Direct measurements: one operation at a time, in short batches that take turns, so that what disturbs the machine for a
//! while disturbs all of them alike. A cost is a low quantile of its batches: disturbance only ever adds.

mod calls;
mod memory;
mod timers;
mod veth;
mod wakeups;

use serde::{Deserialize, Serialize};

use abey_bench::{BenchError, Cpus};
use abey_linux::apply::ApplyError;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNsError;
use abey_load::PinError;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// Reading the monotonic clock.
    ClockRead,
    /// The cheapest system call.
    SystemCall,
    /// A wait for events that returns at once, with none.
    EpollWait,
    /// One event more in such a wait.
    EpollEvent,
    /// Arming a timer.
    TimerSet,
    /// A timer's interrupt, as the thread sees it that is interrupted.
    TimerInterrupt,
    /// How late it comes to a CPU that is busy.
    TimerLate,
    /// How late a sleeping thread runs that a timer wakes.
    TimerLateness,
    /// CPU time that a short timed sleep is billed.
    TimedSleep,
    /// From one thread to another of the same CPU: wake-up and switch.
    WakeSameCpu,
    /// From one thread to another that sleeps on another CPU, which is idle.
    WakeOtherCpu,
    /// What that takes of the waking thread.
    WakeCharged,
    /// CPU time that the woken thread is billed.
    WokenCpu,
    /// Sending a packet over a veth whose receiver is masked: the sender's own part.
    VethSend,
    /// The receiver's part of it, which the sender's CPU does: interrupt, softirq, poll, and the packet up to its socket.
    VethReceive,
    /// A poll of an empty queue of the shared-memory NIC, by a wait of the datapath's epoll.
    EmptyPoll,
    /// A datagram over the shared-memory NIC: sent, polled, and read.
    MemoryDatagram,
}

impl Operation {
    /// In words, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClockRead => "clock read",
            Self::SystemCall => "system call",
            Self::EpollWait => "epoll_wait, no events",
            Self::EpollEvent => "epoll event",
            Self::TimerSet => "timer armed",
            Self::TimerInterrupt => "timer interrupt",
            Self::TimerLate => "timer interrupt, late by",
            Self::TimerLateness => "timer wake-up, late by",
            Self::TimedSleep => "timed sleep, CPU",
            Self::WakeSameCpu => "wake-up, same CPU",
            Self::WakeOtherCpu => "wake-up, other CPU",
            Self::WakeCharged => "waking another CPU",
            Self::WokenCpu => "woken, CPU",
            Self::VethSend => "veth, send a packet",
            Self::VethReceive => "veth, receive it",
            Self::EmptyPoll => "poll of an empty queue",
            Self::MemoryDatagram => "datagram, memory NIC",
        }
    }

    /// How it is measured.
    pub const fn how(self) -> &'static str {
        match self {
            Self::ClockRead => "clock_gettime(CLOCK_MONOTONIC) in a loop",
            Self::SystemCall => "getppid() in a loop",
            Self::EpollWait => "epoll_wait with a timeout of 0 on an instance whose eventfd is not ready",
            Self::EpollEvent => "the same with the eventfd ready, less the wait without",
            Self::TimerSet => "timerfd_settime in a loop",
            Self::TimerInterrupt => {
                "the longest gap between two clock reads of a spinning thread while a timerfd expires"
            }
            Self::TimerLate => "from the timerfd's expiry to the beginning of that gap; median",
            Self::TimerLateness => "from a timerfd's expiry to the return of the read that slept for it; median",
            Self::TimedSleep => "CLOCK_THREAD_CPUTIME_ID over sleeps of 50 us",
            Self::WakeSameCpu => "half a round trip of two threads over eventfds, less two system calls",
            Self::WakeOtherCpu => {
                "from before write(eventfd) to after read(eventfd) on the other CPU, asleep for 100 us; median"
            }
            Self::WakeCharged => "the write(eventfd) of the same",
            Self::WokenCpu => "CLOCK_THREAD_CPUTIME_ID of the woken thread, for each wake-up",
            Self::VethSend => "sendto of a small datagram while the receiver's NAPI instance is deferred",
            Self::VethReceive => "the same without deferral, less that",
            Self::EmptyPoll => "a wait of 0 of the datapath's epoll under fullbusy",
            Self::MemoryDatagram => "send, wait and receive by one thread at both ends",
        }
    }
}

/// One cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Of what.
    pub operation: Operation,
    /// In nanoseconds.
    pub ns: f64,
    /// From the quantile that counts to the one that is as far from the other end, as a share of `ns`.
    pub spread: f64,
    /// Batches or single events that it was taken from.
    pub samples: usize,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs(pub Vec<Cost>);

impl Costs {
    /// In nanoseconds; `None` if it was not measured.
    pub fn ns(&self, operation: Operation) -> Option<f64> {
        self.0.iter().find(|cost| cost.operation == operation).map(|cost| cost.ns)
    }

    fn add(&mut self, operation: Operation, samples: &[f64], quantile: f64) {
        let at = |q: f64| quantile_of(samples, q);
        let ns = at(quantile).max(0.0);
        let spread = if ns > 0.0 { (at(1.0 - quantile.min(0.25)) - ns) / ns } else { 0.0 };
        self.0.push(Cost { operation, ns, spread, samples: samples.len() });
    }

    /// A cost that is the difference of two others, at least `least` ns.
    fn add_difference(&mut self, operation: Operation, (whole, part): (&[f64], &[f64]), least: f64) {
        let differences: Vec<f64> = whole.iter().zip(part).map(|(whole, part)| (whole - part).max(least)).collect();
        self.add(operation, &differences, 0.5);
    }
}

/// The quantile of the samples, from 0 to 1.
fn quantile_of(samples: &[f64], quantile: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = ((sorted.len().saturating_sub(1)) as f64 * quantile).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Which quantile of its batches a cost is.
const LOW: f64 = 0.1;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Batches of each operation that takes no sleep.
    pub batches: usize,
    /// Events of each that does.
    pub events: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { batches: 100, events: 1_000 }
    }
}

/// Why a cost could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// A thread could not be put on its CPU.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A system call that is to be measured was refused.
    #[error("cannot measure {}: {source}", operation.name())]
    Refused {
        /// What was measured.
        operation: Operation,
        /// What the system said.
        source: std::io::Error,
    },
    /// The test network could not be made or used.
    #[error(transparent)]
    Bed(#[from] BenchError),
    /// The test network could not be made or used.
    #[error(transparent)]
    Namespace(#[from] NetNsError),
    /// The test network could not be made or used.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The test network's device would not be deferred.
    #[error("cannot defer the test network's NAPI instance: {0}")]
    Apply(#[from] ApplyError),
    /// What was deferred could not be put back.
    #[error("cannot put the test network's NAPI instance back: {0}")]
    Restore(#[from] MachineError),
    /// The shared-memory NIC or a socket over it.
    #[error("cannot measure the shared-memory NIC: {0}")]
    Memory(String),
}

/// Names the operation that the system refused.
fn refused<E: Into<std::io::Error>>(operation: Operation) -> impl Fn(E) -> CostError {
    move |source| CostError::Refused { operation, source: source.into() }
}

/// What needs no privilege: calls, timers, wake-ups, and the shared-memory NIC.
///
/// # Errors
/// [`CostError`]; nothing is left behind.
pub fn of_machine(cpus: Cpus, effort: Effort) -> Result<Costs, CostError> {
    let mut costs = Costs::default();
    for measure in [calls::measure, timers::measure, wakeups::measure, memory::measure] {
        on_its_own(|| measure(&mut costs, cpus, effort))?;
    }
    Ok(costs)
}

/// What needs root: packets over a veth pair between two namespaces of their own.
///
/// # Errors
/// [`CostError`]; nothing is left behind.
pub fn of_veth(cpus: Cpus, effort: Effort) -> Result<Costs, CostError> {
    let mut costs = Costs::default();
    on_its_own(|| veth::measure(&mut costs, cpus, effort))?;
    Ok(costs)
}

/// On a thread of its own, whose CPU and timer slack are nobody else's.
fn on_its_own(measure: impl FnOnce() -> Result<(), CostError> + Send) -> Result<(), CostError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(measure);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_low_quantile_and_a_difference_a_median() {
        let samples: Vec<f64> = (1..=101).map(f64::from).collect();
        let mut costs = Costs::default();
        costs.add(Operation::SystemCall, &samples, LOW);
        assert_eq!(costs.ns(Operation::SystemCall), Some(11.0));
        assert_eq!(costs.0[0].spread, (91.0 - 11.0) / 11.0);
        costs.add_difference(Operation::EpollEvent, (&[5.0, 9.0, 7.0], &[4.0, 4.0, 9.0]), 0.0);
        assert_eq!(costs.ns(Operation::EpollEvent), Some(1.0));
        assert_eq!(costs.ns(Operation::ClockRead), None);
    }
}
