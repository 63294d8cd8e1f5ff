//! `abey run --world datapath`: after a SIGKILL of the program, or of `abey run` itself, in any state, nothing is left behind.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;

use crate::common::{Running, TestBed, await_that, has, runs, send};
use crate::xdp::{RETRY_INTERVAL, assert_queues_are_free, await_nothing_left, connect, start, testbed};
use nix::sys::signal::Signal;

/// Enters the state that its argument names and then prints `there`. The server's port is 80, the client's listener has 81.
const PROGRAM: &str = "
import os, socket, sys, time
state, own, peer = sys.argv[1:]
def there():
    os.write(2, b'there\\n')
    while True: time.sleep(100)
if state == 'before': there()
s = socket.socket()
if state == 'connecting':
    s.setblocking(False)
    s.connect_ex((peer, 82))
    there()
if state == 'connected':
    s.connect((peer, 81))
    there()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((own, 80))
if state == 'bound': there()
s.listen()
if state == 'listening': there()
if state in ('claiming', 'forking'):
    for worker in range(1 if state == 'claiming' else 20):
        if os.fork() == 0:
            s.accept()
            there()
    there()
s.setblocking(False)
try: s.accept()
except BlockingIOError: pass
if state == 'open': there()
if state == 'forked':
    if os.fork() == 0:
        while True: time.sleep(100)
    there()
s.setblocking(True)
os.write(2, b'accepts\\n')
c, _ = s.accept()
c.recv(1)
if state == 'closing': c.shutdown(socket.SHUT_WR)
there()
";

/// All states of the program.
const STATES: [&str; 11] = [
    "before",
    "bound",
    "listening",
    "open",
    "claiming",
    "forking",
    "forked",
    "connecting",
    "connected",
    "established",
    "closing",
];

/// The program in its state, and the other end of its connection, if any.
struct Scene {
    program: Running,
    peer: Option<TcpStream>,
}

/// Returns the listener that the program connects to. All states share one: a child of another test, between `fork` and `exec`,
/// can keep a closed listener open a little longer, and its port would still be in use.
fn listener(testbed: &TestBed) -> TcpListener {
    testbed.client.run(|| TcpListener::bind((PEER, 81)).expect("a port")).expect("entered")
}

/// The client's address.
const PEER: &str = "198.18.10.2";

fn scene(testbed: &TestBed, listener: &TcpListener, state: &str) -> Scene {
    let own = crate::common::at(0).ip().to_string();
    let program = start(testbed, "suspend20", &[], &["python3", "-c", PROGRAM, state, &own, PEER]);
    let says = |word: &str| program.errors_so_far().contains(word);
    let peer = match state {
        "established" | "closing" => {
            await_that("it does not accept", || says("accepts"));
            let mut stream = connect(testbed, 80).expect("connected");
            stream.write_all(b"x").expect("written");
            Some(stream)
        }
        "connected" => Some(listener.accept().expect("a connection").0),
        _ => None,
    };
    await_that(&format!("it does not get to {state}: {}", program.errors_so_far()), || says("there"));
    Scene { program, peer }
}

/// Asserts that the peer, which keeps sending, gets a reset.
fn assert_reset(scene: &mut Scene, state: &str) {
    let Some(stream) = &mut scene.peer else { return };
    stream.set_read_timeout(Some(RETRY_INTERVAL)).expect("a timeout");
    await_that(&format!("{state}: the peer is not reset"), || {
        let mut bytes = [0; 16];
        match stream.write(b"x").and_then(|_| stream.read(&mut bytes)) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            // The program had closed its end before it was killed.
            Ok(_) => false,
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    });
}

fn possible() -> Option<TestBed> {
    if !has("python3") { None } else { testbed(1) }
}

#[test]
fn a_program_that_is_killed_in_any_state_leaves_nothing_behind() {
    let Some(testbed) = possible() else { return };
    let listener = listener(&testbed);
    for state in STATES {
        let mut scene = scene(&testbed, &listener, state);
        let all = scene.program.programs("python3");
        let Some(first) = all.iter().min() else { panic!("no program") };
        send(*first, Signal::SIGKILL);
        assert_reset(&mut scene, state);
        // Children of a killed master keep running.
        for left in all.iter().filter(|pid| runs(**pid)) {
            send(*left, Signal::SIGKILL);
        }
        let status = scene.program.wait();
        assert_eq!((status.code(), status.signal()), (Some(137), None), "{state}");
        await_nothing_left(&testbed, state);
    }
    assert_queues_are_free(&testbed);
}

#[test]
fn an_abey_run_that_is_killed_in_any_state_leaves_nothing_behind() {
    let Some(testbed) = possible() else { return };
    let listener = listener(&testbed);
    for state in STATES {
        let mut scene = scene(&testbed, &listener, state);
        let all = scene.program.programs("python3");
        scene.program.signal(Signal::SIGKILL);
        assert_eq!(scene.program.wait().signal(), Some(9), "{state}");
        assert_reset(&mut scene, state);
        await_that(&format!("{state}: the program runs on"), || !all.iter().any(|pid| runs(*pid)));
        await_nothing_left(&testbed, state);
    }
    assert_queues_are_free(&testbed);
}
