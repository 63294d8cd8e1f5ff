//! The generator against the crate's own servers, over loopback: counts, not speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_loadgen::serve::{self, Listen, ServeError, Server};
use abey_loadgen::{
    Arrivals, Config, Load, LoadError, Memcached, Options, Phase, Rate, Report, RequestResponse, RunConfig, Transport,
    Workload,
};

fn listen(threads: usize) -> Listen {
    Listen { address: ([127, 0, 0, 1], 0).into(), threads }
}

fn run_config(rate: &str, milliseconds: u64) -> RunConfig {
    let run = RunConfig::new(rate.parse().unwrap(), Duration::from_millis(milliseconds)).unwrap();
    run.warmup(Duration::from_millis(20)).unwrap()
}

fn connect(server: &Server, workload: Workload, change: impl FnOnce(&mut Options)) -> Load {
    let mut options = Options { connections: 4, ..Options::new(server.local_addr(), workload) };
    change(&mut options);
    Load::connect(&Config::new(options).unwrap()).unwrap()
}

fn rr(transport: Transport, request_bytes: usize, response_bytes: usize) -> RequestResponse {
    RequestResponse { transport, request_bytes, response_bytes }
}

/// Checks what holds for every report.
fn assert_consistent(report: &Report) {
    assert!(report.count > 0, "{report:?}");
    let figures = [report.p50_us, report.p90_us, report.p95_us, report.p99_us, report.p999_us, report.max_us];
    assert!(figures.iter().all(Option::is_some) && figures.is_sorted(), "{figures:?}");
    let avg = report.avg_us.unwrap();
    assert!(avg > 0.0 && avg <= report.max_us.unwrap(), "{report:?}");
    assert!((0.0..=101.0).contains(&report.client_cpu_percent), "{report:?}");
    assert!(report.latency_by_percentile.is_sorted(), "{:?}", report.latency_by_percentile);
    assert_eq!(report.latency_by_percentile.last().unwrap().0, 100.0);
    let text = serde_json::to_string(report).unwrap();
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
}

#[test]
fn every_get_hits_and_rates_follow_each_other_on_one_load() {
    let server = serve::kv::start(listen(1)).unwrap();
    let mix = Memcached { set_ratio: 0.2, keys: 500, ..Memcached::default() };
    let mut load = connect(&server, Workload::Memcached(mix), |_| {});
    for rate in ["2k", "max", "1k"] {
        let mut phases = Vec::new();
        let report = load.run(&run_config(rate, 150), &mut |phase| phases.push(phase)).unwrap();
        assert_eq!(phases, [Phase::MeasureStart, Phase::MeasureEnd]);
        assert_consistent(&report);
        assert_eq!((report.misses, report.hits), (0, report.gets));
        assert_eq!(report.gets + report.sets, report.count);
        assert!(report.gets > report.sets && report.sets > 0, "{report:?}");
        assert_eq!(report.load, rate);
        assert_eq!(report.send_lag_us.is_some(), rate != "max");
    }
    server.stop().unwrap();
}

#[test]
fn even_arrivals_are_all_sent_and_answered() {
    let server = serve::rr::start(listen(1), &rr(Transport::Tcp, 10, 1000)).unwrap();
    let mut load = connect(&server, Workload::RequestResponse(rr(Transport::Tcp, 10, 1000)), |_| {});
    let run = run_config("1k", 200).arrivals(Arrivals::Even);
    let report = load.run(&run, &mut |_| {}).unwrap();
    assert_consistent(&report);
    assert_eq!(report.count + report.unsent, 200);
}

#[test]
fn the_same_seed_sends_the_same_requests() {
    let server = serve::kv::start(listen(1)).unwrap();
    let mut load = connect(&server, Workload::Memcached(Memcached::default()), |_| {});
    let mut due = |seed| {
        let report = load.run(&run_config("3k", 100).seed(seed), &mut |_| {}).unwrap();
        report.count + report.unsent
    };
    let first = due(5);
    assert_eq!(due(5), first);
    let others: Vec<u64> = (6..10).map(&mut due).collect();
    assert!(others.iter().any(|&other| other != first), "{first} {others:?}");
}

#[test]
fn threads_share_the_load() {
    let server = serve::kv::start(listen(2)).unwrap();
    let mix =
        Memcached { keys: 100, key_size: "etc".parse().unwrap(), value_size: "etc".parse().unwrap(), set_ratio: 0.5 };
    let mut load = connect(&server, Workload::Memcached(mix), |o| (o.threads, o.connections, o.depth) = (3, 7, 4));
    let mut phases = Vec::new();
    let report = load.run(&run_config("3k", 200), &mut |phase| phases.push(phase)).unwrap();
    assert_eq!(phases, [Phase::MeasureStart, Phase::MeasureEnd]);
    assert_consistent(&report);
    // 600 expected, standard deviation 24.
    assert!((400..800).contains(&(report.count + report.unsent)), "{report:?}");
    assert_eq!(report.misses, 0);
    let report = load.run(&run_config("max", 100), &mut |_| {}).unwrap();
    assert_consistent(&report);
    assert_eq!(report.requested_qps, None);
}

#[test]
fn datagrams_are_answered() {
    let server = serve::rr::start(listen(1), &rr(Transport::Udp, 100, 1)).unwrap();
    let mut load = connect(&server, Workload::RequestResponse(rr(Transport::Udp, 100, 1)), |options| options.depth = 3);
    for rate in ["1k", "max"] {
        let report = load.run(&run_config(rate, 150), &mut |_| {}).unwrap();
        assert_consistent(&report);
        assert_eq!((report.errors, report.protocol.as_str()), (0, "rr-udp"));
    }
}

#[test]
fn datagrams_of_another_size_are_an_error() {
    let server = serve::rr::start(listen(1), &rr(Transport::Udp, 1, 2)).unwrap();
    let mut load = connect(&server, Workload::RequestResponse(rr(Transport::Udp, 1, 3)), |_| {});
    let error = load.run(&run_config("1k", 150), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LoadError::AnswerSize { got: 2, wanted: 3, .. }), "{error}");
}

#[test]
fn large_messages_pass_in_both_directions() {
    let sizes = rr(Transport::Tcp, 3 << 20, 2 << 20);
    let server = serve::rr::start(listen(1), &sizes).unwrap();
    let mut load = connect(&server, Workload::RequestResponse(sizes), |o| (o.connections, o.depth) = (2, 2));
    let report = load.run(&run_config("max", 200), &mut |_| {}).unwrap();
    assert!(report.qps > 0.0);
}

#[test]
fn a_stop_flag_ends_a_run_and_the_next_run_is_complete() {
    let server = serve::kv::start(listen(1)).unwrap();
    let mut load = connect(&server, Workload::Memcached(Memcached::default()), |o| o.threads = 2);
    let stop = Arc::new(AtomicBool::new(false));
    let raiser = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
        })
    };
    let started = Instant::now();
    let run = run_config("5k", 600_000).stop_flag(stop);
    assert!(matches!(load.run(&run, &mut |_| {}), Err(LoadError::Stopped)));
    assert!(started.elapsed() < Duration::from_secs(300), "the run went on");
    raiser.join().unwrap();
    assert_consistent(&load.run(&run_config("1k", 100), &mut |_| {}).unwrap());
}

#[test]
fn connection_refused_names_the_address() {
    let server = serve::kv::start(listen(1)).unwrap();
    let address = server.local_addr();
    server.stop().unwrap();
    let options = Options::new(address, Workload::Memcached(Memcached::default()));
    let error = Load::connect(&Config::new(options).unwrap()).unwrap_err();
    assert!(matches!(error, LoadError::Refused { target } if target == address), "{error}");
}

#[test]
fn a_server_that_ends_ends_the_run() {
    let server = serve::kv::start(listen(1)).unwrap();
    let mut load = connect(&server, Workload::Memcached(Memcached::default()), |_| {});
    server.stop().unwrap();
    let error = load.run(&run_config("5k", 10_000), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LoadError::Closed { .. } | LoadError::Refused { .. }), "{error}");
}

#[test]
fn a_port_in_use_is_refused_with_any_number_of_threads() {
    for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let server = serve::kv::start(listen(first)).unwrap();
        let again = Listen { address: server.local_addr(), threads: second };
        let error = serve::kv::start(again).unwrap_err();
        assert!(matches!(error, ServeError::PortInUse { .. }), "{first}, {second}: {error}");
    }
}

#[test]
fn invalid_addresses_and_thread_counts_are_rejected() {
    let elsewhere = Listen { address: ([192, 0, 2, 1], 0).into(), threads: 1 };
    assert!(matches!(serve::kv::start(elsewhere), Err(ServeError::NoSuchAddress { .. })));
    assert!(matches!(serve::kv::start(listen(0)), Err(ServeError::Threads(0))));
    assert!(matches!(serve::rr::start(listen(1), &rr(Transport::Tcp, 0, 1)), Err(ServeError::Sizes(_))));
}

#[test]
fn rates_beyond_the_depth_are_reported_as_queued() {
    let server = serve::kv::start(listen(1)).unwrap();
    let mut load = connect(&server, Workload::Memcached(Memcached::default()), |o| o.connections = 1);
    let report = load.run(&run_config("3M", 100), &mut |_| {}).unwrap();
    assert!(report.unsent > 0 && report.queued > 0, "{report:?}");
    assert_eq!(Rate::PerSecond(3e6), "3M".parse().unwrap());
}
