//! The mode that given settings make, or the nearest one.

use std::fmt;

use abey_delivery::{EpollBusyPoll, Mode, Nanos, NapiSettings, PollContext};

/// Settings, named as a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Configured {
    /// Exactly this mode.
    Mode(Mode),
    /// The NAPI settings are those of each of these modes; the epoll parameters decide which one it is.
    Either(Vec<Mode>),
    /// No mode.
    Like {
        /// The nearest one.
        mode: Mode,
        /// The differences, in words.
        differences: Vec<String>,
    },
}

impl fmt::Display for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "{mode}"),
            Self::Either(modes) => {
                let names: Vec<String> = modes.iter().map(Mode::to_string).collect();
                f.write_str(&names.join(" or "))
            }
            Self::Like { mode, differences } => write!(f, "like {mode}, but {}", differences.join(", ")),
        }
    }
}

/// Returns the mode of these settings, or the nearest one. `epoll` is `None` if no parameters were set.
///
/// The limit that `fullbusy` puts on the event loop's sleep is not visible from outside the process and is ignored.
#[must_use]
pub fn recognise(napi: &NapiSettings, epoll: Option<EpollBusyPoll>) -> Configured {
    let nearest = candidates(napi)
        .into_iter()
        .map(|mode| {
            let wanted = mode.settings();
            let mut differences = napi_differences(&wanted.napi, napi);
            differences.extend(epoll_differences(wanted.epoll, epoll));
            (mode, differences)
        })
        // The first of several equally near ones: the candidates are in order of preference.
        .min_by_key(|(_, differences)| differences.len());
    match nearest.expect("there are candidates") {
        (mode, differences) if differences.is_empty() => Configured::Mode(mode),
        (mode, differences) => Configured::Like { mode, differences },
    }
}

/// Returns the modes with these NAPI settings, without knowledge of the epoll parameters.
#[must_use]
pub fn recognise_napi(napi: &NapiSettings) -> Configured {
    let (mut exact, mut near) = (Vec::new(), Vec::new());
    for mode in candidates(napi) {
        let differences = napi_differences(&mode.settings().napi, napi);
        if differences.is_empty() { exact.push(mode) } else { near.push((mode, differences)) }
    }
    match exact[..] {
        [mode] => Configured::Mode(mode),
        [] => {
            let (mode, differences) =
                near.into_iter().min_by_key(|(_, differences)| differences.len()).expect("there are candidates");
            Configured::Like { mode, differences }
        }
        _ => Configured::Either(exact),
    }
}

/// Returns the modes that the kernel has, the more specific ones first.
fn candidates(napi: &NapiSettings) -> [Mode; 7] {
    let usual = Nanos::from_micros(20);
    let flush = if napi.gro_flush_timeout.is_zero() { usual } else { napi.gro_flush_timeout };
    let fallback = if flush < Mode::SUSPEND_TIMEOUT { flush } else { usual };
    [
        Mode::Suspend(fallback),
        Mode::FullBusy,
        Mode::NapiBusy,
        Mode::Defer(flush),
        Mode::Threaded,
        Mode::ThreadedBusy,
        Mode::Base,
    ]
}

fn napi_differences(wanted: &NapiSettings, found: &NapiSettings) -> Vec<String> {
    let mut all = Vec::new();
    if wanted.defer_hard_irqs != found.defer_hard_irqs {
        all.push(format!("defer-hard-irqs {}", found.defer_hard_irqs));
    }
    if wanted.gro_flush_timeout != found.gro_flush_timeout {
        all.push(format!("gro-flush-timeout {}", found.gro_flush_timeout));
    }
    if wanted.irq_suspend_timeout != found.irq_suspend_timeout {
        all.push(format!("irq-suspend-timeout {}", found.irq_suspend_timeout));
    }
    if wanted.context != found.context {
        all.push(match found.context {
            PollContext::Softirq => "not threaded".to_owned(),
            PollContext::Thread => "threaded".to_owned(),
            PollContext::BusyThread => "threaded (never sleeping)".to_owned(),
            PollContext::Workqueue => "polled by a work queue".to_owned(),
        });
    }
    all
}

fn epoll_differences(wanted: Option<EpollBusyPoll>, found: Option<EpollBusyPoll>) -> Vec<String> {
    match (wanted, found) {
        (None, None) => Vec::new(),
        (Some(_), None) => vec!["without epoll parameters".to_owned()],
        (None, Some(found)) => vec![format!("with epoll parameters {}", parameters(found))],
        (Some(wanted), Some(found)) => {
            let mut all = Vec::new();
            if wanted.usecs != found.usecs {
                all.push(format!("epoll busy-poll time {} us", found.usecs));
            }
            if wanted.budget != found.budget {
                all.push(format!("epoll budget {}", found.budget));
            }
            if wanted.prefer != found.prefer {
                all.push(format!("prefer-busy-poll {}", if found.prefer { "on" } else { "off" }));
            }
            all
        }
    }
}

/// Returns epoll parameters in words: `0 us, budget 64, prefer`.
pub(super) fn parameters(epoll: EpollBusyPoll) -> String {
    let prefer = if epoll.prefer { ", prefer" } else { "" };
    format!("{} us, budget {}{prefer}", epoll.usecs, epoll.budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abey_delivery::ModeSettings;
    use proptest::prelude::*;

    fn of(mode: &str) -> ModeSettings {
        mode.parse::<Mode>().expect(mode).settings()
    }

    #[test]
    fn the_named_modes_are_recognised() {
        for name in ["base", "defer50", "defer200", "napibusy", "fullbusy", "suspend20", "threaded", "threaded-busy"] {
            let settings = of(name);
            assert_eq!(recognise(&settings.napi, settings.epoll).to_string(), name);
        }
    }

    #[test]
    fn what_is_no_mode_is_named_by_its_nearest_one() {
        let suspend = of("suspend20");
        let short = NapiSettings { irq_suspend_timeout: Nanos::from_millis(10), ..suspend.napi };
        let text = |napi: &NapiSettings, epoll| recognise(napi, epoll).to_string();
        assert_eq!(text(&short, suspend.epoll), "like suspend20, but irq-suspend-timeout 10ms");
        assert_eq!(text(&suspend.napi, None), "like suspend20, but without epoll parameters");
        let base = NapiSettings::default();
        assert_eq!(text(&base, suspend.epoll), "like base, but with epoll parameters 0 us, budget 64, prefer");
        let half = NapiSettings { defer_hard_irqs: 0, ..suspend.napi };
        assert_eq!(text(&half, suspend.epoll), "like suspend20, but defer-hard-irqs 0");
        let without_prefer = suspend.epoll.map(|epoll| EpollBusyPoll { prefer: false, budget: 8, ..epoll });
        assert_eq!(text(&suspend.napi, without_prefer), "like suspend20, but epoll budget 8, prefer-busy-poll off");
    }

    #[test]
    fn settings_that_several_modes_share_are_left_open_without_epoll() {
        assert_eq!(recognise_napi(&of("napibusy").napi).to_string(), "napibusy or defer200");
        assert_eq!(recognise_napi(&of("suspend20").napi).to_string(), "suspend20");
        assert_eq!(recognise_napi(&NapiSettings::default()).to_string(), "base");
        let none = NapiSettings { defer_hard_irqs: 7, ..of("defer50").napi };
        assert_eq!(recognise_napi(&none).to_string(), "like defer50, but defer-hard-irqs 7");
    }

    proptest! {
        #[test]
        fn a_mode_is_recognised_by_its_own_settings(ns in 1..20_000_000_u64, which in 0..7_usize) {
            let span = Nanos::from_nanos(ns);
            let mode = [Mode::Base, Mode::Defer(span), Mode::NapiBusy, Mode::FullBusy, Mode::Suspend(span),
                Mode::Threaded, Mode::ThreadedBusy][which];
            let settings = mode.settings();
            prop_assert_eq!(recognise(&settings.napi, settings.epoll), Configured::Mode(mode));
            match recognise_napi(&settings.napi) {
                Configured::Mode(found) => prop_assert_eq!(found, mode),
                Configured::Either(found) => prop_assert!(found.contains(&mode)),
                Configured::Like { .. } => prop_assert!(false, "{} not recognised", mode),
            }
        }

        #[test]
        fn any_settings_are_described(defer in 0..200_u32, flush: u32, suspend: u32, usecs: u32, budget: u16, prefer: bool) {
            let nanos = |n: u32| Nanos::from_nanos(u64::from(n));
            let napi = NapiSettings { defer_hard_irqs: defer, gro_flush_timeout: nanos(flush),
                irq_suspend_timeout: nanos(suspend), ..NapiSettings::default() };
            let found = recognise(&napi, Some(EpollBusyPoll { usecs, budget, prefer }));
            prop_assert!(!found.to_string().is_empty());
        }
    }
}
