//! A probe: few requests in an open loop, from wherever the tuner runs, to see how long they take.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use abey_delivery::Nanos;
use abey_linux::device::devices;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_load::{
    Config, HttpGet, Kernel, Load, LoadError, Memcached, Options, Rate, Report, RequestResponse, RunConfig, SizeDist,
    Workload,
};
use abey_tune::Latency;

use super::latency::Witness;
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::nic_args::resolve;

/// The probe on the command line.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ProbeArgs {
    /// Send a few requests to the server to see how long they take: memcached (the default; one key is stored), redis,
    /// http or rr
    #[arg(long, value_name = "HOST:PORT[/PROTOCOL]")]
    pub(crate) probe: Option<Target>,
    /// Requests of the probe per second
    #[arg(long, value_name = "RATE", default_value = "500", requires = "probe")]
    probe_rate: Rate,
    /// The network namespace that the probe sends from [default: that of --netns]
    #[arg(long, value_name = "NAME", requires = "probe")]
    probe_netns: Option<String>,
}

/// Whom a probe asks, and in which protocol.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    host: String,
    protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Memcached,
    Redis,
    Http,
    Rr,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, protocol) = text.split_once('/').unwrap_or((text, "memcached"));
        let protocol = match protocol {
            "memcached" => Protocol::Memcached,
            "redis" => Protocol::Redis,
            "http" => Protocol::Http,
            "rr" => Protocol::Rr,
            other => return Err(format!("a probe does not speak `{other}`: choose memcached, redis, http or rr")),
        };
        Ok(Self { host: host.to_owned(), protocol })
    }
}

impl Protocol {
    /// As little as can be asked.
    fn workload(self) -> Workload {
        let size = SizeDist::Fixed(32);
        let gets = Memcached { set_ratio: 0.0, keys: 1, key_size: size, value_size: size };
        match self {
            Self::Memcached => Workload::Memcached(gets),
            Self::Redis => Workload::Redis(gets),
            Self::Http => Workload::Http(HttpGet::default()),
            Self::Rr => {
                let transport = abey_load::Transport::Tcp;
                Workload::RequestResponse(RequestResponse { transport, request_bytes: 1, response_bytes: 1 })
            }
        }
    }
}

/// Connections of a probe: several, so that it meets several queues.
const CONNECTIONS: usize = 4;
/// How long a probe may go without an answer.
const SILENCE: Duration = Duration::from_secs(5);

/// A probe that waits to be told to send.
pub(crate) struct Probe {
    target: SocketAddr,
    orders: Option<Sender<Duration>>,
    reports: Receiver<Result<Report, LoadError>>,
    stop: Arc<AtomicBool>,
    under_way: bool,
    thread: Option<JoinHandle<()>>,
}

impl Probe {
    /// Connects.
    pub(crate) fn start(args: &ProbeArgs, target: &Target, namespace: &Namespace) -> Result<Self, Failure> {
        let netns = match &args.probe_netns {
            Some(name) => NetNs::named(name)?,
            None => namespace.open()?,
        };
        let address = resolve(&target.host, "10.0.0.5:11211")?;
        refuse_loopback(&netns, address)?;
        let Rate::PerSecond(_) = args.probe_rate else {
            return Err(Failure::usage(
                "--probe-rate max is a load and no probe: choose some hundred requests per second",
            ));
        };
        let mut options = Options::new(address, target.protocol.workload());
        options.connections = CONNECTIONS;
        options.timeout = SILENCE;
        let config = Config::new(options).map_err(Failure::usage)?;
        let (orders, ordered) = channel();
        let (reporter, reports) = channel();
        let (rate, stop) = (args.probe_rate, Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&stop);
        let work = move || probe(&config, rate, &flag, &ordered, &reporter);
        // The sockets belong to the namespace of the thread that makes them.
        let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(move || drop(netns.run(work)));
        let thread = thread.map_err(|error| Failure::lacks(format!("cannot start a thread: {error}")))?;
        let mut probe =
            Self { target: address, orders: Some(orders), reports, stop, under_way: false, thread: Some(thread) };
        // That it cannot connect is known before anything is changed.
        probe.send(Duration::from_millis(20))?;
        probe.report()?;
        Ok(probe)
    }

    fn send(&mut self, duration: Duration) -> Result<(), Failure> {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(duration).is_ok());
        self.under_way = sent;
        if sent { Ok(()) } else { Err(self.gone()) }
    }

    fn report(&mut self) -> Result<Report, Failure> {
        self.under_way = false;
        match self.reports.recv_timeout(2 * SILENCE) {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(error)) => Err(Failure::check(format!("the probe of {} failed: {error}", self.target))),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    fn gone(&self) -> Failure {
        Failure::check(format!("the probe of {} has ended", self.target))
    }
}

/// A probe's life: a run for each order.
fn probe(
    config: &Config,
    rate: Rate,
    stop: &Arc<AtomicBool>,
    orders: &Receiver<Duration>,
    reports: &Sender<Result<Report, LoadError>>,
) {
    let mut load = match Load::connect_on(Kernel, config, Some(Arc::clone(stop))) {
        Ok(load) => load,
        Err(error) => return drop(reports.send(Err(error))),
    };
    for (number, duration) in (0..).zip(orders) {
        let run = RunConfig::new(rate, duration).and_then(|run| run.warmup(Duration::ZERO));
        let run = run.expect("a duration of ours").seed(number).stop_flag(Arc::clone(stop));
        let report = load.run(&run, &mut |_| {});
        let is_over = report.is_err();
        if reports.send(report).is_err() || is_over {
            return;
        }
    }
}

/// A probe of an address of the machine itself goes over the loopback device, and sees nothing of what is tuned.
fn refuse_loopback(netns: &NetNs, address: SocketAddr) -> Result<(), Failure> {
    let own = devices(&mut Netlink::open(netns)?)?;
    let ip = address.ip().to_canonical();
    if !ip.is_loopback() && !own.iter().any(|device| device.addresses.contains(&ip)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{address} is this machine's own, so a probe from here goes over loopback and never meets the device: probe from \
         another network namespace (--probe-netns), or let a client write what it sees (--latencies)"
    )))
}

impl Witness for Probe {
    fn begin(&mut self, interval: Duration, _: bool) -> Result<(), Failure> {
        if self.under_way {
            self.report()?;
        }
        // The last answers are waited for before the interval is over.
        self.send(interval.mul_f64(0.9))
    }

    fn is_ready(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    fn take(&mut self) -> Result<Option<Latency>, Failure> {
        if !self.under_way {
            return Ok(None);
        }
        let report = self.report()?;
        let time = |us: f64| Nanos::from_nanos((us * 1e3) as u64);
        let latency = report.p50_us.zip(report.p99_us);
        Ok(latency.map(|(p50, p99)| Latency { count: report.count, p50: time(p50), p99: time(p99) }))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.orders.take();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let read = |text: &str| text.parse::<Target>();
        let target = |protocol| Target { host: "10.0.0.1:80".to_owned(), protocol };
        assert_eq!(read("10.0.0.1:80"), Ok(target(Protocol::Memcached)));
        assert_eq!(read("10.0.0.1:80/http"), Ok(target(Protocol::Http)));
        assert!(read("10.0.0.1:80/gopher").expect_err("no protocol").contains("gopher"));
    }

    #[test]
    fn a_probe_that_would_not_leave_the_machine_is_refused() {
        let here = NetNs::current().expect("a namespace");
        for own in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            let said = refuse_loopback(&here, own.parse().expect("an address")).expect_err(own).to_string();
            assert!(said.contains("loopback"), "{said}");
        }
        assert!(refuse_loopback(&here, "192.0.2.1:1".parse().expect("an address")).is_ok());
    }
}
