//! Unmodified servers under `abey run --mode suspend20 --strict`: they serve load from another namespace, and the poll counters
//! and `abey status` show that they busy poll. Afterwards every setting is restored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::common::{ABEY, HANG_LIMIT, Running, TestBed, at, await_some, await_that, finish, which};
use abey_linux::polls::PollCounter;
use abey_linux::process::{self, SocketState};
use nix::sys::signal::Signal;

/// The mode every server here runs under.
const MODE: &str = "suspend20";

/// A server under the mode, which listens and whose settings are in force.
struct Served<'a> {
    testbed: &'a TestBed,
    run: Running,
}

impl<'a> Served<'a> {
    /// Starts the server. Without `--dev` in `options` its device is found by the address it listens on.
    fn start(testbed: &'a TestBed, address: SocketAddr, options: &[&str], program: &[&str]) -> Self {
        let run = Running::start(testbed.run(&[&["--mode", MODE, "--strict"], options].concat(), program));
        let mut served = Self { testbed, run };
        served.in_client(|| drop(connect(address)));
        await_that("the mode is not in force", || testbed.has_mode(MODE));
        assert!(!served.run.has_ended());
        served
    }

    /// Runs a closure in the client's namespace.
    fn in_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.testbed.client.run(work).expect("namespace")
    }

    /// Returns the descendants of `abey run` except its guard.
    fn processes(&self) -> Vec<u32> {
        let guard = self.run.await_guard();
        let mut below = process::descendants(self.run.pid()).expect("/proc");
        below.retain(|pid| *pid != guard);
        below
    }

    /// Runs bounded loads until the poll counter shows that the server's threads received packets by busy polling.
    fn prove_active(&self, mut load: impl FnMut() + Send) {
        let threads: Vec<u32> =
            self.processes().into_iter().flat_map(|pid| process::threads(pid).expect("/proc")).collect();
        let mut counter = PollCounter::open_for(&self.testbed.device.name, &[], &threads).expect("root may count");
        let since = Instant::now();
        loop {
            self.in_client(&mut load);
            let counts = counter.read().expect("counts");
            if counts.busy_with_work > 0 {
                break;
            }
            assert!(since.elapsed() < HANG_LIMIT, "no packet by busy polling: {counts:?}");
        }
        self.status_says_active(load);
    }

    /// Asserts that `abey status` reports the mode as active while the server is under load.
    fn status_says_active(&self, mut load: impl FnMut() + Send) {
        let guard = self.run.await_guard();
        let below_abey = |pid: &u32| process::inspect(*pid).is_ok_and(|view| view.parent == self.run.pid());
        let first = self.processes().into_iter().find(|pid| *pid != guard && below_abey(pid)).expect("a program");
        let pid = first.to_string();
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The limit ends this thread if the assertion below panics.
                let since = Instant::now();
                while !enough.load(Ordering::Relaxed) && since.elapsed() < HANG_LIMIT {
                    self.in_client(&mut load);
                }
            });
            let since = Instant::now();
            // The interval of `abey status` can fall between two of the bounded loads.
            let last = loop {
                let done = finish(crate::common::abey(&["status", "--pid", &pid, "--interval", "200ms"]));
                if done.status.success() || since.elapsed() > HANG_LIMIT / 2 {
                    break done;
                }
            };
            enough.store(true, Ordering::Relaxed);
            assert!(last.assert_status(0).out.contains(&format!("{MODE} is active for")), "{last:?}");
        });
    }

    /// Ends the server with SIGTERM and asserts that everything is restored.
    fn end(self) {
        let processes = self.processes();
        self.run.signal(Signal::SIGTERM);
        let done = self.run.end();
        done.assert_status(0);
        let said = done.errors.lines().filter(|line| line.contains("abey: ") && !line.contains("background"));
        assert_eq!(said.count(), 0, "{done:?}");
        assert!(processes.iter().all(|pid| !crate::common::runs(*pid)));
        self.testbed.assert_as_before();
    }
}

/// Connects, as soon as the server listens.
fn connect(address: SocketAddr) -> TcpStream {
    let stream = await_some("the server does not come", || TcpStream::connect(address).ok());
    stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(HANG_LIMIT))).expect("set");
    stream
}

/// Sends a request on every connection before it reads the first answer, so that packets arrive while the server works.
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

/// Returns the path of an installed program, or prints that it is missing.
fn installed(program: &str) -> Option<String> {
    crate::common::has(program).then(|| which(program).expect("just found").to_str().expect("UTF-8").to_owned())
}

#[test]
fn memcached() {
    let (Some(testbed), Some(memcached)) = (TestBed::new(1), installed("memcached")) else { return };
    let address = at(11211);
    let ip = address.ip().to_string();
    let program = [&memcached, "-u", "root", "-l", &ip, "-p", "11211", "-U", "0", "-t", "2"];
    let served = Served::start(&testbed, address, &[], &program);
    let target = address.to_string();
    served.prove_active(|| {
        let load = ["load", "memcached", &target, "--rate", "5k", "--connections", "8", "--duration", "200ms"];
        let mut command = crate::common::abey(&[&load[..], &["--warmup", "20ms", "--keys", "100", "--json"]].concat());
        abey_testbed::spawn::SpawnExt::in_netns(&mut command, &testbed.client);
        let row = &finish(command).assert_status(0).json()["rows"][0];
        assert!(row["qps"].as_f64().is_some_and(|qps| qps > 0.0) && row["misses"] == 0, "{row}");
    });
    served.end();
}

#[test]
fn the_servers_of_abey_itself() {
    let Some(testbed) = TestBed::new(1) else { return };
    let address = at(7100);
    let target = address.to_string();
    let served = Served::start(&testbed, address, &[], &[ABEY, "serve", "rr", "--listen", &target]);
    served.prove_active(|| {
        let load = ["load", "rr", &target, "--rate", "5k", "--flows", "8", "--duration", "200ms", "--warmup", "20ms"];
        let mut command = crate::common::abey(&load);
        abey_testbed::spawn::SpawnExt::in_netns(&mut command, &testbed.client);
        finish(command).assert_status(0);
    });
    served.end();
}

#[test]
fn redis() {
    let (Some(testbed), Some(redis)) = (TestBed::new(1), installed("redis-server")) else { return };
    let here = tempfile::tempdir().expect("directory");
    let address = at(6379);
    let (ip, directory) = (address.ip().to_string(), here.path().to_str().expect("UTF-8"));
    let program = [&redis, "--bind", &ip, "--port", "6379", "--save", "", "--dir", directory, "--protected-mode", "no"];
    let served = Served::start(&testbed, address, &[], &program);
    let mut streams: Vec<TcpStream> = served.in_client(|| (0..8).map(|_| connect(address)).collect());
    rounds(&mut streams[..1], 1, b"SET answer 42\r\n", |answer| answer == b"+OK\r\n");
    served.prove_active(|| rounds(&mut streams, 100, b"GET answer\r\n", |answer| answer == b"$2\r\n42\r\n"));
    drop(streams);
    served.end();
}

/// Echoes lines, and exits with 0 on SIGTERM.
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
    let (Some(testbed), Some(python)) = (TestBed::new(1), installed("python3")) else { return };
    let address = at(7200);
    let ip = address.ip().to_string();
    let served = Served::start(&testbed, address, &[], &[&python, "-c", ASYNCIO, &ip, "7200"]);
    let mut streams: Vec<TcpStream> = served.in_client(|| (0..8).map(|_| connect(address)).collect());
    served.prove_active(|| rounds(&mut streams, 50, b"hello\n", |answer| answer == b"echo hello\n"));
    drop(streams);
    served.end();
}

/// Writes a configuration of nginx with two workers, each with its own listener.
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

/// Number of connections. That all of them hash to one of the two queues has a probability of 2 in 2^32.
const CONNECTIONS: usize = 32;

fn nginx(daemon: &str, port: u16) {
    let (Some(testbed), Some(nginx)) = (TestBed::new(2), installed("nginx")) else { return };
    let (here, address) = (tempfile::tempdir().expect("directory"), at(port));
    let configuration = nginx_configuration(here.path(), address, daemon);
    let errors = here.path().join("errors");
    let program = [&nginx, "-e", errors.to_str().expect("UTF-8"), "-c", &configuration];
    let served = Served::start(&testbed, address, &["--dev", &testbed.device.name, "--steer"], &program);
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

/// Asserts that every connection is with the worker of its receive queue, and that each worker has connections.
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
    assert_eq!(napis, served.testbed.napi_ids().into_iter().collect(), "{by_worker:?}");
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
