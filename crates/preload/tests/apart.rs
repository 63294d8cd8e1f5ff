//! Programs on shared-memory NICs, whose addresses are not addresses of the kernel.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use abey_datapath::{Runtime, TcpListener, TcpStream};
use abey_nic::MemoryEnd;
use common::{has, preloaded};

/// A limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(120);

/// A program on a NIC of its own.
struct Program {
    child: Child,
    nic: String,
    output: BufReader<ChildStdout>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(test: &str, words: &[&str]) -> Self {
        let nic = format!("memory:abey-apart-{test}-{}", std::process::id());
        let datapath =
            format!(r#"{{"nic":"{nic}","mode":"base","queues":2,"addresses":["10.0.0.1/24","fd00:abe::1/64"]}}"#);
        let mut python = preloaded("python3", &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apart.py")).args(words).stdout(Stdio::piped());
        let mut child = python.spawn().expect("python starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, nic, output }
    }

    fn prints(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        assert_eq!(line.trim(), expected);
    }

    /// Attaches to the other end of the program's NIC as soon as the program has made it.
    fn other_end(&mut self) -> Runtime {
        let end = Instant::now() + HANG_LIMIT;
        loop {
            let mut options = abey_nic::Options::default();
            options.end = MemoryEnd::Attach;
            let builder = Runtime::builder().nic(&self.nic, options);
            match builder.address([10, 0, 0, 2].into(), 24).address("fd00:abe::2".parse().expect("one"), 64).build() {
                Ok(runtime) => return runtime,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            assert_eq!(self.child.try_wait().expect("asked"), None, "the program ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn succeeds(&mut self) {
        self.prints("served");
        let status = self.child.wait().expect("waited for");
        assert!(status.success(), "{status}");
    }
}

/// Sends a word to a server over its NIC, and returns the answer.
fn answer(client: &Runtime, to: &str, port: u16, word: &str) -> String {
    let to = std::net::SocketAddr::new(to.parse().expect("an address"), port);
    let end = Instant::now() + HANG_LIMIT;
    // The NIC exists a moment before the first listener does.
    let stream = loop {
        match TcpStream::connect_timeout(client, to, Some(HANG_LIMIT)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    stream.set_timeout(Some(HANG_LIMIT));
    stream.write_all(word.as_bytes()).expect("written");
    let mut text = String::new();
    (&stream).read_to_string(&mut text).expect("answered");
    text
}

/// Returns a port of this process's own, since several test programs may run at a time.
fn port() -> u16 {
    20_000 + (std::process::id() % 10_000) as u16
}

#[test]
fn two_programs_have_the_same_address_and_port() {
    if !has("python3") {
        return;
    }
    let port = port();
    for reuse in ["reuse", "not"] {
        let words = ["own", &port.to_string(), reuse];
        let mut programs: Vec<_> = (0..2).map(|each| Program::start(&format!("{reuse}{each}"), &words)).collect();
        // Both programs listen before either one is used.
        programs.iter_mut().for_each(|program| program.prints("listens"));
        for (each, program) in programs.iter_mut().enumerate() {
            let client = program.other_end();
            let word = format!("p{each}");
            assert_eq!(answer(&client, "10.0.0.1", port, &word), format!("{word} 10.0.0.1"));
            assert_eq!(answer(&client, "10.0.0.1", port, "end"), "end 10.0.0.1");
            program.succeeds();
        }
    }
}

#[test]
fn a_wildcard_listener_has_the_addresses_of_nic_and_kernel() {
    if !has("python3") {
        return;
    }
    let port = port() + 10_000;
    let mut server = Program::start("wildcard", &["wildcard", &port.to_string()]);
    server.prints("listens");
    let client = server.other_end();
    for _ in 0..3 {
        assert_eq!(answer(&client, "10.0.0.1", port, "a"), "a ::ffff:10.0.0.1");
        assert_eq!(answer(&client, "fd00:abe::1", port, "b"), "b fd00:abe::1");
        let mut local = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
        local.write_all(b"c").expect("written");
        let mut text = String::new();
        local.read_to_string(&mut text).expect("answered");
        assert_eq!(text, "c ::ffff:127.0.0.1");
    }
    assert_eq!(answer(&client, "10.0.0.1", port, "end"), "end ::ffff:10.0.0.1");
    server.succeeds();
}

#[test]
fn a_program_connects_through_its_nic() {
    if !has("python3") {
        return;
    }
    let port = port();
    let mut program = Program::start("connect", &["connect", &port.to_string()]);
    program.prints("begins");
    let runtime = program.other_end();
    let listener = TcpListener::bind(&runtime, ([10, 0, 0, 2], port).into()).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    let accept = |word: &[u8], from: Option<u16>| {
        let (stream, peer) = listener.accept().expect("a connection");
        stream.set_timeout(Some(HANG_LIMIT));
        assert!(from.is_none_or(|from| peer.port() == from), "{peer}");
        let mut text = [0; 3];
        stream.read_exact(&mut text).expect("text");
        assert_eq!(text, word);
        stream
    };
    let (one, two) = (accept(b"one", None), accept(b"two", Some(port + 2)));
    for stream in [one, two] {
        stream.write_all(b"ok").expect("written");
    }
    program.succeeds();
}

#[test]
fn descriptors_that_other_threads_make_while_the_runtime_is_built_can_be_closed() {
    if !has("python3") {
        return;
    }
    // Whether the other thread makes its descriptors in that time depends on the scheduler.
    let mut met = 0;
    for attempt in 0..40 {
        let nic = format!("memory:abey-beside-{attempt}-{}", std::process::id());
        let datapath = format!(r#"{{"nic":"{nic}","mode":"base","addresses":["10.0.0.1/24"]}}"#);
        let mut python = preloaded("python3", &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
        python.args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/beside.py"), "10.0.0.1"]);
        let output = common::run(python);
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let made = text.lines().next().and_then(|line| line.strip_prefix("made ")).and_then(|made| made.parse().ok());
        let made: usize = made.unwrap_or_else(|| panic!("{output:?}"));
        assert_eq!((text.as_ref(), errors.as_ref()), (format!("made {made}\nand serves ([], [], [])\n").as_str(), ""));
        met += usize::from(made > 0);
        if met == 5 {
            return;
        }
    }
    assert!(met > 0, "in none of 40 runs descriptors were made in that time");
}
