//! A probe: a small open-loop load of our own that measures how long requests take.

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
use abey_loadgen::{
    Config, HttpGet, Kernel, Load, LoadError, Memcached, Options, Rate, Report, RequestResponse, RunConfig, SizeDist,
    Workload,
};
use abey_tune::Latency;

use crate::TuneError;
use crate::latency::LatencySource;

/// The server and the protocol of a probe: `HOST:PORT[/PROTOCOL]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeTarget {
    /// Host and port, not resolved.
    pub host: String,
    protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Memcached,
    Redis,
    Http,
    Rr,
}

impl FromStr for ProbeTarget {
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
    /// Returns the cheapest requests of the protocol.
    fn workload(self) -> Workload {
        let size = SizeDist::Fixed(32);
        let gets = Memcached { set_ratio: 0.0, keys: 1, key_size: size, value_size: size };
        match self {
            Self::Memcached => Workload::Memcached(gets),
            Self::Redis => Workload::Redis(gets),
            Self::Http => Workload::Http(HttpGet::default()),
            Self::Rr => {
                let transport = abey_loadgen::Transport::Tcp;
                Workload::RequestResponse(RequestResponse { transport, request_bytes: 1, response_bytes: 1 })
            }
        }
    }
}

/// Connections of a probe: several, so that they arrive on several queues.
const CONNECTIONS: usize = 4;
/// How long a probe may go without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A probe. Its thread sends during the intervals that it is asked for.
pub struct Probe {
    address: SocketAddr,
    requests: Option<Sender<Duration>>,
    reports: Receiver<Result<Report, LoadError>>,
    stop: Arc<AtomicBool>,
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

impl Probe {
    /// Connects from a network namespace and sends for 20 ms, so that an unreachable server is found before anything is changed.
    ///
    /// # Errors
    /// When the address is the machine's own, the rate is `max`, or the server does not answer.
    pub fn start(target: &ProbeTarget, address: SocketAddr, rate: Rate, netns: NetNs) -> Result<Self, TuneError> {
        refuse_loopback(&netns, address)?;
        let Rate::PerSecond(_) = rate else {
            return Err(TuneError::usage(
                "--probe-rate max is a load and no probe: choose some hundred requests per second",
            ));
        };
        let mut options = Options::new(address, target.protocol.workload());
        options.connections = CONNECTIONS;
        options.timeout = ANSWER_TIMEOUT;
        let config = Config::new(options).map_err(TuneError::usage)?;
        let (requests, requested) = channel();
        let (reporter, reports) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let work = move || send_on_request(&config, rate, &flag, &requested, &reporter);
        // Sockets belong to the namespace of the thread that creates them.
        let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(move || drop(netns.run(work)));
        let thread = thread.map_err(|error| TuneError::unsupported(format!("cannot start a thread: {error}")))?;
        let mut probe =
            Self { address, requests: Some(requests), reports, stop, is_running: false, thread: Some(thread) };
        probe.send(Duration::from_millis(20))?;
        probe.report()?;
        Ok(probe)
    }

    fn send(&mut self, duration: Duration) -> Result<(), TuneError> {
        let sent = self.requests.as_ref().is_some_and(|requests| requests.send(duration).is_ok());
        self.is_running = sent;
        if sent { Ok(()) } else { Err(self.has_ended()) }
    }

    fn report(&mut self) -> Result<Report, TuneError> {
        self.is_running = false;
        match self.reports.recv_timeout(2 * ANSWER_TIMEOUT) {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(error)) => Err(TuneError::failed(format!("the probe of {} failed: {error}", self.address))),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(self.has_ended()),
        }
    }

    fn has_ended(&self) -> TuneError {
        TuneError::failed(format!("the probe of {} has ended", self.address))
    }
}

/// Sends one run for each duration that is requested, until an error.
fn send_on_request(
    config: &Config,
    rate: Rate,
    stop: &Arc<AtomicBool>,
    requests: &Receiver<Duration>,
    reports: &Sender<Result<Report, LoadError>>,
) {
    let mut load = match Load::connect_on(Kernel, config, Some(Arc::clone(stop))) {
        Ok(load) => load,
        Err(error) => return drop(reports.send(Err(error))),
    };
    for (number, duration) in (0..).zip(requests) {
        let run = RunConfig::new(rate, duration).and_then(|run| run.warmup(Duration::ZERO));
        let run = run.expect("the tuner's intervals are valid durations").seed(number).stop_flag(Arc::clone(stop));
        let report = load.run(&run, &mut |_| {});
        let is_over = report.is_err();
        if reports.send(report).is_err() || is_over {
            return;
        }
    }
}

/// Refuses an address of the machine itself: such a probe uses the loopback device and measures nothing of the tuned one.
fn refuse_loopback(netns: &NetNs, address: SocketAddr) -> Result<(), TuneError> {
    let own = devices(&mut Netlink::open(netns)?)?;
    let ip = address.ip().to_canonical();
    if !ip.is_loopback() && !own.iter().any(|device| device.addresses.contains(&ip)) {
        return Ok(());
    }
    Err(TuneError::usage(format!(
        "{address} is this machine's own, so a probe from here uses the loopback device: probe from another network \
         namespace (--probe-netns), or let a client write its latencies (--latencies)"
    )))
}

impl LatencySource for Probe {
    fn begin(&mut self, interval: Duration, _: bool) -> Result<(), TuneError> {
        if self.is_running {
            self.report()?;
        }
        // The rest of the interval is for the last answers.
        self.send(interval.mul_f64(0.9))
    }

    fn is_ready(&mut self) -> Result<bool, TuneError> {
        Ok(true)
    }

    fn take(&mut self) -> Result<Option<Latency>, TuneError> {
        if !self.is_running {
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
        self.requests.take();
        if let Some(thread) = self.thread.take() {
            // A panic has printed its message already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed() {
        let read = |text: &str| text.parse::<ProbeTarget>();
        let target = |protocol| ProbeTarget { host: "10.0.0.1:80".to_owned(), protocol };
        assert_eq!(read("10.0.0.1:80"), Ok(target(Protocol::Memcached)));
        assert_eq!(read("10.0.0.1:80/http"), Ok(target(Protocol::Http)));
        assert!(read("10.0.0.1:80/gopher").expect_err("no protocol").contains("gopher"));
    }

    #[test]
    fn a_probe_of_the_machine_itself_is_refused() {
        let here = NetNs::current().expect("a namespace");
        for own in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            let message = refuse_loopback(&here, own.parse().expect("an address")).expect_err(own).to_string();
            assert!(message.contains("loopback"), "{message}");
        }
        assert!(refuse_loopback(&here, "192.0.2.1:1".parse().expect("an address")).is_ok());
    }
}
