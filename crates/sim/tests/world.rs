//! The world as a whole: properties that hold for all costs.

use std::panic::catch_unwind;

use abey_delivery::{EpollBusyPoll, Mode, Nanos};
use abey_sim::{Load, Outcome, Profile, Scenario, run, run_traced};

/// Profile with round costs, independent of the fitted ones.
const PROFILE: &str = include_str!("round.toml");

fn profile() -> Profile {
    Profile::parse("round.toml", PROFILE).expect("the test's profile is valid")
}

fn scenario(mode: &str, load: Load, millis: u64) -> Scenario {
    Scenario {
        warmup: Nanos::from_millis(10),
        duration: Nanos::from_millis(millis),
        ..Scenario::new(mode.parse::<Mode>().expect(mode), load)
    }
}

fn simulate(scenario: &Scenario) -> Outcome {
    run(&profile(), scenario).expect("the scenario is valid")
}

#[test]
fn one_seed_gives_the_same_figures_and_another_seed_others() {
    let once = scenario("suspend20", Load::Open(80e3), 50);
    assert_eq!(simulate(&once), simulate(&once));
    let other = Scenario { seed: 2, ..once.clone() };
    assert_ne!(simulate(&once), simulate(&other));
}

#[test]
fn figures_are_the_same_on_every_machine() {
    // Regression values: nothing may depend on the machine (order of hashing, the system's logarithm, the number of
    // threads).
    let outcome = simulate(&scenario("base", Load::Open(80e3), 50));
    let figures =
        (outcome.answers, outcome.packets, outcome.avg_us.to_bits(), outcome.instructions_per_query.to_bits());
    assert_eq!(figures, KNOWN);
}

const KNOWN: (u64, u64, u64, u64) = (4_749, 14_249, 4_633_338_453_799_207_752, 4_668_109_485_094_906_762);

#[test]
fn no_request_is_lost_in_any_mode() {
    for mode in Mode::EXAMPLES.iter().filter(|mode| !mode.starts_with("sockbusy")) {
        for load in [Load::Open(90e3), Load::Closed] {
            let run = Scenario { queues: 2, connections: 300, ..scenario(mode, load, 20) };
            let outcome = simulate(&run);
            assert_eq!(outcome.requests, outcome.answers + outcome.outstanding, "{mode} {load}");
            assert!(outcome.answers > 1_000, "{mode} {load}: {outcome:?}");
            assert_eq!(outcome.drops, 0, "{mode} {load}");
        }
    }
}

#[test]
fn a_full_ring_drops_and_the_request_is_sent_again() {
    let mut profile = profile();
    profile.nic.ring_packets = 16;
    let run = Scenario { warmup: Nanos::ZERO, ..scenario("defer200", Load::Closed, 500) };
    let outcome = abey_sim::run(&profile, &run).expect("the scenario is valid");
    assert!(outcome.drops > 0);
    assert_eq!(outcome.requests, outcome.answers + outcome.outstanding);
    assert!(outcome.p999_us > 200_000.0, "a lost request waits for its retransmission: {}", outcome.p999_us);
}

#[test]
fn the_closed_loop_obeys_littles_law() {
    for mode in ["base", "defer50", "fullbusy", "suspend20", "threaded"] {
        let outcome = simulate(&scenario(mode, Load::Closed, 200));
        let outstanding = outcome.qps * outcome.avg_us * 1e-6;
        assert!((outstanding / 560.0 - 1.0).abs() < 0.03, "{mode}: {outstanding}");
        assert!(outcome.cpu_percent > 99.0, "{mode}: {}", outcome.cpu_percent);
    }
}

/// Only the request has a cost, 4 us, and packets interrupt at once: a queue with Poisson arrivals and constant
/// service, whose mean wait is known (Pollaczek and Khinchine).
#[test]
fn a_server_without_overheads_is_an_m_d_1_queue() {
    let text: String = PROFILE
        .lines()
        .map(|line| match line.split_once("instructions = ") {
            Some((key, _)) if key.contains('{') => {
                format!("{}= {{ instructions = 0 }}\n", key.split('=').next().expect("a key"))
            }
            _ => format!("{line}\n"),
        })
        .collect();
    let mut profile = Profile::parse("m-d-1", &text).expect("still a profile");
    profile.server.request.instructions = 4_000;
    profile.processor.frequency_mhz = 1_000;
    profile.processor.warm_cycles_per_1000_instructions = 1_000;
    profile.idle.cold_cycles = 0;
    profile.idle.exit_ns = 0;
    profile.interrupt.cold_cycles = 0;
    profile.thread.cold_cycles = 0;
    profile.disturbance.packet_cycles = 0;
    profile.disturbance.request_cycles = 0;
    profile.nic.adaptive = false;
    profile.nic.rx_usecs = 0;
    for load in [50e3, 150e3, 200e3] {
        let run = Scenario { connections: 100_000, ..scenario("base", Load::Open(load), 2_000) };
        let outcome = abey_sim::run(&profile, &run).expect("the scenario is valid");
        let busy = load * 4e-6;
        let expected = profile.client.base_ns as f64 / 1e3 + 4.0 + busy * 4.0 / (2.0 * (1.0 - busy));
        assert!((outcome.avg_us / expected - 1.0).abs() < 0.03, "at {load}: {} instead of {expected}", outcome.avg_us);
        assert!((outcome.cpu_percent / 100.0 / busy - 1.0).abs() < 0.03, "at {load}: {} %", outcome.cpu_percent);
    }
}

#[test]
fn settings_of_nothing_are_plain_interrupts() {
    let base = scenario("base", Load::Open(90e3), 30);
    let expected = simulate(&base);
    for name in ["defer50", "suspend20"] {
        let mut run = scenario(name, Load::Open(90e3), 30);
        run.settings.napi.defer_hard_irqs = 0;
        run.settings.napi.gro_flush_timeout = Nanos::ZERO;
        run.settings.epoll = None;
        assert_eq!(simulate(&run), expected, "{name}: the suspend timeout alone suspends nothing");
    }
    let mut run = base;
    run.settings.epoll = Some(EpollBusyPoll { usecs: 0, budget: 64, prefer: false });
    assert_eq!(simulate(&run), expected, "busy polling for no time");
}

#[test]
fn every_mode_does_what_it_is_for() {
    let at = |mode| simulate(&scenario(mode, Load::Open(60e3), 100));
    let (base, defer, busy, suspend) = (at("base"), at("defer50"), at("fullbusy"), at("suspend20"));
    assert!(base.interrupts_per_query > 0.1 && defer.interrupts_per_query == 0.0);
    assert!(busy.cpu_percent > 99.9 && busy.softirq_percent < 0.1);
    assert!(suspend.cpu_percent < 90.0 && suspend.thread_percent > base.thread_percent);
    assert!(busy.avg_us < suspend.avg_us && suspend.avg_us < defer.avg_us);
    let threaded = at("threaded");
    assert!(threaded.softirq_percent < 0.1 && threaded.thread_percent > base.thread_percent);
    assert!(at("hold50").interrupts_per_query < base.interrupts_per_query / 5.0);
    let costly = simulate(&scenario("hold50-timer", Load::Open(60e3), 100));
    assert!(costly.polls_per_query <= 2.0 * 2.02, "two polls a packet: {}", costly.polls_per_query);
}

#[test]
fn the_invariants_hold_around_every_event() {
    for mode in Mode::EXAMPLES.iter().filter(|mode| !mode.starts_with("sockbusy")) {
        for load in [Load::Open(40e3), Load::Open(200e3), Load::Closed] {
            let run = Scenario { queues: 2, connections: 600, check: true, ..scenario(mode, load, 5) };
            assert!(simulate(&run).answers > 0, "{mode} {load}");
        }
    }
}

#[test]
fn the_checks_see_what_linux_leaves_open() {
    // Linux counts irq-suspend-timeout from the delivery of events, so a packet can wait longer than the timeout.
    let run = Scenario { check: true, linux: true, ..scenario("suspend20", Load::Open(90e3), 20) };
    let message = catch_unwind(|| simulate(&run)).expect_err("the checks are on");
    let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(message.contains("invariant 4"), "{message}");
}

#[test]
fn a_timeline_is_json_and_shows_suspension() {
    let run = scenario("suspend20", Load::Open(90e3), 5);
    let (outcome, trace) = run_traced(&profile(), &run).expect("the scenario is valid");
    assert_eq!(outcome, simulate(&run), "tracing changes nothing");
    let mut text = Vec::new();
    trace.write_json(&mut text).expect("memory takes everything");
    let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let events = json["traceEvents"].as_array().expect("events");
    for name in ["suspended", "masked", "busy poll", "serve", "softirq poll", "timer interrupt"] {
        assert!(events.iter().any(|event| event["name"] == name), "no `{name}`");
    }
}
