//! On a real device with two queues, every connection lands at a listener of its queue.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use abey_linux::netns::NetNs;
use abey_linux::steer::steer;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, getsockname, listen, setsockopt, socket, sockopt,
};

const QUEUES: u32 = 2;
/// With this many, the probability of a queue without a connection is 2 in 2^48.
const CONNECTIONS: usize = 48;

fn ip(arguments: &str) {
    tool("ip", arguments);
}

fn tool(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect("the program starts");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn lacks_what_it_takes() -> bool {
    let lacks = if !rustix::process::geteuid().is_root() {
        "network namespaces need root"
    } else if !["ip", "ethtool"].iter().all(|tool| Command::new(tool).arg("--version").output().is_ok()) {
        "ip or ethtool is not installed"
    } else {
        return false;
    };
    eprintln!("skipped: {lacks}");
    true
}

/// A listener of the group on this address.
fn listener(address: SocketAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    setsockopt(&fd, sockopt::ReusePort, &true).expect("SO_REUSEPORT");
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).expect("bound");
    listen(&fd, Backlog::new(128).expect("a backlog")).expect("listening");
    fd
}

fn napi_id(socket: &TcpStream) -> u32 {
    const SO_INCOMING_NAPI_ID: libc::c_int = 56;
    let (mut id, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: both pointers are to live values of the sizes given.
    let answer = unsafe {
        let id = (&raw mut id).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_INCOMING_NAPI_ID, id, &raw mut length)
    };
    assert_eq!(answer, 0);
    id
}

/// In a namespace of this thread's own: makes the device, and lets a client in another namespace connect to `workers`
/// listeners. Returns the NAPI IDs of the connections that each of them accepted.
fn accepted(workers: u32, address: &str, queues_known: bool) -> Vec<BTreeMap<u32, usize>> {
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
    let (client_is_there, there) = mpsc::channel();
    let (start, started) = mpsc::channel::<SocketAddr>();
    let client = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
        client_is_there.send(nix::unistd::gettid()).expect("the server is there");
        let Ok(server) = started.recv() else { return };
        ip("address add 10.9.8.2/24 dev client");
        ip("address add fd98::2/64 dev client nodad");
        ip("link set client up");
        // With segmentation left to the receiver, packets would not take its NAPI.
        tool("ethtool", "-K client tso off");
        // On a busy machine replies are late, and retransmissions would move the connection to another queue.
        abey_testbed::veth::keep_queues(&NetNs::current().expect("a namespace")).expect("txrehash off");
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(server).expect("connected");
            stream.write_all(b"x").expect("sent");
            assert_eq!(stream.read(&mut [0; 1]).expect("answered"), 1);
        }
    });
    let client_thread = there.recv().expect("the client is there");
    let queues = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
    ip(&format!("link add server {queues} type veth peer name client {queues} netns {client_thread}"));
    ip("address add 10.9.8.1/24 dev server");
    ip("address add fd98::1/64 dev server nodad");
    ip("link set server up");
    tool("ethtool", "-K server gro on");

    let mut address: SocketAddr = address.parse().expect("an address");
    let known = NonZeroU32::new(QUEUES).filter(|_| queues_known);
    let mut listeners = Vec::new();
    for n in 1..=workers {
        let fd = listener(address);
        let name: SockaddrStorage = getsockname(fd.as_raw_fd()).expect("an address");
        let port = name.as_sockaddr_in().map(|v4| v4.port()).or_else(|| name.as_sockaddr_in6().map(|v6| v6.port()));
        address.set_port(port.expect("a port"));
        let steered = steer(fd.as_fd(), known).expect("steered");
        assert_eq!(steered.map_or(1, NonZeroU32::get), n);
        // SAFETY: given up by its owner here.
        listeners.push(unsafe { TcpListener::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(fd)) });
    }
    let mut server = address;
    if server.ip().is_unspecified() {
        // A dual-stack listener, reached by IPv4.
        server.set_ip("10.9.8.1".parse().expect("an address"));
    }
    start.send(server).expect("the client is there");
    let mut seen = vec![BTreeMap::new(); workers as usize];
    for _ in 0..CONNECTIONS {
        let worker = wait_for_any(&listeners);
        let (mut stream, _) = listeners[worker].accept().expect("a connection");
        stream.read_exact(&mut [0; 1]).expect("received");
        *seen[worker].entry(napi_id(&stream)).or_insert(0) += 1;
        stream.write_all(b"y").expect("sent");
    }
    client.join().expect("the client ends");
    seen
}

fn wait_for_any(listeners: &[TcpListener]) -> usize {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds: Vec<PollFd> = listeners.iter().map(|one| PollFd::new(one.as_fd(), PollFlags::POLLIN)).collect();
    assert!(poll(&mut fds, PollTimeout::from(20_000u16)).expect("polled") > 0, "a connection comes");
    fds.iter().position(|fd| fd.any() == Some(true)).expect("one is ready")
}

/// Checks that each listener saw one queue, all queues were seen, and the sharers of a queue are as planned.
fn check(workers: u32, address: &'static str, queues_known: bool) {
    // Namespaces belong to threads: the test's own stays where it is.
    let seen = thread::spawn(move || accepted(workers, address, queues_known)).join().expect("the server ends");
    let what = format!("{workers} workers on {address}: {seen:?}");
    let all: BTreeSet<u32> = seen.iter().flat_map(|of_worker| of_worker.keys().copied()).collect();
    assert!(all.iter().all(|id| *id > 0), "every connection has a NAPI ID: {what}");
    assert_eq!(all.len() as u32, QUEUES, "{what}");
    for (worker, ids) in seen.iter().enumerate() {
        if !queues_known && worker as u32 >= QUEUES {
            assert!(ids.is_empty(), "{what}");
            continue;
        }
        assert_eq!(ids.len(), 1, "one NAPI instance: {what}");
        assert_eq!(ids.keys().next(), seen[worker % QUEUES as usize].keys().next(), "the planned one: {what}");
    }
}

#[test]
fn one_worker_per_queue() {
    if !lacks_what_it_takes() {
        check(2, "10.9.8.1:0", true);
        check(2, "[fd98::1]:0", true);
    }
}

#[test]
fn more_workers_than_queues_share_them() {
    if !lacks_what_it_takes() {
        check(4, "10.9.8.1:0", true);
        check(4, "[fd98::1]:0", true);
        // Reached by IPv4 through an IPv6 listener.
        check(3, "[::]:0", true);
    }
}

#[test]
fn with_an_unknown_number_of_queues_the_workers_beyond_them_are_idle() {
    if !lacks_what_it_takes() {
        check(3, "10.9.8.1:0", false);
    }
}
