//! Many connections, in sequence and at once. None is left over, here or in the kernel.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use abey_datapath::{Census, Interest, TcpStream};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::common::{HANG_LIMIT, TestBed, Wire, in_namespace, is_possible, ours, theirs, until, with_timeouts};
use crate::support::EchoServer;

/// Raises the limit of open files to this number. Returns whether that is possible, and prints a note if not.
fn has_descriptors(count: u64) -> bool {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if hard < count {
        eprintln!("skipped: needs {count} file descriptors and the limit is {hard}");
        return false;
    }
    if soft < count {
        setrlimit(Resource::RLIMIT_NOFILE, count, hard).expect("a soft limit below the hard one");
    }
    true
}

/// Waits until only `listeners` are left (each a socket with a port).
fn assert_nothing_left(bed: &TestBed, wire: Wire, listeners: usize) {
    let kernel_ports = if wire == Wire::Xdp { listeners } else { 0 };
    let left = |census: Census| (census.sockets, census.held, census.time_waits, census.kernel_ports);
    until("everything is given back", || left(bed.runtime.census()) == (listeners, listeners, 0, kernel_ports));
}

fn server(bed: &TestBed) -> EchoServer {
    let any = SocketAddr::from(([0_u16; 8], 7));
    EchoServer::start_at(&bed.runtime, any, Duration::from_millis(100))
}

/// Short connections from the kernel, which closes first every other time, by four threads.
fn visits(bed: &TestBed, count: u32) {
    bed.at_peer(|| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in 0..count / 4 {
                        let to = ours((number + thread) % 2 == 0, 7);
                        let mut kernel = with_timeouts(std::net::TcpStream::connect(to).expect("connected"));
                        kernel.write_all(&number.to_le_bytes()).expect("written");
                        if number % 2 == 0 {
                            // Half closed: the server closes first, then the client.
                            kernel.shutdown(std::net::Shutdown::Write).expect("open");
                        }
                        let mut answer = [0; 4];
                        kernel.read_exact(&mut answer).expect("answered");
                        assert_eq!(u32::from_le_bytes(answer), number);
                    }
                });
            }
        });
    });
}

/// Short connections to the kernel, one after the other.
fn calls(bed: &TestBed, count: u32) {
    let kernel = bed.at_peer(|| std::net::TcpListener::bind("[::]:9").expect("bound"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..count {
                let mut stream = with_timeouts(kernel.accept().expect("a connection").0);
                let mut request = [0; 4];
                stream.read_exact(&mut request).expect("a request");
                stream.write_all(&request).expect("written");
            }
        });
        for number in 0..count {
            let stream = crate::common::connect(&bed.runtime, theirs(number % 2 == 0, 9));
            stream.write_all(&number.to_le_bytes()).expect("written");
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).expect("answered");
            assert_eq!(u32::from_le_bytes(answer), number);
        }
    });
}

/// A thousand of these connections may be in TIME-WAIT, with a kernel socket each.
const SPARE: u64 = 8_000;

/// Connects from the kernel, and then to it.
pub(crate) fn in_turn(bed: &TestBed, wire: Wire, from: u32, to: u32) {
    let server = server(bed);
    visits(bed, from);
    assert_nothing_left(bed, wire, 1);
    drop(server);
    calls(bed, to);
    assert_nothing_left(bed, wire, 0);
}

fn one_after_the_other(wire: Wire) {
    if !is_possible(wire) || !has_descriptors(SPARE) {
        return;
    }
    in_namespace(|| {
        let bed = TestBed::new(wire, "suspend20", |builder| {
            builder.stack(|settings| settings.time_wait = Duration::from_millis(200))
        });
        in_turn(&bed, wire, 8_000, 2_000);
        assert_eq!(bed.runtime.stack_counters().tcp_passive_opens, 8_000);
        assert_eq!(bed.runtime.stack_counters().tcp_active_opens, 2_000);
    });
}

#[test]
fn ten_thousand_connections_end_completely_over_tap() {
    one_after_the_other(Wire::Tap);
}

#[test]
fn ten_thousand_connections_end_completely_over_af_xdp() {
    one_after_the_other(Wire::Xdp);
}

const AT_ONCE: u32 = 5_000;

fn at_once(wire: Wire) {
    if !is_possible(wire) || !has_descriptors(4 * u64::from(AT_ONCE)) {
        return;
    }
    in_namespace(|| {
        let bed = TestBed::new(wire, "suspend20", |builder| builder);
        at_once_both_ways(&bed, wire, AT_ONCE);
    });
}

/// Opens connections from the kernel at once, and then the same number to it.
pub(crate) fn at_once_both_ways(bed: &TestBed, wire: Wire, count: u32) {
    {
        let _server = server(bed);
        let mut kernels: Vec<_> = bed.at_peer(|| {
            let connect = |number| std::net::TcpStream::connect(ours(number % 2 == 0, 7)).expect("connected");
            (0..count).map(connect).map(with_timeouts).collect()
        });
        for (number, kernel) in kernels.iter_mut().enumerate() {
            kernel.write_all(&number.to_le_bytes()).expect("written");
        }
        until("all are accepted", || bed.runtime.census().held == count as usize + 1);
        for (number, kernel) in kernels.iter_mut().enumerate() {
            let mut answer = [0; 8];
            kernel.read_exact(&mut answer).expect("answered");
            assert_eq!(usize::from_le_bytes(answer), number);
        }
    }
    assert_nothing_left(bed, wire, 0);
    outwards(bed, count);
    assert_nothing_left(bed, wire, 0);
}

/// Opens the same number to the kernel, in one epoll.
fn outwards(bed: &TestBed, count: u32) {
    let kernel = bed.at_peer(|| std::net::TcpListener::bind("[::]:9").expect("bound"));
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let accept = || with_timeouts(kernel.accept().expect("a connection").0);
            let mut streams: Vec<_> = std::iter::repeat_with(accept).take(count as usize).collect();
            for stream in &mut streams {
                let mut request = [0; 4];
                stream.read_exact(&mut request).expect("a request");
                stream.write_all(&request).expect("written");
            }
            streams
        });
        let epoll = bed.runtime.epoll();
        let streams: Vec<TcpStream> = (0..count)
            .map(|number| {
                let stream = crate::common::connect(&bed.runtime, theirs(number % 2 == 0, 9));
                stream.set_nonblocking(true);
                stream.write_all(&number.to_le_bytes()).expect("room");
                epoll.add(&stream, number.into(), Interest::IN).expect("new");
                stream
            })
            .collect();
        let (mut events, mut answered) = (Vec::new(), 0);
        while answered < count {
            assert!(epoll.wait(&mut events, 64, Some(HANG_LIMIT)).expect("a wait") > 0, "{answered} answers");
            for event in &events {
                let mut answer = [0; 4];
                assert_eq!(streams[event.token as usize].read(&mut answer).expect("an answer"), 4);
                assert_eq!(u64::from(u32::from_le_bytes(answer)), event.token);
                answered += 1;
            }
        }
        drop((streams, echo.join().expect("echoed")));
    });
}

#[test]
fn five_thousand_at_once_over_tap() {
    at_once(Wire::Tap);
}

#[test]
fn five_thousand_at_once_over_af_xdp() {
    at_once(Wire::Xdp);
}
