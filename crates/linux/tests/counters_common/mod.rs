//! Shared by the tests of counting and inspection: a test network with unique device names, and echo traffic over it.
//! (The tracepoint of NAPI polls reports devices by name only, in every namespace.)

#![allow(dead_code, reason = "each test program uses a part of this")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc;
use std::thread::JoinHandle;

use abey_delivery::EpollBusyPoll;
use abey_linux::napi::{Napi, NapiChange, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_testbed::veth::{End, create};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// The server's address.
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));

/// Whether the test runs as root; prints why it is skipped if not.
pub(crate) fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// A server's and a client's namespace, joined by a veth pair of one queue.
pub(crate) struct Net {
    pub(crate) server: NetNs,
    pub(crate) client: NetNs,
    /// The server's device.
    pub(crate) device: String,
}

impl Net {
    /// Makes a network. `letter` is unique within a test binary. Returns `None` without root.
    pub(crate) fn new(letter: char) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let (server, client) = (NetNs::create().expect("namespace"), NetNs::create().expect("namespace"));
        let pid = std::process::id();
        let (device, far) = (format!("s{letter}{pid}"), format!("c{letter}{pid}"));
        create(
            &End { netns: &server, name: &device, address: (SERVER, 24) },
            &End { netns: &client, name: &far, address: (CLIENT, 24) },
            1,
        )
        .expect("veth pair");
        Some(Self { server, client, device })
    }

    /// Returns the NAPI instance of the server's device.
    pub(crate) fn napi(&self) -> Napi {
        let mut netlink = Netlink::open(&self.server).expect("netlink");
        napis(&mut netlink, None).expect("NAPI instances").pop().expect("one NAPI instance")
    }

    pub(crate) fn set(&self, change: &NapiChange) {
        let mut netlink = Netlink::open(&self.server).expect("netlink");
        set_napi(&mut netlink, self.napi().id, change).expect("set");
    }

    /// Connects to `port` of the server.
    pub(crate) fn connect(&self, port: u16) -> TcpStream {
        let stream = self.client.run(|| TcpStream::connect((SERVER, port)).expect("connect")).expect("enter");
        stream.set_nodelay(true).expect("nodelay");
        stream
    }
}

/// Sends `rounds` bytes one at a time and waits for each to come back.
pub(crate) fn ping(stream: &mut TcpStream, rounds: usize) {
    let mut byte = [7];
    for _ in 0..rounds {
        stream.write_all(&byte).expect("send");
        stream.read_exact(&mut byte).expect("reply");
    }
}

/// An echo server for one connection, on a thread of this process: it waits in epoll, until the client closes.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    pub(crate) tid: u32,
    pub(crate) thread: JoinHandle<()>,
}

impl Echo {
    pub(crate) fn start(net: &Net, busy_poll: Option<EpollBusyPoll>) -> Self {
        let listener = net.server.run(|| TcpListener::bind((SERVER, 0)).expect("listen")).expect("enter");
        let address = listener.local_addr().expect("address");
        let (sender, tid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw() as u32).expect("sent");
            let (stream, _) = listener.accept().expect("accept");
            stream.set_nodelay(true).expect("nodelay");
            serve(stream, busy_poll);
        });
        Self { address, tid: tid.recv().expect("tid"), thread }
    }
}

fn serve(mut stream: TcpStream, busy_poll: Option<EpollBusyPoll>) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("add");
    if let Some(params) = busy_poll {
        set_epoll_params(epoll.0.as_raw_fd(), params);
    }
    let mut byte = [0];
    loop {
        epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE).expect("wait");
        match stream.read(&mut byte).expect("read") {
            0 => return,
            _ => stream.write_all(&byte).expect("reply"),
        }
    }
}

#[repr(C)]
pub(crate) struct RawParams {
    usecs: u32,
    budget: u16,
    prefer: u8,
    pad: u8,
}

nix::ioctl_write_ptr!(epoll_set_params, 0x8a, 0x01, RawParams);

/// `EPIOCSPARAMS`.
pub(crate) fn set_epoll_params(epoll: RawFd, params: EpollBusyPoll) {
    let raw = RawParams { usecs: params.usecs, budget: params.budget, prefer: u8::from(params.prefer), pad: 0 };
    // SAFETY: `raw` has the layout the kernel reads and lives through the call.
    unsafe { epoll_set_params(epoll, &raw const raw) }.expect("EPIOCSPARAMS");
}
