//! Load: service times, message sizes and the wire, and conservation of requests.

use abey_delivery::{Mode, Nanos};
use abey_sim::{Arrivals, Delay, Load, NicSettings, Outcome, Profile, Responder, Scenario, Size, Sizes, run};
use proptest::prelude::*;

const PROFILE: &str = include_str!("round.toml");

fn profile() -> Profile {
    Profile::parse("round.toml", PROFILE).expect("the test's profile is valid")
}

/// Profile with packets so cheap that the wire is the bottleneck.
fn fast_profile() -> Profile {
    let mut profile = profile();
    profile.processor.frequency_mhz = 3_000;
    profile.softirq.segment = Some(abey_sim::profile::Cost { instructions: 200, stall_cycles: 0 });
    profile
}

fn scenario(mode: &str, load: Load, millis: u64) -> Scenario {
    Scenario {
        warmup: Nanos::from_millis(20),
        duration: Nanos::from_millis(millis),
        ..Scenario::new(mode.parse::<Mode>().expect(mode), load)
    }
}

fn fixed(request: u64, response: u64) -> Option<Sizes> {
    Some(Sizes { request: Size::Fixed(request), response: Size::Fixed(response) })
}

fn conserved(outcome: &Outcome) {
    assert_eq!(outcome.requests, outcome.answers + outcome.outstanding, "{outcome:?}");
}

#[test]
fn large_messages_saturate_the_wire_each_way() {
    for (request, response) in [(1_000_000, 1_000_000), (1_000_000, 100), (100, 1_000_000)] {
        for mode in ["base", "threaded"] {
            let run = Scenario {
                queues: 8,
                connections: 1_000,
                warmup: Nanos::from_millis(150),
                sizes: fixed(request, response),
                ..scenario(mode, Load::Closed, 500)
            };
            let outcome = abey_sim::run(&fast_profile(), &run).expect("the scenario is valid");
            conserved(&outcome);
            assert!((11_000.0..12_000.0).contains(&outcome.qps), "{request}/{response} {mode}: {outcome:?}");
            let under_way = outcome.qps * outcome.avg_us * 1e-6;
            assert!((under_way / 1_000.0 - 1.0).abs() < 0.1, "no connection is stuck: {under_way}");
        }
    }
}

#[test]
fn the_profiles_own_sizes_change_almost_nothing_on_a_free_wire() {
    let plain = scenario("base", Load::Open(20e3), 200);
    let sized = Scenario { sizes: fixed(28, 219), ..plain.clone() };
    let (plain, sized) = (run(&profile(), &plain).expect("valid"), run(&profile(), &sized).expect("valid"));
    assert!((sized.avg_us / plain.avg_us - 1.0).abs() < 0.01, "{} for {}", sized.avg_us, plain.avg_us);
    assert!((sized.cpu_percent - plain.cpu_percent).abs() < 0.5);
}

#[test]
fn a_message_occupies_the_wire_and_the_ring() {
    let mut profile = fast_profile();
    profile.nic.wire_mbits_per_s = 1_000;
    let at = |sizes| {
        let run = Scenario { connections: 1, sizes, ..scenario("base", Load::Open(50.0), 2_000) };
        abey_sim::run(&profile, &run).expect("the scenario is valid")
    };
    let (small, large) = (at(None), at(fixed(28, 125_000)));
    let added = large.avg_us - small.avg_us;
    // 125 kB and the headers of 87 segments at 1 Gbit/s.
    assert!((1_050.0..1_250.0).contains(&added), "{added} us");
    let segments = (large.packets as f64 / large.answers as f64).round();
    assert!((88.0..=92.0).contains(&segments), "87 segments, a request and two or three acknowledgements: {segments}");
}

#[test]
fn a_slow_wire_limits_messages_of_the_profiles_sizes_too() {
    let mut profile = fast_profile();
    profile.nic.wire_mbits_per_s = 100;
    let outcome = abey_sim::run(&profile, &scenario("base", Load::Closed, 300)).expect("the scenario is valid");
    let most = 100e6 / 8.0 / profile.client.response_bytes as f64;
    assert!((outcome.qps / most - 1.0).abs() < 0.02, "{} of {most}", outcome.qps);
}

#[test]
fn jumbo_frames_make_fewer_segments() {
    let mut profile = fast_profile();
    let at = |profile: &Profile| {
        let run = Scenario { sizes: fixed(60_000, 28), connections: 50, ..scenario("base", Load::Open(2e3), 200) };
        abey_sim::run(profile, &run).expect("the scenario is valid")
    };
    let usual = at(&profile);
    profile.nic.mtu_bytes = 9_000;
    let jumbo = at(&profile);
    assert!(jumbo.packets * 4 < usual.packets && jumbo.instructions_per_query < usual.instructions_per_query);
}

#[test]
fn the_service_time_is_that_on_an_undisturbed_processor() {
    // An event loop that never sleeps, so that only the service time differs.
    let at = |service| {
        let run = Scenario { service, ..scenario("fullbusy", Load::Closed, 400) };
        let outcome = run_valid(&run);
        conserved(&outcome);
        1e6 / outcome.qps
    };
    let micros = Nanos::from_micros;
    let least = at(Some(Delay::Constant(Nanos::ZERO)));
    for service in [
        Delay::Constant(micros(30)),
        Delay::Exponential { mean: micros(30) },
        Delay::Lognormal { mean: micros(30), cv: 1.0 },
    ] {
        let added = at(Some(service)) - least;
        assert!((added / 30.0 - 1.0).abs() < 0.05, "{service:?}: {added} us");
    }
    // 8000 instructions at 0.5 cycles and 1 GHz.
    let added = at(None) - least;
    assert!((added / 4.0 - 1.0).abs() < 0.05, "the profile's: {added} us");
}

#[test]
fn a_device_adds_latency_and_no_processor_time() {
    let mut profile = profile();
    profile.nic.adaptive = false;
    profile.nic.rx_usecs = 0;
    let without = scenario("base", Load::Open(20e3), 500);
    let device = Delay::Quantiles { median: Nanos::from_micros(80), p99: Nanos::from_micros(400) };
    let with = Scenario { device: Some(device), ..without.clone() };
    let at = |run| abey_sim::run(&profile, run).expect("the scenario is valid");
    let (without, with) = (at(&without), at(&with));
    conserved(&with);
    let added = with.avg_us - without.avg_us;
    assert!((added / (device.mean_ns() / 1e3) - 1.0).abs() < 0.05, "{added} us");
    assert!((with.cpu_percent - without.cpu_percent).abs() < 1.0);
}

fn run_valid(scenario: &Scenario) -> Outcome {
    run(&profile(), scenario).expect("the scenario is valid")
}

#[test]
fn no_message_is_lost_although_the_ring_is_too_small() {
    let mut profile = fast_profile();
    profile.nic.ring_packets = 64;
    for mode in ["base", "defer200", "suspend20"] {
        let run = Scenario { connections: 100, sizes: fixed(200_000, 3_000), ..scenario(mode, Load::Closed, 400) };
        let outcome = abey_sim::run(&profile, &run).expect("the scenario is valid");
        assert!(outcome.drops > 0 && outcome.answers > 500, "{mode}: {outcome:?}");
        conserved(&outcome);
    }
}

#[test]
fn a_load_above_the_wires_capacity_is_refused() {
    for (sizes, part) in [(fixed(10_000, 100), "requests"), (fixed(100, 10_000), "answers")] {
        let run = Scenario { sizes, ..scenario("base", Load::Open(1.3e6), 10) };
        let error = abey_sim::run(&profile(), &run).expect_err("too much").to_string();
        assert!(error.contains("the wire carries at most") && error.contains(part), "{error}");
    }
}

#[test]
fn more_outstanding_requests_keep_a_server_busier_and_obey_littles_law() {
    for outstanding in [1, 4, 16] {
        let run = Scenario { connections: 40, outstanding, ..scenario("base", Load::Closed, 200) };
        let outcome = run_valid(&run);
        conserved(&outcome);
        let under_way = outcome.qps * outcome.avg_us * 1e-6;
        assert!((under_way / f64::from(40 * outstanding) - 1.0).abs() < 0.03, "{outstanding}: {under_way}");
    }
    let open = Scenario { connections: 1, outstanding: 8, ..scenario("base", Load::Open(60e3), 200) };
    let alone = run_valid(&Scenario { outstanding: 1, ..open.clone() });
    let pipelined = run_valid(&open);
    assert!(alone.qps < 45e3, "one round trip at a time: {}", alone.qps);
    assert!((pipelined.qps / 60e3 - 1.0).abs() < 0.02, "{}", pipelined.qps);
}

#[test]
fn thinking_clients_obey_the_response_time_law() {
    let think = Delay::Exponential { mean: Nanos::from_millis(2) };
    let run = Scenario { connections: 100, think: Some(think), ..scenario("base", Load::Closed, 1_000) };
    let outcome = run_valid(&run);
    let cycle_us = outcome.avg_us + 2_000.0;
    assert!((outcome.qps * cycle_us * 1e-6 / 100.0 - 1.0).abs() < 0.02, "{outcome:?}");
}

#[test]
fn burstier_arrivals_at_the_same_rate_wait_longer() {
    let at = |arrivals| {
        let run = Scenario { arrivals, connections: 5_000, ..scenario("defer20", Load::Open(60e3), 1_000) };
        let outcome = run_valid(&run);
        assert!((outcome.qps / 60e3 - 1.0).abs() < 0.05, "{arrivals:?}: {}", outcome.qps);
        outcome.p99_us
    };
    let waits = [Arrivals::Constant, Arrivals::Poisson, Arrivals::Lognormal { cv: 4.0 }, Arrivals::Bursts(16)].map(at);
    assert!(waits.is_sorted() && waits[3] > 1.5 * waits[1], "{waits:?}");
}

fn any_delay() -> impl Strategy<Value = Delay> {
    let nanos = |range: std::ops::Range<u64>| range.prop_map(Nanos::from_nanos);
    prop_oneof![
        nanos(0..50_000).prop_map(Delay::Constant),
        nanos(0..50_000).prop_map(|mean| Delay::Exponential { mean }),
        (nanos(1..50_000), 0.0..4.0).prop_map(|(mean, cv)| Delay::Lognormal { mean, cv }),
        (nanos(1..50_000), 0u64..200_000)
            .prop_map(|(median, more)| Delay::Quantiles { median, p99: Nanos::from_nanos(median.as_nanos() + more) }),
    ]
}

fn any_size() -> impl Strategy<Value = Size> {
    prop_oneof![
        (1u64..100_000).prop_map(Size::Fixed),
        (1u64..2_000, 0u64..9_000).prop_map(|(min, more)| Size::Uniform { min, max: min + more }),
        (1u64..20_000, 0.0..1.5).prop_map(|(median, sigma)| Size::Lognormal { median, sigma }),
        prop::collection::vec((1u64..60_000, 0.1..9.0), 1..5).prop_map(Size::Weighted),
    ]
}

fn any_arrivals() -> impl Strategy<Value = Arrivals> {
    prop_oneof![
        Just(Arrivals::Poisson),
        Just(Arrivals::Constant),
        (1u32..40).prop_map(Arrivals::Bursts),
        (0.0..4.0).prop_map(|cv| Arrivals::Lognormal { cv }),
    ]
}

prop_compose! {
    fn any_scenario()(
        mode in prop::sample::select(&["base", "defer50", "fullbusy", "suspend20", "threaded", "hold50"][..]),
        rate in prop::option::of(1e3..60e3),
        (queues, connections, outstanding) in (1u32..4, 1u32..80, 1u32..6),
        arrivals in any_arrivals(),
        think in prop::option::of(any_delay()),
        service in prop::option::of(any_delay()),
        device in prop::option::of(any_delay()),
        sizes in prop::option::of((any_size(), any_size())),
        seed in any::<u64>(),
    ) -> Scenario {
        let load = rate.map_or(Load::Closed, Load::Open);
        let open = load != Load::Closed;
        Scenario {
            queues,
            connections,
            outstanding,
            arrivals: if open { arrivals } else { Arrivals::Poisson },
            think: think.filter(|_| !open),
            service,
            device,
            sizes: sizes.map(|(request, response)| Sizes { request, response }),
            warmup: Nanos::ZERO,
            seed,
            check: true,
            ..scenario(mode, load, 8)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every request is answered or outstanding, even if the ring drops packets, and the core's invariants hold.
    #[test]
    fn nothing_is_lost_whatever_clients_do(scenario in any_scenario(), ring in 1usize..300) {
        let mut profile = fast_profile();
        profile.nic.ring_packets = ring;
        match abey_sim::run(&profile, &scenario) {
            Ok(outcome) => prop_assert_eq!(outcome.requests, outcome.answers + outcome.outstanding),
            Err(error) => prop_assert!(error.to_string().contains("the wire carries at most"), "{}", error),
        }
    }
}

#[test]
fn the_mode_determines_how_long_packets_wait_in_the_ring() {
    let at = |mode| {
        let mut run = Scenario { connections: 5_000, ..scenario(mode, Load::Open(20e3), 300) };
        run.nic = NicSettings { adaptive: Some(false), rx_usecs: Some(0), ..NicSettings::default() };
        let outcome = run_valid(&run);
        assert!(outcome.ring_wait_p99_us <= outcome.ring_wait_max_us, "{mode}: {outcome:?}");
        outcome
    };
    let (base, defer, busy) = (at("base"), at("defer200"), at("fullbusy"));
    assert!(base.ring_wait_p99_us < 20.0, "{base:?}");
    assert!((190.0..220.0).contains(&defer.ring_wait_max_us), "up to the timer: {}", defer.ring_wait_max_us);
    assert!((150.0..220.0).contains(&defer.ring_wait_p99_us), "most wait for the timer: {}", defer.ring_wait_p99_us);
    assert!(busy.ring_wait_p99_us < defer.ring_wait_p99_us / 4.0, "{busy:?}");
    // A long service during which interrupts are suspended leaves new packets in the ring.
    let slow = Scenario {
        service: Some(Delay::Constant(Nanos::from_micros(300))),
        ..scenario("suspend20", Load::Open(3e3), 300)
    };
    let suspended = run_valid(&slow);
    assert!(suspended.ring_wait_max_us > 500.0, "{suspended:?}");
    assert!(suspended.ring_wait_max_us < 20_100.0, "irq-suspend-timeout: {suspended:?}");
}

#[test]
fn settings_of_the_nic_replace_the_profiles() {
    let at = |nic| {
        let run = Scenario { nic, ..scenario("base", Load::Open(20e3), 200) };
        run_valid(&run)
    };
    let fixed = |rx_usecs, rx_frames| NicSettings {
        adaptive: Some(false),
        rx_usecs: Some(rx_usecs),
        rx_frames: Some(rx_frames),
        ring_packets: None,
    };
    let (at_once, moderated) = (at(fixed(0, 1)), at(fixed(200, 1_000)));
    assert!(at_once.interrupts_per_query > 2.0 * moderated.interrupts_per_query);
    assert!(at_once.avg_us + 20.0 < moderated.avg_us, "{} and {}", at_once.avg_us, moderated.avg_us);
    assert!(at(NicSettings { ring_packets: Some(2), ..fixed(200, 1_000) }).drops > 0);
}

#[test]
fn a_receive_that_polls_its_queue_answers_sooner_than_one_that_sleeps() {
    let at = |mode| {
        let run = Scenario {
            responder: Responder::Receive,
            connections: 200,
            queues: 2,
            check: true,
            ..scenario(mode, Load::Open(30e3), 100)
        };
        let outcome = run_valid(&run);
        conserved(&outcome);
        assert!((outcome.qps / 30e3 - 1.0).abs() < 0.05, "{mode}: {}", outcome.qps);
        outcome
    };
    let (base, busy) = (at("base"), at("sockbusy100"));
    assert!(busy.avg_us + 3.0 < base.avg_us, "{} and {}", busy.avg_us, base.avg_us);
    assert!(busy.cpu_percent > base.cpu_percent && busy.interrupts_per_query < base.interrupts_per_query);
    assert!((base.events_per_wait - 1.0).abs() < 1e-9, "one datagram a receive");
}
