//! AF_XDP on a veth pair in namespaces of the test's own: frames both ways, ports that come and go, what passes to the
//! kernel, and nothing left behind by a process that was killed.

#[path = "../common/mod.rs"]
mod common;
mod kernel_flows;
mod segment;

use std::fs::File;
use std::net::UdpSocket;
use std::time::Duration;

use abey_nic::{Checksum, Frame, LinkState, Nic, Options, Protocol, QueuePair, Warning, XdpCopy, checksum, open};
use common::{
    Side, add_neighbours, has_program, in_namespace, inside, ip, parse_udp, receive_udp, this_program, udp, until,
};

const NEAR: [u8; 6] = [2, 0, 0, 0, 8, 1];
const FAR: [u8; 6] = [2, 0, 0, 0, 8, 2];

/// The veth pair, with neighbours that need not be asked for.
fn veth(queues: u32) -> File {
    let far = common::veth(queues);
    add_neighbours(&far);
    far
}

fn open_near() -> Nic {
    serving(open("af_xdp:near0", &Options::default()).expect("open"))
}

/// The NIC, of which the addresses of [`veth`]'s near end are served.
fn serving(nic: Nic) -> Nic {
    for address in ["10.8.0.1", "fd08::1"] {
        nic.ports().expect("ports").serve(address.parse().expect("an address"), true).expect("serve");
    }
    nic
}

/// A UDP socket in the far namespace.
fn far_socket(far: &File, address: &str) -> UdpSocket {
    let socket = inside(far, || UdpSocket::bind(address).expect("bind"));
    socket.set_read_timeout(Some(common::HANG_LIMIT)).expect("timeout");
    socket
}

fn near_socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("bind");
    socket.set_read_timeout(Some(common::HANG_LIMIT)).expect("timeout");
    socket
}

#[track_caller]
fn receive_text(socket: &UdpSocket) -> String {
    let mut buffer = [0; 2_000];
    let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("receive: {error}"));
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn registered_ports_come_to_us_and_others_reach_the_kernel() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        assert_eq!(nic.hardware_address(), NEAR);
        let ports = nic.ports().expect("AF_XDP has ports").clone();
        let mut queues = nic.take_queues();
        assert_eq!(queues[0].capabilities().zero_copy, Some(false), "a veth copies");
        until("the link is up", || queues[0].link() == LinkState::Up);
        let kernel = near_socket("10.8.0.1:700");
        let sender = far_socket(&far, "10.8.0.2:900");

        sender.send_to(b"before", "10.8.0.1:700").expect("send");
        assert_eq!(receive_text(&kernel), "before");
        ports.register(Protocol::Udp, 700).expect("register");
        ports.register(Protocol::Tcp, 701).expect("register");
        sender.send_to(b"while", "10.8.0.1:700").expect("send");
        let got = receive_udp(&mut queues, 1);
        assert_eq!(parse_udp(&got[0].1), Some((700, b"while".to_vec())));
        // The other protocol, another port, ARP and fragments still reach the kernel.
        let other = near_socket("10.8.0.1:701");
        sender.send_to(b"udp to a tcp port", "10.8.0.1:701").expect("send");
        assert_eq!(receive_text(&other), "udp to a tcp port");
        ports.release(Protocol::Udp, 700).expect("release");
        ports.release(Protocol::Udp, 700).expect("to release twice is no error");
        sender.send_to(b"after", "10.8.0.1:700").expect("send");
        assert_eq!(receive_text(&kernel), "after");
        assert_eq!(queues[0].counters().received, 1);
    });
}

#[test]
fn fragments_and_neighbour_discovery_pass_to_the_kernel() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        let mut queues = nic.take_queues();
        let kernel = near_socket("10.8.0.1:700");
        let sender = far_socket(&far, "10.8.0.2:900");
        let long = "x".repeat(1_900);
        sender.send_to(long.as_bytes(), "10.8.0.1:700").expect("send");
        assert_eq!(receive_text(&kernel), long, "both fragments reach the kernel");
        let neighbours = ["10.8.0.1", "fd08::1"];
        inside(&far, || {
            for address in neighbours {
                ip(&format!("neigh del {address} dev far0"));
            }
        });
        for (near, far_end) in [("10.8.0.1:705", "10.8.0.2:0"), ("[fd08::1]:705", "[fd08::2]:0")] {
            let (socket, sender) = (near_socket(near), far_socket(&far, far_end));
            sender.send_to(b"found", near).expect("send");
            assert_eq!(receive_text(&socket), "found", "the kernel answered who has {near}");
        }
        assert_eq!(queues[0].receive(&mut Frame::burst(4, 1500)).expect("receive"), 0);
    });
}

#[test]
fn errors_about_what_registered_ports_sent_come_to_us_and_others_reach_the_kernel() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        nic.ports().expect("ports").register(Protocol::Tcp, 701).expect("register");
        let mut queues = nic.take_queues();
        let them = Side { mac: FAR, address: [10, 8, 0, 2], port: 901 };
        // No program uses port 901. Ours; a port of the other protocol; one that is the kernel's.
        let from = |port| udp(Side { mac: NEAR, address: [10, 8, 0, 1], port }, them, b"anyone?");
        inside(&far, || std::fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").expect("a setting"));
        assert_eq!(queues[0].transmit(&[from(701), from(702), from(700)]).expect("transmit"), 3);
        queues[0].kick().expect("kick");
        let mut into = Frame::burst(4, 1500);
        until("the error arrives", || queues[0].receive(&mut into).expect("receive") == 1);
        // Destination unreachable, port unreachable, and the datagram it is about.
        assert_eq!((into[0][23], &into[0][34..36], &into[0][62..64]), (1, &[3, 3][..], &700_u16.to_be_bytes()[..]));
        let kernel = near_socket("10.8.0.1:705");
        kernel.connect("10.8.0.2:901").expect("connect");
        kernel.send(b"anyone?").expect("send");
        assert_eq!(kernel.recv(&mut [0; 9]).expect_err("no listener").kind(), std::io::ErrorKind::ConnectionRefused);
        if std::process::Command::new("ping").arg("-V").output().is_ok() {
            inside(&far, || {
                for address in ["10.8.0.1", "fd08::1"] {
                    let ping = std::process::Command::new("ping").args(["-c", "1", "-W", "5", address]).output();
                    assert!(ping.expect("ping").status.success(), "{address}");
                }
            });
        }
        assert_eq!(queues[0].counters().received, 1);
    });
}

#[test]
fn ipv6_ports_come_to_us_too() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        let mut queues = nic.take_queues();
        let sender = far_socket(&far, "[fd08::2]:900");
        sender.send_to(b"six", "[fd08::1]:700").expect("send");
        let mut into = Frame::burst(4, 1500);
        until("the datagram arrives", || queues[0].receive(&mut into).expect("receive") == 1);
        assert_eq!(
            (&into[0][12..14], &into[0][56..58], &into[0][62..]),
            (&[0x86, 0xdd][..], &700_u16.to_be_bytes()[..], &b"six"[..])
        );
    });
}

#[test]
fn frames_are_sent_to_the_peer_and_bursts_survive_a_full_ring() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        let mut queues = nic.take_queues();
        let queue = &mut queues[0];
        let receiver = far_socket(&far, "10.8.0.2:900");
        let us = Side { mac: NEAR, address: [10, 8, 0, 1], port: 700 };
        let them = Side { mac: FAR, address: [10, 8, 0, 2], port: 900 };
        // Several times around a ring of 1,024, in bursts of more than one system call takes.
        for round in 0..60_u32 {
            let frames: Vec<_> = (0..100).map(|n| udp(us, them, format!("{round}/{n}").as_bytes())).collect();
            let mut sent = 0;
            until("the burst is taken", || {
                sent += queue.transmit(&frames[sent..]).expect("transmit");
                queue.kick().expect("kick");
                sent == frames.len()
            });
            for n in 0..100 {
                assert_eq!(receive_text(&receiver), format!("{round}/{n}"));
            }
        }
        assert_eq!((queue.counters().transmitted, queue.counters().drops.total()), (6_000, 0));
        // More at once than there are buffers: the rest is pushed back, and taken later.
        let flood: Vec<_> = (0..1_500).map(|_| udp(us, Side { port: 901, ..them }, b"flood")).collect();
        let taken = queue.transmit(&flood).expect("transmit");
        assert_eq!((taken, queue.counters().back_pressure), (1_024, 1));
        assert!(queue.unmask(), "frames wait to be sent");
        until("the kernel has sent them", || !queue.unmask());
        assert_eq!(queue.transmit(&flood[taken..]).expect("transmit"), 476);
        queue.kick().expect("kick");
    });
}

#[test]
fn many_times_more_frames_arrive_than_there_are_buffers() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        let mut queues = nic.take_queues();
        let sender = far_socket(&far, "10.8.0.2:900");
        for round in 0..60_u32 {
            for n in 0..100_u32 {
                sender.send_to(format!("{round}/{n}").as_bytes(), "10.8.0.1:700").expect("send");
            }
            for (n, (_, frame)) in receive_udp(&mut queues, 100).iter().enumerate() {
                assert_eq!(parse_udp(frame), Some((700, format!("{round}/{n}").into_bytes())));
            }
        }
        assert_eq!((queues[0].counters().received, queues[0].counters().drops.total()), (6_000, 0));
    });
}

#[test]
fn every_queue_has_its_socket() {
    in_namespace(|| {
        let far = veth(2);
        let mut nic = open_near();
        assert_eq!(nic.queues(), 2, "as many as the device has");
        for port in 1..=64 {
            nic.ports().expect("ports").register(Protocol::Udp, 1_000 + port).expect("register");
        }
        let mut queues = nic.take_queues();
        let sender = far_socket(&far, "10.8.0.2:900");
        for port in 1..=64 {
            sender.send_to(b"x", ("10.8.0.1", 1_000 + port)).expect("send");
        }
        // On a veth the queue follows the sender's CPU or flow; wherever a frame goes, it arrives.
        assert_eq!(receive_udp(&mut queues, 64).len(), 64);
        let receiver = far_socket(&far, "10.8.0.2:901");
        let us = Side { mac: NEAR, address: [10, 8, 0, 1], port: 700 };
        let them = Side { mac: FAR, address: [10, 8, 0, 2], port: 901 };
        for (index, queue) in queues.iter_mut().enumerate() {
            queue.transmit(&[udp(us, them, format!("queue {index}").as_bytes())]).expect("transmit");
            queue.kick().expect("kick");
            assert_eq!(receive_text(&receiver), format!("queue {index}"));
        }
    });
}

#[test]
fn checksums_left_partial_by_a_veth_peer_are_told() {
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        let mut queues = nic.take_queues();
        assert_eq!(queues[0].warning(), None);
        far_socket(&far, "10.8.0.2:900").send_to(b"partial", "10.8.0.1:700").expect("send");
        let got = receive_udp(&mut queues, 1);
        assert_eq!(got[0].1.checksum, Checksum::Partial);
        assert!(checksum::is_partial(&got[0].1));
        let warning = queues[0].warning().expect("a warning");
        assert_eq!(warning, Warning::PartialChecksum { device: "af_xdp:near0".to_owned() });
        assert!(warning.to_string().contains("switch off tx-checksumming"), "{warning}");
    });
}

#[test]
fn what_a_device_cannot_do_is_one_sentence() {
    in_namespace(|| {
        let _far = veth(1);
        let refused = |device: &str, change: &dyn Fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            open(device, &options).expect_err(device).to_string()
        };
        let message = refused("af_xdp:near0", &|options| options.xdp.copy = XdpCopy::ZeroCopy);
        assert!(message.contains("zero copy was asked for"), "{message}");
        let message = refused("af_xdp:near0", &|options| options.xdp.queues = Some(3));
        assert!(message.contains("has no queue 1"), "{message}");
        let message = refused("af_xdp:nothing0", &|_| ());
        assert!(message.contains("there is no device for af_xdp:nothing0"), "{message}");
        let message = refused("af_xdp:near0", &|options| options.xdp.slots = 100);
        assert!(message.contains("100 slots"), "{message}");
        // A second one on the same queue; and after all of these the device is free again.
        let nic = open_near();
        let message = refused("af_xdp:near0", &|_| ());
        assert!(message.contains("queue 0 of af_xdp:near0 is in use already"), "{message}");
        drop(nic);
        drop(open_near());
        ip("link set near0 mtu 9000");
        let message = refused("af_xdp:near0", &|_| ());
        assert!(message.contains("MTU is 9000"), "{message}");
    });
}

#[test]
fn a_generic_program_does_the_same() {
    in_namespace(|| {
        let far = veth(1);
        let mut options = Options::default();
        options.xdp.generic = true;
        options.xdp.copy = XdpCopy::Copy;
        let mut nic = serving(open("af_xdp:near0", &options).expect("open"));
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        let mut queues = nic.take_queues();
        far_socket(&far, "10.8.0.2:900").send_to(b"generic", "10.8.0.1:700").expect("send");
        assert_eq!(parse_udp(&receive_udp(&mut queues, 1)[0].1), Some((700, b"generic".to_vec())));
        options.xdp.copy = XdpCopy::ZeroCopy;
        let message = open("af_xdp:near0", &options).expect_err("both").to_string();
        assert!(message.contains("zero copy from a generic XDP program"), "{message}");
    });
}

const CHILD: &str = "ABEY_NIC_XDP_CHILD";

/// Not a test: the process that is killed. Without its environment it has nothing to do.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        let nic = open_near();
        nic.ports().expect("ports").register(Protocol::Udp, 700).expect("register");
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn nothing_is_left_of_a_process_that_was_killed() {
    in_namespace(|| {
        let far = veth(1);
        assert!(!has_program());
        let mut child = this_program("child", CHILD).spawn().expect("start the child");
        until("the program is attached", has_program);
        child.kill().expect("kill");
        child.wait().expect("wait");
        until("the program is detached", || !has_program());
        let kernel = near_socket("10.8.0.1:700");
        far_socket(&far, "10.8.0.2:900").send_to(b"back", "10.8.0.1:700").expect("send");
        assert_eq!(receive_text(&kernel), "back");
        drop(open_near());
        until("the program goes with the NIC", || !has_program());
    });
}

#[test]
fn a_connection_stays_where_it_began() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    in_namespace(|| {
        let far = veth(1);
        let mut nic = open_near();
        let ports = nic.ports().expect("ports").clone();
        let mut queues = nic.take_queues();
        let listener = TcpListener::bind("10.8.0.1:80").expect("bind");
        listener.set_nonblocking(true).expect("non-blocking");
        let connect = || {
            let stream = inside(&far, || TcpStream::connect("10.8.0.1:80").expect("connect"));
            stream.set_read_timeout(Some(common::HANG_LIMIT)).expect("timeout");
            stream
        };
        let exchange = |near: &mut TcpStream, far: &mut TcpStream| {
            let mut byte = [0];
            far.write_all(b"x").expect("sent");
            near.read_exact(&mut byte).expect("received");
            near.write_all(b"y").expect("sent");
            far.read_exact(&mut byte).expect("received");
        };
        let pair = || {
            let far_end = connect();
            let near_end = listener.accept().expect("it is there").0;
            near_end.set_nonblocking(false).expect("blocking");
            near_end.set_read_timeout(Some(common::HANG_LIMIT)).expect("timeout");
            (near_end, far_end)
        };
        // One that began with the kernel is the kernel's, whatever is registered later.
        let (mut near_end, mut far_end) = pair();
        exchange(&mut near_end, &mut far_end);
        ports.register(Protocol::Tcp, 80).expect("register");
        exchange(&mut near_end, &mut far_end);
        assert_eq!(queues[0].receive(&mut Frame::burst(4, 1500)).expect("receive"), 0);
        // New connections are redirected.
        let attempt = inside(&far, || {
            let to: std::net::SocketAddr = "10.8.0.1:80".parse().expect("an address");
            TcpStream::connect_timeout(&to, Duration::from_millis(50))
        });
        assert!(attempt.is_err(), "no end answers");
        let mut burst = Frame::burst(4, 1500);
        assert!(queues[0].receive(&mut burst).expect("receive") > 0, "its first segment came here");
        // After a drain, new connections are the kernel's and existing ones are redirected.
        ports.drain(Protocol::Tcp, 80).expect("drain");
        let (mut second_near, mut second_far) = pair();
        exchange(&mut second_near, &mut second_far);
        exchange(&mut near_end, &mut far_end);
    });
}
