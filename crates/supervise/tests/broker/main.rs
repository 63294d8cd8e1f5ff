//! What the broker does for a process that has dropped its privileges, and what it does not do for others.

mod attacks;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as KernelStream};
use std::os::fd::AsFd;
use std::process::Command;

use abey_datapath::handover::HandedOver;
use abey_datapath::{Readiness, Runtime, TcpListener};
use abey_linux::netns::NetNs;
use abey_nic::Options;
use abey_nic::broker::{claim, open_claimed};
use abey_supervise::broker::{BrokerConfig, BrokerThread};
use abey_testbed::namespace::{HANG_LIMIT, in_namespace, inside, until};
use abey_testbed::network::checked_veth;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

const PORT: u16 = 7000;

/// Starts a broker for the veth of the calling thread's namespace.
fn broker() -> BrokerThread {
    let config = BrokerConfig {
        nic: "af_xdp:near0".parse().expect("a name"),
        options: Options::default(),
        queues_per_process: None,
        strict: false,
        report: Box::new(|message| panic!("{message}")),
    };
    BrokerThread::start(config, NetNs::current().expect("a namespace")).expect("a broker")
}

/// Drops the capabilities of the calling thread.
fn drop_privileges() {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).expect("dropped");
}

#[test]
fn connections_move_to_the_kernel_without_privileges() {
    if Command::new("ethtool").arg("--version").output().is_err() {
        eprintln!("skipped: needs the program `ethtool`");
        return;
    }
    in_namespace(|| {
        let far = checked_veth(1);
        let broker = broker();
        let claimed = claim(&broker.address().socket, &broker.address().token, false).expect("a queue");
        let nic = open_claimed("af_xdp:near0", claimed, &Options::default()).expect("open");
        let runtime = Runtime::builder().opened(nic).build().expect("a runtime");
        let listener = TcpListener::bind(&runtime, SocketAddr::from(([0; 4], PORT))).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        let connect = || {
            let peer = inside(&far, || KernelStream::connect(SocketAddr::from(([10, 8, 0, 1], PORT))));
            let peer = peer.expect("connected");
            peer.set_read_timeout(Some(HANG_LIMIT)).expect("set");
            (peer, listener.accept().expect("a connection").0)
        };
        let connections = [(connect(), false), (connect(), true)];
        drop_privileges();
        for ((mut peer, stream), half_closed) in connections {
            peer.write_all(b"question").expect("written");
            if half_closed {
                // The kernel gets the FIN by an injected frame.
                peer.shutdown(Shutdown::Write).expect("open");
                until("the FIN arrives", || stream.readiness().contains(Readiness::READ_CLOSED));
            }
            let kernel = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
            let moved = stream.hand_over(kernel.as_fd()).expect("handed over");
            assert!(matches!(moved, HandedOver::Kernel), "{:?}", runtime.take_hand_over_refusal());
            let mut kernel = KernelStream::from(kernel);
            kernel.set_read_timeout(Some(HANG_LIMIT)).expect("set");
            kernel.write_all(b"answer").expect("written");
            let mut text = [0; 8];
            kernel.read_exact(&mut text).expect("read");
            assert_eq!(&text, b"question");
            if half_closed {
                assert_eq!(kernel.read(&mut text).expect("the end"), 0);
            }
            drop(kernel);
            let mut answer = String::new();
            peer.read_to_string(&mut answer).expect("read");
            assert_eq!(answer, "answer");
        }
    });
}

#[test]
fn a_process_gets_no_packets_for_addresses_that_the_host_does_not_have() {
    in_namespace(|| {
        let _far = abey_testbed::network::veth(1);
        let broker = broker();
        let claimed = claim(&broker.address().socket, &broker.address().token, false).expect("a queue");
        let nic = open_claimed("af_xdp:near0", claimed, &Options::default()).expect("open");
        let ports = nic.ports().expect("ports");
        ports.serve("10.8.0.1".parse().expect("an address"), true).expect("the host's");
        for address in ["10.8.0.2", "fd08::2", "0.0.0.0"] {
            let refused = ports.serve(address.parse().expect("an address"), true).expect_err("another host's");
            assert_eq!(refused.kind(), std::io::ErrorKind::AddrNotAvailable, "{address}");
        }
    });
}
