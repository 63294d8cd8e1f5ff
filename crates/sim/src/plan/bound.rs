//! How long a packet may wait at most until somebody looks at its queue.
//!
//! A queue is shared: what makes one server's answers cheap makes the packets of other flows on its queue wait. The bound
//! follows from the core's invariants (`docs/ARCHITECTURE.md`), and from what the NIC and the CPU do around it.
//!
//! When a packet arrives, its queue's interrupt is
//!
//! - *unmasked*: the NIC interrupts as its moderation says: after `rx-usecs` at the latest, or, if every packet starts that
//!   time anew, after `rx-frames` packets that each came just in time;
//! - *masked, and nobody owns the instance*: a timer is armed (invariant 3), and goes off no later than the longest of the
//!   timeouts that the settings let it be armed for (invariant 4);
//! - *masked and owned*: a poll is under way, or its context will be run.
//!
//! Whatever takes notice of the packet then runs: an interrupt, the softirq, and, before the poll, at most one other poll
//! of a full budget. A polling thread or a work pool waits for the scheduler as well: a slice of each thread that it shares
//! its CPU with, here the server's.
//!
//! | family | the longest timeout |
//! | --- | --- |
//! | `base`, `threaded`, `workqueue` | none: never masked without an owner |
//! | `threaded-busy` | none, and the queue is never unmasked: as soon as the scheduler runs the thread |
//! | `defer`, `napibusy` | gro-flush-timeout: also while the application computes, as a busy poll that ends arms it |
//! | `fullbusy` | gro-flush-timeout, in the same way; the event loop polls far more often |
//! | `suspend` | irq-suspend-timeout, from the last delivery of events |
//! | `hold` | the time to hold, by spinning or by timer |
//!
//! `tests/plan.rs` holds simulations against it, also of applications that compute for longer than the timeouts: those of
//! `defer`, `fullbusy` and `suspend` come within a few hundredths of it.
//!
//! Two things are outside it. A softirq that uses up its budget of 300 packets or 2 ms goes on in a thread, which waits for
//! the scheduler: [`Bound::handed_over`] more on a CPU that does not keep up. And Linux counts irq-suspend-timeout from the
//! delivery: a server that is given events without an end from elsewhere, or takes the events of one poll in many waits,
//! postpones it with every wait ([`Bound::postponed`]).

use abey_delivery::{DEFAULT_WEIGHT, Family, Hold, ModeSettings, Nanos, PollContext};

use crate::adaptation;
use crate::profile::{Cost, Profile, RxTimer};

/// The longest wait until somebody looks at a queue, by what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The longest timeout that the timer of a masked queue can be armed for; `None` if it is never left to one.
    pub timeout: Option<Nanos>,
    /// How long a polling thread waits for the threads it shares its CPU with; `None` where a softirq polls.
    pub scheduler: Option<Nanos>,
    /// The longest that the NIC's own moderation holds an interrupt back, in any mode; `None` where none is awaited.
    pub moderation: Option<Nanos>,
    /// From then on: interrupt, softirq or wake-up, and the poll under way, in any mode.
    pub dispatch: Nanos,
    /// What a softirq that goes on in a thread may add, on a CPU that does not keep up; `None` where no softirq polls.
    pub handed_over: Option<Nanos>,
    /// The timeout counts anew from every wait that delivers events without a poll, as in Linux.
    pub postponed: bool,
}

impl Bound {
    /// The bound of these settings on a machine; `linux`: with delivery as in Linux.
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

    /// What the settings add to the wait under plain interrupts.
    pub fn added(&self) -> Nanos {
        self.timeout.unwrap_or_default() + self.scheduler.unwrap_or_default()
    }

    /// The whole wait.
    pub fn total(&self) -> Nanos {
        self.timeout.max(self.moderation).unwrap_or_default() + self.scheduler.unwrap_or_default() + self.dispatch
    }
}

/// The longest that the NIC's moderation lets a packet wait.
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

/// An interrupt on a CPU that has to leave its idle state first, the softirq, and a poll of a full budget that has just
/// missed the packet.
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
