//! Packets to a redirected port that are not for the runtime: the host forwards them, or has the address elsewhere.

use std::fs::File;
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream, UdpSocket as KernelUdp};
use std::os::fd::AsFd;

use abey_datapath::TcpListener;

use crate::common::{HANG_LIMIT, inside, ip, ours, until, with_timeouts};
use crate::{listener, on_a_pair, runtime, visit};

const PORT: u16 = 80;

/// Makes this namespace a router between `far` and a network behind it, which is returned: 10.9.0.2 and fd09::2.
fn behind_a_router(far: &File) -> File {
    let behind = abey_testbed::namespace::another_namespace();
    let path = abey_testbed::namespace::path(&behind);
    ip(&format!("link add mid0 type veth peer name srv0 netns {path}"));
    let network = |device: &str, last: u8| {
        ip("link set lo up");
        ip(&format!("addr add 10.9.0.{last}/24 dev {device}"));
        ip(&format!("addr add fd09::{last}/64 dev {device} nodad"));
        ip(&format!("link set {device} up"));
    };
    network("mid0", 1);
    inside(&behind, || {
        network("srv0", 2);
        ip("route add default via 10.9.0.1");
        ip("route add default via fd09::1");
    });
    inside(far, || {
        ip("route add default via 10.8.0.1");
        ip("route add default via fd08::1");
    });
    for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{setting}"), "1").expect("a setting");
    }
    behind
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_router_forwards_what_is_for_others() {
    on_a_pair(|far| {
        let behind = behind_a_router(&far);
        let runtime = runtime();
        let ours80 = listener(&runtime, PORT);
        for (is_v4, at) in [(true, "10.9.0.2:80"), (false, "[fd09::2]:80")] {
            let server = inside(&behind, || KernelListener::bind(at).expect("the server's"));
            visit(&far, address(at)).expect("forwarded");
            server.accept().expect("a connection");
            visit(&far, ours(is_v4, PORT)).expect("ours");
            ours80.accept().expect("a connection");
        }
        let _ours53 = abey_datapath::UdpSocket::bind(&runtime, ours(true, 53)).expect("ours");
        let server = inside(&behind, || KernelUdp::bind("10.9.0.2:53").expect("the server's"));
        server.set_read_timeout(Some(HANG_LIMIT)).expect("timeout");
        inside(&far, || KernelUdp::bind("0.0.0.0:0")?.send_to(b"x", "10.9.0.2:53")).expect("sent");
        assert_eq!(server.recv(&mut [0; 8]).expect("forwarded"), 1);
    });
}

/// A listener of the kernel at all addresses, and one of the datapath beside it.
fn both(runtime: &abey_datapath::Runtime) -> (KernelListener, TcpListener) {
    let kernel = KernelListener::bind(("::", PORT)).expect("the kernel's");
    let at = SocketAddr::new(kernel.local_addr().expect("bound").ip(), PORT);
    let datapath = TcpListener::bind_reserved(runtime, &[at], &[0], 4, kernel.as_fd()).expect("a listener");
    datapath.set_timeout(Some(HANG_LIMIT));
    (kernel, datapath)
}

#[test]
fn addresses_that_the_stack_does_not_have_are_the_kernels() {
    on_a_pair(|far| {
        ip("addr add 10.20.0.1/32 dev lo");
        inside(&far, || ip("route add 10.20.0.1 via 10.8.0.1"));
        let runtime = runtime();
        let (kernel, datapath) = both(&runtime);
        visit(&far, address("10.20.0.1:80")).expect("of another device");
        kernel.accept().expect("a connection");
        ip("addr add 10.8.0.4/24 dev near0");
        visit(&far, address("10.8.0.4:80")).expect("added later");
        kernel.accept().expect("a connection");
        visit(&far, ours(true, PORT)).expect("ours");
        datapath.accept().expect("a connection");
    });
}

#[test]
fn an_address_that_leaves_the_host_is_served_again_when_it_is_back() {
    on_a_pair(|far| {
        let behind = behind_a_router(&far);
        ip("addr add 10.8.0.3/32 dev near0");
        let runtime = runtime();
        let (_kernel, datapath) = both(&runtime);
        let to = address("10.8.0.3:80");
        visit(&far, to).expect("ours");
        datapath.accept().expect("a connection");

        // It moves to the host behind this one.
        ip("addr del 10.8.0.3/32 dev near0");
        ip("route add 10.8.0.3 via 10.9.0.2");
        std::fs::write("/proc/sys/net/ipv4/conf/near0/proxy_arp", "1").expect("a setting");
        std::fs::write("/proc/sys/net/ipv4/neigh/near0/proxy_delay", "0").expect("a setting");
        inside(&behind, || ip("addr add 10.8.0.3/32 dev srv0"));
        let server = inside(&behind, || KernelListener::bind(to).expect("the server's"));
        server.set_nonblocking(true).expect("non-blocking");
        let reaches_server = || {
            let _ = inside(&far, || KernelStream::connect_timeout(&to, HANG_LIMIT / 20));
            server.accept().is_ok()
        };
        until("the server is reached", reaches_server);

        inside(&behind, || ip("addr del 10.8.0.3/32 dev srv0"));
        ip("route del 10.8.0.3 via 10.9.0.2");
        ip("addr add 10.8.0.3/32 dev near0");
        datapath.set_timeout(Some(HANG_LIMIT / 20));
        until("the datapath is reached", || {
            let stream = inside(&far, || KernelStream::connect_timeout(&to, HANG_LIMIT / 20));
            stream.is_ok_and(|stream| {
                drop(with_timeouts(stream));
                datapath.accept().is_ok()
            })
        });
    });
}
