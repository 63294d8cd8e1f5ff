//! Space of settings: scales of values, a coarse selection, and the neighbours of a point.

use abey_delivery::{EpollBusyPoll, Family, Hold, Mode, ModeSettings, Nanos};

/// gro-flush-timeout and hold time in microseconds: ten values per decade (the preferred numbers R10 of ISO 3,
/// rounded).
const TIMEOUTS: [u64; 27] = [
    5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 63, 80, 100, 125, 160, 200, 250, 315, 400, 500, 630, 800, 1_000, 1_250,
    1_600, 2_000,
];
/// Epoll busy-poll times in microseconds.
const BUSY_POLLS: [u64; 5] = [8, 16, 32, 64, 128];
/// Epoll budgets in packets; more than 64 needs a capability.
const BUDGETS: [u64; 4] = [8, 16, 32, 64];
/// irq-suspend-timeout in milliseconds.
const SUSPENDS: [u64; 5] = [1, 2, 5, 10, 20];

/// Returns the initial settings of the search.
pub(super) fn coarse(linux: bool) -> Vec<ModeSettings> {
    let every = |step: usize| TIMEOUTS.iter().step_by(step).map(|micros| Nanos::from_micros(*micros));
    let mut all = vec![Mode::Base.settings()];
    all.extend(every(2).map(|span| Mode::Defer(span).settings()));
    all.extend(every(2).map(|span| Mode::Suspend(span).settings()));
    for usecs in [8, 64] {
        all.extend([20, 50, 200].map(|flush| napi_busy(usecs, Nanos::from_micros(flush))));
    }
    // Budget and irq-suspend-timeout rarely matter; where they do, the search continues from here.
    for suspend in [Mode::Suspend(Nanos::from_micros(20)), Mode::Suspend(Nanos::from_micros(125))] {
        all.push(with_budget(suspend.settings(), 8));
        all.push(with_suspend(suspend.settings(), 2));
    }
    all.extend([Mode::FullBusy, Mode::Threaded, Mode::ThreadedBusy].map(Mode::settings));
    if !linux {
        all.push(Mode::Workqueue.settings());
        all.extend(every(4).map(|span| Mode::Hold(Hold::Spin(span)).settings()));
        all.extend(every(4).map(|span| Mode::Hold(Hold::Timer(span)).settings()));
    }
    all
}

/// Returns the settings one step away in each value of the family; in budget and irq-suspend-timeout only if they
/// differ from the usual values.
pub(super) fn neighbours(settings: &ModeSettings) -> Vec<ModeSettings> {
    let napi = settings.napi;
    let flush = || {
        step(&TIMEOUTS, napi.gro_flush_timeout.as_micros()).into_iter().map(move |micros| {
            let mut changed = *settings;
            changed.napi.gro_flush_timeout = Nanos::from_micros(micros);
            changed
        })
    };
    let budget = || {
        let epoll = settings.epoll.into_iter().filter(|epoll| u64::from(epoll.budget) != BUDGETS[BUDGETS.len() - 1]);
        epoll.flat_map(|epoll| step(&BUDGETS, epoll.budget.into())).map(|budget| with_budget(*settings, budget as u16))
    };
    match Family::of(settings) {
        Family::Defer => flush().collect(),
        Family::Suspend => flush().chain(budget()).chain(other_suspends(settings)).filter(is_valid).collect(),
        Family::NapiBusy => flush().chain(budget()).chain(other_busy_polls(settings)).collect(),
        Family::FullBusy => budget().collect(),
        Family::Hold | Family::HoldTimer => other_holds(settings),
        Family::Base | Family::Threaded | Family::ThreadedBusy | Family::Workqueue => Vec::new(),
    }
}

fn is_valid(settings: &ModeSettings) -> bool {
    settings.validate().is_ok()
}

fn napi_busy(usecs: u32, flush: Nanos) -> ModeSettings {
    let mut settings = Mode::NapiBusy.settings();
    settings.napi.gro_flush_timeout = flush;
    settings.epoll = settings.epoll.map(|epoll| EpollBusyPoll { usecs, ..epoll });
    settings
}

fn with_budget(settings: ModeSettings, budget: u16) -> ModeSettings {
    ModeSettings { epoll: settings.epoll.map(|epoll| EpollBusyPoll { budget, ..epoll }), ..settings }
}

fn with_suspend(mut settings: ModeSettings, millis: u64) -> ModeSettings {
    settings.napi.irq_suspend_timeout = Nanos::from_millis(millis);
    settings
}

fn other_suspends(settings: &ModeSettings) -> impl Iterator<Item = ModeSettings> {
    let millis = settings.napi.irq_suspend_timeout.as_micros() / 1_000;
    let usual = millis == SUSPENDS[SUSPENDS.len() - 1];
    let others = if usual { Vec::new() } else { step(&SUSPENDS, millis) };
    others.into_iter().map(|millis| with_suspend(*settings, millis))
}

/// Returns the settings with every shorter irq-suspend-timeout, the shortest first.
pub(super) fn shorter_suspends(settings: &ModeSettings) -> Vec<ModeSettings> {
    let micros = settings.napi.irq_suspend_timeout.as_micros();
    let shorter = SUSPENDS.iter().filter(|millis| **millis * 1_000 < micros);
    shorter.map(|millis| with_suspend(*settings, *millis)).filter(is_valid).collect()
}

fn other_busy_polls(settings: &ModeSettings) -> Vec<ModeSettings> {
    let Some(epoll) = settings.epoll else { return Vec::new() };
    let other = |usecs| ModeSettings { epoll: Some(EpollBusyPoll { usecs: usecs as u32, ..epoll }), ..*settings };
    step(&BUSY_POLLS, epoll.usecs.into()).into_iter().map(other).collect()
}

fn other_holds(settings: &ModeSettings) -> Vec<ModeSettings> {
    let Some(Hold::Spin(span) | Hold::Timer(span)) = settings.napi.hold else { return Vec::new() };
    let other = |micros| {
        let span = Nanos::from_micros(micros);
        let mut changed = *settings;
        changed.napi.hold = settings.napi.hold.map(|hold| match hold {
            Hold::Spin(_) => Hold::Spin(span),
            Hold::Timer(_) => Hold::Timer(span),
        });
        changed
    };
    step(&TIMEOUTS, span.as_micros()).into_iter().map(other).collect()
}

/// Returns the values below and above `at` on a scale.
fn step(ladder: &[u64], at: u64) -> Vec<u64> {
    let place = ladder.partition_point(|figure| *figure < at);
    let above = place + usize::from(ladder.get(place) == Some(&at));
    place.checked_sub(1).into_iter().chain([above]).filter_map(|index| ladder.get(index).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_makes_sense_and_the_kernel_has_those_of_linux() {
        for linux in [true, false] {
            for settings in coarse(linux) {
                for settings in neighbours(&settings).into_iter().chain([settings]) {
                    assert_eq!(settings.validate(), Ok(()), "{settings:?}");
                    let ours = matches!(Family::of(&settings), Family::Hold | Family::HoldTimer | Family::Workqueue);
                    assert!(!(linux && ours), "{settings:?}");
                }
            }
        }
    }

    #[test]
    fn a_neighbour_differs_in_one_figure_and_keeps_the_family() {
        for settings in coarse(false) {
            for other in neighbours(&settings) {
                assert_ne!(other, settings);
                assert_eq!(Family::of(&other), Family::of(&settings));
            }
        }
    }

    #[test]
    fn a_ladder_ends() {
        assert_eq!(step(&BUDGETS, 64), [32]);
        assert_eq!(step(&BUDGETS, 8), [16]);
        assert_eq!(step(&BUDGETS, 20), [16, 32]);
        assert_eq!(step(&BUDGETS, 16), [8, 32]);
    }
}
