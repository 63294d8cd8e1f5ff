//! A small epoll server behind a veth pair, and load for it. The tests of `crates/abey` use this file too.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::napi::{NapiChange, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::spawn::CommandPlace;
use abey_linux::tracefs::Tracefs;
use nix::sys::signal::Signal;

/// Echoes on port 7000; ends by itself. Arguments: address, epoll parameters or `none`, timeout of its waits.
const SERVER: &str = include_str!("../epoll_server.py");

const CONNECTIONS: usize = 8;

/// Longer than an answer takes on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two namespaces and a server in one of them.
pub(crate) struct Bed {
    pub(crate) near: NetNs,
    pub(crate) far: NetNs,
    pub(crate) server: Child,
    address: IpAddr,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Bed {
    /// A server at the near end, with these epoll parameters and this timeout of its waits; `None` with a printed reason.
    pub(crate) fn start((near, far): (NetNs, NetNs), address: IpAddr, params: &str, timeout: &str) -> Option<Self> {
        if let Err(error) = Tracefs::open() {
            eprintln!("skipped: {error}");
            return None;
        }
        let mut command = Command::new("python3");
        command.args(["-c", SERVER, &address.to_string(), params, timeout]).stdout(Stdio::piped());
        command.in_netns(&near).dies_with_parent(Signal::SIGKILL);
        let Ok(mut server) = command.spawn() else {
            eprintln!("skipped: needs python3 as a server");
            return None;
        };
        let mut line = String::new();
        let said = server.stdout.take().expect("piped");
        BufReader::new(said).read_line(&mut line).expect("it says when it is ready");
        let bed = Self { near, far, server, address };
        assert_eq!(line, "ready\n");
        Some(bed)
    }

    /// Sets every instance at the near end to a mode.
    pub(crate) fn set(&self, mode: &str) {
        let mut netlink = Netlink::open(&self.near).expect("netlink");
        let settings = mode.parse::<Mode>().expect(mode).settings().napi;
        for napi in napis(&mut netlink, None).expect("list") {
            let change = NapiChange::between(&napi.settings(), &settings);
            set_napi(&mut netlink, napi.id, &change).expect("set");
        }
    }

    /// Runs `work` while the server is under load, from its first answers on.
    pub(crate) fn under_load<T>(&self, work: impl FnOnce() -> T) -> T {
        let (answered, answers) = channel();
        let (goes_on, end) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| self.far.run(move || echo_until(&end, self.address, &answered)).expect("enter"));
            // However `work` ends, the load ends with this.
            let _goes_on: Sender<()> = goes_on;
            answers.recv().expect("the load is answered");
            work()
        })
    }
}

/// Keeps several requests under way until nobody has the other side of `end`, and says when the first were answered.
fn echo_until(end: &Receiver<()>, address: IpAddr, answered: &Sender<()>) {
    let connect = |_| {
        let stream = TcpStream::connect((address, 7000)).expect("connect");
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(connect).collect();
    while end.try_recv() != Err(TryRecvError::Disconnected) {
        for stream in &mut streams {
            stream.write_all(&[7; 64]).expect("send");
        }
        for stream in &mut streams {
            stream.read_exact(&mut [0; 64]).expect("answer");
        }
        let _ = answered.send(());
    }
}
