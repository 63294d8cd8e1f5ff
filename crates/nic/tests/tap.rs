//! TAP against the kernel's own UDP, in a namespace of the test's own.

mod common;

use std::net::UdpSocket;

use abey_nic::{Frame, LinkState, Options, checksum, open};
use common::{Side, in_namespace, ip, parse_udp, receive_udp, udp, until};

/// Whether the calling thread's namespace has such a device.
fn exists(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

fn exchange(queues: usize) {
    let mut options = Options::default();
    options.tap_queues = queues;
    let mut nic = open("tap:abt0", &options).expect("open");
    let our_mac = nic.hardware_address();
    let mut pairs = nic.take_queues();
    assert_eq!(pairs.len(), queues);
    assert_eq!(pairs[0].capabilities().mtu, 1500);
    assert!(exists("abt0"));
    ip("addr add 10.9.0.1/24 dev abt0");
    ip("link set abt0 address 02:00:00:00:09:01");
    let mac = our_mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("neigh add 10.9.0.2 lladdr {mac} dev abt0 nud permanent"));
    until("the link is up", || pairs[0].link() == LinkState::Up);

    // Out of the kernel, to us.
    let kernel = UdpSocket::bind("10.9.0.1:700").expect("bind");
    kernel.set_read_timeout(Some(common::HANG_LIMIT)).expect("timeout");
    let sent = 40_u16;
    for port in 0..sent {
        kernel.send_to(&port.to_be_bytes(), ("10.9.0.2", 9_000 + port)).expect("send");
    }
    let got = receive_udp(&mut pairs, usize::from(sent));
    let mut ports: Vec<_> = got.iter().map(|(_, frame)| parse_udp(frame).expect("UDP").0).collect();
    ports.sort_unstable();
    assert_eq!(ports, (9_000..9_000 + sent).collect::<Vec<_>>());
    assert!(got.iter().all(|(_, frame)| !checksum::is_partial(frame)), "the kernel completes checksums for a TAP");

    // From us, to the kernel, through every queue.
    let us = Side { mac: our_mac, address: [10, 9, 0, 2], port: 9_000 };
    let them = Side { mac: [2, 0, 0, 0, 9, 1], address: [10, 9, 0, 1], port: 700 };
    for (index, pair) in pairs.iter_mut().enumerate() {
        let payload = [index as u8; 100];
        let frames = [udp(us, them, &payload), Frame::from(&[0; 5][..])];
        assert_eq!(pair.transmit(&frames).expect("transmit"), 2);
        pair.kick().expect("kick");
        let mut buffer = [0; 200];
        let (length, from) = kernel.recv_from(&mut buffer).expect("receive");
        assert_eq!((&buffer[..length], from.to_string().as_str()), (&payload[..], "10.9.0.2:9000"));
        assert_eq!((pair.counters().transmitted, pair.counters().drops.transmit_length), (1, 1));
    }
    ip("link set abt0 down");
    until("the link is down", || pairs[0].link() == LinkState::Down);
    assert_eq!(pairs[0].transmit(&[udp(us, them, b"x")]).expect("transmit"), 1);
    assert_eq!(pairs[0].counters().drops.link_down, 1);
    drop((nic, pairs));
    until("the device goes with its last queue", || !exists("abt0"));
}

#[test]
fn one_queue() {
    in_namespace(|| exchange(1));
}

#[test]
fn four_queues() {
    in_namespace(|| exchange(4));
}

#[test]
fn what_is_no_tap_device_is_one_sentence() {
    in_namespace(|| {
        let message = open("tap:lo", &Options::default()).expect_err("lo").to_string();
        assert!(message.contains("lo") && message.contains("not a TAP device"), "{message}");
    });
    for (name, why) in [("tap:", "1 to 15"), ("tap:sixteen-letters-", "1 to 15"), ("tap:a/b", "no `/`")] {
        let message = open(name, &Options::default()).expect_err(name).to_string();
        assert!(message.contains(why), "{message}");
    }
}
