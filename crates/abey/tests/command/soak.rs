//! A preloaded memcached under mixed load, with connections that are opened and closed in every way: at the end it uses as much
//! memory, descriptors and sockets as after the first part.
//!
//! The test takes a few seconds, or ABEY_SOAK_SECONDS (twenty minutes before a release):
//! `ABEY_SOAK_SECONDS=1200 cargo test --release -p abey --test command soak::`.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::{ABEY, Running, SERVER, TestBed, await_some, has};
use abey_testbed::spawn::SpawnExt;
use serde_json::Value;

/// Opens and closes connections: short and long ones that end in order, half closed, during an answer, or by a reset. The size
/// of a key's value never changes, so that the server's own memory is allocated after the first round.
const CHURN: &str = "
import random, socket, struct, sys, time

server, seconds = sys.argv[1], float(sys.argv[2])
chance = random.Random(7)
size = lambda key: (key * 7919) % 60000 + 1
KEYS = 100

def connect():
    stream = socket.create_connection((server, 11211), 20)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream

def until(stream, end):
    got = bytearray()
    while not got.endswith(end):
        more = stream.recv(65536)
        assert more, 'the server has closed'
        got += more
    return bytes(got)

def put(stream, key):
    stream.sendall(b'set c%d 0 0 %d\\r\\n' % (key, size(key)) + b'x' * size(key) + b'\\r\\n')
    assert until(stream, b'\\r\\n') == b'STORED\\r\\n'

def get(stream, key):
    stream.sendall(b'get c%d\\r\\n' % key)
    assert until(stream, b'END\\r\\n').count(b'x') == size(key)

def end(stream):
    way = chance.randrange(4)
    if way == 0:
        stream.sendall(b'get c%d\\r\\n' % chance.randrange(KEYS))
        stream.recv(100)
    elif way == 1:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    elif way == 2:
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b''
    stream.close()

count = 0
open_ones = [connect() for _ in range(50)]
for key in range(KEYS):
    put(open_ones[0], key)
begin = time.monotonic()
# At least ten connections for each second, however slow the machine is.
while time.monotonic() - begin < seconds or count <= 10 * seconds:
    at = chance.randrange(len(open_ones))
    for _ in range(chance.randrange(4)):
        key = chance.randrange(KEYS)
        (put if chance.random() < 0.3 else get)(open_ones[at], key)
    if chance.random() < 0.5:
        end(open_ones[at])
        open_ones[at] = connect()
        count += 1
    time.sleep(0.004)
for stream in open_ones:
    end(stream)
print(count)
";

/// The resources of the server without connections.
#[derive(Debug, PartialEq)]
struct Resources {
    descriptors: usize,
    sockets: Vec<(u64, u64)>,
    /// In kilobytes.
    memory: u64,
}

/// Returns the number of sockets of each shard: all, and those that the program has open.
fn sockets(testbed: &TestBed) -> Option<Vec<(u64, u64)>> {
    let of = |shard: &Value, name: &str| shard[name].as_u64().expect("a number");
    let shards = testbed.datapaths().first()?["shards"].as_array()?.clone();
    Some(shards.iter().map(|shard| (of(shard, "sockets"), of(shard, "held"))).collect())
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").count()
}

/// Waits until only the listeners are left, and returns the resources of the server.
fn idle_resources(testbed: &TestBed, pid: u32, listeners: &[(u64, u64)]) -> Resources {
    let sockets = await_some("connections stay", || sockets(testbed).filter(|sockets| sockets == listeners));
    let memory = fs::read_to_string(format!("/proc/{pid}/status")).expect("/proc");
    let memory = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    Resources {
        descriptors: descriptors(pid),
        sockets,
        memory: memory.trim().trim_end_matches(" kB").parse().expect("a number"),
    }
}

/// Runs both loads at the same time.
fn load(testbed: &TestBed, seconds: u64) {
    let at_peer = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.in_netns(&testbed.client);
        command.spawn().expect("it starts")
    };
    let (server, duration) = (SERVER.to_string(), format!("{seconds}s"));
    let steady = at_peer(
        ABEY,
        &[
            "load",
            "memcached",
            &format!("{server}:11211"),
            "--rate",
            "3k",
            "--duration",
            &duration,
            "--warmup",
            "50ms",
            "--keys",
            "1000",
            "--json",
        ],
    );
    let churn = at_peer("python3", &["-c", CHURN, &server, &seconds.to_string()]);
    let churned = churn.wait_with_output().expect("it ends");
    let steady = steady.wait_with_output().expect("it ends");
    assert!(churned.status.success(), "{}", String::from_utf8_lossy(&churned.stderr));
    let connections: u64 = String::from_utf8_lossy(&churned.stdout).trim().parse().expect("a number");
    assert!(connections > 10 * seconds, "{connections} connections in {seconds} s");
    let text = String::from_utf8_lossy(&steady.stdout);
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{steady:?}"));
    assert_eq!(document["rows"][0]["errors"], 0, "{text}");
    assert!(document["rows"][0]["count"].as_u64() > Some(100), "{text}");
}

#[test]
fn memory_descriptors_and_sockets_of_a_server_do_not_grow() {
    if !has("memcached") || !has("python3") {
        return;
    }
    let Some(testbed) = TestBed::new(2) else { return };
    let testbed = testbed.with_checksums();
    let seconds = std::env::var("ABEY_SOAK_SECONDS").map_or(6, |text| text.parse().expect("seconds"));
    let nic = testbed.nic();
    let options = ["--world", "datapath", "--nic", &nic, "--mode", "suspend20", "--strict"];
    let program = ["memcached", "-u", "root", "-U", "0", "-t", "2", "-m", "64"];
    let run = Running::start(testbed.run(&options, &program));
    // The kernel takes connections that come earlier.
    let listeners = await_some("no datapath", || sockets(&testbed).filter(|all| all.iter().all(|one| one.1 > 0)));
    let pid = run.await_program("memcached")[0];
    let first = (seconds / 20).max(2);
    load(&testbed, first);
    let before = idle_resources(&testbed, pid, &listeners);
    load(&testbed, seconds - first);
    let after = idle_resources(&testbed, pid, &listeners);
    eprintln!("after {first} s: {before:?}; after {seconds} s: {after:?}");
    // The server closes the connection that asked for its sockets a moment after it has answered.
    await_some("descriptors stay open", || (descriptors(pid) <= before.descriptors).then_some(()));
    assert_eq!(after.sockets, before.sockets);
    // Allocators do not return all memory. A leak of one buffer per connection would be ten times this limit.
    assert!(after.memory <= before.memory + before.memory / 50 + 1024, "{before:?}, {after:?}");
    let ended = run.terminate();
    assert!(!ended.errors.contains("libabey.so"), "{ended:?}");
}
