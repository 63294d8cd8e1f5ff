//! The parts of a world, and the steps that are possible in it.

use abey_delivery::fault::Fault;
use abey_delivery::{EpollConfig, Hold, ModeSettings, Nanos, NapiConfig, NapiSettings, SoftirqLimits};

use super::ticks;

/// The parts of a world, and the steps that are possible in it.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) instances: usize,
    pub(crate) cpus: usize,
    pub(crate) workers: usize,
    pub(crate) apps: usize,
    /// Edge-triggered applications: a wait that checks for events consumes them.
    pub(crate) edges: bool,
    /// The number of packets that a queue can hold.
    pub(crate) capacity: u16,
    pub(crate) mode: ModeSettings,
    pub(crate) config: NapiConfig,
    pub(crate) epoll: EpollConfig,
    pub(crate) limits: SoftirqLimits,
    pub(crate) fault: Option<Fault>,
    /// Settings that the instances may receive.
    pub(crate) changes: Vec<NapiSettings>,
    pub(crate) may: May,
}

/// The steps that are possible beside packets and polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct May {
    /// Time passes; not needed without timers.
    pub(crate) tick: bool,
    /// Timers fire at any moment after they were armed, whatever the time: more schedules, but fewer states, than with ticks.
    pub(crate) untimed: bool,
    /// Time passes also in the middle of a softirq run.
    pub(crate) tick_in_softirq: bool,
    pub(crate) disable: bool,
    pub(crate) close: bool,
    /// Applications wait with a zero timeout.
    pub(crate) wait_zero: bool,
    /// Applications wait with a timeout of one tick.
    pub(crate) wait_short: bool,
    /// Signals, and spurious wake-ups, interrupts and timers.
    pub(crate) disturb: bool,
}

impl May {
    pub(crate) const NOTHING: Self = Self {
        tick: false,
        untimed: false,
        tick_in_softirq: false,
        disable: false,
        close: false,
        wait_zero: false,
        wait_short: false,
        disturb: false,
    };
}

impl Scope {
    /// Returns a scope with one instance on one CPU, polls of two packets, and queues of two.
    pub(crate) fn new(mode: ModeSettings) -> Self {
        Self {
            instances: 1,
            cpus: 1,
            workers: 1,
            apps: 0,
            edges: false,
            capacity: 2,
            mode,
            config: NapiConfig { weight: 2, ..NapiConfig::default() },
            epoll: EpollConfig::default(),
            limits: SoftirqLimits { packets: 2, time: ticks(1) },
            fault: None,
            changes: Vec::new(),
            may: May::NOTHING,
        }
    }

    pub(super) fn longest_timeout(&self) -> Nanos {
        let of = |napi: &NapiSettings| {
            let hold = match napi.hold {
                Some(Hold::Spin(span) | Hold::Timer(span)) => span,
                None => Nanos::ZERO,
            };
            napi.gro_flush_timeout.max(napi.irq_suspend_timeout).max(hold)
        };
        self.changes.iter().map(of).fold(of(&self.mode.napi), Nanos::max)
    }
}
