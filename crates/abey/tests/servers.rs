//! Servers that nobody patched, under `abey run --mode suspend20 --strict`: they serve load from another namespace, and
//! counters and `abey status` say that they busy poll while they do; afterwards every setting is as before.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use abey_linux::polls::PollCounter;
use abey_linux::process::{self, SocketState};
use common::{ABEY, Bed, DEADLINE, Running, at, await_some, await_that, finish, which};
use nix::sys::signal::Signal;

/// The mode every server here runs under.
const MODE: &str = "suspend20";

/// A server under the mode, up and with its settings in force.
struct Served<'a> {
    bed: &'a Bed,
    run: Running,
}

impl<'a> Served<'a> {
    /// Starts it with the device named or, with `None`, found by the address it listens on.
    fn start(bed: &'a Bed, address: SocketAddr, options: &[&str], program: &[&str]) -> Self {
        let run = Running::start(bed.run(&[&["--mode", MODE, "--strict"], options].concat(), program));
        let mut served = Self { bed, run };
        served.in_client(|| drop(connect(address)));
        await_that("the mode is not in force", || bed.has_mode(MODE));
        assert!(!served.run.has_ended());
        served
    }

    /// Runs something on the other side of the wire.
    fn in_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.bed.client.run(work).expect("namespace")
    }

    /// Everything below `abey run`, but for it and its guard.
    fn processes(&self) -> Vec<u32> {
        let guard = self.run.await_guard();
        let mut below = process::descendants(self.run.pid()).expect("/proc");
        below.retain(|pid| *pid != guard);
        below
    }

    /// Puts load on it, a bounded amount at a time, until its threads were seen to find packets by busy polling.
    fn prove_active(&self, mut load: impl FnMut() + Send) {
        let threads: Vec<u32> =
            self.processes().into_iter().flat_map(|pid| process::threads(pid).expect("/proc")).collect();
        let mut counter = PollCounter::open_for(&self.bed.device.name, &[], &threads).expect("root may count");
        let since = Instant::now();
        loop {
            self.in_client(&mut load);
            let counts = counter.read().expect("counts");
            if counts.busy_with_work > 0 {
                break;
            }
            assert!(since.elapsed() < DEADLINE, "no packet by busy polling: {counts:?}");
        }
        self.status_says_active(load);
    }

    /// What a user is told who asks while the server is under load.
    fn status_says_active(&self, mut load: impl FnMut() + Send) {
        let guard = self.run.await_guard();
        let below_abey = |pid: &u32| process::inspect(*pid).is_ok_and(|view| view.parent == self.run.pid());
        let first = self.processes().into_iter().find(|pid| *pid != guard && below_abey(pid)).expect("a program");
        let pid = first.to_string();
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Also when the test fails elsewhere, it ends.
                let since = Instant::now();
                while !enough.load(Ordering::Relaxed) && since.elapsed() < DEADLINE {
                    self.in_client(&mut load);
                }
            });
            let since = Instant::now();
            // A moment without load between two bounded ones can fall into what is counted.
            let last = loop {
                let done = finish(common::abey(&["status", "--pid", &pid, "--interval", "200ms"]));
                if done.status.success() || since.elapsed() > DEADLINE / 3 {
                    break done;
                }
            };
            enough.store(true, Ordering::Relaxed);
            assert!(last.assert_status(0).out.contains(&format!("{MODE} is active for")), "{last:?}");
        });
    }

    /// Ends it as a user does, and finds everything as before.
    fn end(self) {
        let processes = self.processes();
        self.run.signal(Signal::SIGTERM);
        let done = self.run.end();
        done.assert_status(0);
        let said = done.errors.lines().filter(|line| line.contains("abey: ") && !line.contains("background"));
        assert_eq!(said.count(), 0, "{done:?}");
        assert!(processes.iter().all(|pid| !common::runs(*pid)));
        self.bed.assert_as_before();
    }
}

/// Connects, as soon as somebody listens.
fn connect(address: SocketAddr) -> TcpStream {
    let stream = await_some("the server does not come", || TcpStream::connect(address).ok());
    stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(DEADLINE))).expect("set");
    stream
}

/// Sends a request on every connection before it reads the first answer, so that packets come while the server works.
fn rounds(streams: &mut [TcpStream], count: usize, request: &[u8], is_answer: impl Fn(&[u8]) -> bool) {
    for _ in 0..count {
        streams.iter_mut().for_each(|stream| stream.write_all(request).expect("sent"));
        for stream in streams.iter_mut() {
            let mut answer = Vec::new();
            while !is_answer(&answer) {
                let mut part = [0; 4096];
                match stream.read(&mut part) {
                    Ok(0) => panic!("closed after {:?}", String::from_utf8_lossy(&answer)),
                    Ok(length) => answer.extend_from_slice(&part[..length]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
                }
            }
        }
    }
}

/// The path of an installed program, or a printed reason.
fn installed(program: &str) -> Option<String> {
    common::has(program).then(|| which(program).expect("just found").to_str().expect("UTF-8").to_owned())
}

#[test]
fn memcached() {
    let (Some(bed), Some(memcached)) = (Bed::new(1), installed("memcached")) else { return };
    let address = at(11211);
    let ip = address.ip().to_string();
    let program = [&memcached, "-u", "root", "-l", &ip, "-p", "11211", "-U", "0", "-t", "2"];
    let served = Served::start(&bed, address, &[], &program);
    let target = address.to_string();
    served.prove_active(|| {
        let load = ["load", "memcached", &target, "--rate", "5k", "--connections", "8", "--duration", "200ms"];
        let mut command = common::abey(&[&load[..], &["--warmup", "20ms", "--keys", "100", "--json"]].concat());
        abey_linux::spawn::CommandPlace::in_netns(&mut command, &bed.client);
        let row = &finish(command).assert_status(0).json()["rows"][0];
        assert!(row["qps"].as_f64().is_some_and(|qps| qps > 0.0) && row["misses"] == 0, "{row}");
    });
    served.end();
}

#[test]
fn the_servers_of_abey_itself() {
    let Some(bed) = Bed::new(1) else { return };
    let address = at(7100);
    let target = address.to_string();
    let served = Served::start(&bed, address, &[], &[ABEY, "serve", "rr", "--listen", &target]);
    served.prove_active(|| {
        let load = ["load", "rr", &target, "--rate", "5k", "--flows", "8", "--duration", "200ms", "--warmup", "20ms"];
        let mut command = common::abey(&load);
        abey_linux::spawn::CommandPlace::in_netns(&mut command, &bed.client);
        finish(command).assert_status(0);
    });
    served.end();
}

#[test]
fn redis() {
    let (Some(bed), Some(redis)) = (Bed::new(1), installed("redis-server")) else { return };
    let here = tempfile::tempdir().expect("directory");
    let address = at(6379);
    let (ip, directory) = (address.ip().to_string(), here.path().to_str().expect("UTF-8"));
    let program = [&redis, "--bind", &ip, "--port", "6379", "--save", "", "--dir", directory, "--protected-mode", "no"];
    let served = Served::start(&bed, address, &[], &program);
    let mut streams: Vec<TcpStream> = served.in_client(|| (0..8).map(|_| connect(address)).collect());
    rounds(&mut streams[..1], 1, b"SET answer 42\r\n", |answer| answer == b"+OK\r\n");
    served.prove_active(|| rounds(&mut streams, 100, b"GET answer\r\n", |answer| answer == b"$2\r\n42\r\n"));
    drop(streams);
    served.end();
}

/// Echoes lines; ends well on SIGTERM.
const ASYNCIO: &str = "
import asyncio, signal, sys

async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(b'echo ' + line)
    writer.close()

async def main():
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    await ended.wait()
    server.close()

asyncio.run(main())
";

#[test]
fn pythons_asyncio() {
    let (Some(bed), Some(python)) = (Bed::new(1), installed("python3")) else { return };
    let address = at(7200);
    let ip = address.ip().to_string();
    let served = Served::start(&bed, address, &[], &[&python, "-c", ASYNCIO, &ip, "7200"]);
    let mut streams: Vec<TcpStream> = served.in_client(|| (0..8).map(|_| connect(address)).collect());
    served.prove_active(|| rounds(&mut streams, 50, b"hello\n", |answer| answer == b"echo hello\n"));
    drop(streams);
    served.end();
}

/// nginx with two workers, each with a listener of its own.
fn nginx_configuration(directory: &Path, address: SocketAddr, daemon: &str) -> String {
    let path = directory.display();
    let text = format!(
        "daemon {daemon}; user root; worker_processes 2; pid {path}/pid; error_log {path}/errors;\n\
         events {{ use epoll; multi_accept on; }}\n\
         http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {path}/body;\n\
         proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi;\n\
         scgi_temp_path {path}/scgi;\n\
         server {{ listen {address} reuseport; location / {{ return 200 'served\\n'; }} }} }}\n"
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, text).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

/// Enough that a queue without a connection is out of the question: 2 in 2^32.
const CONNECTIONS: usize = 32;

fn nginx(daemon: &str, port: u16) {
    let (Some(bed), Some(nginx)) = (Bed::new(2), installed("nginx")) else { return };
    let (here, address) = (tempfile::tempdir().expect("directory"), at(port));
    let configuration = nginx_configuration(here.path(), address, daemon);
    let errors = here.path().join("errors");
    let program = [&nginx, "-e", errors.to_str().expect("UTF-8"), "-c", &configuration];
    let served = Served::start(&bed, address, &["--dev", &bed.device.name, "--steer"], &program);
    await_that("the workers do not come", || served.processes().len() == 3);
    let mut streams: Vec<TcpStream> = served.in_client(|| (0..CONNECTIONS).map(|_| connect(address)).collect());
    let request = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let is_answer = |answer: &[u8]| answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(b"\r\n\r\nserved\n");
    served.prove_active(|| rounds(&mut streams, 20, request, is_answer));
    assert_each_queue_has_its_worker(&served, streams.len());
    drop(streams);
    served.end();
    assert_eq!(fs::read_to_string(&errors).unwrap_or_default(), "");
}

/// Every connection is with the worker of the queue it arrives on, and each of the workers has some.
fn assert_each_queue_has_its_worker(served: &Served<'_>, connections: usize) {
    let mut by_worker = BTreeMap::<u32, BTreeMap<u32, usize>>::new();
    for pid in served.processes() {
        let view = process::inspect(pid).expect("it runs");
        let connected = view.sockets.iter().filter(|socket| socket.state == SocketState::Connected);
        for socket in connected {
            let napi = socket.napi_id.expect("requests have come through a NAPI instance");
            *by_worker.entry(pid).or_default().entry(napi).or_default() += 1;
        }
    }
    assert!(by_worker.len() == 2 && by_worker.values().all(|napis| napis.len() == 1), "{by_worker:?}");
    let napis: BTreeSet<u32> = by_worker.values().flat_map(BTreeMap::keys).copied().collect();
    assert_eq!(napis, served.bed.napi_ids().into_iter().collect(), "{by_worker:?}");
    assert_eq!(by_worker.values().flat_map(BTreeMap::values).sum::<usize>(), connections, "{by_worker:?}");
}

#[test]
fn nginx_has_a_worker_for_each_queue() {
    nginx("off", 8080);
}

#[test]
fn nginx_in_the_background_has_a_worker_for_each_queue() {
    nginx("on", 8081);
}
