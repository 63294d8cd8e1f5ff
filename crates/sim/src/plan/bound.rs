//! Upper bound of the time that a packet waits until its queue is polled.
//!
//! A queue is shared: settings that make one server's answers cheap let the packets of other flows on its queue wait.
//! The bound follows from the core's invariants (`docs/ARCHITECTURE.md`), and from the NIC and the CPU.
//!
//! When a packet arrives, its queue's interrupt is
//!
//! - *unmasked*: the NIC interrupts according to its moderation, after at most `rx-usecs`, or, if every packet restarts
//!   that time, after `rx-frames` packets that each arrived just before it ended;
//! - *masked, and the instance has no owner*: a timer is armed (invariant 3), and expires after at most the longest
//!   timeout that the settings allow (invariant 4);
//! - *masked and owned*: a poll is in progress, or its context will run.
//!
//! Then an interrupt or a softirq runs, and at most one other poll of a full budget precedes the poll of the packet.
//! A polling thread or a work pool also waits for the scheduler: one slice of each thread on the same CPU, here the
//! server's.
//!
//! | family | longest timeout |
//! | --- | --- |
//! | `base`, `threaded`, `workqueue` | none: never masked without an owner |
//! | `threaded-busy` | none, and never unmasked: the queue is polled as soon as the scheduler runs the thread |
//! | `defer`, `napibusy` | gro-flush-timeout, also while the application computes, because the end of a busy poll arms it |
//! | `fullbusy` | gro-flush-timeout, in the same way; the event loop polls far more often |
//! | `suspend` | irq-suspend-timeout, from the last delivery of events |
//! | `hold` | the hold time, by spinning or by timer |
//!
//! `tests/plan.rs` compares simulations with the bound, including applications that compute for longer than the
//! timeouts: those under `defer`, `fullbusy` and `suspend` come within a few hundredths of it.
//!
//! Two cases are not included. A softirq that exhausts its limit of 300 packets or 2 ms continues in a thread, which
//! waits for the scheduler: up to [`Bound::handed_over`] more on an overloaded CPU. And Linux counts
//! irq-suspend-timeout from the delivery of events: a server that continuously receives events from other sources, or
//! takes the events of one poll in many waits, restarts it with every wait ([`Bound::postponed`]).

use abey_delivery::{DEFAULT_WEIGHT, Family, Hold, ModeSettings, Nanos, PollContext};

use crate::adaptation;
use crate::profile::{Cost, Profile, RxTimer};

/// Longest time until a queue is polled, by its components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Longest timeout of a masked queue's timer; `None` if the settings arm none.
    pub timeout: Option<Nanos>,
    /// Time that a polling thread waits for other threads on its CPU; `None` if a softirq polls.
    pub scheduler: Option<Nanos>,
    /// Longest delay by the NIC's moderation, which applies in every mode; `None` if there is no interrupt to wait
    /// for.
    pub moderation: Option<Nanos>,
    /// Time of the interrupt, softirq or wake-up, and of the poll in progress, in every mode.
    pub dispatch: Nanos,
    /// Additional time of a softirq that continues in a thread on an overloaded CPU; `None` if no softirq polls.
    pub handed_over: Option<Nanos>,
    /// Whether each wait that delivers events without a poll restarts the timeout, as in Linux.
    pub postponed: bool,
}

impl Bound {
    /// Returns the bound of these settings. `linux` selects delivery as in Linux.
    pub fn of(profile: &Profile, settings: &ModeSettings, linux: bool) -> Self {
        let napi = &settings.napi;
        let hold = napi.hold.map(|(Hold::Spin(span) | Hold::Timer(span))| span);
        let deferral = napi.defers().then_some(napi.gro_flush_timeout);
        let suspend = Some(napi.irq_suspend_timeout).filter(|span| !span.is_zero());
        let threaded = napi.context != PollContext::Softirq;
        let slice = Nanos::from_nanos(profile.thread.slice_ns);
        Self {
            timeout: [hold, deferral, suspend].into_iter().flatten().max(),
            scheduler: threaded.then_some(slice),
            moderation: (Family::of(settings) != Family::ThreadedBusy).then(|| moderation(profile)),
            dispatch: dispatch(profile, threaded),
            handed_over: (!threaded).then_some(slice),
            postponed: linux && suspend.is_some(),
        }
    }

    /// Returns the wait that the settings add to that under plain interrupts.
    pub fn added(&self) -> Nanos {
        self.timeout.unwrap_or_default() + self.scheduler.unwrap_or_default()
    }

    /// Returns the whole wait.
    pub fn total(&self) -> Nanos {
        self.timeout.max(self.moderation).unwrap_or_default() + self.scheduler.unwrap_or_default() + self.dispatch
    }
}

/// Returns the longest delay by the NIC's moderation.
fn moderation(profile: &Profile) -> Nanos {
    let nic = &profile.nic;
    let longest = |usecs: u64, frames: u32| match nic.rx_timer {
        RxTimer::Restart => usecs * u64::from(frames.max(2) - 1),
        RxTimer::FirstPacket | RxTimer::Throttle => usecs,
    };
    let usecs = if nic.adaptive {
        adaptation::LEVELS.iter().map(|level| longest(level.usecs, level.frames)).max().unwrap_or(0)
    } else {
        longest(nic.rx_usecs, nic.rx_frames)
    };
    Nanos::from_micros(usecs)
}

/// Returns the time of an interrupt on a CPU that must leave its idle state, of the softirq, and of a poll of a full
/// budget that has just missed the packet.
fn dispatch(profile: &Profile, threaded: bool) -> Nanos {
    let softirq = &profile.softirq;
    let packet = if softirq.request.instructions > softirq.ack.instructions { softirq.request } else { softirq.ack };
    let disturbed = Cost { stall_cycles: packet.stall_cycles + profile.disturbance.packet_cycles, ..packet };
    let poll = softirq.poll + disturbed.times(DEFAULT_WEIGHT.into());
    let cost = profile.interrupt.nic + profile.interrupt.timer + softirq.enter + poll;
    let cold = profile.idle.cold_cycles + profile.interrupt.cold_cycles;
    let mut ns = profile.interrupt.timer_late_ns + profile.idle.exit_ns + time(profile, cost) + cycles(profile, cold);
    if threaded {
        ns += time(profile, profile.thread.wake) + cycles(profile, profile.thread.cold_cycles);
    }
    Nanos::from_nanos(ns)
}

fn time(profile: &Profile, cost: Cost) -> u64 {
    let warm = cost.instructions * profile.processor.warm_cycles_per_1000_instructions / 1_000;
    cycles(profile, warm + cost.stall_cycles)
}

fn cycles(profile: &Profile, cycles: u64) -> u64 {
    (cycles * 1_000).div_ceil(profile.processor.frequency_mhz)
}
