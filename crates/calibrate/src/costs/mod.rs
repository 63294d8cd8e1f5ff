//! Direct measurements of operations, in short interleaved batches, so that a temporary disturbance affects all operations
//! alike. A cost is a low quantile of its batches, because disturbances only add time.

mod calls;
mod memory;
mod timers;
mod veth;
mod wakeups;

use serde::{Deserialize, Serialize};

use abey_bench::{BenchError, Cpus};
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNsError;
use abey_loadgen::PinError;
use abey_reconcile::ApplyError;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// A read of the monotonic clock.
    ClockRead,
    /// A cheap system call.
    SystemCall,
    /// `epoll_wait` that returns at once without events.
    EpollWait,
    /// An additional event in `epoll_wait`.
    EpollEvent,
    /// Arming a timer.
    TimerSet,
    /// A timer interrupt, as a gap in the interrupted thread.
    TimerInterrupt,
    /// Lateness of a timer interrupt on a busy CPU.
    TimerLate,
    /// Lateness of a sleeping thread that a timer wakes.
    TimerLateness,
    /// CPU time of a short timed sleep.
    TimedSleep,
    /// Wake-up of and switch to another thread on the same CPU.
    WakeSameCpu,
    /// Wake-up of a thread on another, idle CPU.
    WakeOtherCpu,
    /// Time that the waking thread spends on it.
    WakeCharged,
    /// CPU time of the woken thread.
    WokenCpu,
    /// Transmission of a packet over a veth whose receiver is masked: the sender's own part.
    VethSend,
    /// The receiver's part of it on the sender's CPU: interrupt, softirq, poll, and delivery to the socket.
    VethReceive,
    /// A poll of an empty queue of the shared-memory NIC, by a wait on the datapath's epoll instance.
    EmptyPoll,
    /// A datagram over the shared-memory NIC: sent, polled, and read.
    MemoryDatagram,
}

impl Operation {
    /// Returns the name for tables.
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

    /// Describes how it is measured.
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
                "from before write(eventfd) to after read(eventfd) on the other CPU, idle for 100 us; median"
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

/// The cost of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The operation.
    pub operation: Operation,
    /// The cost in nanoseconds.
    pub ns: f64,
    /// The range from the quantile that is the cost to the opposite quantile, as a share of the cost.
    pub spread: f64,
    /// Number of batches or events.
    pub samples: usize,
}

/// The measured costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs(pub Vec<Cost>);

impl Costs {
    /// Returns the cost of an operation in nanoseconds; `None` if it was not measured.
    pub fn ns(&self, operation: Operation) -> Option<f64> {
        self.0.iter().find(|cost| cost.operation == operation).map(|cost| cost.ns)
    }

    fn add(&mut self, operation: Operation, samples: &[f64], quantile: f64) {
        let at = |q: f64| quantile_of(samples, q);
        let ns = at(quantile).max(0.0);
        let spread = if ns > 0.0 { (at(1.0 - quantile.min(0.25)) - ns) / ns } else { 0.0 };
        self.0.push(Cost { operation, ns, spread, samples: samples.len() });
    }

    /// Adds a cost that is the difference of two others, at least `least` nanoseconds.
    fn add_difference(&mut self, operation: Operation, (whole, part): (&[f64], &[f64]), least: f64) {
        let differences: Vec<f64> = whole.iter().zip(part).map(|(whole, part)| (whole - part).max(least)).collect();
        self.add(operation, &differences, 0.5);
    }
}

/// Returns a quantile, from 0 to 1, of the samples.
fn quantile_of(samples: &[f64], quantile: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = ((sorted.len().saturating_sub(1)) as f64 * quantile).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The quantile of the batches that is the cost.
const LOW: f64 = 0.1;

/// Effort of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Batches of each operation without a sleep.
    pub batches: usize,
    /// Events of each operation with a sleep.
    pub events: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { batches: 100, events: 1_000 }
    }
}

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// A thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A system call of the measurement failed.
    #[error("cannot measure {}: {source}", operation.name())]
    Refused {
        /// The measured costs.
        operation: Operation,
        /// The error.
        source: std::io::Error,
    },
    /// The test network failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The test network failed.
    #[error(transparent)]
    Namespace(#[from] NetNsError),
    /// The test network failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The settings of the test network's NAPI instance could not be changed.
    #[error("cannot defer the test network's NAPI instance: {0}")]
    Apply(#[from] ApplyError),
    /// The settings of the test network's NAPI instance could not be restored.
    #[error("cannot restore the test network's NAPI instance: {0}")]
    Restore(#[from] MachineError),
    /// The shared-memory NIC or a socket over it failed.
    #[error("cannot measure the shared-memory NIC: {0}")]
    Memory(String),
}

/// Returns a function that adds the operation to a system error.
fn refused<E: Into<std::io::Error>>(operation: Operation) -> impl Fn(E) -> CostError {
    move |source| CostError::Refused { operation, source: source.into() }
}

/// Measures what needs no privilege: system calls, timers, wake-ups, and the shared-memory NIC.
///
/// # Errors
/// [`CostError`]; nothing is left behind.
pub fn of_machine(cpus: Cpus, effort: Effort) -> Result<Costs, CostError> {
    let mut costs = Costs::default();
    for measure in [calls::measure, timers::measure, wakeups::measure, memory::measure] {
        in_thread(|| measure(&mut costs, cpus, effort))?;
    }
    Ok(costs)
}

/// Measures what needs root: packets over a veth pair between two namespaces.
///
/// # Errors
/// [`CostError`]; nothing is left behind.
pub fn of_veth(cpus: Cpus, effort: Effort) -> Result<Costs, CostError> {
    let mut costs = Costs::default();
    in_thread(|| veth::measure(&mut costs, cpus, effort))?;
    Ok(costs)
}

/// Runs a measurement in a thread of its own, which changes its CPU affinity and timer slack.
fn in_thread(measure: impl FnOnce() -> Result<(), CostError> + Send) -> Result<(), CostError> {
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
