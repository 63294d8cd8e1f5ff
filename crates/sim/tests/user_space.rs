//! Delivery in user space: servers that handle interrupts and deadlines in their own sleep, and a service thread.

use abey_delivery::{Mode, Nanos};
use abey_sim::profile::{Cost, ServiceThread};
use abey_sim::{Load, Outcome, Profile, Scenario, run};

const fn cost(instructions: u64) -> Cost {
    Cost { instructions, stall_cycles: 0 }
}

/// Half a nanosecond per instruction.
const SERVICE: ServiceThread =
    ServiceThread { wake: cost(20_000), sleep: cost(4_000), arm: cost(1_000), interrupt: Cost::NONE };

fn profile(service_thread: Option<ServiceThread>) -> Profile {
    let mut profile = Profile::parse("round.toml", include_str!("round.toml")).expect("the test's profile is valid");
    profile.client.delayed_acks = true;
    // A NIC that signals at once, and once.
    profile.nic.adaptive = false;
    (profile.nic.rx_usecs, profile.nic.tx_usecs, profile.nic.tx_frames) = (0, 10_000_000, 1_000_000);
    profile.service_thread = service_thread;
    profile
}

fn simulate(profile: &Profile, mode: &str, rate: f64) -> Outcome {
    let mode: Mode = mode.parse().expect(mode);
    let duration = Nanos::from_millis(300);
    let scenario = Scenario { connections: 20, check: true, duration, ..Scenario::new(mode, Load::Open(rate)) };
    run(profile, &scenario).expect("the scenario is valid")
}

#[test]
fn every_mode_answers_everything() {
    for mode in Mode::EXAMPLES {
        if mode.starts_with("sockbusy") {
            continue;
        }
        let outcome = simulate(&profile(Some(SERVICE)), mode, 20e3);
        assert_eq!(outcome.requests, outcome.answers + outcome.outstanding, "{mode}");
        assert!((outcome.qps / 20e3 - 1.0).abs() < 0.05, "{mode}: {}", outcome.qps);
        assert!(outcome.outstanding < 20, "{mode}: {}", outcome.outstanding);
    }
}

#[test]
fn the_peer_signals_once_for_all_that_is_polled_together() {
    let outcome = simulate(&profile(Some(SERVICE)), "base", 40e3);
    assert!((outcome.interrupts_per_query / outcome.polls_per_query - 1.0).abs() < 0.02, "{outcome:?}");
    assert!(outcome.empty_polls_percent < 1.0, "{outcome:?}");
}

#[test]
fn a_deferral_ends_twice_and_a_suspension_once() {
    let dear = ServiceThread { wake: cost(40_000), ..SERVICE };
    let added = |mode: &str| {
        let cpu = |service| simulate(&profile(Some(service)), mode, 20e3).cpu_percent;
        cpu(dear) - cpu(SERVICE)
    };
    // 10 us for each timer that a server leaves behind; while interrupts are suspended the timer only moves out.
    let (deferred, suspended) = (added("defer50"), added("suspend50"));
    assert!(deferred > 5.0, "{deferred} points");
    assert!(suspended.abs() < 1.0, "{suspended} points");
}

#[test]
fn an_interrupt_wakes_the_sleeping_server_or_else_the_service_thread() {
    let free = ServiceThread { wake: Cost::NONE, ..SERVICE };
    let cpu = |service: ServiceThread, rate: f64| simulate(&profile(Some(service)), "base", rate).cpu_percent;
    let added = |rate: f64| (cpu(SERVICE, rate) - cpu(free, rate)) / (rate / 1e3);
    let (seldom, often) = (added(2e3), added(40e3));
    assert!(seldom >= 0.0 && often > 3.0 * seldom.max(0.01), "points for 1000 requests: {seldom} and {often}");
}

#[test]
fn a_sleep_is_shortened_by_its_lateness() {
    let slower = |service: Option<ServiceThread>| {
        let mut profile = profile(service);
        let punctual = simulate(&profile, "defer100", 10e3);
        profile.interrupt.timer_late_ns = 20_000;
        simulate(&profile, "defer100", 10e3).avg_us - punctual.avg_us
    };
    let (kernel, user_space) = (slower(None), slower(Some(SERVICE)));
    assert!(kernel > 7.0, "{kernel} us");
    assert!(user_space < kernel / 2.0, "{user_space} us, {kernel} us in the kernel");
}

#[test]
fn a_timer_interrupts_by_itself_unless_it_shares_the_interrupt_that_ends_the_sleep() {
    const RATE: f64 = 40e3;
    // Additional microseconds per poll for an interrupt of 5 us.
    let added = |mode: &str| {
        let outcome = |interrupt| {
            let mut profile = profile(Some(ServiceThread { interrupt, ..SERVICE }));
            // A long sleep can be shortened by its whole lateness, and ends with the timer. A short one is shortened
            // by a third of itself, so that the timer fires while the CPU still leaves the halt.
            (profile.idle.exit_ns, profile.interrupt.timer) = (10_000, cost(12_000));
            simulate(&profile, mode, RATE)
        };
        let (with, without) = (outcome(cost(10_000)), outcome(Cost::NONE));
        (with.cpu_percent - without.cpu_percent) * 1e4 / (RATE * without.polls_per_query)
    };
    let (short, long) = (added("defer20"), added("defer100"));
    assert!(short < 1.0, "{short} us");
    // Two of three deferrals leave a timer behind.
    assert!((2.0..4.0).contains(&long), "{long} us");
}

#[test]
fn a_short_halt_is_left_sooner_than_a_long_one() {
    let slower = |exit_half_ns: u64, rate: f64| {
        let mut profile = profile(Some(SERVICE));
        let at_once = simulate(&profile, "base", rate).avg_us;
        (profile.idle.exit_ns, profile.idle.exit_half_ns) = (20_000, exit_half_ns);
        simulate(&profile, "base", rate).avg_us - at_once
    };
    assert!(slower(0, 2e3) > 15.0);
    let (long, short) = (slower(20_000, 2e3), slower(20_000, 40e3));
    assert!(long > 14.0 && short < 0.7 * long, "{long} us and {short} us");
}
