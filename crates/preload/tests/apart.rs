//! Programs on shared-memory NICs, whose addresses the kernel does not have.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use abey_datapath::{Runtime, TcpListener, TcpStream};
use abey_nic::MemoryEnd;
use common::{has, preloaded};

/// How long anything that must happen may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// A program on a NIC of its own.
struct Program {
    child: Child,
    nic: String,
    says: BufReader<ChildStdout>,
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
        let says = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, nic, says }
    }

    fn says(&mut self, expected: &str) {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("text");
        assert_eq!(line.trim(), expected);
    }

    /// The other end of its NIC, as soon as it has made that.
    fn other_end(&mut self) -> Runtime {
        let end = Instant::now() + DEADLINE;
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

    fn ends(&mut self) {
        self.says("served");
        let status = self.child.wait().expect("waited for");
        assert!(status.success(), "{status}");
    }
}

/// What a server answers to a word that comes over its NIC.
fn answer(client: &Runtime, to: &str, port: u16, word: &str) -> String {
    let to = std::net::SocketAddr::new(to.parse().expect("an address"), port);
    let end = Instant::now() + DEADLINE;
    // The NIC is there a moment before its first listener.
    let stream = loop {
        match TcpStream::connect_timeout(client, to, Some(DEADLINE)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    stream.set_timeout(Some(DEADLINE));
    stream.write_all(word.as_bytes()).expect("written");
    let mut said = String::new();
    (&stream).read_to_string(&mut said).expect("answered");
    said
}

/// Ports of this process's own, as several test programs may run at a time.
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
        // Both listen before either is used.
        programs.iter_mut().for_each(|program| program.says("listens"));
        for (each, program) in programs.iter_mut().enumerate() {
            let client = program.other_end();
            let word = format!("p{each}");
            assert_eq!(answer(&client, "10.0.0.1", port, &word), format!("{word} 10.0.0.1"));
            assert_eq!(answer(&client, "10.0.0.1", port, "end"), "end 10.0.0.1");
            program.ends();
        }
    }
}

#[test]
fn a_wildcard_listens_on_the_nics_addresses_and_the_kernels() {
    if !has("python3") {
        return;
    }
    let port = port() + 10_000;
    let mut server = Program::start("wildcard", &["wildcard", &port.to_string()]);
    server.says("listens");
    let client = server.other_end();
    for _ in 0..3 {
        assert_eq!(answer(&client, "10.0.0.1", port, "a"), "a ::ffff:10.0.0.1");
        assert_eq!(answer(&client, "fd00:abe::1", port, "b"), "b fd00:abe::1");
        let mut local = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
        local.write_all(b"c").expect("written");
        let mut said = String::new();
        local.read_to_string(&mut said).expect("answered");
        assert_eq!(said, "c ::ffff:127.0.0.1");
    }
    assert_eq!(answer(&client, "10.0.0.1", port, "end"), "end ::ffff:10.0.0.1");
    server.ends();
}

#[test]
fn a_program_connects_by_its_nic() {
    if !has("python3") {
        return;
    }
    let port = port();
    let mut program = Program::start("connect", &["connect", &port.to_string()]);
    program.says("begins");
    let runtime = program.other_end();
    let listener = TcpListener::bind(&runtime, ([10, 0, 0, 2], port).into()).expect("a listener");
    listener.set_timeout(Some(DEADLINE));
    let accept = |word: &[u8], from: Option<u16>| {
        let (stream, peer) = listener.accept().expect("a connection");
        stream.set_timeout(Some(DEADLINE));
        assert!(from.is_none_or(|from| peer.port() == from), "{peer}");
        let mut said = [0; 3];
        stream.read_exact(&mut said).expect("said");
        assert_eq!(said, word);
        stream
    };
    let (one, two) = (accept(b"one", None), accept(b"two", Some(port + 2)));
    for stream in [one, two] {
        stream.write_all(b"ok").expect("written");
    }
    program.ends();
}
