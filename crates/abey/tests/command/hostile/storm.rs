//! A storm of hostile clients at every socket of Abey's: the broker, a control socket, the exporter and the shared-memory NIC,
//! beside a server under load. Descriptors and memory do not grow, and every service answers.
//!
//! The test takes two seconds. By hand, with 1,000 clients a second for a minute, and the server's latencies in the output:
//! `ABEY_STORM_SECONDS=60 cargo test --release -p abey --test command hostile::storm -- --nocapture`.

use std::io::{IoSlice, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abey_datapath::control::DIRECTORY_VARIABLE;
use abey_testbed::namespace::as_user;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with,
};

use super::{descriptors, exporter, scrape};
use crate::common::{ABEY, Running, abey, await_some, await_that, finish, is_root};

const OTHER: u32 = 65_533;
/// Hostile clients a second, at all sockets together.
const RATE: u64 = 1000;
/// Connections that each attacker leaves open.
const HELD: usize = 200;
/// Growth of a process between two storms that is not called growth, in KiB: an allocator keeps what was in use at one moment.
const SLACK: u64 = 4096;

/// Where clients connect to.
#[derive(Clone)]
enum Target {
    Unix { address: SocketAddrUnix, kind: SocketType, user: u32 },
    Tcp(SocketAddr),
}

/// The services, and a server under load.
struct Services {
    nic: String,
    server: Running,
    runner: Running,
    exporter: Running,
    metrics: SocketAddr,
    directory: tempfile::TempDir,
}

impl Services {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let nic = format!("memory:abey-test-storm-{}", std::process::id());
        let found_by = |mut command: Command| {
            command.env(DIRECTORY_VARIABLE, directory.path());
            Running::start(command)
        };
        let server = found_by(abey(&["serve", "kv", "--nic", &nic]));
        await_that("it does not listen", || server.out_so_far().contains("listening on"));
        let (metrics_of, metrics) = exporter(directory.path());
        let broker_nic = format!("{nic}-broker");
        let runner = found_by(abey(&[
            "run",
            "--world",
            "datapath",
            "--nic",
            &broker_nic,
            "--mode",
            "base",
            "--",
            "sleep",
            "1000",
        ]));
        Self { nic, server, runner, exporter: metrics_of, metrics, directory }
    }

    fn targets(&self) -> Vec<Target> {
        let abstract_name = |name: &str| SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        let prefix = format!("@abey-broker/{}/", self.runner.pid());
        let broker = await_some("no broker", || {
            let all = std::fs::read_to_string("/proc/net/unix").expect("readable");
            all.split_whitespace().find(|word| word.starts_with(&prefix)).map(|name| name[1..].to_owned())
        });
        let nic = self.nic.strip_prefix("memory:").expect("a name");
        let packets =
            |name: &str| Target::Unix { address: abstract_name(name), kind: SocketType::SEQPACKET, user: OTHER };
        let control = SocketAddrUnix::new(self.control()).expect("a path");
        vec![
            packets(&broker),
            packets(&format!("abey-nic/0/{nic}")),
            // Only root and the own user reach it.
            Target::Unix { address: control, kind: SocketType::STREAM, user: 0 },
            Target::Tcp(self.metrics),
        ]
    }

    fn control(&self) -> PathBuf {
        let own = format!("{}-0.sock", self.server.pid());
        let path = self.directory.path().join(own);
        await_that("no control socket", || path.exists());
        path
    }

    fn processes(&self) -> [u32; 3] {
        [self.server.pid(), self.runner.pid(), self.exporter.pid()]
    }

    /// Runs a load, and returns its 99th percentile in microseconds.
    fn load(&self, seconds: u64) -> f64 {
        let duration = format!("{seconds}s");
        let arguments = ["load", "memcached", "10.0.0.1:11211", "--nic", &self.nic, "--keys", "100", "--rate", "1k"];
        let mut command = Command::new(ABEY);
        command.args(arguments).args(["--warmup", "100ms", "--timeout", "60s", "--json", "--duration", &duration]);
        let done = finish(command);
        done.assert_status(0);
        let document = done.json();
        let row = &document["rows"][0];
        assert_eq!((&row["errors"], &row["misses"]), (&0.into(), &0.into()), "{row}");
        row["p99_us"].as_f64().expect("a number")
    }

    fn assert_every_service_answers(&self) {
        await_some("the exporter does not answer", || scrape(self.metrics));
        let mut status = abey(&["status", "--json"]);
        status.env(DIRECTORY_VARIABLE, self.directory.path());
        let document = finish(status).json();
        assert_eq!(document["datapaths"][0]["nic"], self.nic.as_str(), "{document}");
    }
}

/// Returns the resident memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// What a client sends: nothing, random bytes, or a part of what the service expects.
fn bytes(random: &mut StdRng) -> Vec<u8> {
    const LIKELY: [&[u8]; 9] = [
        br#"{"claim":{"token":"0123456789abcdef0123456789abcdef","is_forked":true}}"#,
        br#""engage""#,
        br#"{"report_failure":"\u001b[2J"}"#,
        b"abeynic1",
        b"{\"version\":1,\"request\":\"status\"}",
        b"{\"version\":1,\"request\":\"warp\"}\n",
        b"{\"version\":1,\"request\":{\"set\":{\"napis\":[0],",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
        b"GET /metrics HTTP/1.0\r\n\r\n",
    ];
    let mut bytes = match random.random_range(0..4) {
        0 => Vec::new(),
        1 => vec![0; random.random_range(1..6000)],
        _ => LIKELY[random.random_range(0..LIKELY.len())].to_vec(),
    };
    match random.random_range(0..3) {
        0 => random.fill_bytes(&mut bytes),
        1 => bytes.truncate(random.random_range(0..=bytes.len())),
        _ => {}
    }
    bytes
}

/// Connects and sends something, at times with descriptors. `None` if the service has no room at the moment.
fn visit(target: &Target, random: &mut StdRng) -> Option<OwnedFd> {
    let message = bytes(random);
    match target {
        Target::Tcp(address) => {
            let mut stream = TcpStream::connect(address).ok()?;
            stream.set_nonblocking(true).ok()?;
            let _ = stream.write_all(&message);
            Some(stream.into())
        }
        Target::Unix { address, kind, .. } => {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, *kind, flags, None).expect("a socket");
            connect(&socket, address).ok()?;
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let passed = [socket.as_fd(); 3];
            if random.random_bool(0.3) {
                control.push(SendAncillaryMessage::ScmRights(&passed));
            }
            let _ = sendmsg(&socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
            Some(socket)
        }
    }
}

/// Sends clients to a target until `stop` is set, some of which stay.
fn attack(target: &Target, rate: u64, seed: u64, stop: &AtomicBool, visits: &AtomicU64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut held = Vec::new();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if let Some(connection) = visit(target, &mut random) {
            visits.fetch_add(1, Ordering::Relaxed);
            if held.len() == HELD {
                held.swap_remove(random.random_range(0..HELD));
            }
            if random.random_bool(0.5) {
                held.push(connection);
            }
        }
        next += Duration::from_nanos(1_000_000_000 / rate);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Ends a storm when dropped, also by a panic.
struct EndOfStorm<'a>(&'a AtomicBool);

impl Drop for EndOfStorm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` during a storm. Returns its result, and how many clients had connected.
fn during_a_storm<T: Send>(targets: &[Target], seed: u64, work: impl FnOnce() -> T + Send) -> (T, u64) {
    let (stop, visits) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop, visits) = (&stop, &visits);
    std::thread::scope(|scope| {
        for (number, target) in targets.iter().enumerate() {
            let rate = RATE / targets.len() as u64;
            let user = if let Target::Unix { user, .. } = target { *user } else { OTHER };
            scope.spawn(move || as_user(user, || attack(target, rate, seed + number as u64, stop, visits)));
        }
        let end = EndOfStorm(stop);
        let done = work();
        drop(end);
        (done, visits.load(Ordering::Relaxed))
    })
}

#[test]
fn nothing_grows_and_every_service_answers() {
    if !is_root() {
        return;
    }
    let seconds = std::env::var("ABEY_STORM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let services = Services::start();
    let targets = services.targets();
    let quiet = services.load(seconds.min(20));
    let open = || services.processes().map(descriptors);
    let before = open();
    let (_, first) = during_a_storm(&targets, 1, || services.load(seconds.div_ceil(4)));
    let after_first = services.processes().map(resident);
    let (stormy, second) = during_a_storm(&targets, 1000, || {
        let stormy = services.load(seconds);
        services.assert_every_service_answers();
        stormy
    });
    assert!(first > 0 && second > 0);
    await_that("descriptors stay open", || open().iter().zip(before).all(|(now, before)| *now <= before));
    let after = services.processes().map(resident);
    for (now, before) in after.iter().zip(after_first) {
        assert!(*now <= before + SLACK, "{after_first:?} KiB, then {after:?}");
    }
    services.assert_every_service_answers();
    let memory = format!("{after_first:?} KiB, then {after:?}");
    eprintln!("{second} clients; p99 {quiet} us without, {stormy} us with them; memory {memory}");
    services.exporter.terminate().assert_status(0);
}
