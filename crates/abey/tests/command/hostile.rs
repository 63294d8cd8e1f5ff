//! Attacks on the command by other users' processes: what they call themselves, what they answer, connections that do nothing,
//! and processes that this PID namespace does not contain.

mod storm;

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use abey_datapath::Runtime;
use abey_datapath::control::{DIRECTORY_VARIABLE, Server};
use abey_nic::{MemoryShape, QueuePair};

use crate::common::{ABEY, HANG_LIMIT, Running, abey, await_some, await_that, finish, has, is_root, which};

/// A datapath of this process with a control socket in a directory of its own.
struct Datapath {
    _runtime: Arc<Runtime>,
    _control: Server,
    directory: tempfile::TempDir,
}

impl Datapath {
    /// Starts one whose NIC has this name.
    fn start(nic: &str) -> Self {
        let (queues, _) = abey_nic::pair(MemoryShape::default()).expect("a pair");
        let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
        let runtime = Runtime::builder().queues(nic, [2, 0, 0, 0, 0, 1], queues, None);
        let runtime = Arc::new(runtime.address([10, 0, 0, 1].into(), 24).build().expect("a runtime"));
        let directory = tempfile::tempdir().expect("a directory");
        let control = runtime.serve_control_in(directory.path()).expect("served");
        Self { _runtime: runtime, _control: control, directory }
    }

    fn found_by(&self, mut command: Command) -> Command {
        command.env(DIRECTORY_VARIABLE, self.directory.path());
        command
    }
}

/// Before: the title of the terminal was set, its screen cleared, and a line of the attacker's stood for one of `abey`.
#[test]
fn names_of_other_processes_do_not_reach_the_terminal_as_control_characters() {
    let datapath = Datapath::start("memory:\u{1b}]0;owned\u{7}\u{1b}[2J\r\nabey: all is well\u{9b}31m\u{202e}");
    for (arguments, shown) in [
        (&["status"][..], r"memory:\u{1b}]0;owned\u{7}\u{1b}[2J\u{d}\u{a}abey: all is well\u{9b}31m\u{202e}"),
        (&["status", "--json"], r"\\u{1b}]0;owned"),
        (&["exporter", "--once", "--interval", "10ms", "--collectors", "datapath"], r"\\u{1b}]0;owned"),
        (&["top", "--batch", "-n", "2", "--interval", "100ms"], r"memory:\u{1b}]0;owned"),
    ] {
        let done = finish(datapath.found_by(abey(arguments)));
        let all = format!("{}{}", done.out, done.errors);
        let hidden = |character: char| character != '\n' && (character.is_control() || character == '\u{202e}');
        assert!(!all.contains(hidden), "{arguments:?}: {all:?}");
        assert!(all.contains(shown), "{arguments:?}: {all}");
    }
}

/// Before: a label of any length for each process, in every scrape.
#[test]
fn labels_from_datapaths_are_limited() {
    let datapath = Datapath::start(&format!("memory:{}", "x".repeat(100_000)));
    let exporter = ["exporter", "--once", "--per-queue", "--interval", "10ms", "--collectors", "datapath"];
    let done = finish(datapath.found_by(abey(&exporter)));
    done.assert_status(0);
    assert!(done.out.contains("abey_datapath_processes{"), "{}", done.out);
    let longest = done.out.lines().filter(|line| !line.starts_with('#')).map(str::len).max();
    assert!(longest < Some(300), "{longest:?}");
}

/// Before: "cannot connect: Success", so that a DaemonSet without hostPID saw no datapath.
#[test]
fn datapaths_of_other_pid_namespaces_are_found() {
    if !is_root() {
        return;
    }
    let datapath = Datapath::start("memory:elsewhere");
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", ABEY]).args(arguments);
        finish(datapath.found_by(command))
    };
    let done = inside(&["status", "--json"]);
    done.assert_status(0);
    let document = done.json();
    assert_eq!(document["datapaths"][0]["nic"], "memory:elsewhere", "{document}");
    let done = inside(&["exporter", "--once", "--interval", "10ms", "--collectors", "datapath"]);
    done.assert_status(0);
    assert!(done.out.contains("abey_scrape_collector_success{collector=\"datapath\"} 1"), "{done:?}");
    assert!(done.out.contains("abey_datapath_processes{device=\"memory:elsewhere\""), "{done:?}");
    let done = inside(&["set", "memory:elsewhere", "--gro-flush-timeout", "30us"]);
    done.assert_status(0);
}

/// Starts an exporter and waits until it serves.
fn exporter(directory: &std::path::Path) -> (Running, SocketAddr) {
    let mut command = abey(&["exporter", "--listen", "127.0.0.1:0", "--collectors", "softnet,datapath"]);
    command.env(DIRECTORY_VARIABLE, directory);
    let running = Running::start(command);
    let address = await_some("it does not serve", || {
        let said = running.errors_so_far();
        said.split_once("http://")?.1.split_once("/metrics")?.0.parse().ok()
    });
    (running, address)
}

/// Returns the number of descriptors that a process has open.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Requests the metrics; `None` if the connection was closed before the answer.
fn scrape(address: SocketAddr) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(HANG_LIMIT)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.contains("abey_scrape_collector_success").then_some(answer)
}

/// Before: sixteen of them kept every other connection waiting for five seconds.
#[test]
fn idle_connections_to_the_exporter_are_closed_for_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let (running, address) = exporter(directory.path());
    let before = descriptors(running.pid());
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address).expect("connected")).collect();
    scrape(address).expect("an answer");
    await_that("at most 64 are open", || descriptors(running.pid()) <= before + 64);
    drop(silent);
    await_that("none is open", || descriptors(running.pid()) <= before);
    running.terminate().assert_status(0);
}

/// Starts to listen while `abey run` is stopped, and is its own client.
const BESIDE_A_STOPPED_BROKER: &str = "
import os, signal, socket, sys
parent = os.getppid()
os.kill(parent, signal.SIGSTOP)
listener = socket.create_server(('0.0.0.0', 0))
client = socket.create_connection(('127.0.0.1', listener.getsockname()[1]))
server, _ = listener.accept()
server.sendall(b'served')
print(client.recv(6).decode(), flush=True)
os.kill(parent, signal.SIGCONT)
";

/// Before: the server blocked for as long as its broker did not answer.
#[test]
fn a_program_whose_broker_is_stopped_uses_the_kernel_and_says_so() {
    if !is_root() || !has("python3") {
        return;
    }
    let nic = format!("memory:abey-test-stopped-{}", std::process::id());
    let python = which("python3").expect("it is installed");
    let python = python.to_str().expect("UTF-8");
    let run =
        ["run", "--world", "datapath", "--nic", &nic, "--mode", "base", "--", python, "-c", BESIDE_A_STOPPED_BROKER];
    let done = finish(abey(&run));
    assert_eq!((done.status.code(), done.out.trim()), (Some(0), "served"), "{done:?}");
    assert_eq!(done.errors.matches("cannot be reached").count(), 1, "{done:?}");
}
