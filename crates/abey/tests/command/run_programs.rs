//! Servers and clients as Debian installs them, under `abey run --world datapath` over AF_XDP. At the other end are the kernel
//! and the programs' own client tools.
//!
//! Two facts show each time that the datapath carried the traffic: its packet counters, and that the kernel, which has the
//! listening port, has no connection.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Running, SERVER, TestBed, await_that, finish, has};
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::Signal;
use serde_json::Value;

const MODE: &str = "suspend20";

/// A program that runs over the datapath.
pub(crate) struct Served<'a> {
    testbed: &'a TestBed,
    pub(crate) run: Running,
}

/// Returns the test network of these tests, or `None` and prints the reason if a program or the privileges are missing.
pub(crate) fn testbed(queues: u32, programs: &[&str]) -> Option<TestBed> {
    if !programs.iter().all(|program| has(program)) {
        return None;
    }
    Some(TestBed::new(queues)?.with_checksums())
}

/// Returns `abey run --strict` of a program over the datapath.
pub(crate) fn run(testbed: &TestBed, program: &[&str]) -> Command {
    testbed.run(&["--world", "datapath", "--nic", &testbed.nic(), "--mode", MODE, "--strict"], program)
}

impl<'a> Served<'a> {
    /// Starts a server with `processes` processes, and waits until each has its datapath. The kernel takes connections that
    /// come earlier.
    pub(crate) fn start(testbed: &'a TestBed, processes: usize, program: &[&str], port: u16) -> Self {
        let mut run = Running::start(run(testbed, program));
        await_that("the datapaths do not come", || {
            assert!(!run.has_ended(), "{}", run.errors_so_far());
            testbed.datapaths().len() == processes
        });
        assert_ne!(sockets(testbed, "listening", port), "", "the kernel does not show the port");
        Self { testbed, run }
    }

    /// Runs a program in the client's namespace and returns its output.
    #[track_caller]
    pub(crate) fn peer(&self, program: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.arg("60").args(program).stdin(Stdio::null());
        command.in_netns(&self.testbed.client);
        let done = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{program:?}: {}\n{printed}\n{said}\n{}", done.status, self.run.errors_so_far());
        printed
    }

    /// Asserts that the kernel has no connection, ends the server, and asserts that the device is unchanged.
    fn end(self, port: u16) {
        let errors = self.end_with_errors(port);
        assert!(!errors.contains("libabey.so"), "{errors}");
    }

    /// Does the same as [`Self::end`], and returns standard error.
    pub(crate) fn end_with_errors(self, port: u16) -> String {
        let datapaths = self.testbed.datapaths();
        assert!(!datapaths.is_empty() && datapaths.iter().all(|one| packets(one) > 0), "{datapaths:?}");
        assert_eq!(sockets(self.testbed, "connected", port), "", "the kernel has connections");
        self.run.signal(Signal::SIGTERM);
        let ended = self.run.end();
        self.testbed.assert_as_before();
        ended.errors
    }
}

/// Returns the output of `ss` for the server's sockets on a port.
pub(crate) fn sockets(testbed: &TestBed, state: &str, port: u16) -> String {
    let mut ss = testbed.command("ss");
    ss.args(["-Htn", "state", state, &format!("sport = :{port}")]);
    String::from_utf8_lossy(&ss.output().expect("ss").stdout).into_owned()
}

/// Returns the number of packets that a datapath has delivered.
fn packets(datapath: &Value) -> u64 {
    let shards = datapath["shards"].as_array().into_iter().flatten();
    shards.map(|shard| shard["counters"]["packets"].as_u64().expect("a number")).sum()
}

#[test]
fn memcached_passes_its_conformance_test_with_one_thread_and_two_and_by_napi_ids() {
    let ways: [(u32, &[&str]); 4] =
        [(1, &["-t", "1"]), (2, &["-t", "2"]), (1, &["-t", "1", "-N", "1"]), (2, &["-t", "2", "-N", "2"])];
    for (queues, options) in ways {
        let Some(testbed) = testbed(queues, &["memcached", "memccapable"]) else { return };
        let program = [&["memcached", "-u", "memcache", "-p", "11211"], options].concat();
        let served = Served::start(&testbed, 1, &program, 11211);
        let said = served.peer(&["memccapable", "-h", &SERVER.to_string(), "-p", "11211"]);
        assert!(said.contains("All tests passed"), "{said}");
        served.end(11211);
    }
}

#[test]
fn redis_passes_its_benchmark_and_stores_values() {
    let Some(testbed) = testbed(1, &["redis-server", "redis-benchmark", "redis-cli"]) else { return };
    let place = tempfile::tempdir().expect("directory");
    let directory = place.path().to_str().expect("UTF-8");
    let program = ["redis-server", "--port", "6379", "--protected-mode", "no", "--save", "", "--dir", directory];
    let served = Served::start(&testbed, 1, &program, 6379);
    let server = SERVER.to_string();
    let cli = |words: &[&str]| served.peer(&[&["redis-cli", "-h", &server], words].concat());
    // Every command of the benchmark, with and without pipelining.
    for depth in ["1", "16"] {
        let said = served.peer(&["redis-benchmark", "-h", &server, "-q", "-n", "2000", "-c", "20", "-P", depth]);
        assert!(said.contains("MSET") && !said.contains("ERR"), "{said}");
    }
    let long = "x".repeat(100_000);
    assert_eq!(cli(&["set", "long", &long]), "OK\n");
    assert_eq!(cli(&["get", "long"]).trim_end(), long);
    assert_eq!(cli(&["blpop", "nothing", "0.05"]), "\n");
    // While it serves, the server forks to save.
    assert_eq!(cli(&["bgsave"]), "Background saving started\n");
    await_that("the background save does not end", || {
        cli(&["info", "persistence"]).contains("rdb_bgsave_in_progress:0")
    });
    assert!(cli(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    assert!(Path::new(directory).join("dump.rdb").exists());
    served.end(6379);
}

const ASYNCIO: &str = "
import asyncio, sys

async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(b'echo ' + line)
        await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, '', 7200)
    async with server:
        await server.serve_forever()

asyncio.run(main())
";

const ECHO_CLIENT: &str = "
import socket, sys

streams = [socket.create_connection((sys.argv[1], 7200)) for _ in range(20)]
for round in range(50):
    for stream in streams:
        stream.sendall(b'hello %d\\n' % round)
    for stream in streams:
        got = b''
        while not got.endswith(b'\\n'):
            got += stream.recv(100)
        assert got == b'echo hello %d\\n' % round, got
print('good')
";

#[test]
fn an_asyncio_server_echoes() {
    let Some(testbed) = testbed(1, &["python3"]) else { return };
    let served = Served::start(&testbed, 1, &["python3", "-c", ASYNCIO], 7200);
    assert_eq!(served.peer(&["python3", "-c", ECHO_CLIENT, &SERVER.to_string()]), "good\n");
    served.end(7200);
}

/// Returns the text of the page.
fn page() -> String {
    (0..40_000).map(|line| format!("line {line}\n")).collect()
}

/// A server on kernel sockets, on loopback in the server's namespace, behind a proxy.
const UPSTREAM: &str = "
import http.server

class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = b'from upstream\\n' * 1000
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(('127.0.0.1', 8090), Page).serve_forever()
";

fn upstream(testbed: &TestBed) -> Running {
    let mut command = testbed.command("python3");
    command.args(["-c", UPSTREAM]);
    let running = Running::start(command);
    await_that("no upstream", || !sockets(testbed, "listening", 8090).is_empty());
    running
}

fn nginx_configuration(directory: &Path, workers: u32, daemon: &str) -> String {
    let path = directory.display();
    fs::create_dir(directory.join("root")).expect("a directory");
    fs::write(directory.join("root/page"), page()).expect("a page");
    let text = format!(
        "daemon {daemon}; user www-data; worker_processes {workers}; pid {path}/pid; error_log {path}/errors;\n\
         events {{ use epoll; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; client_body_temp_path {path}/body;\n\
         proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi;\n\
         scgi_temp_path {path}/scgi;\n\
         upstream behind {{ server 127.0.0.1:8090; keepalive 4; }}\n\
         server {{ listen 80; root {path}/root; location /up {{ proxy_pass http://behind; }} }} }}\n"
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, text).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

/// Returns a directory that workers of another user may read.
fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().expect("directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    place
}

/// Gets each page several times, over persistent and over new connections.
fn get_pages(served: &Served<'_>) {
    let url = |path: &str| format!("http://{SERVER}/{path}");
    for _ in 0..4 {
        let curl = ["curl", "-sS", "--noproxy", "*", "--max-time", "30"];
        assert_eq!(served.peer(&[&curl[..], &[&url("page"), &url("page")]].concat()), page().repeat(2));
        assert_eq!(served.peer(&[&curl[..], &[&url("up")]].concat()), "from upstream\n".repeat(1000));
    }
    if has("wrk") {
        let said = served.peer(&["wrk", "-t1", "-c16", "-d1s", &url("page")]);
        assert!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "{said}");
    }
}

fn nginx(workers: u32, daemon: &str) {
    let Some(testbed) = testbed(workers, &["nginx", "curl", "python3"]) else { return };
    let (place, _upstream) = (open_directory(), upstream(&testbed));
    let configuration = nginx_configuration(place.path(), workers, daemon);
    let errors = place.path().join("errors");
    let served = Served::start(
        &testbed,
        workers as usize,
        &["nginx", "-e", errors.to_str().expect("UTF-8"), "-c", &configuration],
        80,
    );
    get_pages(&served);
    served.end(80);
    assert_eq!(fs::read_to_string(&errors).unwrap_or_default(), "");
}

#[test]
fn nginx_with_one_worker_serves_files_and_an_upstream() {
    nginx(1, "off");
}

#[test]
fn nginx_with_two_workers_serves_files_and_an_upstream() {
    nginx(2, "off");
}

#[test]
fn nginx_in_the_background_serves_files_and_an_upstream() {
    nginx(1, "on");
}

fn haproxy_configuration(directory: &Path) -> String {
    let text = "global\n  maxconn 1000\n  nbthread 1\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
         frontend front\n  bind :80\n  default_backend behind\n\
         backend behind\n  server one 127.0.0.1:8090\n";
    let file = directory.join("haproxy.cfg");
    fs::write(&file, text).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

#[test]
fn haproxy_forwards_the_upstream() {
    let Some(testbed) = testbed(1, &["haproxy", "curl", "python3"]) else { return };
    let (place, _upstream) = (open_directory(), upstream(&testbed));
    let configuration = haproxy_configuration(place.path());
    for way in [&["-db"][..], &["-W", "-db"]] {
        let served = Served::start(&testbed, 1, &[&["haproxy", "-f", &configuration], way].concat(), 80);
        let url = format!("http://{SERVER}/up");
        for _ in 0..10 {
            let curl = ["curl", "-sS", "--noproxy", "*", "--max-time", "30", &url, &url];
            assert_eq!(served.peer(&curl), "from upstream\n".repeat(2000));
        }
        served.end(80);
    }
}

/// Runs a client over the datapath, which must succeed, and returns its output.
#[track_caller]
fn client(testbed: &TestBed, program: &[&str]) -> String {
    let done = finish(run(testbed, program));
    done.assert_status(0);
    assert!(!done.errors.contains("libabey.so"), "{done:?}");
    done.out
}

const PEER: &str = "198.18.10.2";

#[test]
fn curl_gets_a_page_over_the_datapath() {
    let Some(testbed) = testbed(1, &["curl", "python3"]) else { return };
    let place = tempfile::tempdir().expect("directory");
    fs::write(place.path().join("page"), page()).expect("a page");
    let mut server = Command::new("python3");
    server.args(["-m", "http.server", "-b", PEER, "8000", "-d"]).arg(place.path()).stdin(Stdio::null());
    server.in_netns(&testbed.client);
    let _server = Running::start(server);
    await_at_peer(&testbed, 8000);
    let url = format!("http://{PEER}:8000/page");
    let before = kernel_connections(&testbed);
    assert_eq!(client(&testbed, &["curl", "-sS", "--noproxy", "*", "--max-time", "30", &url, &url]), page().repeat(2));
    assert_eq!(kernel_connections(&testbed), before, "the kernel has opened connections");
}

#[test]
fn iperf3_sends_and_receives_over_the_datapath() {
    let Some(testbed) = testbed(1, &["iperf3"]) else { return };
    let mut server = Command::new("iperf3");
    server.args(["-s", "-B", PEER]).stdin(Stdio::null());
    server.in_netns(&testbed.client);
    let _server = Running::start(server);
    await_at_peer(&testbed, 5201);
    let before = kernel_connections(&testbed);
    for options in [&[][..], &["-R"], &["-P", "3"], &["--bidir"]] {
        let said = client(&testbed, &[&["iperf3", "-c", PEER, "-n", "20M", "--json"], options].concat());
        let document: Value = serde_json::from_str(&said).expect("a document");
        let received = document["end"]["sum_received"]["bytes"].as_u64();
        assert!(received > Some(10_000_000), "{options:?}: {received:?}");
    }
    assert_eq!(kernel_connections(&testbed), before, "the kernel has opened connections");
}

fn await_at_peer(testbed: &TestBed, port: u16) {
    await_that("no server at the peer", || {
        let mut ss = Command::new("ss");
        ss.args(["-Hltn", &format!("sport = :{port}")]);
        ss.in_netns(&testbed.client);
        !ss.output().expect("ss").stdout.is_empty()
    });
}

/// Returns the number of TCP connections that the server's kernel has opened so far.
fn kernel_connections(testbed: &TestBed) -> u64 {
    testbed.kernel_tcp("ActiveOpens")
}
