//! Programs wait for the datapath's sockets as for the kernel's: one script in both worlds, line by line the same.
//!
//! The script (`scenarios.py`) tells this process what its peer is to do, over its standard output, and prints what its
//! waits told. In the kernel's world it runs without the library, over loopback.

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

/// How long anything that must happen may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// The peer's end of a connection.
enum Stream {
    Kernel(std::net::TcpStream),
    Ours(abey_datapath::TcpStream),
}

enum Listener {
    Kernel(std::net::TcpListener),
    Ours(abey_datapath::TcpListener),
}

/// Who does what the script says.
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

    fn keep(&self, stream: Stream) -> String {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        self.streams.lock().unwrap().insert(*next, stream);
        next.to_string()
    }

    fn connect(&self, port: u16) -> String {
        let to = SocketAddr::new(self.script, port);
        self.keep(match &self.runtime {
            None => Stream::Kernel(std::net::TcpStream::connect(to).expect("connected")),
            Some(runtime) => {
                Stream::Ours(abey_datapath::TcpStream::connect_timeout(runtime, to, Some(DEADLINE)).expect("connected"))
            }
        })
    }

    fn listen(&self, port: u16) {
        let at = SocketAddr::new(self.own, port);
        let listener = match &self.runtime {
            None => Listener::Kernel(std::net::TcpListener::bind(at).expect("listens")),
            Some(runtime) => {
                let listener = abey_datapath::TcpListener::bind(runtime, at).expect("listens");
                listener.set_timeout(Some(DEADLINE));
                Listener::Ours(listener)
            }
        };
        self.listeners.lock().unwrap().insert(port, listener);
    }

    fn accept(&self, port: u16) -> String {
        let accepted = match self.listeners.lock().unwrap().get(&port).expect("listens") {
            Listener::Kernel(listener) => Stream::Kernel(listener.accept().expect("accepted").0),
            Listener::Ours(listener) => Stream::Ours(listener.accept().expect("accepted").0),
        };
        self.keep(accepted)
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
            Stream::Ours(stream) if resets => stream.set_linger(Some(Duration::ZERO)).expect("set"),
            _ => {}
        }
    }

    /// Does what a line says, and answers.
    fn command(self: &Arc<Self>, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        let port = |word: &str| word.parse().expect("a port");
        match words[..] {
            ["connect", to] => return self.connect(port(to)),
            ["listen", at] => self.listen(port(at)),
            ["accept", at] => return self.accept(port(at)),
            ["send", number, text] => self.with(number, |stream| match stream {
                Stream::Kernel(stream) => (&*stream).write_all(text.as_bytes()).expect("written"),
                Stream::Ours(stream) => stream.write_all(text.as_bytes()).expect("written"),
            }),
            ["shut", number] => self.with(number, |stream| match stream {
                Stream::Kernel(stream) => stream.shutdown(Shutdown::Write).expect("shut"),
                Stream::Ours(stream) => stream.shutdown(abey_datapath::Shutdown::Write).expect("shut"),
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

/// A script that ends with the test.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the script with its peer; what it printed.
fn run(mut command: Command, script: IpAddr, own: IpAddr, nic: Option<&str>) -> Vec<String> {
    command.env("SCENARIO_OWN", script.to_string()).env("SCENARIO_PEER", own.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Script(command.spawn().expect("the script starts"));
    let mut input = child.0.stdin.take().expect("piped");
    let output = BufReader::new(child.0.stdout.take().expect("piped"));
    let mut peer = None;
    let mut said = Vec::new();
    for line in output.lines() {
        let line = line.expect("read");
        let Some(command) = line.strip_prefix('!') else {
            said.push(line);
            continue;
        };
        // The script has made the NIC by the time it has something for its peer to do.
        let peer = peer.get_or_insert_with(|| Arc::new(Peer::new(nic.map(|nic| attach(nic, own)), script, own)));
        // A program that does not ask for the answer may have ended by now.
        let _ = writeln!(input, "{}", peer.command(command));
    }
    let mut errors = String::new();
    child.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("read");
    let status = child.0.wait().expect("waited for");
    assert!(status.success() && errors.is_empty(), "{status}: {errors}\nlast: {:?}", said.last());
    said
}

/// The other end of the wire.
fn attach(nic: &str, own: IpAddr) -> Runtime {
    let end = Instant::now() + DEADLINE;
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

/// Loopback addresses that no other test process has.
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

/// Whether the kernel, and this process, may set an epoll instance's busy polling.
fn has_parameters() -> &'static str {
    if abey_linux::epoll::supported().unwrap_or(false) { "1" } else { "0" }
}

/// Of several that run at the same time, this is the `at`th.
fn over_the_datapath(program: &str, arguments: &[&str], at: u8, mode: &str) -> Vec<String> {
    let nic = format!("memory:abey-waits-{mode}-{at}-{}", std::process::id());
    // Each has addresses of its own, as the kernel knows of the listeners of all.
    let [.., middle, low] = std::process::id().to_be_bytes();
    let [script, own] = [1, 2].map(|end| Ipv4Addr::new(10, middle, low, 2 * at + end));
    let datapath = format!(r#"{{"nic":"{nic}","mode":"{mode}","addresses":["{script}/24"]}}"#);
    let mut command = preloaded(program, &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
    command.args(arguments).env("SCENARIO_PARAMETERS", has_parameters());
    run(command, script.into(), own.into(), Some(&nic))
}

fn same(expected: &[String], told: &[String], mode: &str) {
    let mut scenario = "";
    for (at, (expected, told)) in expected.iter().zip(told).enumerate() {
        scenario = expected.strip_prefix("# ").unwrap_or(scenario);
        assert_eq!(told, expected, "{mode}, {scenario}, line {at}");
    }
    assert_eq!(told.len(), expected.len(), "{mode}");
}

#[test]
fn both_worlds_tell_the_same() {
    if !has("python3") {
        return;
    }
    // They sleep most of the time.
    thread::scope(|scope| {
        let kernel = scope.spawn(|| over_the_kernel("python3", &SCENARIOS));
        let in_mode = |(at, mode)| (mode, scope.spawn(move || over_the_datapath("python3", &SCENARIOS, at, mode)));
        let modes = [(0, "base"), (1, "suspend20"), (2, "fullbusy"), (3, "sockbusy50")].map(in_mode);
        let expected = kernel.join().expect("done");
        assert!(expected.len() > 50, "{expected:?}");
        for (mode, told) in modes {
            same(&expected, &told.join().expect("done"), mode);
        }
    });
}

#[test]
fn a_cancelled_thread_ends_in_its_wait() {
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
    let told = over_the_datapath(program, &[], 4, "base");
    same(&expected, &told, "base");
}
