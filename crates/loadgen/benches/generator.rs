//! Measures the generator itself: most requests per second from one core, and how punctually requests leave.
//!
//! `cargo bench -p abey-loadgen --bench generator`; needs two CPUs (server on the last, generator on the first) and an
//! otherwise idle machine. Goals: 300,000 requests/s over loopback TCP with depth above 1; at 20,000/s `send_lag_us`
//! within 5 (median) and 50 (p99).

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use abey_loadgen::serve::{self, Listen};
use abey_loadgen::{
    Config, Load, Memcached, Options, Rate, RequestResponse, RunConfig, Transport, Workload, pin_to_cpus,
};

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` runs benches once, briefly, to check that they work.
    let seconds = if std::env::args().any(|arg| arg == "--bench") { 3.0 } else { 0.05 };
    let last = std::thread::available_parallelism()?.get() - 1;
    let listen = Listen { address: ([127, 0, 0, 1], 0).into(), threads: 1 };
    let rr = |transport| RequestResponse { transport, ..RequestResponse::default() };
    pin_to_cpus(&[last])?;
    let kv_server = serve::kv::start(listen)?;
    let tcp_server = serve::rr::start(listen, &rr(Transport::Tcp))?;
    let udp_server = serve::rr::start(listen, &rr(Transport::Udp))?;
    pin_to_cpus(&[0])?;

    println!(
        "{:<24} {:>8} {:>8} {:>9}  {:>22}  {:>20}",
        "workload", "depth", "asked", "qps", "send_lag p50/p99/max", "latency avg/p99 us"
    );
    let kv = Workload::Memcached(Memcached::default());
    let etc =
        Workload::Memcached(Memcached { key_size: "etc".parse()?, value_size: "etc".parse()?, ..Memcached::default() });
    let (kv_at, tcp_at, udp_at) = (kv_server.local_addr(), tcp_server.local_addr(), udp_server.local_addr());
    for (name, target, workload, depth, rate) in [
        ("kv", kv_at, &kv, 1, "20k"),
        ("kv", kv_at, &kv, 1, "50k"),
        ("kv", kv_at, &kv, 1, "max"),
        ("kv", kv_at, &kv, 8, "max"),
        ("kv", kv_at, &kv, 32, "max"),
        ("kv", kv_at, &kv, 32, "300k"),
        ("kv, ETC sizes", kv_at, &etc, 32, "max"),
        ("rr tcp", tcp_at, &Workload::RequestResponse(rr(Transport::Tcp)), 32, "max"),
        ("rr tcp", tcp_at, &Workload::RequestResponse(rr(Transport::Tcp)), 1, "20k"),
        ("rr udp", udp_at, &Workload::RequestResponse(rr(Transport::Udp)), 1, "20k"),
        ("rr udp", udp_at, &Workload::RequestResponse(rr(Transport::Udp)), 1, "max"),
    ] {
        measure(name, target, workload, depth, rate.parse()?, seconds)?;
    }
    Ok(())
}

fn measure(
    name: &str,
    target: SocketAddr,
    workload: &Workload,
    depth: usize,
    rate: Rate,
    seconds: f64,
) -> Result<(), Box<dyn Error>> {
    let config = Config::new(Options { depth, ..Options::new(target, workload.clone()) })?;
    let mut load = Load::connect(&config)?;
    let run = RunConfig::new(rate, Duration::from_secs_f64(seconds))?.warmup(Duration::from_millis(200))?;
    let report = load.run(&run, &mut |_| {})?;
    let lag = report.send_lag_us.map_or("-".to_owned(), |lag| format!("{:.1}/{:.1}/{:.0}", lag.p50, lag.p99, lag.max));
    println!(
        "{name:<24} {depth:>8} {:>8} {:>9.0}  {lag:>22}  {:>10.1}/{:.0}   work {:.0} %{}",
        report.load,
        report.qps,
        report.avg_us.unwrap_or(f64::NAN),
        report.p99_us.unwrap_or(f64::NAN),
        report.client_cpu_percent,
        if report.client_bound { ", client-bound" } else { "" },
    );
    Ok(())
}
