//! Every schedule of one instance, in every mode.

use abey_delivery::{
    EpollBusyPoll, EpollConfig, Hold, ModeSettings, NapiConfig, NapiSettings, PollContext, SuspendFrom, SuspendVariant,
};

use crate::explorer::{Report, explore};
use crate::world::{May, Scope, ticks};

/// The largest number of states of one exploration.
pub(crate) const LIMIT: usize = 5_000_000;

/// Returns the modes in ticks: the shortest timeouts that keep their order.
pub(crate) fn mode(name: &str) -> ModeSettings {
    let deferral =
        |timeout| NapiSettings { defer_hard_irqs: 1, gro_flush_timeout: ticks(timeout), ..NapiSettings::default() };
    let context = |context| NapiSettings { context, ..NapiSettings::default() };
    let hold = |hold| NapiSettings { hold: Some(hold), ..NapiSettings::default() };
    let busy = |usecs| Some(EpollBusyPoll { usecs, budget: 2, prefer: true });
    let napi = |napi| ModeSettings { napi, ..ModeSettings::default() };
    match name {
        "base" => ModeSettings::default(),
        "defer" => napi(deferral(1)),
        "napibusy" => ModeSettings { epoll: busy(1), ..napi(deferral(1)) },
        "fullbusy" => ModeSettings { epoll: busy(1), max_wait: Some(ticks(1)), ..napi(deferral(2)) },
        "suspend" => {
            let settings = NapiSettings { irq_suspend_timeout: ticks(2), ..deferral(1) };
            ModeSettings { epoll: busy(0), ..napi(settings) }
        }
        "threaded" => napi(context(PollContext::Thread)),
        "threaded-busy" => napi(context(PollContext::BusyThread)),
        "workqueue" => napi(context(PollContext::Workqueue)),
        "hold" => napi(hold(Hold::Spin(ticks(1)))),
        "hold-timer" => napi(hold(Hold::Timer(ticks(1)))),
        "sockbusy" => ModeSettings { socket_busy_poll: Some(ticks(1)), ..ModeSettings::default() },
        _ => unreachable!("no mode {name}"),
    }
}

pub(crate) const MODES: [&str; 11] = [
    "base",
    "defer",
    "napibusy",
    "fullbusy",
    "suspend",
    "threaded",
    "threaded-busy",
    "workqueue",
    "hold",
    "hold-timer",
    "sockbusy",
];

/// Returns a scope of a mode with this many applications, in which time passes if the mode needs it.
pub(crate) fn scope(name: &str, apps: usize) -> Scope {
    let mode = mode(name);
    let timed = mode.napi.defers() || mode.napi.hold.is_some() || mode.socket_busy_poll.is_some();
    Scope { apps, may: May { tick: timed, wait_short: mode.max_wait.is_some(), ..May::NOTHING }, ..Scope::new(mode) }
}

/// Returns the scope with timers that fire at any moment, and busy polls of one iteration.
fn untimed(mut scope: Scope) -> Scope {
    if let Some(busy) = &mut scope.mode.epoll {
        busy.usecs = 0;
    }
    scope.may = May { tick: false, untimed: true, ..scope.may };
    scope
}

/// Explores the scope, prints the number of states, and fails with the schedule of a violation.
fn holds(what: &str, scope: &Scope) {
    let started = std::time::Instant::now();
    let report = explore(scope, LIMIT);
    let Report { states, steps, depth, failure } = report;
    crate::report(&format!("{what}: {states} states, {steps} steps, depth {depth}, {:.1?}", started.elapsed()));
    if let Some(failure) = failure {
        panic!("{what}:\n{}", failure.to_text());
    }
}

#[test]
fn every_schedule_of_one_application() {
    for name in MODES {
        let scope = scope(name, 1);
        let may = May { close: true, wait_zero: true, ..scope.may };
        let capacity = if scope.mode.epoll.is_some() { 2 } else { 3 };
        holds(name, &Scope { may, capacity, ..scope });
    }
}

#[test]
fn every_schedule_of_one_edge_triggered_application() {
    for name in ["base", "defer", "napibusy", "fullbusy", "suspend"] {
        let scope = scope(name, 1);
        let may = May { wait_zero: true, disturb: scope.mode.max_wait.is_none(), ..scope.may };
        let scope = Scope { edges: true, may, ..scope };
        holds(&format!("{name}, edges"), &if scope.mode.epoll.is_some() { untimed(scope) } else { scope });
    }
}

#[test]
fn every_schedule_with_disabling() {
    for name in MODES {
        let scope = scope(name, 1);
        let may = May { disable: true, ..scope.may };
        holds(&format!("{name}, disabled and enabled"), &Scope { may, ..scope });
    }
}

#[test]
fn every_schedule_of_two_applications() {
    for name in ["base", "napibusy", "suspend", "threaded", "workqueue"] {
        holds(&format!("{name}, two applications"), &untimed(scope(name, 2)));
    }
}

#[test]
fn every_schedule_with_changes_of_settings() {
    for name in MODES {
        let scope = scope(name, 0);
        let changes = vec![scope.mode.napi, mode("base").napi, mode("suspend").napi, mode("threaded-busy").napi];
        let may = May { tick: true, disable: true, ..scope.may };
        holds(&format!("{name}, settings change"), &Scope { changes, may, ..scope });
    }
}

#[test]
fn every_schedule_with_disturbances() {
    for name in MODES {
        let scope = scope(name, 1);
        let scope = if scope.mode.epoll.is_some() { untimed(scope) } else { scope };
        let may = May { disturb: true, ..scope.may };
        holds(&format!("{name}, disturbed"), &Scope { may, ..scope });
    }
}

#[test]
fn every_schedule_of_the_other_variants_of_suspension() {
    let scope = scope("suspend", 1);
    let may = May { close: true, wait_zero: true, ..scope.may };
    let early = NapiConfig { suspend: SuspendVariant::Early, ..scope.config };
    holds("suspend, early variant", &Scope { config: early, may, ..scope.clone() });
    holds("suspend, Linux's epoll", &Scope { epoll: EpollConfig::LINUX, may, ..scope });
}

/// Linux counts irq-suspend-timeout from the delivery. An application that leaves events behind, or receives events of other
/// queues, moves the timer out each time without a poll of the queue.
#[test]
fn suspension_that_counts_from_delivery_breaks_the_bound() {
    let scope = scope("suspend", 1);
    let config = NapiConfig { suspend_from: SuspendFrom::Delivery, ..scope.config };
    let report = explore(&Scope { config, ..scope }, LIMIT);
    let failure = report.failure.expect("a packet waits longer than irq-suspend-timeout");
    crate::report(&format!("suspension counted from delivery:\n{}", failure.to_text()));
    assert!(failure.why.starts_with("invariant 4"), "{}", failure.why);
}
