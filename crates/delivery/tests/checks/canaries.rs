//! Broken variants of the core, which the exploration must detect.

use abey_delivery::fault::Fault;
use abey_delivery::{NapiConfig, SuspendVariant};

use crate::exhaustive::{LIMIT, scope};
use crate::explorer::explore;
use crate::world::{May, Scope};

/// Returns a scope in which the fault has an effect, and a part of the message of the violation.
fn scope_of(fault: Fault) -> (Scope, &'static str) {
    let with = |scope: Scope, may: May| Scope { may: May { tick: scope.may.tick, ..may }, ..scope };
    let closing = May { close: true, ..May::NOTHING };
    let disabling = May { disable: true, ..May::NOTHING };
    match fault {
        Fault::MissedFlagLost => (scope("napibusy", 1), "invariant 2"),
        Fault::UnmaskWithoutRecheck => (scope("base", 0), "invariant 2"),
        Fault::TimerNotMovedOnSuspend => (scope("suspend", 1), "invariant 4"),
        Fault::NoResumeOnClose => (with(scope("suspend", 1), closing), "invariant 4"),
        Fault::NoResumeBeforeSleep => {
            let scope = scope("suspend", 1);
            let config = NapiConfig { suspend: SuspendVariant::Early, ..scope.config };
            (Scope { config, ..scope }, "invariant 4")
        }
        Fault::SleepsOnEvents => (Scope { edges: true, ..scope("suspend", 1) }, "a wait took events"),
        Fault::PreferNotCleared => (scope("napibusy", 1), "prefer"),
        Fault::CountdownNotRefilled => (scope("defer", 0), "deferral"),
        Fault::RequeueLost => (scope("base", 0), "invariant 3"),
        Fault::DisableDoesNotWait => (with(scope("base", 0), disabling), "invariant 6"),
        Fault::BusyPollEndForgotten => (scope("sockbusy", 1), "invariant"),
        Fault::TimerIgnoresOwner => (scope("suspend", 1), "invariant 1"),
        Fault::HoldTimerNeverEnds => (scope("hold-timer", 0), "invariant 7"),
        Fault::DeferralWithoutTimer => (scope("defer", 0), "invariant 3"),
        other => unreachable!("no scope for {other:?}"),
    }
}

#[test]
fn every_fault_is_detected_and_its_scope_is_correct_without_it() {
    for fault in Fault::ALL {
        let (scope, words) = scope_of(fault);
        let broken = Scope { fault: Some(fault), ..scope.clone() };
        let report = explore(&broken, LIMIT);
        let failure =
            report.failure.unwrap_or_else(|| panic!("{fault:?} was not detected in {} states", report.states));
        let seen = report.states;
        crate::report(&format!("{fault:?}: detected in {seen} states, shortest schedule:\n{}", failure.to_text()));
        assert!(failure.why.contains(words), "{fault:?} was detected by another check: {}", failure.why);
        if let Some(failure) = explore(&scope, LIMIT).failure {
            panic!("the scope of {fault:?} fails without the fault:\n{}", failure.to_text());
        }
    }
}
