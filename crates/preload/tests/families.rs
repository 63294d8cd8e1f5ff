//! Every family of calls that transfers bytes: an unmodified program prints the same over the datapath and over the kernel.

mod common;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use abey_datapath::{Runtime, UdpSocket};
use abey_testbed::namespace::{HANG_LIMIT, in_namespace, inside, until};
use abey_testbed::network::{add_neighbours, checked_veth};
use common::{has, preloaded};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/families.py");
const DATAPATH: &str = r#"{"nic":"af_xdp:near0","mode":"MODE","addresses":["10.8.0.1/24","fd08::1/64"]}"#;

/// Returns the number of datagrams that the kernel has delivered to sockets in the calling thread's namespace.
fn datagrams_of_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let values = text.lines().filter(|line| line.starts_with("Udp:")).nth(1).expect("values");
    values.split(' ').nth(1).expect("received").parse().expect("a number")
}

/// Runs some scenarios over the kernel, or in a mode over the datapath. Returns the program's output.
fn output_of(far: &File, mode: Option<&str>, scenarios: &[&str]) -> String {
    let (program_end, peer_end) = UnixStream::pair().expect("a pair");
    let start = |mut command: Command, role: &str, control: UnixStream| -> Child {
        command.args([SCRIPT, role, "10.8.0.1", "10.8.0.2"]).args(scenarios);
        command.stdin(Stdio::from(OwnedFd::from(control))).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let mut peer = inside(far, || start(Command::new("python3"), "peer", peer_end));
    let command = match mode {
        Some(mode) => {
            let datapath = DATAPATH.replace("MODE", mode);
            preloaded("python3", &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")])
        }
        None => Command::new("python3"),
    };
    let output = start(command, "program", program_end).wait_with_output().expect("waited for");
    assert!(output.status.success(), "{}", output.status);
    peer.wait().expect("it ends with the other");
    String::from_utf8(output.stdout).expect("text")
}

/// Compares the datapath's output in each mode with the kernel's. `loopback` is the number of datagrams that the kernel
/// delivers in both cases.
fn compare(modes: &[&str], scenarios: &[&str], loopback: u64) {
    if !has("python3") || !has("ethtool") {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(1);
        add_neighbours(&far);
        let kernel = output_of(&far, None, scenarios);
        for mode in modes {
            let before = datagrams_of_kernel();
            let datapath = output_of(&far, Some(mode), scenarios);
            assert_eq!(datagrams_of_kernel() - before, loopback, "{mode}: the kernel delivered datagrams of the NIC");
            let differ = kernel.lines().zip(datapath.lines()).position(|(kernel, datapath)| kernel != datapath);
            let first = differ.unwrap_or(0).saturating_sub(5);
            let around = |text: &str| text.lines().skip(first).take(9).collect::<Vec<_>>().join("\n  ");
            let (near, far) = (around(&kernel), around(&datapath));
            assert!(kernel == datapath, "{mode}: a line differs\nthe kernel:\n  {near}\nthe datapath:\n  {far}");
            assert!(!kernel.contains("failed:"), "{kernel}");
        }
    });
}

#[test]
fn streams() {
    let all = ["edges", "messages", "resets", "batches_of_a_stream", "files", "stdio", "integrity"];
    compare(&["suspend20"], &all, 0);
}

#[test]
fn datagrams() {
    let all = [
        "datagrams",
        "nobody_there",
        "packet_information",
        "version_six",
        "same_port",
        "shared_ports",
        "batches_of_datagrams",
        "limits",
    ];
    compare(&["suspend20"], &all, 0);
}

#[test]
fn calls_by_number() {
    let all = [
        "streams_by_number",
        "connects_by_number",
        "children_by_number",
        "others_by_number",
        "datagrams_by_number",
        "edges_by_number",
        "batches_of_a_stream_by_number",
        "files_by_number",
        "batches_of_datagrams_by_number",
    ];
    compare(&["suspend20", "base"], &all, 0);
}

#[test]
fn long_datagrams() {
    // Those that arrive in fragments.
    compare(&["base"], &["long_datagrams"], 10);
}

#[test]
fn datagrams_from_both_sides() {
    // The datagrams that the script sends over loopback.
    compare(&["base"], &["both_sides", "readiness"], 104);
}

#[test]
fn udp_over_a_shared_memory_nic() {
    const ECHO: &str = "
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(('10.0.0.1', 7))
while True:
    data, peer = u.recvfrom(2000)
    u.sendto(data, peer)
    if not data:
        break
assert peer[0] == '10.0.0.2' and u.getsockname() == ('10.0.0.1', 7)
";
    if !has("python3") {
        return;
    }
    let nic = format!("memory:abey-families-{}", std::process::id());
    let datapath = format!(r#"{{"nic":"{nic}","mode":"suspend20","addresses":["10.0.0.1/24"]}}"#);
    let mut command = preloaded("python3", &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")]);
    let mut server = command.args(["-c", ECHO]).spawn().expect("it starts");
    let mut client = None;
    until("the server has its NIC", || {
        let mut options = abey_nic::Options::default();
        options.end = abey_nic::MemoryEnd::Attach;
        client = Runtime::builder().nic(&nic, options).address([10, 0, 0, 2].into(), 24).build().ok();
        client.is_some()
    });
    let client = client.expect("attached");
    let socket = UdpSocket::bind(&client, ([10, 0, 0, 2], 0).into()).expect("bound");
    socket.connect(Some(([10, 0, 0, 1], 7).into())).expect("connected");
    socket.set_timeout(Some(HANG_LIMIT));
    // The NIC exists a moment before the socket does.
    until("the server hears", || {
        let sent = socket.send_to(b"hello", None);
        sent.is_ok() && socket.recv_with(false, |message| message.payload == b"hello").is_ok_and(|same| same)
    });
    for size in [1_usize, 100, 1472, 0] {
        socket.send_to(&vec![7; size], None).expect("sent");
        assert_eq!(socket.recv_from(&mut [0; 2000]).expect("echoed").0, size);
    }
    assert!(server.wait().expect("waited for").success());
}
