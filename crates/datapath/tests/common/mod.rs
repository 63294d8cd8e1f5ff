//! Helpers of the tests against the kernel: the two devices on which it is the peer, and an echo server.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::Command;

use abey_datapath::{Builder, Interest, Runtime, TcpListener, TcpStream};
use abey_nic::{Impaired, Impairment, Pcap, Recording};

pub(crate) use abey_testbed::namespace::*;
pub(crate) use abey_testbed::network::*;

/// The device between the runtime and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// AF_XDP on one end of a veth; the peer is the kernel in the namespace of the other end.
    Xdp,
    /// TAP; the peer is the kernel of the same namespace.
    Tap,
}

/// The decorators of the device.
#[derive(Clone, Default)]
pub(crate) struct Around {
    /// The impairment of the wire, in both directions.
    pub(crate) impairment: Option<Impairment>,
    /// The recording: frames from the runtime after the impairment, frames from the kernel before it.
    pub(crate) recording: Option<Recording>,
}

/// A runtime (10.8.0.1 and fd08::1) and the kernel that is its peer (10.8.0.2 and fd08::2).
pub(crate) struct TestBed {
    pub(crate) runtime: Runtime,
    far: Option<File>,
}

/// Returns whether a program can be run, and prints a note if not.
pub(crate) fn has(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok();
    if !found {
        eprintln!("skipped: needs the program `{program}`");
    }
    found
}

/// Returns whether this machine can run a test over `wire` as root, and prints a note if not.
pub(crate) fn is_possible(wire: Wire) -> bool {
    match wire {
        Wire::Xdp => has("ethtool", "--version"),
        Wire::Tap if std::path::Path::new("/dev/net/tun").exists() => true,
        Wire::Tap => {
            eprintln!("skipped: needs /dev/net/tun");
            false
        }
    }
}

pub(crate) fn ours(is_v4: bool, port: u16) -> SocketAddr {
    host(is_v4, 1, port)
}

pub(crate) fn theirs(is_v4: bool, port: u16) -> SocketAddr {
    host(is_v4, 2, port)
}

fn host(is_v4: bool, last: u8, port: u16) -> SocketAddr {
    let address: IpAddr =
        if is_v4 { [10, 8, 0, last].into() } else { Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, u16::from(last)).into() };
    SocketAddr::new(address, port)
}

impl TestBed {
    /// Creates the runtime in the calling thread's namespace. `change` runs last on its builder.
    pub(crate) fn new(wire: Wire, mode: &str, change: impl FnOnce(Builder) -> Builder) -> Self {
        Self::with(wire, mode, Around::default(), change)
    }

    /// Creates the runtime with decorators around the device.
    pub(crate) fn with(wire: Wire, mode: &str, around: Around, change: impl FnOnce(Builder) -> Builder) -> Self {
        let builder = Runtime::builder()
            .mode(mode.parse().expect("a mode"))
            .stack(|settings| settings.time_wait = std::time::Duration::from_secs(1))
            .decorate(move |_, queue| {
                let queue = match around.recording.clone() {
                    Some(recording) => Box::new(Pcap::new(queue, recording)),
                    None => queue,
                };
                match around.impairment {
                    Some(impairment) => Box::new(Impaired::new(queue, impairment, impairment, 7)),
                    None => queue,
                }
            });
        match wire {
            Wire::Xdp => {
                let far = checked_veth(1);
                let builder = builder.nic("af_xdp:near0", abey_nic::Options::default());
                Self { runtime: change(builder).build().expect("a runtime"), far: Some(far) }
            }
            Wire::Tap => {
                let builder = builder.nic("tap:far0", abey_nic::Options::default());
                let builder = builder.address(ours(true, 0).ip(), 24).address(ours(false, 0).ip(), 64);
                let runtime = change(builder).build().expect("a runtime");
                configure("far0", 2);
                until("the link is up", || {
                    let output = Command::new("ip").args(["-o", "link", "show", "far0"]).output().expect("ip");
                    !String::from_utf8_lossy(&output.stdout).contains("state DOWN")
                });
                Self { runtime, far: None }
            }
        }
    }

    /// Returns the namespace of the kernel's end of a veth.
    pub(crate) fn far(&self) -> &File {
        self.far.as_ref().expect("a veth")
    }

    /// Runs `work` in the namespace of the kernel's end.
    pub(crate) fn at_peer<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.far {
            Some(far) => inside(far, work),
            None => work(),
        }
    }
}

/// Sets timeouts on a kernel socket.
pub(crate) fn with_timeouts(stream: std::net::TcpStream) -> std::net::TcpStream {
    stream.set_read_timeout(Some(HANG_LIMIT)).expect("a timeout");
    stream.set_write_timeout(Some(HANG_LIMIT)).expect("a timeout");
    stream
}

/// Connects from the runtime.
pub(crate) fn connect(runtime: &Runtime, to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(runtime, to, Some(HANG_LIMIT)).expect("connected");
    stream.set_timeout(Some(HANG_LIMIT));
    stream
}

/// Echoes one connection over epoll until its end. Returns the number of bytes.
pub(crate) fn echo(runtime: &Runtime, listener: &TcpListener) -> usize {
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true);
    let epoll = runtime.epoll();
    epoll.add(&stream, 1, Interest::IN).expect("new");
    let (mut events, mut buffer, mut total) = (Vec::new(), vec![0; 64 << 10], 0);
    loop {
        assert_eq!(epoll.wait(&mut events, 1, Some(HANG_LIMIT)).expect("a wait"), 1);
        match stream.read(&mut buffer) {
            Ok(0) => return total,
            Ok(count) => {
                stream.set_nonblocking(false);
                stream.write_all(&buffer[..count]).expect("written");
                stream.set_nonblocking(true);
                total += count;
            }
            Err(error) if error.is_would_block() => {}
            Err(error) => panic!("echo: {error}"),
        }
    }
}
