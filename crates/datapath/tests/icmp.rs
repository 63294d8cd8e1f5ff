//! ICMP errors of routers and hosts about the runtime's packets, on a device that is shared with the kernel.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use abey_datapath::handover::HandedOver;
use abey_datapath::{Error, Runtime, Shutdown, SocketError, TcpListener, TcpStream, UdpSocket};
use abey_nic::Options;
use common::{
    HANG_LIMIT, Wire, another_namespace, checked_veth, compute_checksums, connect, has, in_namespace, inside, ip,
    is_possible, ours, path, run, theirs, with_timeouts,
};

/// The MTU of the narrow link, in bytes.
const NARROW: u16 = 1300;

fn runtime() -> Runtime {
    Runtime::builder().nic("af_xdp:near0", Options::default()).build().expect("a runtime")
}

/// A host behind two routers with a narrow link between them: 10.9.0.2 and fd09::2.
#[allow(dead_code, reason = "namespaces live as long as their files")]
struct Beyond {
    router: File,
    second: File,
    host: File,
}

fn beyond(is_v4: bool, port: u16) -> SocketAddr {
    SocketAddr::new(if is_v4 { [10, 9, 0, 2].into() } else { "fd09::2".parse().expect("an address") }, port)
}

impl Beyond {
    fn new(queues: u32) -> Self {
        let router = checked_veth(queues);
        let (second, host) = (another_namespace(), another_namespace());
        let forward = |namespace: &File, commands: &[String]| {
            inside(namespace, || {
                for version in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                    std::fs::write(format!("/proc/sys/net/{version}"), "1").expect("a setting");
                }
                commands.iter().for_each(|command| ip(command));
            });
        };
        let pair = |name: &str, peer: &str, to: &File| {
            format!("link add {name} type veth peer name {peer} netns {}", path(to))
        };
        let link = |device: &str, network: &str, last: u8| {
            [
                format!("addr add 10.{network}.0.{last}/24 dev {device}"),
                format!("addr add fd0{network}::{last}/64 dev {device} nodad"),
                format!("link set {device} up"),
            ]
        };
        let routes = |device: &str, network: &str, via: &str| {
            [
                format!("route add 10.{network}.0.0/24 via 10.7.0.{via} dev {device}"),
                format!("route add fd0{network}::/64 via fd07::{via} dev {device}"),
            ]
        };
        forward(&router, &[pair("narrow0", "narrow1", &second), format!("link set narrow0 mtu {NARROW}")]);
        forward(&second, &[pair("wide0", "host0", &host), format!("link set narrow1 mtu {NARROW}")]);
        forward(&router, &[&link("narrow0", "7", 1)[..], &routes("narrow0", "9", "2")].concat());
        forward(
            &second,
            &[&link("narrow1", "7", 2)[..], &link("wide0", "9", 1), &routes("narrow1", "8", "1")].concat(),
        );
        inside(&host, || {
            compute_checksums("host0");
            link("host0", "9", 2).iter().for_each(|command| ip(command));
            ip("route add default via 10.9.0.1");
            ip("route add default via fd09::1");
        });
        ip("route add default via 10.8.0.2 dev near0");
        ip("route add default via fd08::2 dev near0");
        Self { router, second, host }
    }
}

const BYTES: usize = 1 << 20;

fn data() -> Vec<u8> {
    (0..BYTES).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// Both ends send at once, and receive to the end.
fn exchange(stream: &TcpStream, kernel: std::net::TcpStream) {
    stream.set_timeout(Some(HANG_LIMIT));
    let mut kernel = with_timeouts(kernel);
    let mut to_us = kernel.try_clone().expect("cloned");
    let sent = data();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            to_us.write_all(&sent).expect("written");
            to_us.shutdown(std::net::Shutdown::Write).expect("open");
        });
        scope.spawn(|| {
            stream.write_all(&sent).expect("written");
            stream.shutdown(Shutdown::Write).expect("open");
        });
        let kernels = scope.spawn(|| {
            let mut got = Vec::new();
            kernel.read_to_end(&mut got).expect("all");
            got
        });
        let mut got = Vec::new();
        let mut from_kernel = stream;
        from_kernel.read_to_end(&mut got).expect("all");
        assert!(got == sent && kernels.join().expect("read") == sent, "bit-exact");
    });
}

#[test]
fn the_path_mtu_of_a_narrow_link_is_discovered() {
    if !is_possible(Wire::Xdp) {
        return;
    }
    for is_v4 in [true, false] {
        // A discovered path MTU is cached, so each direction has a runtime of its own.
        for we_connect in [true, false] {
            in_namespace(|| {
                let beyond_it = Beyond::new(1);
                let runtime = runtime();
                let (stream, kernel) = if we_connect {
                    let listener =
                        inside(&beyond_it.host, || std::net::TcpListener::bind(beyond(is_v4, 9)).expect("bound"));
                    let stream = connect(&runtime, beyond(is_v4, 9));
                    (stream, listener.accept().expect("a connection").0)
                } else {
                    let listener = TcpListener::bind(&runtime, ours(is_v4, 7)).expect("a listener");
                    listener.set_timeout(Some(HANG_LIMIT));
                    let to = ours(is_v4, 7);
                    let kernel = inside(&beyond_it.host, || std::net::TcpStream::connect(to).expect("connected"));
                    (listener.accept().expect("a connection").0, kernel)
                };
                exchange(&stream, kernel);
                assert_eq!(runtime.stack_counters().tcp_path_mtu_lowered, 1, "the router was heard");
                drop(beyond_it);
            });
        }
    }
}

#[test]
fn an_error_reaches_its_flow_from_any_queue() {
    if !is_possible(Wire::Xdp) {
        return;
    }
    in_namespace(|| {
        let beyond_it = Beyond::new(2);
        let listener = inside(&beyond_it.host, || std::net::TcpListener::bind("[::]:9").expect("bound"));
        for shard in [0, 1] {
            for is_v4 in [true, false] {
                let runtime = runtime();
                assert_eq!(runtime.shards(), 2);
                // Or the host, which has discovered the path MTU too, announces it in its MSS.
                inside(&beyond_it.host, || {
                    ["-4", "-6"].into_iter().for_each(|v| ip(&format!("{v} route flush cache")))
                });
                let stream = TcpStream::connect_nonblocking(&runtime, beyond(is_v4, 9), Some(shard)).expect("begun");
                stream.set_nonblocking(false);
                let kernel = listener.accept().expect("a connection").0;
                exchange(&stream, kernel);
                assert_eq!(runtime.stack_counters().tcp_path_mtu_lowered, 1, "shard {shard}");
            }
        }
    });
}

#[test]
fn unreachable_ports_and_hosts_are_reported() {
    if !is_possible(Wire::Xdp) {
        return;
    }
    in_namespace(|| {
        let beyond_it = Beyond::new(1);
        let runtime = runtime();
        for is_v4 in [true, false] {
            for to in [theirs(is_v4, 901), beyond(is_v4, 901)] {
                let socket = UdpSocket::bind(&runtime, ours(is_v4, 0)).expect("bound");
                socket.set_timeout(Some(HANG_LIMIT));
                socket.connect(Some(to)).expect("a route");
                socket.send_to(b"anyone?", None).expect("sent");
                match socket.recv_from(&mut [0; 9]) {
                    Err(Error::Socket(abey_tcpip::IoError::Network(SocketError::Refused))) => {}
                    other => panic!("{to}: {other:?}"),
                }
                // The error is reported once.
                socket.set_nonblocking(true);
                assert!(socket.recv_from(&mut [0; 9]).expect_err("nothing").is_would_block());
            }
            // An address for which the second router has no neighbour.
            let mut unreachable = beyond(is_v4, 9);
            unreachable.set_ip(if is_v4 { [10, 9, 0, 99].into() } else { "fd09::99".parse().expect("an address") });
            match TcpStream::connect_timeout(&runtime, unreachable, Some(HANG_LIMIT)).map(drop) {
                Err(abey_datapath::OpenError::Network(SocketError::HostUnreachable)) => {}
                other => panic!("{unreachable}: {other:?}"),
            }
        }
        if has("ping", "-V") {
            inside(&beyond_it.host, || {
                for is_v4 in [true, false] {
                    run("ping", &format!("-c 1 -W 5 {}", ours(is_v4, 0).ip()));
                }
            });
        }
        drop(beyond_it);
    });
}

#[test]
fn errors_about_a_handed_over_connection_reach_the_kernel() {
    const BYTES: usize = 200_000;
    if !is_possible(Wire::Xdp) {
        return;
    }
    for is_v4 in [true, false] {
        in_namespace(|| {
            let beyond_it = Beyond::new(1);
            let runtime = runtime();
            let listener = inside(&beyond_it.host, || std::net::TcpListener::bind(beyond(is_v4, 9)).expect("bound"));
            let stream = connect(&runtime, beyond(is_v4, 9));
            let mut peer = with_timeouts(listener.accept().expect("a connection").0);
            let domain = if is_v4 { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
            assert!(matches!(stream.hand_over(socket.as_fd()).expect("handed over"), HandedOver::Kernel));
            let mut socket = with_timeouts(socket.into());
            std::thread::scope(|scope| {
                scope.spawn(move || socket.write_all(&vec![7; BYTES]).expect("written"));
                let mut bytes = Vec::new();
                peer.read_to_end(&mut bytes).expect("segments that fit the narrow link");
                assert_eq!(bytes.len(), BYTES);
            });
            assert_eq!(runtime.stack_counters().tcp_path_mtu_lowered, 0, "it was the kernel's business");
        });
    }
}
