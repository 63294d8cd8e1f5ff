//! `abey run --world datapath`: a session of the kernel on another port, as of ssh, survives whatever happens to the server, to
//! `abey run`, which has the XDP program and is the broker, and to its guard.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::common::{HANG_LIMIT, Running, SERVER, TestBed, at, await_that, finish, has, runs, send};
use crate::run_forks::await_datapath;
use crate::xdp::{connect, start, testbed};
use nix::sys::signal::Signal;

const PORT: u16 = 80;
const SESSION_PORT: u16 = 22;

const SERVER_PROGRAM: &str = "
import selectors, socket
selector = selectors.DefaultSelector()
listener = socket.create_server(('', 80), backlog=64)
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(100):
            key.fileobj.sendall(data)
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()
";

/// A session of the kernel over the same device.
struct Session {
    listener: TcpListener,
    ends: [TcpStream; 2],
}

impl Session {
    fn begin(testbed: &TestBed) -> Self {
        let listener =
            testbed.server.run(|| TcpListener::bind((SERVER, SESSION_PORT)).expect("a port")).expect("entered");
        let ends = Self::connect(testbed, &listener);
        Self { listener, ends }
    }

    fn connect(testbed: &TestBed, listener: &TcpListener) -> [TcpStream; 2] {
        let far = connect(testbed, SESSION_PORT).expect("connected");
        let near = listener.accept().expect("accepted").0;
        near.set_read_timeout(Some(HANG_LIMIT)).expect("a timeout");
        [near, far]
    }

    /// Exchanges more than fits a window, and begins another session.
    #[track_caller]
    fn assert_works(&mut self, testbed: &TestBed, after: &str) {
        let mut new = Self::connect(testbed, &self.listener);
        for ends in [&mut self.ends, &mut new] {
            let [near, far] = ends;
            for (from, to) in [(&*near, &*far), (&*far, &*near)] {
                let (mut from, mut to) = (from, to);
                let bytes = vec![7; 1 << 18];
                std::thread::scope(|scope| {
                    scope.spawn(|| from.write_all(&bytes).unwrap_or_else(|error| panic!("{after}: {error}")));
                    let mut read = vec![0; bytes.len()];
                    to.read_exact(&mut read).unwrap_or_else(|error| panic!("{after}: {error}"));
                });
            }
        }
    }
}

/// A server on the datapath, which has one connection.
struct Server {
    run: Running,
    program: u32,
    guard: u32,
    client: TcpStream,
}

impl Server {
    fn start(testbed: &TestBed) -> Self {
        let mut run = start(testbed, "suspend20", &[], &["python3", "-c", SERVER_PROGRAM]);
        await_datapath(testbed, &mut run);
        let (program, guard) = (run.await_program("python3")[0], run.await_guard());
        let mut client = connect(testbed, PORT).expect("connected");
        exchange(&mut client);
        Self { run, program, guard, client }
    }

    /// The server, the broker, and the guard.
    fn processes(&self) -> [(&'static str, u32); 3] {
        [("the server", self.program), ("the broker", self.run.pid()), ("the guard", self.guard)]
    }
}

fn exchange(stream: &mut TcpStream) {
    let mut byte = [0];
    stream.write_all(b"x").expect("written");
    stream.read_exact(&mut byte).expect("read");
}

/// Sends more first segments to the server's port than a queue has buffers.
fn flood(testbed: &TestBed) {
    use socket2::{Domain, Socket, Type};
    const SEGMENTS: usize = 3000;
    testbed
        .client
        .run(|| {
            for _ in 0..SEGMENTS {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
                socket.set_nonblocking(true).expect("set");
                // In progress.
                let _ = socket.connect(&at(PORT).into());
            }
        })
        .expect("entered");
}

fn possible() -> Option<TestBed> {
    if has("python3") { testbed(1) } else { None }
}

#[test]
fn a_session_survives_the_death_of_each_process() {
    let Some(testbed) = possible() else { return };
    let mut session = Session::begin(&testbed);
    for victim in 0..3 {
        let mut server = Server::start(&testbed);
        let (name, pid) = server.processes()[victim];
        send(pid, Signal::SIGKILL);
        session.assert_works(&testbed, &format!("{name} was killed"));
        if name == "the guard" {
            exchange(&mut server.client);
            server.run.terminate();
        } else {
            await_that("the server does not end", || !runs(server.program));
            server.run.wait();
        }
        session.assert_works(&testbed, &format!("{name} was killed, and all have ended"));
    }
}

#[test]
fn a_session_survives_a_process_that_is_stopped_while_its_port_is_flooded() {
    let Some(testbed) = possible() else { return };
    let mut session = Session::begin(&testbed);
    let mut server = Server::start(&testbed);
    for (name, pid) in server.processes() {
        send(pid, Signal::SIGSTOP);
        flood(&testbed);
        session.assert_works(&testbed, &format!("{name} is stopped"));
        send(pid, Signal::SIGCONT);
        session.assert_works(&testbed, &format!("{name} continues"));
        // What was stopped goes on, too.
        exchange(&mut server.client);
    }
    server.run.terminate();
}

#[test]
fn a_session_survives_a_wrong_policy() {
    let Some(testbed) = possible() else { return };
    let mut session = Session::begin(&testbed);
    let mut server = Server::start(&testbed);
    let directory = tempfile::tempdir().expect("a directory");
    let name = &testbed.device.name;
    // An unknown key, a queue that is not there, and settings with which a queue is polled 200 times a second at most.
    let slow = "settings = { defer-hard-irqs = 1000, gro-flush-timeout = \"5ms\" }";
    for (rules, is_valid) in
        [("nonsense = 1", false), ("[[device.queues]]\nqueues = \"7\"\nmode = \"suspend20\"", false), (slow, true)]
    {
        let file = directory.path().join("policy.toml");
        std::fs::write(&file, format!("version = 1\n[[device]]\nname = \"{name}\"\n{rules}\n")).expect("written");
        let applied = finish(testbed.abey("apply", &[file.to_str().expect("a path")]));
        assert_eq!(applied.status.code() == Some(0), is_valid, "{rules}: {applied:?}");
        session.assert_works(&testbed, rules);
        exchange(&mut server.client);
    }
    finish(testbed.abey("apply", &["--undo"])).assert_status(0);
    server.run.terminate();
}
