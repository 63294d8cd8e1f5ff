//! Connections that are handed over to the kernel in the middle of transfers in both directions over a bad wire.
//!
//! `ABEY_HAND_OVERS` sets their number (1000 for the full test). A tenth is requested by another process, which is killed
//! as soon as it has its answer.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abey_datapath::handover::{HandOverAddress, HandedOver};
use abey_datapath::{Error, IoError, Overflow, Readiness, Runtime, Shutdown, TcpListener, TcpStream};
use abey_nic::Impairment;
use nix::libc;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::common::{
    Around, HANG_LIMIT, TestBed, Wire, has_program, in_namespace, inside, is_possible, ours, theirs, this_program,
    until, with_timeouts,
};

/// Environment of the process that requests a hand-over: the address and the connection. The kernel socket is its input.
const ADDRESS: &str = "ABEY_HAND_OVER_ADDRESS";
const CONNECTION: &str = "ABEY_HAND_OVER_CONNECTION";

/// The number of hand-overs without the variable.
const DEFAULT_COUNT: usize = 40;
/// Connections at the same time.
const PARALLEL: usize = 4;
const PORT: u16 = 7000;

/// Loses and reorders in both directions.
fn bad() -> Impairment {
    Impairment {
        loss: 0.02,
        delay: Duration::from_micros(200),
        reorder: 0.05,
        reorder_by: Duration::from_millis(1),
        ..Impairment::default()
    }
}

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % limit
    }
}

/// Returns the byte at an offset of one direction of a connection.
fn byte(stream: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ (at >> 13) as u8 ^ stream as u8
}

/// The transfer of one end: what it has sent and received so far.
#[derive(Debug)]
struct Transfer {
    sends: u64,
    receives: u64,
    sent: u64,
    received: u64,
    to_send: u64,
    has_shut: bool,
    /// Whether the transfer may shut down, which is held back until a requested hand-over.
    may_shut: bool,
    has_ended: bool,
}

/// What an attempt to read or write has done.
enum Attempt {
    Done(usize),
    WouldBlock,
    Moved,
}

/// One end of a connection, which never waits.
trait End {
    fn try_read(&self, buffer: &mut [u8]) -> Attempt;
    fn try_write(&self, bytes: &[u8]) -> Attempt;
    fn shut_write(&self);
}

fn attempt(result: Result<usize, Error>) -> Attempt {
    match result {
        Ok(count) => Attempt::Done(count),
        Err(Error::Socket(IoError::WouldBlock)) => Attempt::WouldBlock,
        Err(Error::Socket(IoError::Moved)) => Attempt::Moved,
        Err(error) => panic!("the datapath's end: {error}"),
    }
}

impl End for TcpStream {
    fn try_read(&self, buffer: &mut [u8]) -> Attempt {
        attempt(Self::try_read(self, buffer))
    }

    fn try_write(&self, bytes: &[u8]) -> Attempt {
        attempt(Self::try_write(self, bytes))
    }

    fn shut_write(&self) {
        match self.shutdown(Shutdown::Write) {
            Ok(()) | Err(Error::Socket(IoError::Moved)) => {}
            Err(error) => panic!("shutdown: {error}"),
        }
    }
}

/// A socket of the kernel.
struct Kernel(std::net::TcpStream, &'static str);

impl Kernel {
    fn attempt(&self, result: std::io::Result<usize>) -> Attempt {
        match result {
            Ok(count) => Attempt::Done(count),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Attempt::WouldBlock,
            Err(error) => panic!("{}: {error}", self.1),
        }
    }
}

impl End for Kernel {
    fn try_read(&self, buffer: &mut [u8]) -> Attempt {
        self.attempt((&self.0).read(buffer))
    }

    fn try_write(&self, bytes: &[u8]) -> Attempt {
        self.attempt((&self.0).write(bytes))
    }

    fn shut_write(&self) {
        self.0.shutdown(std::net::Shutdown::Write).expect("open");
    }
}

impl Transfer {
    fn new(sends: u64, receives: u64, to_send: u64) -> Self {
        Self { sends, receives, sent: 0, received: 0, to_send, has_shut: false, may_shut: true, has_ended: false }
    }

    fn is_done(&self) -> bool {
        self.has_shut && self.has_ended
    }

    /// Continues until the transfer or the connection's stay there has ended, or `stop`. Returns whether it has moved.
    fn run(&mut self, end: &dyn End, expected: u64, stop: impl Fn(&Self) -> bool) -> bool {
        let (mut buffer, limit) = (vec![0; 16 << 10], Instant::now() + HANG_LIMIT);
        while !self.is_done() && !stop(self) {
            let mut progress = false;
            if !self.has_ended {
                match end.try_read(&mut buffer) {
                    Attempt::Done(0) => {
                        assert_eq!(self.received, expected, "the stream ended early");
                        self.has_ended = true;
                        progress = true;
                    }
                    Attempt::Done(count) => {
                        for (offset, found) in (self.received..).zip(&buffer[..count]) {
                            assert_eq!(*found, byte(self.receives, offset), "byte {offset} of {expected}");
                        }
                        self.received += count as u64;
                        progress = true;
                    }
                    Attempt::WouldBlock => {}
                    Attempt::Moved => return true,
                }
            }
            if self.sent < self.to_send {
                let last = self.to_send.min(self.sent + 5000);
                let piece: Vec<_> = (self.sent..last).map(|offset| byte(self.sends, offset)).collect();
                match end.try_write(&piece) {
                    Attempt::Done(count) => {
                        self.sent += count as u64;
                        progress = true;
                    }
                    Attempt::WouldBlock => {}
                    Attempt::Moved => return true,
                }
            } else if !self.has_shut && self.may_shut {
                end.shut_write();
                self.has_shut = true;
            }
            if !progress {
                assert!(Instant::now() < limit, "stuck: {self:?}");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        false
    }
}

/// One connection that is handed over.
struct Case<'a> {
    number: usize,
    runtime: &'a Runtime,
    listener: &'a TcpListener,
    far: &'a File,
    /// Where a process requests the hand-over; `None` if this process does.
    requested_at: Option<&'a HandOverAddress>,
    /// Connections that had ended and got a pump.
    pumps: &'a AtomicUsize,
    /// Sum of the durations of the hand-overs that this process makes, in microseconds.
    micros: &'a AtomicUsize,
}

impl Case<'_> {
    /// Connects, in the direction and over the version that the number says. Returns both ends.
    fn connect(&self) -> (TcpStream, std::net::TcpStream) {
        let is_v4 = self.number.is_multiple_of(2);
        if self.number % 4 < 2 {
            // The listeners take turns: one connection is made at a time.
            static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
            let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let to = ours(is_v4, PORT);
            let peer = inside(self.far, || std::net::TcpStream::connect(to).expect("connected"));
            (self.listener.accept().expect("a connection").0, peer)
        } else {
            let at = theirs(is_v4, 0);
            let kernel = inside(self.far, || std::net::TcpListener::bind(at).expect("bound"));
            let to = kernel.local_addr().expect("bound");
            let stream = crate::common::connect(self.runtime, to);
            (stream, kernel.accept().expect("a connection").0)
        }
    }

    fn run(&self) {
        let mut random = Random(self.number as u64);
        let (stream, peer) = self.connect();
        stream.set_nonblocking(true);
        peer.set_nonblocking(true).expect("open");
        let mut length = || if random.below(4) == 0 { random.below(3000) } else { random.below(300_000) };
        let (to_peer, from_peer) = (length(), length());
        let moment = random.below(to_peer + from_peer + 1);
        std::thread::scope(|scope| {
            let [ours, theirs] = [2 * self.number as u64, 2 * self.number as u64 + 1];
            let far_end = scope.spawn(move || {
                let mut transfer = Transfer::new(theirs, ours, from_peer);
                transfer.run(&Kernel(peer, "the peer"), to_peer, |_| false);
            });
            let mut transfer = Transfer::new(ours, theirs, to_peer);
            let mut socket = kernel_socket(stream.local_addr().expect("open"));
            // In a third of the cases this end may have shut down, or finished, before.
            transfer.may_shut = self.number.is_multiple_of(3);
            if self.requested_at.is_none() {
                transfer.run(&stream, from_peer, |at| at.sent + at.received >= moment);
                let begin = Instant::now();
                let moved = stream.hand_over(socket.as_fd()).unwrap_or_else(|error| panic!("{}: {error}", self.number));
                self.micros.fetch_add(begin.elapsed().as_micros() as usize, Ordering::Relaxed);
                if let HandedOver::Pump(end) = moved {
                    // Both ends had finished before: only unread data was left.
                    let refusal = self.runtime.take_hand_over_refusal();
                    let has_ended = refusal.is_none_or(|refusal| refusal.kind() == ErrorKind::NotConnected);
                    assert!(transfer.has_shut && has_ended, "{}: {transfer:?}", self.number);
                    self.pumps.fetch_add(1, Ordering::Relaxed);
                    socket = end;
                }
            } else {
                self.request(&stream, &socket, moment, &mut transfer, from_peer);
            }
            let socket = Kernel(socket.into(), "the kernel's end");
            socket.0.set_nonblocking(true).expect("open");
            transfer.may_shut = true;
            transfer.run(&socket, from_peer, |_| false);
            far_end.join().expect("the peer");
        });
    }

    /// Lets a process request the hand-over, and continues the transfer until the connection has moved.
    fn request(&self, stream: &TcpStream, socket: &OwnedFd, moment: u64, transfer: &mut Transfer, expected: u64) {
        let address = self.requested_at.expect("an address");
        transfer.may_shut = false;
        transfer.run(stream, expected, |at| at.sent + at.received >= moment);
        let inherited = socket.try_clone().expect("a descriptor");
        let mut child = this_program("handover::requests_and_is_killed", "ABEY_HAND_OVER_CHILD")
            .env(ADDRESS, serde_json::to_string(address).expect("JSON"))
            .env(CONNECTION, serde_json::to_string(&stream.key()).expect("JSON"))
            .stdin(inherited)
            .spawn()
            .expect("a process");
        let limit = Instant::now() + HANG_LIMIT;
        let has_moved = transfer.run(stream, expected, |_| stream.handed_over().is_some());
        while !has_moved && stream.handed_over().is_none() {
            assert!(Instant::now() < limit, "{}: there was no request", self.number);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(child.wait().expect("a child").signal(), Some(libc::SIGKILL));
        assert!(matches!(stream.handed_over(), Some(HandedOver::Kernel)));
    }
}

/// Not a test: the process that requests a hand-over. It does nothing without its environment.
#[test]
fn requests_and_is_killed() {
    if std::env::var_os(ADDRESS).is_none() {
        return;
    }
    let read = |name| std::env::var(name).expect("a variable");
    let address: HandOverAddress = serde_json::from_str(&read(ADDRESS)).expect("an address");
    let connection = serde_json::from_str(&read(CONNECTION)).expect("a connection");
    let moved = address.request(connection, std::io::stdin().as_fd()).expect("handed over");
    assert!(matches!(moved, HandedOver::Kernel));
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).expect("killed");
}

fn kernel_socket(local: SocketAddr) -> OwnedFd {
    let domain = if local.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket").into()
}

fn count() -> usize {
    std::env::var("ABEY_HAND_OVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(DEFAULT_COUNT)
}

#[test]
fn no_byte_is_lost_or_repeated_when_a_connection_moves_to_the_kernel() {
    if !is_possible(Wire::Xdp) {
        return;
    }
    in_namespace(|| {
        let around = Around { impairment: Some(bad()), ..Around::default() };
        let bed = TestBed::with(Wire::Xdp, "base", around, |builder| builder);
        let (runtime, far) = (&bed.runtime, bed.far());
        let server = runtime.serve_hand_overs(None).expect("a thread");
        let listener = TcpListener::bind(runtime, SocketAddr::from(([0; 8], PORT))).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        let [next, pumps, micros] = [const { AtomicUsize::new(0) }; 3];
        let count = count();
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return;
                        }
                        let requested_at = (number % 10 == 9).then(|| server.address());
                        Case {
                            number,
                            runtime,
                            listener: &listener,
                            far,
                            requested_at,
                            pumps: &pumps,
                            micros: &micros,
                        }
                        .run();
                    }
                });
            }
        });
        let stack = runtime.stack_counters();
        let (pumps, micros) = (pumps.into_inner(), micros.into_inner());
        println!(
            "{} hand-overs of {} us each, {} segments came too late and were retransmitted; {pumps} connections had ended",
            stack.tcp_moved,
            micros / count,
            stack.tcp_moved_segments
        );
        assert_eq!(stack.tcp_moved + pumps as u64, count as u64);
        assert!(pumps * 2 <= count, "{pumps} of {count} had ended");
        assert_eq!(stack.tcp_out_resets, 0);
        drop((listener, server));
        assert!(has_program());
        until("the sockets are gone", || runtime.census().held == 0);
    });
}

/// A runtime on a clean wire, with a listener.
fn on_a_clean_wire(test: impl FnOnce(&TestBed, &TcpListener) + Send) {
    if !is_possible(Wire::Xdp) {
        return;
    }
    in_namespace(|| {
        let bed = TestBed::with(Wire::Xdp, "base", Around::default(), |builder| builder);
        let listener = TcpListener::bind(&bed.runtime, SocketAddr::from(([0; 8], PORT))).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        test(&bed, &listener);
    });
}

/// Returns both ends of a new connection from the peer.
fn accepted(bed: &TestBed, listener: &TcpListener, is_v4: bool) -> (TcpStream, std::net::TcpStream) {
    let peer = bed.at_peer(|| std::net::TcpStream::connect(ours(is_v4, PORT)).expect("connected"));
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_timeout(Some(HANG_LIMIT));
    (stream, with_timeouts(peer))
}

/// Moves a connection into a new kernel socket, whose family is IPv6 for both versions of IP.
fn moved(stream: &TcpStream) -> std::net::TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None).expect("a socket");
    assert!(matches!(stream.hand_over(socket.as_fd()).expect("handed over"), HandedOver::Kernel));
    with_timeouts(std::net::TcpStream::from(OwnedFd::from(socket)))
}

/// Returns what can be read until the end.
fn rest(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).expect("read");
    text
}

#[test]
fn half_closed_connections_move() {
    on_a_clean_wire(|bed, listener| {
        for is_v4 in [true, false] {
            // CLOSE-WAIT.
            let (stream, mut peer) = accepted(bed, listener, is_v4);
            peer.write_all(b"question").expect("written");
            peer.shutdown(std::net::Shutdown::Write).expect("open");
            until("the FIN arrives", || stream.readiness().contains(abey_datapath::Readiness::READ_CLOSED));
            let mut socket = moved(&stream);
            assert_eq!(socket.peer_addr().expect("connected").port(), peer.local_addr().expect("bound").port());
            assert_eq!(rest(&socket), "question");
            socket.write_all(b"answer").expect("written");
            drop(socket);
            assert_eq!(rest(&peer), "answer");
            // FIN-WAIT-2.
            let (stream, mut peer) = accepted(bed, listener, is_v4);
            stream.write_all(b"question").expect("written");
            stream.shutdown(Shutdown::Write).expect("open");
            assert_eq!(rest(&peer), "question");
            let socket = moved(&stream);
            peer.write_all(b"answer").expect("written");
            drop(peer);
            assert_eq!(rest(&socket), "answer");
            // Both ends have closed, or this one has written its FIN first, and waits for the acknowledgement.
            let (stream, mut peer) = accepted(bed, listener, is_v4);
            stream.shutdown(Shutdown::Write).expect("open");
            let socket = moved(&stream);
            assert_eq!(rest(&peer), "");
            peer.write_all(b"late").expect("written");
            drop(peer);
            assert_eq!(rest(&socket), "late");
        }
        assert_eq!(bed.runtime.stack_counters().tcp_out_resets, 0);
    });
}

#[test]
fn the_end_of_a_stream_moves_without_injected_frames() {
    on_a_clean_wire(|bed, listener| {
        for is_v4 in [true, false] {
            // CLOSE-WAIT, with and without unread bytes.
            for question in ["question", ""] {
                let (stream, mut peer) = accepted(bed, listener, is_v4);
                peer.write_all(question.as_bytes()).expect("written");
                peer.shutdown(std::net::Shutdown::Write).expect("open");
                until("the FIN arrives", || stream.readiness().contains(abey_datapath::Readiness::READ_CLOSED));
                let mut socket = abey_testbed::old_kernel::without_injected_frames(|| moved(&stream));
                assert_eq!(rest(&socket), question);
                socket.write_all(b"answer").expect("written");
                drop(socket);
                assert_eq!(rest(&peer), "answer");
            }
        }
        assert_eq!(bed.runtime.stack_counters().tcp_out_resets, 0);
    });
}

#[test]
fn full_buffers_move() {
    on_a_clean_wire(|bed, listener| {
        for is_v4 in [true, false] {
            let (stream, peer) = accepted(bed, listener, is_v4);
            stream.set_nonblocking(true);
            peer.set_nonblocking(true).expect("open");
            let bytes: Vec<_> = (0..100_000_u32).map(|at| at as u8).collect();
            let (mut to_peer, mut from_peer) = (0, 0);
            // Until both windows are closed and both send buffers full.
            let mut quiet = 0;
            while quiet < 50 {
                let (a, b) = (stream.write(&bytes).unwrap_or(0), (&peer).write(&bytes).unwrap_or(0));
                (to_peer, from_peer) = (to_peer + a, from_peer + b);
                quiet = if a + b == 0 { quiet + 1 } else { 0 };
                std::thread::sleep(Duration::from_millis(2));
            }
            let socket = moved(&stream);
            peer.set_nonblocking(false).expect("open");
            let count = |mut from: &std::net::TcpStream| {
                let mut read = Vec::new();
                from.read_to_end(&mut read).expect("read");
                read.len()
            };
            std::thread::scope(|scope| {
                let at_peer = scope.spawn(|| count(&peer));
                let here = scope.spawn(|| count(&socket));
                for end in [&socket, &peer] {
                    end.shutdown(std::net::Shutdown::Write).expect("open");
                }
                assert_eq!((at_peer.join().expect("read"), here.join().expect("read")), (to_peer, from_peer));
            });
        }
    });
}

#[test]
fn a_connection_begins_in_the_datapath_after_one_that_the_kernel_had() {
    on_a_clean_wire(|bed, listener| {
        // The same addresses and ports again and again.
        let connect = || {
            bed.at_peer(|| {
                let socket =
                    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
                socket.set_linger(Some(Duration::ZERO)).expect("set");
                socket.set_reuse_address(true).expect("set");
                socket.bind(&theirs(true, 5555).into()).expect("bound");
                socket.connect(&ours(true, PORT).into()).expect("connected");
                with_timeouts(socket.into())
            })
        };
        for round in 0..3 {
            let mut peer = connect();
            let (stream, _) = listener.accept().expect("the datapath's again");
            let mut socket = moved(&stream);
            socket.write_all(b"x").unwrap_or_else(|error| panic!("round {round}: {error}"));
            peer.read_exact(&mut [0]).expect("read");
            // Resets the connection.
            drop(peer);
            assert!(socket.read(&mut [0]).is_err());
        }
    });
}

#[test]
fn a_full_listener_passes_further_connections_to_the_kernel() {
    on_a_clean_wire(|bed, _| {
        const SHARED: u16 = 7001;
        let kernel = std::net::TcpListener::bind(("0.0.0.0", SHARED)).expect("the kernel's");
        let at = SocketAddr::from(([0; 4], SHARED));
        let listener = TcpListener::bind_reserved(&bed.runtime, &[at], &[0], 64, kernel.as_fd()).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        listener.set_overflow(Overflow { limit: 1, accept_timeout: None });
        let connect = || bed.at_peer(|| std::net::TcpStream::connect(ours(true, SHARED)).expect("connected"));
        kernel.set_nonblocking(true).expect("open");
        let first = connect();
        // The first waits in the datapath, so the second is the kernel's, once the XDP program knows.
        let mut others = Vec::new();
        until("a connection reaches the kernel", || {
            others.push(connect());
            kernel.accept().is_ok()
        });
        let accepted = listener.accept().expect("the first");
        assert_eq!(accepted.1, first.local_addr().expect("bound"));
        listener.set_nonblocking(true);
        while listener.accept().is_ok() {}
        until("a connection reaches the datapath", || {
            others.push(connect());
            listener.accept().is_ok()
        });
    });
}

/// The kernel's listener has them with the peer's address and with what the peer has sent, and they work in both directions.
#[test]
fn unaccepted_connections_are_accepted_by_the_kernels_listener() {
    on_a_clean_wire(|bed, _| {
        const SHARED: u16 = 7001;
        for (is_v4, size) in [(true, 0), (false, 0), (true, 5), (false, 30_000), (true, 30_000)] {
            let any = if is_v4 { SocketAddr::from(([0; 4], SHARED)) } else { SocketAddr::from(([0_u16; 8], SHARED)) };
            let kernel = std::net::TcpListener::bind(any).expect("the kernel's");
            let listener =
                TcpListener::bind_reserved(&bed.runtime, &[any], &[0], 64, kernel.as_fd()).expect("a listener");
            assert!(listener.can_leave_connections());
            let mut peer = bed.at_peer(|| std::net::TcpStream::connect(ours(is_v4, SHARED)).expect("connected"));
            until("it is established here", || listener.readiness().contains(Readiness::READABLE));
            let question: Vec<_> = (0..size).map(|at| byte(1, at)).collect();
            peer.write_all(&question).expect("written");
            peer.shutdown(std::net::Shutdown::Write).expect("open");
            listener.set_overflow(Overflow { limit: usize::MAX, accept_timeout: Some(Duration::from_millis(20)) });
            let (mut accepted, from) = kernel.accept().expect("a connection");
            assert_eq!(from, peer.local_addr().expect("bound"), "{is_v4} {size}");
            assert!(listener.is_paused(), "new connections go to the kernel");
            let mut received = Vec::new();
            accepted.read_to_end(&mut received).expect("the question");
            assert_eq!(received, question);
            accepted.write_all(&question).expect("written");
            drop(accepted);
            let mut answer = Vec::new();
            peer.read_to_end(&mut answer).expect("the answer");
            assert_eq!(answer, question);
            assert!(!listener.readiness().contains(Readiness::READABLE));
        }
    });
}

/// Nothing is lost when a listener ends: neither half-open nor established connections.
#[test]
fn a_listener_that_ends_leaves_its_connections_to_the_kernel() {
    on_a_clean_wire(|bed, _| {
        const SHARED: u16 = 7002;
        for round in 0..20 {
            let kernel = std::net::TcpListener::bind(("0.0.0.0", SHARED)).expect("the kernel's");
            let at = SocketAddr::from(([0; 4], SHARED));
            let listener =
                TcpListener::bind_reserved(&bed.runtime, &[at], &[0], 64, kernel.as_fd()).expect("a listener");
            let connect = || {
                bed.at_peer(|| {
                    let socket =
                        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("made");
                    socket.set_nonblocking(true).expect("open");
                    let _ = socket.connect(&ours(true, SHARED).into());
                    socket
                })
            };
            let peers: Vec<_> = (0..8).map(|_| connect()).collect();
            std::thread::sleep(Duration::from_micros(50 * round));
            listener.leave_unaccepted(true);
            drop(listener);
            let mut accepted: Vec<_> = peers.iter().map(|_| kernel.accept().expect("a connection").0).collect();
            for one in &mut accepted {
                one.write_all(b"y").expect("written");
            }
            for peer in peers {
                peer.set_nonblocking(false).expect("open");
                with_timeouts(peer.into()).read_exact(&mut [0]).expect("an answer");
            }
        }
    });
}

/// A listener begins and ends while clients connect, and every client reaches the kernel's listener.
#[test]
fn a_listener_that_comes_and_goes_loses_no_connection() {
    on_a_clean_wire(|bed, _| {
        const SHARED: u16 = 7003;
        const CLIENTS: usize = 300;
        let at = SocketAddr::from(([0; 4], SHARED));
        // The queue of `std`'s listener is too short.
        let kernel = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("made");
        kernel.bind(&at.into()).and_then(|()| kernel.listen(1024)).expect("the kernel's");
        let kernel = std::net::TcpListener::from(kernel);
        kernel.set_nonblocking(true).expect("open");
        let connected = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                bed.at_peer(|| {
                    let connect = |_| {
                        connected.fetch_add(1, Ordering::Relaxed);
                        std::net::TcpStream::connect(ours(true, SHARED)).expect("connected")
                    };
                    (0..CLIENTS).map(connect).collect::<Vec<_>>()
                })
            });
            let mut accepted = Vec::new();
            while !clients.is_finished() {
                let listener =
                    TcpListener::bind_reserved(&bed.runtime, &[at], &[0], 64, kernel.as_fd()).expect("a listener");
                let before = connected.load(Ordering::Relaxed);
                until("a client connects", || connected.load(Ordering::Relaxed) > before || clients.is_finished());
                listener.leave_unaccepted(true);
                drop(listener);
                accepted.extend(std::iter::from_fn(|| kernel.accept().ok()));
            }
            let clients = clients.join().expect("every client has connected");
            until("every connection is accepted", || {
                accepted.extend(std::iter::from_fn(|| kernel.accept().ok()));
                accepted.len() == clients.len()
            });
        });
    });
}

#[test]
fn a_connection_from_a_bound_socket_moves_into_that_socket() {
    on_a_clean_wire(|bed, _| {
        for is_v4 in [true, false] {
            let kernel = bed.at_peer(|| std::net::TcpListener::bind(theirs(is_v4, 0)).expect("bound"));
            let remote = kernel.local_addr().expect("bound");
            let socket = kernel_socket(remote);
            let bound = socket2::SockRef::from(&socket);
            bound.bind(&ours(is_v4, 0).into()).expect("bound");
            let local = bound.local_addr().expect("bound").as_socket().expect("an address");
            let stream = TcpStream::connect_from(&bed.runtime, Some(local.ip()), Some(local.port()), remote);
            let stream = stream.expect("begun");
            stream.wait_until_connected(Some(HANG_LIMIT)).expect("connected");
            let (mut peer, from) = kernel.accept().expect("a connection");
            assert_eq!(from, local);
            stream.write_all(b"before ").expect("written");
            assert!(matches!(stream.hand_over(socket.as_fd()).expect("handed over"), HandedOver::Kernel));
            // A second call has the same result.
            assert!(matches!(stream.hand_over(socket.as_fd()).expect("handed over"), HandedOver::Kernel));
            drop(stream);
            let mut socket = std::net::TcpStream::from(socket);
            socket.write_all(b"after").expect("written");
            drop(socket);
            let mut text = String::new();
            peer.read_to_string(&mut text).expect("read");
            assert_eq!(text, "before after");
        }
    });
}

#[test]
fn without_privileges_and_without_a_broker_a_pump_serves() {
    on_a_clean_wire(|bed, listener| {
        let (stream, mut peer) = accepted(bed, listener, true);
        peer.write_all(b"question").expect("written");
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).expect("dropped");
        let socket = kernel_socket(ours(true, 0));
        let HandedOver::Pump(end) = stream.hand_over(socket.as_fd()).expect("handed over") else { panic!("forbidden") };
        let refusal = bed.runtime.take_hand_over_refusal().expect("the reason");
        assert_eq!(refusal.kind(), ErrorKind::PermissionDenied);
        drop(stream);
        let mut end = with_timeouts(end.into());
        let mut text = [0; 8];
        end.read_exact(&mut text).expect("read");
        assert_eq!(&text, b"question");
        end.write_all(b"answer").expect("written");
        drop(end);
        assert_eq!(rest(&peer), "answer");
        // The socket is as it was before.
        assert!(socket2::SockRef::from(&socket).peer_addr().is_err());
    });
}
