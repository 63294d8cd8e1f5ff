//! Topologies: any number of CPUs, queues and threads, pinned or not, under every mode.

use abey_delivery::{Mode, Nanos};
use abey_sim::profile::CState;
use abey_sim::{Delay, Load, Outcome, Profile, Responder, Scenario, Topology, run, run_traced};
use proptest::prelude::*;

fn plain() -> Profile {
    Profile::parse("round.toml", include_str!("round.toml")).expect("the test's profile is valid")
}

/// Profile in which every operation of the scheduler has a cost.
fn profile() -> Profile {
    let mut profile = plain();
    profile.thread.wake_scan_cpus = Some(2);
    profile.thread.wake_scan.stall_cycles = 100;
    profile.thread.remote_wake.instructions = 500;
    profile.thread.balance_ns = 200_000;
    profile.thread.newly_idle_ns = 20_000;
    profile.thread.migration_cycles = 1_000;
    profile
}

fn modes() -> impl Iterator<Item = Mode> {
    let names = Mode::EXAMPLES.iter().filter(|mode| !mode.starts_with("sockbusy"));
    names.map(|name| name.parse().expect(name))
}

fn scenario(mode: Mode, load: Load) -> Scenario {
    Scenario { warmup: Nanos::ZERO, check: true, ..Scenario::new(mode, load) }
}

fn simulate(scenario: &Scenario) -> Outcome {
    run(&profile(), scenario).expect("the scenario is valid")
}

/// More unpinned threads than queues, so that every server has sockets on every queue.
fn floating(cpus: u32, threads: u32) -> Topology {
    Topology { cpus: Some(cpus), threads: Some(threads), unpinned: true, unpinned_pollers: true, ..Topology::default() }
}

prop_compose! {
    fn topology(queues: u32)(
        cpus in 1..=5u32,
        threads in 1..=7u32,
        irq in 0..5u32,
        moved in any::<bool>(),
        unpinned in any::<bool>(),
        unpinned_pollers in any::<bool>(),
        hyperthreads in any::<bool>(),
        by_queue in any::<Option<bool>>(),
    ) -> Topology {
        Topology {
            cpus: Some(cpus),
            threads: Some(threads),
            irq_cpus: moved.then(|| (0..queues).map(|queue| (irq + queue / 2) % cpus).collect()),
            unpinned,
            unpinned_pollers,
            hyperthreads: hyperthreads && cpus % 2 == 0,
            by_queue,
        }
    }
}

prop_compose! {
    fn hosts()(queues in 1..=4u32)(queues in Just(queues), topology in topology(queues)) -> (u32, Topology) {
        (queues, topology)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// The core's invariants hold after every event, and all requests are answered after the last one.
    #[test]
    fn every_mode_works_on_every_topology((queues, topology) in hosts(), seed in any::<u64>(), yields in any::<bool>()) {
        let mut profile = profile();
        profile.softirq.yields_to_thread = yields;
        let receive = |name: &str| (Responder::Receive, name.parse::<Mode>().expect(name));
        let runs = modes().map(|mode| (Responder::EventLoop, mode)).chain([receive("sockbusy50"), receive("base")]);
        for (responder, mode) in runs {
            let busy = Scenario {
                responder, queues, topology: topology.clone(), connections: 60, seed, duration: Nanos::from_millis(3),
                ..scenario(mode, Load::Open(300e3))
            };
            let outcome = run(&profile, &busy).expect("the scenario is valid");
            prop_assert_eq!(outcome.requests, outcome.answers + outcome.outstanding, "{}", mode);

            // Every client sends once in the first 20 ms, more than one CPU can serve, and then thinks until after
            // the end. One CPU needs 15 ms, and 75 ms beside four threads that never sleep.
            let last = Scenario {
                think: Some(Delay::Constant(Nanos::from_millis(1_000))), connections: 60,
                service: Some(Delay::Exponential { mean: Nanos::from_micros(250) }),
                duration: Nanos::from_millis(200), ..Scenario { load: Load::Closed, ..busy }
            };
            let outcome = run(&profile, &last).expect("the scenario is valid");
            prop_assert_eq!((outcome.requests, outcome.answers, outcome.outstanding), (60, 60, 0), "{}", mode);
        }
    }
}

#[test]
fn an_explicit_default_equals_the_default() {
    for mode in modes() {
        let short = Scenario { queues: 3, duration: Nanos::from_millis(5), ..scenario(mode, Load::Open(200e3)) };
        let topology = Topology {
            cpus: Some(3),
            threads: Some(3),
            irq_cpus: Some(vec![0, 1, 2]),
            by_queue: Some(true),
            ..Topology::default()
        };
        assert_eq!(simulate(&Scenario { topology, ..short.clone() }), simulate(&short), "{mode}");
    }
}

#[test]
fn one_seed_gives_the_same_figures_and_tracing_changes_nothing() {
    for mode in ["base", "threaded", "workqueue", "suspend20"] {
        let mode = mode.parse().expect(mode);
        let once = Scenario {
            queues: 2,
            topology: Topology { hyperthreads: true, ..floating(6, 9) },
            duration: Nanos::from_millis(20),
            ..scenario(mode, Load::Open(250e3))
        };
        let outcome = simulate(&once);
        assert_eq!(outcome, simulate(&once), "{mode}");
        assert_eq!(run_traced(&profile(), &once).expect("valid").0, outcome, "{mode}");
    }
}

#[test]
fn more_cpus_answer_more_and_unpinned_threads_use_them() {
    let at = |topology| {
        simulate(&Scenario {
            topology,
            duration: Nanos::from_millis(50),
            check: false,
            ..scenario(Mode::Base, Load::Closed)
        })
    };
    let (one, four) = (at(floating(1, 4)), at(floating(4, 4)));
    assert!(four.qps > 1.5 * one.qps, "{} with four CPUs, {} with one", four.qps, one.qps);
    let crowded = at(Topology { cpus: Some(4), threads: Some(8), irq_cpus: Some(vec![3]), ..floating(4, 8) });
    assert!(crowded.migrations_per_query > 0.0);
    let pinned = at(Topology { cpus: Some(4), threads: Some(8), ..Topology::default() });
    assert_eq!(pinned.migrations_per_query, 0.0);
}

/// Mechanism of the threaded NAPI study on a small host: a CPU that polls in a softirq appears idle, and threads are
/// woken there; one with a polling NAPI thread does not.
#[test]
fn the_scheduler_accounts_for_polling_threads_but_not_for_softirqs() {
    let at = |name: &str| {
        let run_of = Scenario {
            queues: 2,
            topology: floating(8, 8),
            connections: 100,
            warmup: Nanos::from_millis(30),
            duration: Nanos::from_millis(300),
            check: false,
            ..scenario(name.parse().expect(name), Load::Closed)
        };
        run(&plain(), &run_of).expect("the scenario is valid").p999_us
    };
    let (softirq, kthread) = (at("base"), at("threaded"));
    assert!(softirq > 2.0 * kthread, "p99.9: softirq {softirq}, threads {kthread}");
}

/// The kernel's epoll context remembers one NAPI ID, so the server's other queues wait for their timers; Abey's has
/// all IDs.
#[test]
fn a_server_with_sockets_on_several_queues_is_half_polled_by_the_kernels_epoll_context() {
    for name in ["suspend20", "fullbusy"] {
        let at = |linux| {
            let topology = Topology { threads: Some(1), irq_cpus: Some(vec![1, 2, 3, 3]), ..Topology::default() };
            let duration = Nanos::from_millis(100);
            let mode = name.parse().expect(name);
            let run_of = Scenario { queues: 4, topology, duration, linux, ..scenario(mode, Load::Open(60e3)) };
            simulate(&Scenario { check: !linux, ..run_of }).avg_us
        };
        let (kernel, ours) = (at(true), at(false));
        assert!(ours < 60.0 && kernel > 1_000.0, "{name}: average {ours} with a set, {kernel} with one ID");
    }
}

/// A CPU enters a deeper state in a long halt and leaves it more slowly: idle servers answer later, busy ones do not.
#[test]
fn deeper_idle_states_cost_idle_cpus_and_not_busy_ones() {
    let at = |load, deeper| {
        let mut profile = plain();
        profile.idle.deeper = deeper;
        let duration = Nanos::from_millis(1_000);
        let run_of = Scenario { duration, connections: 50, check: false, ..scenario(Mode::Base, load) };
        run(&profile, &run_of).expect("the scenario is valid").avg_us
    };
    let deeper = || vec![CState { residency_ns: 100_000, exit_ns: 50_000 }];
    let (shallow, deep) = (at(Load::Open(50.0), vec![]), at(Load::Open(50.0), deeper()));
    assert!(deep > shallow + 30.0, "seldom: {deep} with the deeper state, {shallow} without");
    let (shallow, deep) = (at(Load::Closed, vec![]), at(Load::Closed, deeper()));
    assert!(
        (deep - shallow).abs() < 0.1,
        "idle in the beginning only: {deep} with the deeper state, {shallow} without"
    );
}

#[test]
fn invalid_topologies_are_refused_with_their_key() {
    let refused = |topology: Topology| {
        let run_of = Scenario { queues: 2, topology, ..scenario(Mode::Base, Load::Open(1e3)) };
        run(&profile(), &run_of).expect_err("bad input").to_string()
    };
    let base = Topology::default;
    assert!(refused(Topology { cpus: Some(0), ..base() }).contains("cpus = 0"));
    assert!(refused(Topology { threads: Some(2_000), ..base() }).contains("threads = 2000"));
    assert!(refused(Topology { irq_cpus: Some(vec![0]), ..base() }).contains("one CPU for each queue"));
    assert!(refused(Topology { irq_cpus: Some(vec![0, 2]), ..base() }).contains("irq_cpus = [0, 2] is invalid"));
    let odd = Topology { hyperthreads: true, cpus: Some(3), ..base() };
    assert!(refused(odd).contains("hyperthreads"));
    let mut profile = plain();
    let state = |residency_ns, exit_ns| CState { residency_ns, exit_ns };
    profile.idle.deeper = vec![state(5_000, 9_000), state(2_000, 10_000)];
    let error = run(&profile, &scenario(Mode::Base, Load::Open(1e3))).expect_err("bad input").to_string();
    assert!(error.contains("idle.deeper") && error.contains("deeper states come later"), "{error}");
}
