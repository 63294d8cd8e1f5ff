//! Waits for datapath sockets have the kernel's semantics: one script, run over the kernel and over the datapath, prints the
//! same lines.
//!
//! The script (`scenarios.py`) sends commands for its peer, which is this process, to standard output, and prints the
//! results of its waits. Over the kernel it runs without the library, on loopback.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use abey_datapath::Runtime;
use abey_nic::MemoryEnd;
use common::{has, preloaded};

/// A limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(120);

/// The peer's end of a connection.
enum Stream {
    Kernel(std::net::TcpStream),
    Datapath(abey_datapath::TcpStream),
}

enum Listener {
    Kernel(std::net::TcpListener),
    Datapath(abey_datapath::TcpListener),
}

/// The script's peer, which executes its commands.
struct Peer {
    runtime: Option<Runtime>,
    script: IpAddr,
    own: IpAddr,
    streams: Mutex<HashMap<usize, Stream>>,
    listeners: Mutex<HashMap<u16, Listener>>,
    next: Mutex<usize>,
}

impl Peer {
    fn new(runtime: Option<Runtime>, script: IpAddr, own: IpAddr) -> Self {
        Self { runtime, script, own, streams: Mutex::default(), listeners: Mutex::default(), next: Mutex::new(0) }
    }

    fn insert(&self, stream: Stream) -> String {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        self.streams.lock().unwrap().insert(*next, stream);
        next.to_string()
    }

    fn connect(&self, port: u16) -> String {
        let to = SocketAddr::new(self.script, port);
        self.insert(match &self.runtime {
            None => Stream::Kernel(std::net::TcpStream::connect(to).expect("connected")),
            Some(runtime) => Stream::Datapath(
                abey_datapath::TcpStream::connect_timeout(runtime, to, Some(HANG_LIMIT)).expect("connected"),
            ),
        })
    }

    fn listen(&self, port: u16) {
        let at = SocketAddr::new(self.own, port);
        let listener = match &self.runtime {
            None => Listener::Kernel(std::net::TcpListener::bind(at).expect("listens")),
            Some(runtime) => {
                let listener = abey_datapath::TcpListener::bind(runtime, at).expect("listens");
                listener.set_timeout(Some(HANG_LIMIT));
                Listener::Datapath(listener)
            }
        };
        self.listeners.lock().unwrap().insert(port, listener);
    }

    fn accept(&self, port: u16) -> String {
        let accepted = match self.listeners.lock().unwrap().get(&port).expect("listens") {
            Listener::Kernel(listener) => Stream::Kernel(listener.accept().expect("accepted").0),
            Listener::Datapath(listener) => Stream::Datapath(listener.accept().expect("accepted").0),
        };
        self.insert(accepted)
    }

    fn with<R>(&self, number: &str, work: impl FnOnce(&Stream) -> R) -> R {
        work(self.streams.lock().unwrap().get(&number.parse().expect("a number")).expect("a connection"))
    }

    fn remove(&self, number: &str, resets: bool) {
        let stream = self.streams.lock().unwrap().remove(&number.parse().expect("a number")).expect("a connection");
        match stream {
            Stream::Kernel(stream) if resets => {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger).expect("set");
            }
            Stream::Datapath(stream) if resets => stream.set_linger(Some(Duration::ZERO)).expect("set"),
            _ => {}
        }
    }

    /// Executes a command, and returns the answer.
    fn command(self: &Arc<Self>, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        let port = |word: &str| word.parse().expect("a port");
        match words[..] {
            ["connect", to] => return self.connect(port(to)),
            ["listen", at] => self.listen(port(at)),
            ["accept", at] => return self.accept(port(at)),
            ["send", number, text] => self.with(number, |stream| match stream {
                Stream::Kernel(stream) => (&*stream).write_all(text.as_bytes()).expect("written"),
                Stream::Datapath(stream) => stream.write_all(text.as_bytes()).expect("written"),
            }),
            ["shut", number] => self.with(number, |stream| match stream {
                Stream::Kernel(stream) => stream.shutdown(Shutdown::Write).expect("shut"),
                Stream::Datapath(stream) => stream.shutdown(abey_datapath::Shutdown::Write).expect("shut"),
            }),
            ["reset", number] => self.remove(number, true),
            ["close", number] => self.remove(number, false),
            ["later", milliseconds, ..] => {
                let wait = Duration::from_millis(milliseconds.parse().expect("a time"));
                let (peer, rest) = (self.clone(), words[2..].join(" "));
                thread::spawn(move || {
                    thread::sleep(wait);
                    peer.command(&rest);
                });
            }
            _ => return format!("error: {line}"),
        }
        "ok".to_owned()
    }
}

/// A script that is killed when the test ends.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the script with its peer. Returns the lines that it printed.
fn run(mut command: Command, script: IpAddr, own: IpAddr, nic: Option<&str>) -> Vec<String> {
    command.env("SCENARIO_OWN", script.to_string()).env("SCENARIO_PEER", own.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Script(command.spawn().expect("the script starts"));
    let mut input = child.0.stdin.take().expect("piped");
    let output = BufReader::new(child.0.stdout.take().expect("piped"));
    let mut peer = None;
    let mut lines = Vec::new();
    for line in output.lines() {
        let line = line.expect("read");
        let Some(command) = line.strip_prefix('!') else {
            lines.push(line);
            continue;
        };
        // The script has made the NIC before it sends the first command.
        let peer = peer.get_or_insert_with(|| Arc::new(Peer::new(nic.map(|nic| attach(nic, own)), script, own)));
        // A program that does not read the answer may have ended.
        let _ = writeln!(input, "{}", peer.command(command));
    }
    let mut errors = String::new();
    child.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("read");
    let status = child.0.wait().expect("waited for");
    assert!(status.success() && errors.is_empty(), "{status}: {errors}\nlast: {:?}", lines.last());
    lines
}

/// Attaches to the other end of the NIC.
fn attach(nic: &str, own: IpAddr) -> Runtime {
    let end = Instant::now() + HANG_LIMIT;
    loop {
        let mut options = abey_nic::Options::default();
        options.end = MemoryEnd::Attach;
        match Runtime::builder().nic(nic, options).address(own, 24).build() {
            Ok(runtime) => return runtime,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a loopback address that no other test process uses.
fn loopback(last: u8) -> IpAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high.wrapping_add(100).wrapping_add(last), middle, low).into()
}

const SCENARIOS: [&str; 1] = [concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios.py")];

fn over_the_kernel(program: &str, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("SCENARIO_PARAMETERS", has_parameters());
    run(command, loopback(1), loopback(2), None)
}

/// Returns whether this process may set an epoll instance's busy-poll parameters.
fn has_parameters() -> &'static str {
    if abey_linux::epoll::supported().unwrap_or(false) { "1" } else { "0" }
}

/// Runs the script over the datapath; `at` numbers the runs that take place at the same time.
fn over_the_datapath(program: &str, arguments: &[&str], at: u8, mode: &str) -> Vec<String> {
    let nic = format!("memory:abey-waits-{mode}-{at}-{}", std::process::id());
    // Each run has its own addresses, since the kernel sockets of all listeners share a namespace.
    let [.., middle, low] = std::process::id().to_be_bytes();
    let [script, own] = [1, 2].map(|end| Ipv4Addr::new(10, middle, low, 2 * at + end));
    let datapath = format!(r#"{{"nic":"{nic}","mode":"{mode}","addresses":["{script}/24"]}}"#);
    let mut command = preloaded(program, &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
    command.args(arguments).env("SCENARIO_PARAMETERS", has_parameters());
    run(command, script.into(), own.into(), Some(&nic))
}

fn assert_same(expected: &[String], actual: &[String], mode: &str) {
    let mut scenario = "";
    for (at, (expected, actual)) in expected.iter().zip(actual).enumerate() {
        scenario = expected.strip_prefix("# ").unwrap_or(scenario);
        assert_eq!(actual, expected, "{mode}, {scenario}, line {at}");
    }
    assert_eq!(actual.len(), expected.len(), "{mode}");
}

#[test]
fn waits_are_as_over_the_kernel() {
    if !has("python3") {
        return;
    }
    // The runs sleep most of the time.
    thread::scope(|scope| {
        let kernel = scope.spawn(|| over_the_kernel("python3", &SCENARIOS));
        let in_mode = |(at, mode)| (mode, scope.spawn(move || over_the_datapath("python3", &SCENARIOS, at, mode)));
        let modes = [(0, "base"), (1, "suspend20"), (2, "fullbusy"), (3, "sockbusy50")].map(in_mode);
        let expected = kernel.join().expect("done");
        assert!(expected.len() > 50, "{expected:?}");
        for (mode, actual) in modes {
            assert_same(&expected, &actual.join().expect("done"), mode);
        }
    });
}

#[test]
fn a_thread_is_cancelled_in_its_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("cancel");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cancel.c");
    let Ok(status) = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status() else {
        eprintln!("skipped: there is no C compiler");
        return;
    };
    assert!(status.success(), "{status}");
    let program = program.to_str().expect("a name");
    let expected = run(Command::new(program), loopback(3), loopback(4), None);
    assert_eq!(expected.iter().filter(|line| *line == "cancelled").count(), 18, "{expected:?}");
    let actual = over_the_datapath(program, &[], 4, "base");
    assert_same(&expected, &actual, "base");
}
