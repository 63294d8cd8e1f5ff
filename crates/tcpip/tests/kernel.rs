//! The stack against the kernel's TCP, over a TAP device in a separate network namespace.
//!
//! Either side connects, over IPv4 and IPv6, on a clean link and on one that loses, reorders and duplicates frames.
//! Needs root and `/dev/net/tun`; otherwise the tests are skipped with a message.

mod common;

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use abey_tcpip::{EcnMode, Frames, Instant, IoError, Readiness, Shutdown, SocketError, SocketId, Stack};
use abey_testbed::namespace::{self, ip};
use common::{Impairment, MICROSECOND, MILLISECOND, Wire, byte, settings, stack};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::Backlog,
};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// Limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(120);

/// Returns the bytes of a transfer. `ABEY_MEGABYTES` overrides the size.
fn bytes(megabytes: u64) -> u64 {
    setting("ABEY_MEGABYTES", megabytes) << 20
}

/// Returns the value of environment variable `name`, or `otherwise`. `ABEY_SEED` is the seed of the impaired link,
/// `ABEY_PERCENT` its loss, and `ABEY_PATIENCE` the limit of a whole transfer in seconds. `ABEY_TRACE` prints
/// counters.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Last byte of the kernel's address; the stack is host 2.
const KERNEL: u8 = 1;

/// TAP device with the kernel on one side and a stack on the other.
struct TestBed {
    tap: SyncDevice,
    stack: Stack,
    wires: [Wire; 2],
    epoch: std::time::Instant,
    /// Longest time without a received segment.
    silence: Duration,
}

/// Runs `test` in a network namespace of its own, if TAP devices are available.
fn in_namespace(test: impl FnOnce() + Send) {
    if std::path::Path::new("/dev/net/tun").exists() {
        namespace::in_namespace(test);
    } else {
        eprintln!("skipped: needs /dev/net/tun");
    }
}

/// Returns the standard output of a program.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

impl TestBed {
    fn new(impairment: Impairment, seed: u64) -> Self {
        let tap = DeviceBuilder::new().name("abey0").layer(Layer::L2).build_sync().expect("a TAP device");
        tap.set_nonblocking(true).unwrap();
        ip("link set lo up");
        ip(&format!("addr add 10.0.0.{KERNEL}/24 dev abey0"));
        ip(&format!("addr add fd00::{KERNEL}/64 dev abey0 nodad"));
        ip("link set abey0 up");
        // The kernel detects the carrier up to a second late, and drops frames before that.
        for _ in 0..500 {
            if !output("ip", &["-o", "link", "show", "abey0"]).contains("state DOWN") {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut own = settings(2);
        own.time_wait = Duration::from_secs(1);
        if impairment.marking > 0.0 {
            own.ecn = EcnMode::Active;
            std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap();
        }
        Self {
            tap,
            stack: stack(own, seed),
            wires: [0, 1].map(|side| Wire::new(impairment, setting("ABEY_SEED", seed) * 2 + side)),
            epoch: std::time::Instant::now(),
            silence: Duration::ZERO,
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    /// Runs one iteration of an event loop: waits and receives.
    fn poll_once(&mut self) {
        let now = self.now();
        let deadlines = self.wires.iter().filter_map(Wire::next).chain(self.stack.poll_timeout().map(|at| at.0));
        let wait = deadlines.min().map_or(20 * MILLISECOND, |at| at.saturating_sub(now)).min(20 * MILLISECOND);
        let mut fds = [PollFd::new(self.tap.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from((wait / MILLISECOND) as u8)).unwrap();
        let mut buffer = [0; 2048];
        let now = self.now();
        for _ in 0..64 {
            let Ok(len) = self.tap.recv(&mut buffer) else { break };
            self.wires[1].send(now, buffer[..len].to_vec());
        }
        let burst = self.wires[1].take(now);
        self.stack.handle_frames(Instant(now), burst.iter().map(Vec::as_slice));
        self.stack.handle_timeout(Instant(now));
    }

    fn transmit(&mut self) {
        let now = self.now();
        let mut out = Frames::default();
        self.stack.poll_transmit_burst(Instant(now), &mut out, 256);
        for frame in out.frames {
            self.wires[0].send(now, frame);
        }
        for frame in self.wires[0].take(self.now()) {
            // A full queue in the kernel is an ordinary loss.
            _ = self.tap.send(&frame);
        }
    }

    /// Runs the event loop until `app` returns true.
    fn run(&mut self, mut app: impl FnMut(&mut Stack, Instant) -> bool) {
        let begun = std::time::Instant::now();
        let limit = Duration::from_secs(setting("ABEY_PATIENCE", HANG_LIMIT.as_secs()));
        let mut last = (begun, 0);
        loop {
            self.poll_once();
            let segments = self.stack.counters().tcp_in_segments;
            if last.1 != segments {
                last = (std::time::Instant::now(), segments);
            }
            self.silence = self.silence.max(last.0.elapsed());
            let now = Instant(self.now());
            if app(&mut self.stack, now) {
                self.transmit();
                return;
            }
            self.transmit();
            if begun.elapsed() > limit {
                let kernel = [output("ss", &["-tanim"]), output("nstat", &["-az"])].concat();
                panic!("stuck: {:#?}\n{:?}\n{kernel}", self.stack.counters(), self.stack);
            }
        }
    }

    /// Waits for connections to finish, and checks that only `listeners` sockets are left.
    fn drain(&mut self, listeners: usize) {
        self.run(|stack, _| stack.socket_count() == listeners && stack.flow_count() == 0);
        assert_eq!(self.stack.timer_count(), 0);
    }
}

/// Edge-triggered echo server, which stops reading while it cannot write.
struct Echo {
    listener: SocketId,
    pending: HashMap<SocketId, Vec<u8>>,
    buffer: Vec<u8>,
    finished: usize,
}

impl Echo {
    fn new(stack: &mut Stack, at: &str) -> Self {
        let listener = stack.listen(at.parse().unwrap(), 1024).unwrap();
        Self { listener, pending: HashMap::new(), buffer: vec![0; 1 << 16], finished: 0 }
    }

    /// Serves until `threads` have finished, and propagates their panics.
    fn serve(&mut self, test_bed: &mut TestBed, threads: impl IntoIterator<Item = JoinHandle<()>>) {
        let threads: Vec<_> = threads.into_iter().collect();
        test_bed.run(|stack, now| {
            self.handle_events(stack, now);
            threads.iter().all(JoinHandle::is_finished)
        });
        for thread in threads {
            thread.join().unwrap();
        }
    }

    fn handle_events(&mut self, stack: &mut Stack, now: Instant) {
        while let Some(event) = stack.poll_event() {
            if event.socket == self.listener {
                while let Ok(id) = stack.accept(self.listener) {
                    self.pending.insert(id, Vec::new());
                }
            } else if self.pending.contains_key(&event.socket) {
                self.pump(stack, now, event.socket);
            }
        }
    }

    fn pump(&mut self, stack: &mut Stack, now: Instant, id: SocketId) {
        let pending = self.pending.get_mut(&id).expect("a known socket");
        loop {
            if !pending.is_empty() {
                match stack.write(id, pending) {
                    Ok(taken) => _ = pending.drain(..taken),
                    Err(IoError::WouldBlock) => return,
                    Err(error) => panic!("echo: {error}"),
                }
                continue;
            }
            match stack.read(id, &mut self.buffer) {
                Ok(0) => {
                    stack.close(now, id).unwrap();
                    self.pending.remove(&id);
                    self.finished += 1;
                    return;
                }
                Ok(len) => pending.extend_from_slice(&self.buffer[..len]),
                Err(IoError::WouldBlock) => return,
                Err(error) => panic!("echo: {error}"),
            }
        }
    }
}

/// Client on the kernel's side: sends a pattern and expects it back.
fn kernel_client(to: SocketAddr, bytes: u64) {
    let socket = TcpStream::connect_timeout(&to, HANG_LIMIT).expect("connected");
    socket.set_read_timeout(Some(HANG_LIMIT)).unwrap();
    socket.set_write_timeout(Some(HANG_LIMIT)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut offset = 0;
            while offset < bytes {
                let chunk: Vec<u8> = (offset..bytes.min(offset + 65_536)).map(|at| byte(1, at)).collect();
                (&socket).write_all(&chunk).unwrap();
                offset += chunk.len() as u64;
            }
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let (mut received, mut buffer) = (0, vec![0; 65_536]);
        loop {
            let len = (&socket).read(&mut buffer).unwrap();
            if len == 0 {
                break;
            }
            for &read in &buffer[..len] {
                assert_eq!(read, byte(1, received), "at {received}");
                received += 1;
            }
        }
        assert_eq!(received, bytes);
    });
}

/// Echo server on the kernel's side, for `connections` connections.
fn kernel_server(listener: TcpListener, connections: usize) {
    std::thread::scope(|scope| {
        for _ in 0..connections {
            let (socket, _) = listener.accept().unwrap();
            scope.spawn(move || {
                socket.set_read_timeout(Some(HANG_LIMIT)).unwrap();
                std::io::copy(&mut &socket, &mut &socket).unwrap();
                socket.shutdown(std::net::Shutdown::Write).unwrap();
            });
        }
    });
}

/// Client on the stack's side.
struct Client {
    bytes: u64,
    sent: u64,
    received: u64,
    shut: bool,
}

impl Client {
    /// Sends and receives until it would block. Returns true when everything was echoed and the peer has closed.
    fn pump(&mut self, stack: &mut Stack, now: Instant, id: SocketId, buffer: &mut [u8]) -> bool {
        while !self.shut {
            if self.sent == self.bytes {
                stack.shutdown(now, id, Shutdown::Write).unwrap();
                self.shut = true;
                break;
            }
            let end = self.bytes.min(self.sent + 16_384);
            let chunk: Vec<u8> = (self.sent..end).map(|at| byte(1, at)).collect();
            match stack.write(id, &chunk) {
                Ok(taken) => self.sent += taken as u64,
                Err(IoError::WouldBlock) => break,
                Err(error) => panic!("client: {error}"),
            }
        }
        loop {
            match stack.read(id, buffer) {
                Ok(0) => {
                    assert_eq!((self.received, self.sent), (self.bytes, self.bytes));
                    return true;
                }
                Ok(len) => {
                    for &read in &buffer[..len] {
                        assert_eq!(read, byte(1, self.received), "at {}", self.received);
                        self.received += 1;
                    }
                }
                Err(IoError::WouldBlock | IoError::NotConnected) => return false,
                Err(error) => panic!("client: {error}"),
            }
        }
    }
}

fn impaired() -> Impairment {
    Impairment {
        delay: 300 * MICROSECOND,
        jitter: MILLISECOND,
        loss: setting("ABEY_PERCENT", 1) as f64 / 100.0,
        duplication: 0.005,
        ..Impairment::default()
    }
}

/// The kernel connects, once per IP version.
fn serve(impairment: Impairment, bytes: u64) {
    in_namespace(move || {
        let mut test_bed = TestBed::new(impairment, 1);
        let mut echo = Echo::new(&mut test_bed.stack, "[::]:7");
        let clients = ["10.0.0.2:7", "[fd00::2]:7"];
        let threads = clients.map(|to| std::thread::spawn(move || kernel_client(to.parse().unwrap(), bytes)));
        echo.serve(&mut test_bed, threads);
        test_bed.drain(1);
        assert_eq!(echo.finished, 2);
        check_clean(&test_bed, impairment);
    });
}

fn check_clean(test_bed: &TestBed, impairment: Impairment) {
    let counters = test_bed.stack.counters();
    if std::env::var_os("ABEY_TRACE").is_some() {
        for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
            eprintln!("{name} {value}");
        }
        eprintln!("longest silence {:?}; the kernel: {}", test_bed.silence, output("nstat", &["-a"]));
    }
    let errors = counters.tcp_in_errors + counters.tcp_in_checksum_errors + counters.ip_in_header_errors;
    assert_eq!(errors + counters.tcp_established_resets + counters.tcp_timeouts_aborted, 0, "{counters:#?}");
    if impairment.marking > 0.0 {
        check_ecn(test_bed, 2);
    }
    if impairment.loss > 0.0 {
        assert!(counters.tcp_retransmitted_segments > 0 && counters.tcp_sack_recoveries > 0, "{counters:#?}");
    }
}

/// Link that marks ECN-capable packets and loses none. Both sides ask for ECN.
fn marking() -> Impairment {
    Impairment { delay: 300 * MICROSECOND, marking: 0.02, ..Impairment::default() }
}

/// Checks that both sides agreed on ECN in `connections` connections, received marks, and reduced their windows.
fn check_ecn(test_bed: &TestBed, connections: u64) {
    let counters = test_bed.stack.counters();
    assert_eq!((counters.tcp_ecn_connections, counters.tcp_ecn_fallbacks), (connections, 0), "{counters:#?}");
    assert!(counters.ip_in_ce > 0 && counters.tcp_ecn_reductions > 0, "{counters:#?}");
    // The kernel counts what was delivered when ECE arrived.
    for name in ["InCEPkts", "TCPDeliveredCE"] {
        assert!(kernel_counter(name) > 0, "{name}: {}", output("nstat", &["-az"]));
    }
}

/// Returns a counter of this network namespace's `netstat`.
fn kernel_counter(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let lines: Vec<_> = table.lines().collect();
    let find = |pair: &[&str]| {
        let index = pair[0].split_whitespace().position(|other| other == name)?;
        pair[1].split_whitespace().nth(index)?.parse().ok()
    };
    lines.chunks_exact(2).find_map(find).unwrap_or_else(|| panic!("no counter {name}"))
}

#[test]
fn the_kernel_connects_with_ecn() {
    serve(marking(), bytes(4));
}

#[test]
fn the_stack_connects_with_ecn() {
    connect(marking(), bytes(4), 1);
}

#[test]
fn the_kernel_connects() {
    serve(Impairment::default(), bytes(16));
}

#[test]
fn the_kernel_connects_over_a_bad_link() {
    serve(impaired(), bytes(4));
}

/// The stack connects `count` times per IP version and transfers `bytes` on each connection.
fn connect(impairment: Impairment, bytes: u64, count: usize) {
    in_namespace(move || {
        let mut test_bed = TestBed::new(impairment, 2);
        let server = std::thread::spawn(move || {
            let listener = TcpListener::bind("[::]:7").unwrap();
            // With the default backlog the kernel sends cookies, and resets connections whose first segment finds no
            // room.
            nix::sys::socket::listen(&listener, Backlog::new(1024).unwrap()).unwrap();
            kernel_server(listener, 2 * count);
        });
        // Connects after the server has bound its socket.
        let mut clients = HashMap::new();
        let mut buffer = vec![0; 1 << 16];
        let mut opened = false;
        test_bed.run(|stack, now| {
            if !opened && is_listening(7) {
                opened = true;
                for _ in 0..count {
                    for to in ["10.0.0.1:7", "[fd00::1]:7"] {
                        let id = stack.connect(now, to.parse().unwrap()).unwrap();
                        clients.insert(id, Client { bytes, sent: 0, received: 0, shut: false });
                    }
                }
            }
            while let Some(event) = stack.poll_event() {
                let Some(client) = clients.get_mut(&event.socket) else { continue };
                if client.pump(stack, now, event.socket, &mut buffer) {
                    stack.close(now, event.socket).unwrap();
                    clients.remove(&event.socket);
                }
            }
            opened && clients.is_empty()
        });
        test_bed.run(|_, _| server.is_finished());
        server.join().unwrap();
        test_bed.drain(0);
        check_clean(&test_bed, impairment);
    });
}

/// Returns whether a socket listens on the port, by the kernel's own list.
fn is_listening(port: u16) -> bool {
    let list = std::fs::read_to_string("/proc/thread-self/net/tcp6").unwrap_or_default();
    list.lines().any(|line| line.contains(&format!(":{port:04X} 00000000000000000000000000000000:0000 0A")))
}

#[test]
fn the_stack_connects() {
    connect(Impairment::default(), bytes(16), 1);
}

#[test]
fn the_stack_connects_over_a_bad_link() {
    connect(impaired(), bytes(4), 1);
}

#[test]
fn the_stack_connects_many_times_at_once() {
    connect(Impairment::default(), 2_000, 150);
}

#[test]
fn many_short_connections_leave_no_state() {
    in_namespace(|| {
        let mut test_bed = TestBed::new(Impairment::default(), 3);
        let mut echo = Echo::new(&mut test_bed.stack, "0.0.0.0:7");
        let done = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let done = Arc::clone(&done);
                std::thread::spawn(move || {
                    for _ in 0..250 {
                        kernel_client("10.0.0.2:7".parse().unwrap(), 100);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        echo.serve(&mut test_bed, threads);
        test_bed.drain(1);
        assert_eq!((done.load(Ordering::Relaxed), echo.finished), (1000, 1000));
        assert_eq!(test_bed.stack.counters().tcp_passive_opens, 1000);
    });
}

#[test]
fn refusals_and_datagrams_both_ways() {
    in_namespace(|| {
        let mut test_bed = TestBed::new(Impairment::default(), 4);
        let socket = test_bed.stack.bind("[::]:7".parse().unwrap()).unwrap();
        let kernel = std::thread::spawn(|| {
            for (own, to, closed) in
                [("10.0.0.1:0", "10.0.0.2:7", "10.0.0.2:9"), ("[fd00::1]:0", "[fd00::2]:7", "[fd00::2]:9")]
            {
                assert_eq!(TcpStream::connect(closed).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
                let udp = UdpSocket::bind(own).unwrap();
                udp.set_read_timeout(Some(HANG_LIMIT)).unwrap();
                let mut buffer = [0; 2000];
                for len in [0, 1, 1200] {
                    udp.send_to(&vec![len as u8; len], to).unwrap();
                    assert_eq!(udp.recv(&mut buffer).unwrap(), len);
                }
                udp.connect(closed).unwrap();
                udp.send(b"refused").unwrap();
                assert_eq!(udp.recv(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
            }
        });
        let mut buffer = [0; 2000];
        test_bed.run(|stack, _| {
            while let Ok((len, from, _)) = stack.recv_from(socket, &mut buffer) {
                stack.send_to(socket, &buffer[..len], Some(from)).unwrap();
            }
            kernel.is_finished()
        });
        kernel.join().unwrap();
        // The other way: the kernel refuses.
        for to in ["10.0.0.1:9", "[fd00::1]:9"] {
            let to = to.parse().unwrap();
            let stream = test_bed.stack.connect(Instant(test_bed.now()), to).unwrap();
            let datagrams = test_bed.stack.bind("[::]:0".parse().unwrap()).unwrap();
            test_bed.stack.connect_datagram(datagrams, Some(to)).unwrap();
            test_bed.stack.send_to(datagrams, b"refused", None).unwrap();
            test_bed.run(|stack, _| {
                stack.readiness(stream).contains(Readiness::ERROR)
                    && stack.readiness(datagrams).contains(Readiness::ERROR)
            });
            assert_eq!(test_bed.stack.take_error(stream), Ok(Some(SocketError::Refused)));
            assert_eq!(test_bed.stack.take_error(datagrams), Ok(Some(SocketError::Refused)));
        }
    });
}

#[test]
fn curl_gets_a_page() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: needs the program `curl`");
        return;
    }
    in_namespace(|| {
        let mut test_bed = TestBed::new(Impairment::default(), 5);
        let listener = test_bed.stack.listen("[::]:80".parse().unwrap(), 16).unwrap();
        let body: Vec<u8> = (0..1_000_000).map(|at| byte(3, at)).collect();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let page = [head.as_bytes(), &body].concat();
        for url in ["http://10.0.0.2/", "http://[fd00::2]/"] {
            let curl = std::thread::spawn(move || {
                let output =
                    Command::new("curl").args(["-sS", "-g", "--noproxy", "*", "--max-time", "30", url]).output();
                output.expect("curl runs")
            });
            // Bytes that were sent on each connection that has sent a request.
            let mut sent: HashMap<SocketId, usize> = HashMap::new();
            let mut buffer = [0; 4096];
            test_bed.run(|stack, now| {
                while let Some(event) = stack.poll_event() {
                    while stack.accept(listener).is_ok() {}
                    let id = event.socket;
                    while matches!(stack.read(id, &mut buffer), Ok(1..)) {
                        sent.entry(id).or_default();
                    }
                    let Some(at) = sent.get_mut(&id) else { continue };
                    *at += stack.write(id, &page[*at..]).unwrap_or(0);
                    if *at == page.len() {
                        stack.close(now, id).unwrap();
                        sent.remove(&id);
                    }
                }
                curl.is_finished()
            });
            let output = curl.join().unwrap();
            assert!(output.status.success() && output.stdout == body, "{}", String::from_utf8_lossy(&output.stderr));
        }
    });
}
