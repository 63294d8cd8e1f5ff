//! Unmodified servers over the datapath, with this process as the client at the other end of the NIC.

mod common;

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use abey_datapath::{Runtime, TcpStream};
use abey_nic::MemoryEnd;
use abey_testbed::namespace::{in_namespace, ip};
use common::{has, preloaded};

/// A limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(120);

/// A server that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, arguments: &[&str], nic: &str, mode: &str) -> Server {
    let datapath = format!(r#"{{"nic":"{nic}","mode":"{mode}","addresses":["10.0.0.1/24"]}}"#);
    let mut command = preloaded(program, &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
    command.args(arguments).stdout(Stdio::piped());
    Server(command.spawn().expect("the server starts"))
}

/// Returns a NIC name that no other test uses.
fn nic(test: &str) -> String {
    format!("memory:abey-preload-{test}-{}", std::process::id())
}

/// Attaches to the other end of the NIC as soon as the server has made it.
fn client(nic: &str, server: &mut Server) -> Runtime {
    let end = Instant::now() + HANG_LIMIT;
    loop {
        let mut options = abey_nic::Options::default();
        options.end = MemoryEnd::Attach;
        match Runtime::builder().nic(nic, options).address([10, 0, 0, 2].into(), 24).build() {
            Ok(runtime) => return runtime,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        assert_eq!(server.0.try_wait().expect("asked"), None, "the server ended");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Connects as soon as the server listens.
fn connect(client: &Runtime, port: u16) -> TcpStream {
    let end = Instant::now() + HANG_LIMIT;
    loop {
        match TcpStream::connect_timeout(client, ([10, 0, 0, 1], port).into(), Some(HANG_LIMIT)) {
            Ok(stream) => {
                stream.set_timeout(Some(HANG_LIMIT));
                return stream;
            }
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_epoll_set_of_both_sides_starves_neither() {
    if !has("python3") {
        return;
    }
    for mode in ["base", "suspend20", "fullbusy"] {
        let nic = nic(mode);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datapath.py");
        let mut server = start("python3", &[script], &nic, mode);
        let client = client(&nic, &mut server);
        let stream = connect(&client, 7);
        let end = Instant::now() + HANG_LIMIT;
        // Requests are always in flight, so that a datapath socket of the server is always busy.
        stream.write_all(&[0; 32]).expect("written");
        let mut answers = [0; 32];
        loop {
            let count = stream.read(&mut answers).expect("answered");
            assert!(count > 0 && Instant::now() < end, "the server serves both");
            if answers[..count].contains(&b'+') {
                break;
            }
            stream.write_all(&answers[..count]).expect("written");
        }
        drop(stream);
        let stream = connect(&client, 7);
        stream.write_all(b"fork").expect("written");
        let mut text = [0; 9];
        stream.read_exact(&mut text).expect("text");
        assert_eq!(&text, b"duplicate");
        assert_eq!(stream.read(&mut text).expect("the end"), 0);
        let status = server.0.wait().expect("waited for");
        assert!(status.success(), "{mode}: {status}");
    }
}

#[test]
fn redis() {
    if !has("redis-server") {
        return;
    }
    let nic = nic("redis");
    let arguments =
        ["--bind", "10.0.0.1", "--port", "6379", "--save", "", "--appendonly", "no", "--protected-mode", "no"];
    let mut server = start("redis-server", &arguments, &nic, "suspend20");
    let client = client(&nic, &mut server);
    let stream = connect(&client, 6379);
    let ask = |request: &str, answer: &str| {
        stream.write_all(request.as_bytes()).expect("written");
        let mut text = vec![0; answer.len()];
        stream.read_exact(&mut text).expect("answered");
        assert_eq!(String::from_utf8_lossy(&text), answer);
    };
    for _ in 0..100 {
        ask("PING\r\n", "+PONG\r\n");
    }
    let long = "x".repeat(100_000);
    ask(&format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n{long}\r\n"), "+OK\r\n");
    ask("GET k\r\n", &format!("$100000\r\n{long}\r\n"));
    ask("SHUTDOWN NOSAVE\r\n", "");
    let status = server.0.wait().expect("waited for");
    assert!(status.success(), "{status}");
}

/// Returns how many connections the kernel has opened, and how many datagrams it has delivered, in the calling thread's
/// namespace.
fn kernel_traffic() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let value = |protocol: &str, name: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with(protocol)).map(|line| line.split(' '));
        let at = lines.next().expect("names").position(|field| field == name).expect("the counter");
        lines.next().expect("values").nth(at).expect("a value").parse::<u64>().expect("a number")
    };
    (value("Tcp:", "ActiveOpens"), value("Udp:", "InDatagrams"))
}

#[test]
fn a_program_that_connects_to_itself_prints_what_it_prints_over_the_kernel() {
    if !has("python3") {
        return;
    }
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hairpin.py");
    let lines = |mut command: std::process::Command| {
        let output = command.arg(SCRIPT).stdin(Stdio::null()).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        // What a child or MSG_OOB needs is handed over.
        let is_expected = errors.lines().all(|line| line.ends_with("such connections continue in the kernel"));
        assert!(output.status.success() && is_expected, "{}: {errors}", output.status);
        String::from_utf8(output.stdout).expect("text")
    };
    in_namespace(|| {
        ip("link set lo up");
        let kernel = lines(std::process::Command::new("python3"));
        for (mode, queues) in [("base", 1), ("base", 4), ("suspend20", 2), ("threaded", 1)] {
            let datapath = format!(
                r#"{{"nic":"memory:self","mode":"{mode}","queues":{queues},"addresses":["127.0.0.1/8","::1/128"]}}"#
            );
            let program = || preloaded("python3", &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
            let ours = lines(program());
            assert!(ours == kernel, "{mode}, {queues} queues\nthe kernel:\n{kernel}\nthe datapath:\n{ours}");
            // What stays within the process does not touch the kernel's protocols.
            let mut within = program();
            within.arg(SCRIPT).arg("mine").stdout(Stdio::null());
            let before = kernel_traffic();
            assert!(within.status().expect("it starts").success());
            assert_eq!(kernel_traffic(), before, "{mode}, {queues} queues");
        }
    });
}
