//! Families of settings: the mechanism that settings use, whatever the figures.

use std::fmt;
use std::str::FromStr;

use crate::{EpollBusyPoll, Hold, Mode, ModeSettings, Nanos, NapiSetting, NapiSettings, PollContext};

/// The mechanism behind settings; a family has one mode or several that differ in a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Plain interrupts.
    Base,
    /// A timer in place of the interrupt.
    Defer,
    /// Deferral, and the event loop busy polls before it sleeps.
    NapiBusy,
    /// The event loop never sleeps.
    FullBusy,
    /// Interrupts are suspended while the event loop finds work.
    Suspend,
    /// A polling thread per NAPI instance.
    Threaded,
    /// A polling thread per NAPI instance that never sleeps.
    ThreadedBusy,
    /// A pool of workers polls (sim and datapath only).
    Workqueue,
    /// Staying in poll mode by spinning (sim and datapath only).
    Hold,
    /// Staying in poll mode by timer (sim and datapath only).
    HoldTimer,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 10] = [
        Self::Base,
        Self::Defer,
        Self::NapiBusy,
        Self::FullBusy,
        Self::Suspend,
        Self::Threaded,
        Self::ThreadedBusy,
        Self::Workqueue,
        Self::Hold,
        Self::HoldTimer,
    ];

    /// Returns the family of the settings.
    pub fn of(settings: &ModeSettings) -> Self {
        let napi = &settings.napi;
        match (napi.context, napi.hold) {
            (PollContext::Thread, _) => Self::Threaded,
            (PollContext::BusyThread, _) => Self::ThreadedBusy,
            (PollContext::Workqueue, _) => Self::Workqueue,
            (_, Some(Hold::Spin(_))) => Self::Hold,
            (_, Some(Hold::Timer(_))) => Self::HoldTimer,
            _ if !napi.irq_suspend_timeout.is_zero() => Self::Suspend,
            _ if settings.max_wait.is_some() => Self::FullBusy,
            _ if settings.epoll.is_some() => Self::NapiBusy,
            _ if napi.defers() => Self::Defer,
            _ => Self::Base,
        }
    }

    /// Returns the family's name, which is that of its modes without a figure.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Defer => "defer",
            Self::NapiBusy => "napibusy",
            Self::FullBusy => "fullbusy",
            Self::Suspend => "suspend",
            Self::Threaded => "threaded",
            Self::ThreadedBusy => "threaded-busy",
            Self::Workqueue => "workqueue",
            Self::Hold => "hold",
            Self::HoldTimer => "hold-timer",
        }
    }

    /// Returns a mode of the family.
    pub fn example(self) -> Mode {
        let span = Nanos::from_micros(50);
        match self {
            Self::Base => Mode::Base,
            Self::Defer => Mode::Defer(span),
            Self::NapiBusy => Mode::NapiBusy,
            Self::FullBusy => Mode::FullBusy,
            Self::Suspend => Mode::Suspend(Nanos::from_micros(20)),
            Self::Threaded => Mode::Threaded,
            Self::ThreadedBusy => Mode::ThreadedBusy,
            Self::Workqueue => Mode::Workqueue,
            Self::Hold => Mode::Hold(Hold::Spin(span)),
            Self::HoldTimer => Mode::Hold(Hold::Timer(span)),
        }
    }

    /// Returns the mode of this family that is nearest to the settings.
    fn mode(self, settings: &ModeSettings) -> Mode {
        let napi = &settings.napi;
        match (self, napi.hold) {
            (Self::Hold | Self::HoldTimer, Some(hold)) => Mode::Hold(hold),
            (Self::Defer, _) => Mode::Defer(napi.gro_flush_timeout),
            (Self::NapiBusy, _) => Mode::NapiBusy,
            (Self::FullBusy, _) => Mode::FullBusy,
            (Self::Suspend, _) => Mode::Suspend(napi.gro_flush_timeout),
            (Self::Threaded, _) => Mode::Threaded,
            (Self::ThreadedBusy, _) => Mode::ThreadedBusy,
            (Self::Workqueue, _) => Mode::Workqueue,
            (Self::Base | Self::Hold | Self::HoldTimer, _) => Mode::Base,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An error: the text is not the name of a family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no family of modes `{text}`: the families are {known}", known = Family::ALL.map(Family::name).join(", "))]
pub struct ParseFamilyError {
    /// The text.
    pub text: String,
}

impl FromStr for Family {
    type Err = ParseFamilyError;

    /// Reads a family's [name](Family::name).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|family| family.name() == text);
        known.ok_or_else(|| ParseFamilyError { text: text.to_owned() })
    }
}

/// Returns the mode whose settings are exactly these, if there is one.
pub fn mode_of(settings: &ModeSettings) -> Option<Mode> {
    let sockbusy = settings.socket_busy_poll.map(Mode::SockBusy);
    let candidates = [Some(nearest_mode(settings)), sockbusy];
    candidates.into_iter().flatten().find(|mode| mode.settings() == *settings)
}

/// Returns the mode of the same family that is nearest to the settings.
pub fn nearest_mode(settings: &ModeSettings) -> Mode {
    Family::of(settings).mode(settings)
}

/// Returns a short description: the mode's name, or the name of the nearest mode and the settings that differ.
pub fn describe(settings: &ModeSettings) -> String {
    let mode = nearest_mode(settings);
    let of_mode = mode.settings();
    let mut text = mode.to_string();
    let mut differ = |name: &str, mine: Option<String>, modes: Option<String>| {
        if mine != modes {
            text += &mine.map_or_else(|| format!(", no {name}"), |mine| format!(", {name} {mine}"));
        }
    };
    for setting in NapiSetting::ALL {
        let text_of = |napi: &NapiSettings| {
            let value = setting.get(napi);
            (!value.is_default()).then(|| value.to_string())
        };
        differ(setting.name(), text_of(&settings.napi), text_of(&of_mode.napi));
    }
    let epoll = |settings: &ModeSettings, get: fn(&EpollBusyPoll) -> String| settings.epoll.as_ref().map(get);
    for (name, get) in [
        ("busy-poll", (|epoll| format!("{}us", epoll.usecs)) as fn(&EpollBusyPoll) -> String),
        ("budget", |epoll| epoll.budget.to_string()),
        ("prefer", |epoll| epoll.prefer.to_string()),
    ] {
        differ(name, epoll(settings, get), epoll(&of_mode, get));
    }
    let text_of = |span: Option<Nanos>| span.map(|span| span.to_string());
    differ("max-wait", text_of(settings.max_wait), text_of(of_mode.max_wait));
    differ("socket-busy-poll", text_of(settings.socket_busy_poll), text_of(of_mode.socket_busy_poll));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_found_by_its_settings() {
        for name in Mode::EXAMPLES {
            let mode: Mode = name.parse().expect(name);
            assert_eq!(mode_of(&mode.settings()), Some(mode), "{name}");
            if !name.starts_with("sockbusy") {
                assert_eq!(describe(&mode.settings()), name);
            }
        }
    }

    #[test]
    fn names_parse_back() {
        for family in Family::ALL {
            assert_eq!(family.name().parse(), Ok(family));
            assert_eq!(Family::of(&family.example().settings()), family);
        }
        let error = "turbo".parse::<Family>().expect_err("no family");
        assert!(error.to_string().contains("hold-timer"), "{error}");
    }

    #[test]
    fn settings_of_no_mode_have_a_family() {
        let mut settings = Mode::Suspend(Nanos::from_micros(20)).settings();
        settings.napi.irq_suspend_timeout = Nanos::from_millis(5);
        assert_eq!(mode_of(&settings), None);
        assert_eq!(Family::of(&settings), Family::Suspend);
        assert_eq!(nearest_mode(&settings).to_string(), "suspend20");
        assert_eq!(describe(&settings), "suspend20, irq-suspend-timeout 5ms");
        let mut settings = Mode::NapiBusy.settings();
        settings.napi.gro_flush_timeout = Nanos::from_micros(63);
        settings.epoll = settings.epoll.map(|epoll| EpollBusyPoll { usecs: 16, ..epoll });
        assert_eq!(describe(&settings), "napibusy, gro-flush-timeout 63us, busy-poll 16us");
    }
}
