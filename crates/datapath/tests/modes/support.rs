//! Two runtimes over a shared-memory NIC in one process, and servers and clients for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abey_datapath::{Builder, Epoll, Event, Interest, Runtime, TcpListener, TcpStream};
use abey_delivery::Mode;
use abey_nic::rss::{Rss, SYMMETRIC_KEY};
use abey_nic::{MemoryQueue, MemoryShape, QueuePair};

/// A limit that only a hang reaches.
pub(crate) const HANG_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn every_mode() -> impl Iterator<Item = Mode> {
    Mode::EXAMPLES.into_iter().map(|name| name.parse().expect("a mode"))
}

pub(crate) fn mode(name: &str) -> Mode {
    name.parse().expect("a mode")
}

fn builder(name: &str, last: u8, queues: Vec<MemoryQueue>) -> Builder {
    let count = queues.len() as u32;
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
    Runtime::builder()
        .queues(name, [2, 0, 0, 0, 0, last], queues, Some(Rss::new(SYMMETRIC_KEY, count)))
        .address([10, 0, 0, last].into(), 24)
        .address(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)).into(), 64)
        .stack(|settings| settings.time_wait = Duration::from_millis(50))
}

/// Returns the builders of a client and a server.
pub(crate) fn builders(queues: usize) -> (Builder, Builder) {
    let (left, right) = abey_nic::pair(MemoryShape { queues, ..MemoryShape::default() }).expect("a pair");
    (builder("client", 1, left), builder("server", 2, right))
}

/// Returns a client in `base` and a server in `mode`.
pub(crate) fn pair(mode: Mode, queues: usize) -> (Runtime, Runtime) {
    let (client, server) = builders(queues);
    (client.build().expect("a client"), server.mode(mode).build().expect("a server"))
}

pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// Waits until a condition holds; panics if it never does.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + HANG_LIMIT;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn connect(runtime: &Runtime, to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(runtime, to, Some(HANG_LIMIT)).expect("a connection");
    stream.set_timeout(Some(HANG_LIMIT));
    stream.set_nodelay(true).expect("a connection");
    stream
}

/// An echo server over epoll on a thread of its own; ends when dropped.
pub(crate) struct EchoServer {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    pub(crate) address: SocketAddr,
}

impl EchoServer {
    pub(crate) fn start(runtime: &Runtime, port: u16) -> Self {
        Self::start_with(runtime, port, Duration::from_millis(100))
    }

    /// Starts a server whose waits take at most `timeout`.
    pub(crate) fn start_with(runtime: &Runtime, port: u16, timeout: Duration) -> Self {
        Self::start_at(runtime, at(port), timeout)
    }

    /// Starts a server that listens on `address`.
    pub(crate) fn start_at(runtime: &Runtime, address: SocketAddr, timeout: Duration) -> Self {
        let listener = TcpListener::bind(runtime, address).expect("a listener");
        listener.set_nonblocking(true);
        let epoll = runtime.epoll();
        epoll.add(&listener, u64::MAX, Interest::IN).expect("added");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || echo(&listener, &epoll, &stopped, timeout));
        Self { stop, thread: Some(thread), address }
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.expect("the echo server did not panic");
            }
        }
    }
}

struct Session {
    stream: TcpStream,
    out: Vec<u8>,
}

fn echo(listener: &TcpListener, epoll: &Epoll, stop: &AtomicBool, timeout: Duration) {
    let mut sessions = std::collections::HashMap::new();
    let (mut events, mut next) = (Vec::new(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        epoll.wait(&mut events, 64, Some(timeout)).expect("a wait");
        for event in &events {
            if event.token == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nodelay(true).expect("open");
                    epoll.add(&stream, next, Interest::IN).expect("added");
                    sessions.insert(next, Session { stream, out: Vec::new() });
                    next += 1;
                }
            } else if !serve(epoll, event, sessions.get_mut(&event.token).expect("a session")) {
                sessions.remove(&event.token);
            }
        }
    }
}

/// Returns whether the session continues.
fn serve(epoll: &Epoll, event: &Event, session: &mut Session) -> bool {
    let mut buffer = [0; 16 << 10];
    loop {
        while !session.out.is_empty() {
            match session.stream.write(&session.out) {
                Ok(count) => drop(session.out.drain(..count)),
                Err(error) if error.is_would_block() => {
                    epoll.modify(&session.stream, event.token, Interest::OUT).expect("added");
                    return true;
                }
                Err(_) => return false,
            }
        }
        match session.stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => session.out.extend_from_slice(&buffer[..count]),
            Err(error) if error.is_would_block() => {
                epoll.modify(&session.stream, event.token, Interest::IN).expect("added");
                return true;
            }
            Err(_) => return false,
        }
    }
}

/// Sends a request and reads its response.
pub(crate) fn round_trip(stream: &TcpStream, number: u64) {
    let request = number.to_le_bytes();
    stream.write_all(&request).expect("written");
    let mut response = [0; 8];
    stream.read_exact(&mut response).expect("answered");
    assert_eq!(response, request);
}
