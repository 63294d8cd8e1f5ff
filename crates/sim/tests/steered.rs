//! Load and settings that change during a run.

use abey_delivery::{Mode, Nanos};
use abey_sim::{Load, Next, Outcome, Profile, Scenario, run_steered};

fn scenario(mode: Mode, load: f64) -> Scenario {
    let duration = Nanos::from_millis(200);
    Scenario { duration, check: true, ..Scenario::new(mode, Load::Open(load)) }
}

/// Returns the figures of each interval, with the load and settings that `next` returns.
fn steer(scenario: &Scenario, mut next: impl FnMut(usize) -> Option<Next>) -> Vec<Outcome> {
    let profile = Profile::load("epyc-7662").expect("a profile");
    let mut outcomes = Vec::new();
    let mut steer = |_, outcome: &Outcome| {
        outcomes.push(outcome.clone());
        next(outcomes.len())
    };
    run_steered(&profile, scenario, &mut steer).expect("a sound scenario");
    outcomes
}

#[test]
fn a_run_without_changes_equals_a_plain_run() {
    let begun = scenario("suspend50".parse().expect("a mode"), 20_000.0);
    let same = Next { napi: begun.settings.napi, load: 20_000.0 };
    let pieces = steer(&begun, |done| (done < 3).then_some(same));
    let whole = Scenario { duration: Nanos::from_millis(600), ..begun };
    let whole = abey_sim::run(&Profile::load("epyc-7662").expect("a profile"), &whole).expect("sound");
    let mean = pieces.iter().map(|piece| piece.cpu_percent).sum::<f64>() / 3.0;
    assert!((mean - whole.cpu_percent).abs() < 1e-6, "{mean} and {}", whole.cpu_percent);
    assert_eq!((pieces[2].requests, pieces[2].answers), (whole.requests, whole.answers));
}

#[test]
fn settings_and_load_take_effect_at_once() {
    let fast: Mode = "suspend20".parse().expect("a mode");
    let slow: Mode = "suspend500".parse().expect("a mode");
    let next = |mode: Mode, load| Some(Next { napi: mode.settings().napi, load });
    let outcomes = steer(&scenario(fast, 10_000.0), |done| match done {
        1 => next(slow, 10_000.0),
        2 => next(slow, 40_000.0),
        3 => next(fast, 40_000.0),
        4 => next(Mode::Base, 10_000.0),
        _ => None,
    });
    let p99: Vec<f64> = outcomes.iter().map(|outcome| outcome.p99_us).collect();
    assert!(p99[0] < 250.0 && p99[1] > 500.0 && p99[2] > 500.0 && p99[3] < 250.0, "{p99:?}");
    let qps: Vec<f64> = outcomes.iter().map(|outcome| outcome.qps).collect();
    for (qps, load) in qps.iter().zip([10e3, 10e3, 40e3, 40e3, 10e3]) {
        assert!((qps / load - 1.0).abs() < 0.1, "{qps} for {load}");
    }
    assert!(outcomes[4].interrupts_per_query > 10.0 * outcomes[3].interrupts_per_query);
}

#[test]
fn invalid_changes_are_refused() {
    let profile = Profile::load("epyc-7662").expect("a profile");
    let begun = scenario(Mode::Base, 10_000.0);
    for load in [0.0, -1.0, f64::NAN] {
        let next = Next { napi: begun.settings.napi, load };
        assert!(run_steered(&profile, &begun, &mut |_, _| Some(next)).is_err(), "{load}");
    }
    let mut napi = begun.settings.napi;
    napi.irq_suspend_timeout = Nanos::from_millis(1);
    assert!(run_steered(&profile, &begun, &mut |_, _| Some(Next { napi, load: 1e4 })).is_err());
    let closed = Scenario { load: Load::Closed, ..begun };
    assert!(run_steered(&profile, &closed, &mut |_, _| None).is_err());
}
