//! Every family of calls that moves bytes, over the datapath and over the kernel: an unmodified program says the same.

mod common;
#[path = "../../nic/tests/common/namespace.rs"]
mod namespace;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use abey_datapath::{Runtime, UdpSocket};
use common::{has, preloaded};
use namespace::{PATIENCE, checked_veth, in_namespace, inside, introduce, until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/families.py");
const DATAPATH: &str = r#"{"nic":"af_xdp:near0","mode":"MODE","addresses":["10.8.0.1/24","fd08::1/64"]}"#;

/// Datagrams that the kernel has handed to sockets in the calling thread's namespace.
fn datagrams_of_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let values = text.lines().filter(|line| line.starts_with("Udp:")).nth(1).expect("values");
    values.split(' ').nth(1).expect("received").parse().expect("a number")
}

/// What the program says of some scenarios, by the kernel's sockets or, in a mode, by ours.
fn said(far: &File, mode: Option<&str>, scenarios: &[&str]) -> String {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let start = |mut command: Command, role: &str, control: UnixStream| -> Child {
        command.args([SCRIPT, role, "10.8.0.1", "10.8.0.2"]).args(scenarios);
        command.stdin(Stdio::from(OwnedFd::from(control))).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let mut peer = inside(far, || start(Command::new("python3"), "peer", theirs));
    let command = match mode {
        Some(mode) => {
            let datapath = DATAPATH.replace("MODE", mode);
            preloaded("python3", &[("ABEY_DATAPATH", &datapath), ("ABEY_STRICT", "1")])
        }
        None => Command::new("python3"),
    };
    let output = start(command, "ours", ours).wait_with_output().expect("waited for");
    assert!(output.status.success(), "{}", output.status);
    peer.wait().expect("it ends with the other");
    String::from_utf8(output.stdout).expect("text")
}

/// `loopback`: datagrams that stay with the kernel, whoever has the rest.
fn compare(modes: &[&str], scenarios: &[&str], loopback: u64) {
    if !has("python3") || !has("ethtool") {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(1);
        introduce(&far);
        let kernel = said(&far, None, scenarios);
        for mode in modes {
            let before = datagrams_of_kernel();
            let ours = said(&far, Some(mode), scenarios);
            assert_eq!(datagrams_of_kernel() - before, loopback, "{mode}: the NIC's are ours");
            let differ = kernel.lines().zip(ours.lines()).position(|(kernel, ours)| kernel != ours);
            let first = differ.unwrap_or(0).saturating_sub(5);
            let around = |said: &str| said.lines().skip(first).take(9).collect::<Vec<_>>().join("\n  ");
            let (near, far) = (around(&kernel), around(&ours));
            assert!(kernel == ours, "{mode}: the sixth line is another\nthe kernel:\n  {near}\nours:\n  {far}");
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
        "batches_of_datagrams",
        "limits",
    ];
    compare(&["suspend20"], &all, 0);
}

#[test]
fn datagrams_from_both_sides() {
    // As the script sends them over loopback, to and fro.
    compare(&["base"], &["both_sides", "readiness"], 104);
}

#[test]
fn over_a_nic_that_the_kernel_does_not_have() {
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
    socket.set_timeout(Some(PATIENCE));
    // The NIC is there before the socket: until then nobody has the port.
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
