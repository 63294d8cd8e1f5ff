//! Modes: the named bundles of settings.
//!
//! A name consists of the mechanism and the one figure that is worth tuning: `suspend20` is IRQ suspension that falls back
//! to a deferral of 20 us. The bundles are those of the IRQ suspension study (Cai and
//! Karsten, "Kernel vs. User-Level Networking: Don't Throw Out the Stack with the Interrupts", 2023, and the kernel
//! series that followed it), so that its published tables can be compared with ours.

use std::fmt;
use std::str::FromStr;

use crate::{EpollBusyPoll, Hold, ModeSettings, Nanos, NapiSettings, PollContext};

/// The number of empty polls that may re-arm the timer: enough that traffic, not the count, ends a deferral.
const DEFERRALS: u32 = 100;

/// A delivery mode.
///
/// Text form: the names of the variants in lower case, with the figure behind them in microseconds (`defer50`) or with
/// a unit (`hold4ms`); `threaded-busy` and `hold50-timer` are the variants of `threaded` and `hold50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Plain interrupts: everything zero.
    Base,
    /// A timer of this length re-polls instead of unmasking the interrupt.
    Defer(Nanos),
    /// Deferral with 200 us, and the event loop busy polls for 64 us before it sleeps.
    NapiBusy,
    /// Deferral with 5 ms, and the event loop busy polls all the time: it never blocks longer than 1 ms.
    FullBusy,
    /// Interrupts are suspended while the event loop finds work, and fall back to a deferral of this length.
    Suspend(Nanos),
    /// One polling thread per NAPI instance.
    Threaded,
    /// One polling thread per NAPI instance that never sleeps.
    ThreadedBusy,
    /// A shared pool of workers polls.
    Workqueue,
    /// Stay in poll mode after the last packet.
    Hold(Hold),
    /// A blocking receive polls its own queue for this long before it sleeps.
    SockBusy(Nanos),
}

impl Mode {
    /// Returns the settings of this mode. They are always valid.
    pub fn settings(self) -> ModeSettings {
        let deferral = |timeout| NapiSettings {
            defer_hard_irqs: DEFERRALS,
            gro_flush_timeout: timeout,
            ..NapiSettings::default()
        };
        let context = |context| ModeSettings {
            napi: NapiSettings { context, ..NapiSettings::default() },
            ..ModeSettings::default()
        };
        let busy = |usecs| Some(EpollBusyPoll { usecs, budget: 64, prefer: true });
        match self {
            Self::Base => ModeSettings::default(),
            Self::Defer(timeout) => ModeSettings { napi: deferral(timeout), ..ModeSettings::default() },
            Self::NapiBusy => {
                ModeSettings { napi: deferral(Nanos::from_micros(200)), epoll: busy(64), ..ModeSettings::default() }
            }
            Self::FullBusy => ModeSettings {
                napi: deferral(Nanos::from_millis(5)),
                epoll: busy(1000),
                max_wait: Some(Nanos::from_millis(1)),
                ..ModeSettings::default()
            },
            Self::Suspend(timeout) => ModeSettings {
                napi: NapiSettings { irq_suspend_timeout: Self::SUSPEND_TIMEOUT, ..deferral(timeout) },
                epoll: busy(0),
                ..ModeSettings::default()
            },
            Self::Threaded => context(PollContext::Thread),
            Self::ThreadedBusy => context(PollContext::BusyThread),
            Self::Workqueue => context(PollContext::Workqueue),
            Self::Hold(hold) => ModeSettings {
                napi: NapiSettings { hold: Some(hold), ..NapiSettings::default() },
                ..ModeSettings::default()
            },
            Self::SockBusy(span) => ModeSettings { socket_busy_poll: Some(span), ..ModeSettings::default() },
        }
    }

    /// The irq-suspend-timeout of [`Mode::Suspend`]: 20 ms as in the published evaluation, far above any busy period.
    pub const SUSPEND_TIMEOUT: Nanos = Nanos::from_millis(20);

    /// One name of each mode, for messages and tests.
    pub const EXAMPLES: [&str; 11] = [
        "base",
        "defer50",
        "napibusy",
        "fullbusy",
        "suspend20",
        "threaded",
        "threaded-busy",
        "workqueue",
        "hold50",
        "hold50-timer",
        "sockbusy50",
    ];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Base => "base".to_owned(),
            Self::Defer(span) => format!("defer{}", figure(*span)),
            Self::NapiBusy => "napibusy".to_owned(),
            Self::FullBusy => "fullbusy".to_owned(),
            Self::Suspend(span) => format!("suspend{}", figure(*span)),
            Self::Threaded => "threaded".to_owned(),
            Self::ThreadedBusy => "threaded-busy".to_owned(),
            Self::Workqueue => "workqueue".to_owned(),
            Self::Hold(Hold::Spin(span)) => format!("hold{}", figure(*span)),
            Self::Hold(Hold::Timer(span)) => format!("hold{}-timer", figure(*span)),
            Self::SockBusy(span) => format!("sockbusy{}", figure(*span)),
        };
        f.pad(&name)
    }
}

/// Returns the figure in a mode's name: microseconds as in the published tables, or the exact time with its unit.
fn figure(span: Nanos) -> String {
    if span.as_nanos().is_multiple_of(1_000) { span.as_micros().to_string() } else { span.to_string() }
}

/// Why a text is not the name of a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseModeError {
    /// No mode has this name.
    #[error(
        "there is no mode `{0}`: the modes are base, deferX, napibusy, fullbusy, suspendX, threaded, threaded-busy, \
         workqueue, holdX, holdX-timer and sockbusyX, with X in microseconds"
    )]
    Unknown(String),
    /// The name needs a figure behind it, and there is none that fits.
    #[error("`{text}` lacks a usable time: write {name} with microseconds after it, such as {name}20")]
    Figure {
        /// What was written.
        text: String,
        /// The name that was recognised.
        name: &'static str,
    },
    /// The suspend timeout is fixed, and the deferral must be shorter.
    #[error("`{text}` defers for as long as interrupts may be suspended ({limit}): choose a shorter time", limit = Mode::SUSPEND_TIMEOUT)]
    DeferralTooLong {
        /// What was written.
        text: String,
    },
}

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "base" => return Ok(Self::Base),
            "napibusy" => return Ok(Self::NapiBusy),
            "fullbusy" => return Ok(Self::FullBusy),
            "threaded" => return Ok(Self::Threaded),
            "threaded-busy" => return Ok(Self::ThreadedBusy),
            "workqueue" => return Ok(Self::Workqueue),
            _ => {}
        }
        let span = |name: &'static str, behind: &str| {
            let micros = behind.bytes().all(|b| b.is_ascii_digit());
            let span = if micros { format!("{behind}us").parse() } else { behind.parse::<Nanos>() };
            match span {
                Ok(span) if !span.is_zero() => Ok(span),
                _ => Err(ParseModeError::Figure { text: text.to_owned(), name }),
            }
        };
        if let Some(behind) = text.strip_prefix("defer") {
            Ok(Self::Defer(span("defer", behind)?))
        } else if let Some(behind) = text.strip_prefix("suspend") {
            let timeout = span("suspend", behind)?;
            if timeout >= Self::SUSPEND_TIMEOUT {
                return Err(ParseModeError::DeferralTooLong { text: text.to_owned() });
            }
            Ok(Self::Suspend(timeout))
        } else if let Some(behind) = text.strip_prefix("sockbusy") {
            Ok(Self::SockBusy(span("sockbusy", behind)?))
        } else if let Some(behind) = text.strip_prefix("hold") {
            Ok(Self::Hold(match behind.strip_suffix("-timer") {
                Some(behind) => Hold::Timer(span("hold", behind)?),
                None => Hold::Spin(span("hold", behind)?),
            }))
        } else {
            Err(ParseModeError::Unknown(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_back_and_stand_for_valid_settings() {
        for name in Mode::EXAMPLES {
            let mode: Mode = name.parse().expect(name);
            assert_eq!(mode.to_string(), name);
            assert_eq!(mode.settings().validate(), Ok(()), "{name}");
        }
    }

    #[test]
    fn the_published_bundles() {
        let napi = |name: &str| name.parse::<Mode>().expect(name).settings();
        let suspend = napi("suspend20");
        assert_eq!(suspend.napi.defer_hard_irqs, 100);
        assert_eq!(suspend.napi.gro_flush_timeout, Nanos::from_micros(20));
        assert_eq!(suspend.napi.irq_suspend_timeout, Nanos::from_millis(20));
        assert_eq!(suspend.epoll, Some(EpollBusyPoll { usecs: 0, budget: 64, prefer: true }));
        let full = napi("fullbusy");
        assert_eq!(full.napi.gro_flush_timeout, Nanos::from_millis(5));
        assert_eq!(full.max_wait, Some(Nanos::from_millis(1)));
        assert_eq!(napi("base"), ModeSettings::default());
        assert_eq!(napi("defer50"), napi("defer50us"));
    }

    #[test]
    fn wrong_names_say_what_is_wrong() {
        assert!(matches!("turbo".parse::<Mode>(), Err(ParseModeError::Unknown(_))));
        for text in ["defer", "defer0", "suspend-5", "defer5min", "hold-timer", "sockbusyx"] {
            assert!(matches!(text.parse::<Mode>(), Err(ParseModeError::Figure { .. })), "{text}");
        }
        assert!(matches!("suspend20ms".parse::<Mode>(), Err(ParseModeError::DeferralTooLong { .. })));
    }

    proptest! {
        #[test]
        fn any_figure_is_read_back(ns in 1..20_000_000u64) {
            for mode in [Mode::Defer(Nanos::from_nanos(ns)), Mode::Suspend(Nanos::from_nanos(ns))] {
                prop_assert_eq!(mode.to_string().parse(), Ok(mode));
                prop_assert_eq!(mode.settings().validate(), Ok(()));
            }
        }
    }
}
