//! `abey run --world datapath`: programs whose sockets go through the C library and whose epoll calls do not, as those of Rust
//! programs on async-io do. Nothing hangs, one line says what happens, and `--strict` ends the program.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{HANG_LIMIT, Running, TestBed, at, await_that, has};
use crate::xdp::{connect, start, testbed};

const KINDS: [&str; 3] = ["level", "edge", "once"];
const LINE: &str = "epoll calls that it makes without the C library";
/// How long a datagram that was lost is not sent again.
const RESEND: Duration = Duration::from_millis(300);

/// The test network, and a directory with the program that is compiled from `direct_epoll.c`.
struct Bed {
    testbed: TestBed,
    directory: tempfile::TempDir,
}

impl Bed {
    /// Makes the bed, or prints why it cannot.
    fn new() -> Option<Self> {
        if !has("cc") {
            return None;
        }
        let (testbed, directory) = (testbed(1)?, tempfile::tempdir().expect("a directory"));
        let source = directory.path().join("direct_epoll.c");
        fs::write(&source, include_str!("direct_epoll.c")).expect("written");
        let program = directory.path().join("direct_epoll");
        let compiled =
            Command::new("cc").arg("-D_GNU_SOURCE").arg("-o").args([&program, &source]).output().expect("cc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(Self { testbed, directory })
    }

    fn start(&self, options: &[&str], action: &str, port: u16, kind: &str) -> Running {
        let program = self.directory.path().join("direct_epoll");
        start(
            &self.testbed,
            "suspend20",
            options,
            &[program.to_str().expect("a path"), action, &port.to_string(), kind],
        )
    }

    /// Connects when the program listens.
    fn connect(&self, program: &mut Running, port: u16) -> TcpStream {
        let mut stream = None;
        await_that("the program does not listen", || {
            assert!(!program.has_ended(), "it has ended: {}", program.errors_so_far());
            stream = connect(&self.testbed, port).ok();
            stream.is_some()
        });
        stream.expect("connected")
    }
}

#[track_caller]
fn exchange(stream: &mut TcpStream, program: &Running) {
    for text in [b"a", b"b", b"c"] {
        let mut answer = [0];
        stream.write_all(text).expect("written");
        stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{error}: {}", program.errors_so_far()));
        assert_eq!(&answer, text);
    }
}

#[track_caller]
fn await_line(program: &mut Running) {
    await_that("there is no line", || {
        assert!(!program.has_ended(), "it has ended: {}", program.errors_so_far());
        program.errors_so_far().contains(LINE)
    });
}

#[track_caller]
fn assert_one_line(program: Running, what: &str) {
    let errors = program.terminate().errors;
    let lines: Vec<_> = errors.lines().filter(|line| line.contains("libabey.so")).collect();
    assert!(lines.len() == 1 && lines[0].contains(LINE), "{what}: {errors}");
}

#[test]
fn a_server_that_waits_without_the_c_library_answers_all() {
    let Some(bed) = Bed::new() else { return };
    for (port, action) in (80..).zip(["serve", "late"]) {
        for kind in KINDS {
            let mut program = bed.start(&[], action, port, kind);
            let mut streams: Vec<_> = (0..4).map(|_| bed.connect(&mut program, port)).collect();
            streams.iter_mut().for_each(|stream| exchange(stream, &program));
            await_line(&mut program);
            streams.extend((0..4).map(|_| bed.connect(&mut program, port)));
            streams.iter_mut().for_each(|stream| exchange(stream, &program));
            assert_one_line(program, &format!("{action} {kind}"));
        }
    }
}

#[test]
fn a_connection_that_is_waited_for_without_the_c_library_moves() {
    let Some(bed) = Bed::new() else { return };
    for kind in KINDS {
        let mut program = bed.start(&[], "handed", 80, kind);
        let mut stream = bed.connect(&mut program, 80);
        // The kernel accepts until the datapath listens.
        while !program.errors_so_far().contains(LINE) {
            exchange(&mut stream, &program);
            stream = bed.connect(&mut program, 80);
        }
        exchange(&mut stream, &program);
        exchange(&mut bed.connect(&mut program, 80), &program);
        assert_one_line(program, kind);
    }
}

#[test]
fn a_udp_server_that_waits_without_the_c_library_answers() {
    let Some(bed) = Bed::new() else { return };
    let client = bed.testbed.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound")).expect("entered");
    client.connect::<SocketAddr>(at(53)).expect("connected");
    client.set_read_timeout(Some(RESEND)).expect("set");
    for kind in KINDS {
        let mut program = bed.start(&[], "udp", 53, kind);
        for round in 0..6 {
            if round == 3 {
                await_line(&mut program);
            }
            let (since, mut answer) = (Instant::now(), [0; 8]);
            // Before the program is bound, the kernel refuses.
            while client.send(&[round]).and_then(|_| client.recv(&mut answer)).is_err() || answer[0] != round {
                assert!(since.elapsed() < HANG_LIMIT, "{kind}: {}", program.errors_so_far());
            }
        }
        assert_one_line(program, kind);
    }
}

#[test]
fn a_client_that_waits_without_the_c_library_has_its_answer() {
    let Some(bed) = Bed::new() else { return };
    let server = bed.testbed.client.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 90)).expect("bound"));
    let server = server.expect("entered");
    for kind in KINDS {
        let mut program = bed.start(&[], "ask", 90, kind);
        let (mut stream, _) = server.accept().expect("accepted");
        stream.set_read_timeout(Some(HANG_LIMIT)).expect("set");
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("{kind}: {error}: {}", program.errors_so_far()));
        await_line(&mut program);
        stream.write_all(&byte).expect("written");
        let finished = program.end();
        finished.assert_status(0);
        assert_eq!(finished.out, "a\n", "{kind}: {}", finished.errors);
        assert!(finished.errors.contains(LINE), "{kind}: {}", finished.errors);
    }
}

#[test]
fn a_strict_run_ends_when_its_program_waits_without_the_c_library() {
    let Some(bed) = Bed::new() else { return };
    let program = bed.start(&["--strict"], "udp", 53, "level");
    let finished = program.end();
    finished.assert_status(3);
    assert!(finished.errors.contains(LINE), "{}", finished.errors);
}
