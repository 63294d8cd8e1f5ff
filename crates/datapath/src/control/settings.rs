//! Settings as documents, and how the delivery core's types are written in them.

use abey_delivery::{EpollBusyPoll, Hold, Mode, ModeSettings, Nanos, NapiSettings, PollContext};
use serde::{Deserialize, Serialize};

/// The settings of a runtime, or those that a mode stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Of the instances.
    pub napi: Napi,
    /// Of the epolls; `null` never busy polls.
    pub busy_poll: Option<BusyPoll>,
    /// The longest that one wait of an epoll may block.
    pub max_wait_ns: Option<u64>,
    /// How long a blocking call polls its own queue before it sleeps.
    pub socket_busy_poll_ns: Option<u64>,
}

/// The settings of one instance ([`NapiSettings`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Napi {
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: u32,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout_ns: u64,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout_ns: u64,
    /// Who polls.
    pub threaded: Threaded,
    /// Whether it stays in poll mode after the last packet.
    pub hold: Option<HoldFor>,
}

/// Who polls, in the words of `abey set --threaded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threaded {
    /// The softirq.
    No,
    /// A thread per instance.
    Yes,
    /// A thread per instance that never sleeps.
    Busy,
    /// A shared pool of workers.
    Workqueue,
}

/// For how long to stay in poll mode, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldFor {
    /// For how long after the last packet.
    pub ns: u64,
    /// By a timer, rather than by spinning.
    pub timer: bool,
}

/// Busy-poll parameters of an epoll ([`EpollBusyPoll`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyPoll {
    /// How long a wait polls before it sleeps, in microseconds.
    pub usecs: u32,
    /// Packets of one poll.
    pub budget: u16,
    /// Keep the softirq away as long as the application polls.
    pub prefer: bool,
}

impl From<PollContext> for Threaded {
    fn from(context: PollContext) -> Self {
        match context {
            PollContext::Softirq => Self::No,
            PollContext::Thread => Self::Yes,
            PollContext::BusyThread => Self::Busy,
            PollContext::Workqueue => Self::Workqueue,
        }
    }
}

impl From<Threaded> for PollContext {
    fn from(threaded: Threaded) -> Self {
        match threaded {
            Threaded::No => Self::Softirq,
            Threaded::Yes => Self::Thread,
            Threaded::Busy => Self::BusyThread,
            Threaded::Workqueue => Self::Workqueue,
        }
    }
}

impl std::fmt::Display for Threaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::No => "no",
            Self::Yes => "yes",
            Self::Busy => "busy",
            Self::Workqueue => "workqueue",
        })
    }
}

impl std::fmt::Display for HoldFor {
    /// As in a settings file: `50us`, `50us-timer`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let behind = if self.timer { "-timer" } else { "" };
        write!(f, "{}{behind}", Nanos::from_nanos(self.ns))
    }
}

impl std::fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} us, budget {}{}", self.usecs, self.budget, if self.prefer { ", prefer" } else { "" })
    }
}

impl From<EpollBusyPoll> for BusyPoll {
    fn from(busy: EpollBusyPoll) -> Self {
        Self { usecs: busy.usecs, budget: busy.budget, prefer: busy.prefer }
    }
}

impl From<BusyPoll> for EpollBusyPoll {
    fn from(busy: BusyPoll) -> Self {
        Self { usecs: busy.usecs, budget: busy.budget, prefer: busy.prefer }
    }
}

impl From<NapiSettings> for Napi {
    fn from(settings: NapiSettings) -> Self {
        let hold = settings.hold.map(|hold| match hold {
            Hold::Spin(span) => HoldFor { ns: span.as_nanos(), timer: false },
            Hold::Timer(span) => HoldFor { ns: span.as_nanos(), timer: true },
        });
        Self {
            defer_hard_irqs: settings.defer_hard_irqs,
            gro_flush_timeout_ns: settings.gro_flush_timeout.as_nanos(),
            irq_suspend_timeout_ns: settings.irq_suspend_timeout.as_nanos(),
            threaded: settings.context.into(),
            hold,
        }
    }
}

impl From<Napi> for NapiSettings {
    fn from(napi: Napi) -> Self {
        let hold = napi.hold.map(|HoldFor { ns, timer }| {
            let span = Nanos::from_nanos(ns);
            if timer { Hold::Timer(span) } else { Hold::Spin(span) }
        });
        Self {
            defer_hard_irqs: napi.defer_hard_irqs,
            gro_flush_timeout: Nanos::from_nanos(napi.gro_flush_timeout_ns),
            irq_suspend_timeout: Nanos::from_nanos(napi.irq_suspend_timeout_ns),
            context: napi.threaded.into(),
            hold,
        }
    }
}

impl From<ModeSettings> for Settings {
    fn from(settings: ModeSettings) -> Self {
        Self {
            napi: settings.napi.into(),
            busy_poll: settings.epoll.map(BusyPoll::from),
            max_wait_ns: settings.max_wait.map(Nanos::as_nanos),
            socket_busy_poll_ns: settings.socket_busy_poll.map(Nanos::as_nanos),
        }
    }
}

impl From<Settings> for ModeSettings {
    fn from(settings: Settings) -> Self {
        Self {
            napi: settings.napi.into(),
            epoll: settings.busy_poll.map(EpollBusyPoll::from),
            max_wait: settings.max_wait_ns.map(Nanos::from_nanos),
            socket_busy_poll: settings.socket_busy_poll_ns.map(Nanos::from_nanos),
        }
    }
}

/// The mode that stands for exactly these settings.
pub(super) fn mode_of(settings: &ModeSettings) -> Option<Mode> {
    let flush = settings.napi.gro_flush_timeout;
    let plain = [Mode::Base, Mode::NapiBusy, Mode::FullBusy, Mode::Threaded, Mode::ThreadedBusy, Mode::Workqueue];
    let with_figure = [
        Some(Mode::Suspend(flush)),
        Some(Mode::Defer(flush)),
        settings.napi.hold.map(Mode::Hold),
        settings.socket_busy_poll.map(Mode::SockBusy),
    ];
    plain.into_iter().chain(with_figure.into_iter().flatten()).find(|mode| mode.settings() == *settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_survives_the_wire_and_keeps_its_name() {
        for name in Mode::EXAMPLES {
            let settings = name.parse::<Mode>().expect("a mode").settings();
            let text = serde_json::to_string(&Settings::from(settings)).expect("JSON");
            let read: Settings = serde_json::from_str(&text).expect("what was written");
            assert_eq!(ModeSettings::from(read), settings, "{name}");
            assert_eq!(mode_of(&settings).map(|mode| mode.to_string()).as_deref(), Some(name));
        }
        let mut none = "suspend20".parse::<Mode>().expect("a mode").settings();
        none.napi.defer_hard_irqs = 7;
        assert_eq!(mode_of(&none), None);
    }
}
