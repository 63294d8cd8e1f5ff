//! A device that is shared with the kernel: the traffic that stays in the kernel, the neighbours and ports that the runtime
//! requests, and the state after the runtime is dropped.

mod addresses;
#[path = "../common/mod.rs"]
mod common;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket as KernelUdp};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use abey_datapath::{Builder, OpenError, Runtime, Sharing, SocketError, TcpListener, TcpStream, UdpSocket};
use abey_nic::{Options, Warning};
use common::{
    HANG_LIMIT, Wire, checked_veth, connect, echo, has_program, in_namespace, inside, ip, is_possible, ours, run,
    theirs, this_program, until, veth, with_timeouts,
};

fn builder() -> Builder {
    let builder = Runtime::builder().nic("af_xdp:near0", Options::default());
    builder.stack(|settings| settings.time_wait = Duration::from_millis(300))
}

fn runtime() -> Runtime {
    builder().build().expect("a runtime")
}

/// Runs a test on a veth pair of its own whose far end computes checksums.
fn on_a_pair(test: impl FnOnce(File) + Send) {
    if is_possible(Wire::Xdp) {
        in_namespace(|| test(checked_veth(1)));
    }
}

fn listener(runtime: &Runtime, port: u16) -> TcpListener {
    let listener = TcpListener::bind(runtime, SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], port))).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    listener
}

/// Connects from the far kernel, and closes again.
fn visit(far: &File, to: SocketAddr) -> std::io::Result<()> {
    inside(far, || std::net::TcpStream::connect_timeout(&to, HANG_LIMIT)).map(drop)
}

/// Returns a counter of the calling thread's network namespace, from `/proc/net/snmp`.
fn kernel_counter(protocol: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|word| word == name).expect("a counter");
    values.split(' ').nth(at).expect("a value").parse().expect("a number")
}

#[test]
fn the_kernel_answers_for_its_own_ports_and_not_for_ours() {
    on_a_pair(|far| {
        let runtime = runtime();
        let ssh = std::net::TcpListener::bind(ours(true, 22)).expect("the kernel's");
        let ours7 = listener(&runtime, 7);
        for is_v4 in [true, false] {
            visit(&far, ours(is_v4, 7)).expect("ours");
            ours7.accept().expect("a connection");
        }
        visit(&far, ours(true, 22)).expect("the kernel's");
        ssh.accept().expect("a connection");
        // The kernel answers pings and neighbour requests, and refuses connections to ports without a listener.
        let address = ours(true, 0).ip();
        if Command::new("ping").arg("-V").output().is_ok() {
            inside(&far, || run("ping", &format!("-c 1 -W 5 {address}")));
        }
        assert_eq!(kernel_counter("Tcp:", "OutRsts"), 0, "nothing that was ours was refused");
        assert_eq!(visit(&far, ours(true, 8)).expect_err("no answer").kind(), ErrorKind::ConnectionRefused);
        assert_eq!(kernel_counter("Tcp:", "OutRsts"), 1);
        assert_eq!(runtime.nic_counters().received, runtime.counters(None).packets);
        assert_eq!(runtime.warnings(), []);
    });
}

#[test]
fn ports_are_reserved_on_the_whole_machine() {
    on_a_pair(|far| {
        let runtime = runtime();
        let kernel = std::net::TcpListener::bind("0.0.0.0:80").expect("the kernel's");
        let taken = |result: Result<(), OpenError>| match result {
            Err(OpenError::PortInUse { port, .. }) => port,
            other => panic!("{other:?}"),
        };
        let bind = |port| TcpListener::bind(&runtime, ours(true, port)).map(drop);
        assert_eq!(taken(bind(80)), 80);
        let message = bind(80).expect_err("taken").to_string();
        assert!(message.starts_with("TCP port 80 is in use by another program on this machine"), "{message}");
        drop(kernel);
        bind(80).expect("free now");

        let ours80 = listener(&runtime, 80);
        assert!(ours80.kernel_socket().is_some());
        let other = std::net::TcpListener::bind("0.0.0.0:80").map(drop);
        assert_eq!(other.expect_err("ours").kind(), ErrorKind::AddrInUse);
        let twice = TcpListener::bind(&runtime, ours80.local_addr().expect("open")).map(drop);
        assert!(matches!(twice, Err(OpenError::Stack(_))), "the stack itself has it: {twice:?}");
        let udp = UdpSocket::bind(&runtime, ours(true, 80)).expect("the other protocol");
        assert_eq!(KernelUdp::bind("0.0.0.0:80").map(drop).expect_err("ours").kind(), ErrorKind::AddrInUse);
        assert_eq!(runtime.census().kernel_ports, 2);

        // A connection keeps the port after the listener is closed, and releases it when it has ended.
        let mut visitor =
            with_timeouts(inside(&far, || std::net::TcpStream::connect(ours(true, 80)).expect("connected")));
        let (stream, _) = ours80.accept().expect("a connection");
        drop((ours80, udp));
        assert_eq!(runtime.census().kernel_ports, 1);
        stream.write_all(b"still here").expect("written");
        drop(stream);
        let mut text = String::new();
        visitor.read_to_string(&mut text).expect("all");
        assert_eq!(text, "still here");
        drop(visitor);
        until("the port is the kernel's again", || runtime.census().kernel_ports == 0);
        std::net::TcpListener::bind("0.0.0.0:80").expect("free");
        assert_eq!(kernel_counter("Tcp:", "OutRsts"), 0);
    });
}

#[test]
fn a_listener_uses_the_port_of_a_kernel_listener() {
    on_a_pair(|far| {
        let runtime = runtime();
        let kernel = std::net::TcpListener::bind("[::]:80").expect("the kernel's");
        let at = "[::]:80".parse().expect("an address");
        let beside = TcpListener::bind_reserved(&runtime, &[at], &[0], 4, kernel.as_fd()).expect("a listener");
        assert!(beside.kernel_socket().is_none(), "the port is the caller's to hold");
        beside.set_timeout(Some(HANG_LIMIT));
        for is_v4 in [true, false] {
            visit(&far, ours(is_v4, 80)).expect("over the device");
            beside.accept().expect("ours");
        }
        visit(&File::open("/proc/thread-self/ns/net").expect("a namespace"), "[::1]:80".parse().expect("loopback"))
            .expect("over loopback");
        kernel.accept().expect("the kernel's");
        assert!(beside.try_accept().expect_err("no answer").is_would_block());
        beside.stop();
        assert_eq!(visit(&far, ours(true, 80)).expect_err("refused").kind(), ErrorKind::ConnectionRefused);
        drop(beside);
        visit(&far, ours(true, 80)).expect("the port is the kernel's again");
        kernel.accept().expect("the kernel's");
    });
}

#[test]
fn a_connection_from_a_port_that_the_caller_holds() {
    on_a_pair(|far| {
        let runtime = runtime();
        let kernel = inside(&far, || std::net::TcpListener::bind(theirs(true, 9)).expect("bound"));
        let held = std::net::TcpListener::bind(ours(true, 0)).expect("held");
        let own = held.local_addr().expect("bound");
        let connect = || TcpStream::connect_from(&runtime, Some(own.ip()), Some(own.port()), theirs(true, 9));
        let stream = connect().expect("begun");
        stream.wait_until_connected(Some(HANG_LIMIT)).expect("in time");
        assert!(stream.is_connected().expect("open") && stream.kernel_socket().is_none());
        assert_eq!(stream.local_addr().expect("open"), own);
        assert!(matches!(connect().map(drop), Err(OpenError::Stack(_))), "there is one");
        let (mut peer, from) = kernel.accept().expect("a connection");
        assert_eq!(from, own);
        // Each direction has its own timeout.
        stream.set_nonblocking(false);
        stream.set_read_timeout(Some(Duration::from_millis(10)));
        stream.set_write_timeout(Some(HANG_LIMIT));
        assert!(stream.read(&mut [0]).is_err());
        stream.write_all(b"x").expect("written");
        peer.read_exact(&mut [0]).expect("read");
    });
}

#[test]
fn a_connection_holds_a_kernel_port_until_time_wait_ends() {
    on_a_pair(|far| {
        let runtime = runtime();
        let kernel = inside(&far, || std::net::TcpListener::bind(theirs(true, 9)).expect("bound"));
        let stream = connect(&runtime, theirs(true, 9));
        let port = stream.local_addr().expect("open").port();
        let socket = stream.kernel_socket().expect("a kernel socket");
        let bound = nix::sys::socket::getsockname::<nix::sys::socket::SockaddrIn6>(socket.as_raw_fd()).expect("bound");
        assert_eq!(bound.port(), port);
        drop(socket);
        assert!(std::net::TcpListener::bind(("0.0.0.0", port)).is_err());
        let (peer, _) = kernel.accept().expect("a connection");
        // This end closes first, so the connection is in TIME-WAIT here, and the peer's FIN must not reach the kernel.
        drop(stream);
        drop(peer);
        assert_eq!(runtime.census().kernel_ports, 1);
        until("the port is given back", || runtime.census().kernel_ports == 0);
        assert_eq!(kernel_counter("Tcp:", "OutRsts"), 0);
        // A child of another test has copies of all descriptors until it starts its program.
        until("the port is free", || std::net::TcpListener::bind(("0.0.0.0", port)).is_ok());
    });
}

#[test]
fn more_connections_than_the_kernel_has_ports() {
    on_a_pair(|far| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").expect("a setting");
        let runtime = runtime();
        let kernel = |port| inside(&far, || std::net::TcpListener::bind(theirs(true, port)).expect("bound"));
        let listeners = [kernel(9), kernel(10)];
        let streams: Vec<_> = [9, 9, 10, 10].into_iter().map(|port| connect(&runtime, theirs(true, port))).collect();
        assert_eq!(runtime.census().kernel_ports, 2, "each for two peers");
        let none = TcpStream::connect(&runtime, theirs(true, 9)).map(drop).expect_err("no port").to_string();
        assert!(none.contains("the kernel has no free port on near0"), "{none}");
        for (stream, listener) in streams.iter().zip([0, 0, 1, 1]) {
            let (mut peer, _) = listeners[listener].accept().expect("a connection");
            stream.write_all(b"x").expect("written");
            peer.read_exact(&mut [0]).expect("read");
        }
        drop(streams);
        drop(listeners);
        until("the ports are given back", || runtime.census().kernel_ports == 0);
    });
}

#[test]
fn neighbours_come_from_the_kernel() {
    on_a_pair(|far| {
        let runtime = runtime();
        let kernel = inside(&far, || std::net::TcpListener::bind("[::]:9").expect("bound"));
        // No neighbour of either version is known at first.
        for is_v4 in [true, false] {
            connect(&runtime, theirs(is_v4, 9));
            kernel.accept().expect("a connection");
        }
        // A neighbour that does not exist: the kernel reports it long before the handshake times out, which is another error.
        for remote in ["10.8.0.99:9", "[fd08::99]:9"] {
            let remote = remote.parse().expect("an address");
            match TcpStream::connect_timeout(&runtime, remote, Some(HANG_LIMIT)).map(drop) {
                Err(OpenError::Network(SocketError::HostUnreachable)) => {}
                other => panic!("{remote}: {other:?}"),
            }
        }
        // A neighbour that moves to another Ethernet address, and announces it to the kernel.
        let stream = connect(&runtime, theirs(true, 9));
        let (mut peer, _) = kernel.accept().expect("a connection");
        inside(&far, || {
            ip("link set far0 address 02:00:00:00:08:77");
            // Its first packet makes the kernel here learn the new address, as a gratuitous ARP would.
            ip("neigh flush dev far0");
        });
        ip("neigh replace 10.8.0.2 lladdr 02:00:00:00:08:77 dev near0 nud reachable");
        stream.write_all(b"moved").expect("written");
        let mut text = [0; 5];
        with_timeouts(peer.try_clone().expect("open"));
        peer.read_exact(&mut text).expect("it followed");
        assert_eq!(&text, b"moved");
    });
}

#[test]
fn a_gateway_comes_from_the_kernel() {
    on_a_pair(|far| {
        inside(&far, || {
            ip("addr add 192.0.2.7/32 dev lo");
            ip("addr add 2001:db8::7/128 dev lo");
        });
        ip("route add default via 10.8.0.2 dev near0");
        ip("route add default via fd08::2 dev near0");
        let runtime = runtime();
        let kernel = inside(&far, || std::net::TcpListener::bind("[::]:9").expect("bound"));
        for remote in ["192.0.2.7:9", "[2001:db8::7]:9"] {
            connect(&runtime, remote.parse().expect("an address"));
            kernel.accept().expect("a connection");
        }
    });
}

#[test]
fn a_dropped_runtime_leaves_the_device_to_the_kernel() {
    on_a_pair(|far| {
        let runtime = runtime();
        let listener = listener(&runtime, 80);
        let mut visitor =
            with_timeouts(inside(&far, || std::net::TcpStream::connect(ours(true, 80)).expect("connected")));
        let (stream, _) = listener.accept().expect("a connection");
        assert!(has_program());
        drop(runtime);
        // Although sockets are still open.
        until("the XDP program is detached", || !has_program());
        assert_eq!(visitor.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
        assert_eq!(visit(&far, ours(true, 80)).expect_err("no answer").kind(), ErrorKind::ConnectionRefused);
        std::net::TcpListener::bind("0.0.0.0:80").expect("free");
        assert!(stream.write(b"x").is_err() && listener.kernel_socket().is_none());
        drop((stream, listener));
        builder().build().expect("the device is free");
    });
}

const CHILD: &str = "ABEY_DATAPATH_XDP_CHILD";

/// Not a test: the process that is killed. It does nothing without its environment variable.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = runtime();
        let listener = listener(&runtime, 80);
        let _connection = listener.accept().expect("a connection");
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn the_kernel_resets_the_connections_of_a_killed_process() {
    on_a_pair(|far| {
        let mut child = this_program("child", CHILD).spawn().expect("start the child");
        let mut visitor = None;
        until("it listens", || {
            visitor = inside(&far, || std::net::TcpStream::connect(ours(true, 80))).ok();
            visitor.is_some()
        });
        child.kill().expect("kill");
        child.wait().expect("wait");
        until("the XDP program is detached", || !has_program());
        let mut visitor = with_timeouts(visitor.expect("connected"));
        visitor.write_all(b"are you there?").expect("written");
        assert_eq!(visitor.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
        builder().build().expect("the device is free");
    });
}

#[test]
fn datagrams_of_both_versions_both_ways() {
    on_a_pair(|far| {
        let runtime = runtime();
        let socket = UdpSocket::bind(&runtime, "[::]:53".parse().expect("an address")).expect("bound");
        socket.set_timeout(Some(HANG_LIMIT));
        let mut buffer = [0; 2000];
        for is_v4 in [true, false] {
            let kernel = inside(&far, || KernelUdp::bind(theirs(is_v4, 900)).expect("bound"));
            kernel.set_read_timeout(Some(HANG_LIMIT)).expect("a timeout");
            for length in [0, 1, 1400] {
                kernel.send_to(&vec![7; length], ours(is_v4, 53)).expect("sent");
                let (count, from, to) = socket.recv_from(&mut buffer).expect("received");
                assert_eq!((count, from, to), (length, theirs(is_v4, 900), ours(is_v4, 0).ip()));
                socket.send_to(&buffer[..count], Some(from)).expect("sent");
                assert_eq!(kernel.recv_from(&mut buffer).expect("received"), (length, ours(is_v4, 53)));
            }
        }
        let chosen = UdpSocket::bind(&runtime, ours(true, 0)).expect("bound");
        let port = chosen.local_addr().expect("open").port();
        assert!(port != 0 && KernelUdp::bind(("0.0.0.0", port)).is_err(), "reserved, too");
    });
}

#[test]
fn a_udp_port_passes_to_the_kernel_with_what_was_not_received() {
    on_a_pair(|far| {
        for is_v4 in [true, false] {
            let runtime = runtime();
            let kernel = KernelUdp::bind(ours(is_v4, 53)).expect("bound");
            kernel.set_read_timeout(Some(HANG_LIMIT)).expect("a timeout");
            let socket =
                UdpSocket::bind_reserved(&runtime, ours(is_v4, 53), Sharing::default(), kernel.as_fd()).expect("bound");
            let peer = inside(&far, || KernelUdp::bind(theirs(is_v4, 900)).expect("bound"));
            for text in ["first", "second"] {
                peer.send_to(text.as_bytes(), ours(is_v4, 53)).expect("sent");
            }
            until("both arrive", || socket.next_bytes().is_ok_and(|bytes| bytes == Some(5)));
            socket.hand_over().expect("handed over");
            peer.send_to(b"third", ours(is_v4, 53)).expect("sent");
            let mut buffer = [0; 100];
            for text in ["first", "second", "third"] {
                let (count, from) = kernel.recv_from(&mut buffer).expect("received");
                assert_eq!((&buffer[..count], from), (text.as_bytes(), theirs(is_v4, 900)));
            }
            assert!(socket.recv_from(&mut buffer).is_err() && socket.hand_over().is_ok());
        }
    });
}

#[test]
fn partial_checksums_of_the_peer_are_warned_about_once() {
    if !is_possible(Wire::Xdp) {
        return;
    }
    in_namespace(|| {
        // The default of a veth.
        let far = veth(1);
        let runtime = runtime();
        let _listener = listener(&runtime, 80);
        let to = ours(true, 80);
        let attempt = inside(&far, || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(200)));
        assert!(attempt.is_err());
        until("the frame came", || runtime.nic_counters().partial_checksums > 0);
        assert_eq!(runtime.stack_counters().tcp_in_checksum_errors, runtime.nic_counters().partial_checksums);
        let warning = Warning::PartialChecksum { device: "af_xdp:near0".to_owned() };
        assert_eq!((runtime.warnings(), runtime.warnings()), (vec![warning], vec![]));
    });
}

#[test]
fn errors_are_one_sentence() {
    on_a_pair(|_far| {
        let refused = |builder: Builder| builder.build().map(drop).expect_err("refused").to_string();
        let message = refused(Runtime::builder().nic("af_xdp:nothing0", Options::default()));
        assert_eq!(
            message,
            "there is no device for af_xdp:nothing0: `ip link` lists the ones of this network namespace"
        );
        let running = runtime();
        let message = refused(builder());
        assert!(message.contains("queue 0 of af_xdp:near0 is in use already"), "{message}");
        drop(running);
        ip("link set near0 down");
        let message = refused(builder());
        assert!(message.contains("near0 is down") || message.contains("it is down; bring it up first"), "{message}");
        ip("link set near0 up");
        ip("addr flush dev near0");
        let message = refused(builder());
        assert!(message.starts_with("near0 has no usable IP address: add one first"), "{message}");
        let given = refused(builder().gateway_v4([10, 9, 9, 9].into()).address([10, 8, 0, 1].into(), 24));
        assert!(given.contains("is unreachable"), "{given}");
        assert!(!has_program());
        // The XDP program of another process: the rest of a NIC of which only the ports are held.
        ip("addr add 10.8.0.1/24 dev near0");
        let nic = abey_nic::open("af_xdp:near0", &Options::default()).expect("open");
        let ports = nic.ports().expect("ports").clone();
        drop(nic);
        let message = refused(builder());
        let own = format!("(pid {}) is attached to it; end that process first", std::process::id());
        assert!(message.contains("the XDP program of ") && message.contains(&own), "{message}");
        drop(ports);
        builder().build().expect("the device is free");
    });
}

const NOBODY: u32 = 65_534;

/// Not a test: the process of another user. It does nothing without its environment variable.
#[test]
fn as_nobody() {
    if std::env::var_os(CHILD).is_some() {
        let refused = builder().build().map(drop).expect_err("refused").to_string();
        assert!(refused.starts_with("opening af_xdp:near0 is not allowed: run as root"), "{refused}");
    }
}

#[test]
fn without_permission_the_error_names_the_capabilities() {
    on_a_pair(|_far| match this_program("as_nobody", CHILD).gid(NOBODY).uid(NOBODY).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => eprintln!("skipped: user {NOBODY} cannot run the test program: {error}"),
    });
}

#[test]
fn two_queues_are_two_shards() {
    if !is_possible(Wire::Xdp) {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(2);
        let runtime = runtime();
        assert_eq!(runtime.shards(), 2);
        let ours7 = listener(&runtime, 7);
        std::thread::scope(|scope| {
            for number in 0..16 {
                let echo = scope.spawn(|| echo(&runtime, &ours7));
                let to = ours(number % 2 == 0, 7);
                let mut kernel = with_timeouts(inside(&far, || std::net::TcpStream::connect(to).expect("connected")));
                kernel.write_all(&[number; 10_000]).expect("written");
                kernel.shutdown(std::net::Shutdown::Write).expect("open");
                let mut back = Vec::new();
                kernel.read_to_end(&mut back).expect("all");
                assert_eq!((back, echo.join().expect("echoed")), (vec![number; 10_000], 10_000));
            }
        });
        assert!((0..2).all(|shard| runtime.counters(Some(shard)).packets > 0), "the kernel uses both queues");
        // Connections from each shard, on whichever queue the answers arrive.
        let kernel = inside(&far, || std::net::TcpListener::bind("[::]:9").expect("bound"));
        for number in 0..16 {
            let stream = TcpStream::connect_nonblocking(&runtime, theirs(number % 2 == 0, 9), Some(number % 2));
            let stream = stream.expect("begun");
            stream.set_nonblocking(false);
            stream.set_timeout(Some(HANG_LIMIT));
            let (mut peer, _) = kernel.accept().expect("a connection");
            peer.write_all(b"hello").expect("written");
            let mut text = [0; 5];
            stream.read_exact(&mut text).expect("read");
            assert_eq!(&text, b"hello");
        }
    });
}

#[test]
fn polls_that_would_find_nothing_are_omitted() {
    const ROUNDS: u64 = 20;
    on_a_pair(|far| {
        let runtime = builder().mode("suspend20".parse().expect("a mode")).build().expect("a runtime");
        let listener = listener(&runtime, 7);
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| echo(&runtime, &listener));
            let mut peer =
                with_timeouts(inside(&far, || std::net::TcpStream::connect(ours(true, 7)).expect("connected")));
            for _ in 0..ROUNDS {
                peer.write_all(b"question").expect("written");
                peer.read_exact(&mut [0; 8]).expect("an answer");
                // As long as a deferral of 100 times 20 us.
                std::thread::sleep(Duration::from_millis(2));
            }
            drop(peer);
            assert_eq!(echo.join().expect("no panic") as u64, 8 * ROUNDS);
        });
        let counters = runtime.counters(None);
        assert!(counters.driven_sleeps > 0 && counters.suspensions >= ROUNDS, "{counters:?}");
        // A poll every 20 us would be about 50 for each.
        assert!(counters.timer_polls < 10 * ROUNDS, "{counters:?}");
    });
}
