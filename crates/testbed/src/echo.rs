//! A small epoll server in a namespace, and load for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::namespace::inside;
use crate::spawn::SpawnExt;

/// Echoes on port 7000 and ends by itself. Arguments: address, epoll parameters or `none`, timeout of its waits.
const PROGRAM: &str = include_str!("echo_server.py");

const CONNECTIONS: usize = 8;

/// A limit that only a hang reaches, also on a machine under load.
const HANG_LIMIT: Duration = Duration::from_secs(30);

/// A child process that echoes what it receives on TCP port 7000, from one epoll loop.
#[derive(Debug)]
pub struct EchoServer {
    child: Child,
    address: IpAddr,
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl EchoServer {
    /// Starts the server in a namespace. `params` are the busy-poll parameters of its epoll instance, as
    /// `usecs,budget,prefer` or `none`; `timeout` is that of its waits, in seconds. Prints a reason and returns `None` where
    /// there is no Python.
    ///
    /// # Panics
    /// When the server does not listen.
    #[must_use]
    pub fn start(netns: &impl AsFd, address: IpAddr, params: &str, timeout: &str) -> Option<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, &address.to_string(), params, timeout]).stdout(Stdio::piped());
        command.in_netns(netns).dies_with_parent();
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: needs python3 as a server");
            return None;
        };
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        let server = Self { child, address };
        BufReader::new(output).read_line(&mut line).expect("a line once the server listens");
        assert_eq!(line, "ready\n");
        Some(server)
    }

    /// Returns the process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs `work` while clients in `netns` keep the server under load, from the first answers on.
    ///
    /// # Panics
    /// When the load fails.
    pub fn under_load<T>(&self, netns: &(impl AsFd + Sync), work: impl FnOnce() -> T) -> T {
        let (answered, answers) = channel();
        let (running, stop) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| inside(netns, move || echo_until(&stop, self.address, &answered)));
            // Dropped when `work` returns or panics, which ends the load.
            let _running: Sender<()> = running;
            answers.recv().expect("the load is answered");
            work()
        })
    }
}

/// Keeps several requests in flight until the other side of `stop` is dropped. Reports each round of answers to `answered`.
fn echo_until(stop: &Receiver<()>, address: IpAddr, answered: &Sender<()>) {
    let connect = |_| {
        let stream = TcpStream::connect((address, 7000)).expect("connect");
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(HANG_LIMIT)).expect("set");
        stream
    };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(connect).collect();
    while stop.try_recv() != Err(TryRecvError::Disconnected) {
        for stream in &mut streams {
            stream.write_all(&[7; 64]).expect("send");
        }
        for stream in &mut streams {
            stream.read_exact(&mut [0; 64]).expect("answer");
        }
        let _ = answered.send(());
    }
}
