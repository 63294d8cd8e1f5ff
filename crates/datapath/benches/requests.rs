//! Requests per second over the shared-memory NIC, one at a time and at depth, in every mode, with the system calls per
//! request of the server's runtime. Client and server have a thread each.
//!
//! `cargo bench -p abey-datapath --bench requests [-- MODE... DEPTH...]`

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_datapath::{Epoll, Interest, Runtime, TcpListener, TcpStream};
use abey_delivery::Mode;
use abey_nic::{MemoryQueue, MemoryShape, QueuePair};

const SPAN: Duration = Duration::from_secs(1);

/// Client and server have a CPU each.
const CPUS: [usize; 2] = [0, 1];

/// Pins the calling thread to a CPU.
fn pin(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).expect("a machine with two CPUs");
}

fn host(last: u8, queues: Vec<MemoryQueue>, mode: Mode) -> Runtime {
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
    let builder = Runtime::builder().queues("memory", [2, 0, 0, 0, 0, last], queues, None);
    let builder = builder.pin(vec![CPUS[usize::from(last) - 1]]);
    builder.address([10, 0, 0, last].into(), 24).mode(mode).build().expect("a runtime")
}

/// Reads a message from every stream that has one, and writes one back. Returns their number.
fn turn(epoll: &Epoll, streams: &[TcpStream], events: &mut Vec<abey_datapath::Event>) -> u64 {
    let timeout = Some(Duration::from_millis(100));
    let count = epoll.wait(events, streams.len(), timeout).expect("a wait");
    for event in events.iter() {
        let stream = &streams[event.token as usize];
        stream.read_exact(&mut [0; 32]).expect("a whole message");
        stream.write_all(&[7; 32]).expect("written");
    }
    count as u64
}

fn run(mode: Mode, depth: usize) {
    let (left, right) = abey_nic::pair(MemoryShape::default()).expect("a pair");
    let client = host(1, left, "fullbusy".parse().expect("a mode"));
    let server = host(2, right, mode);
    let address = "10.0.0.2:7".parse().expect("an address");
    let listener = TcpListener::bind(&server, address).expect("a listener");
    let (here, there) = (server.epoll(), client.epoll());
    let (mut accepted, mut connected) = (Vec::new(), Vec::new());
    for token in 0..depth as u64 {
        let stream = TcpStream::connect(&client, address).expect("a connection");
        let (other, _) = listener.accept().expect("a connection");
        for (epoll, stream) in [(&here, &other), (&there, &stream)] {
            stream.set_nodelay(true).expect("open");
            stream.set_nonblocking(true);
            epoll.add(stream, token, Interest::IN).expect("new");
        }
        accepted.push(other);
        connected.push(stream);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("server".to_owned());
        let serve = || {
            pin(CPUS[1]);
            let mut events = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                turn(&here, &accepted, &mut events);
            }
        };
        thread.spawn_scoped(scope, serve).expect("a thread");
        pin(CPUS[0]);
        for stream in &connected {
            stream.write_all(&[7; 32]).expect("written");
        }
        let (begin, before) = (Instant::now(), server.counters(None));
        let (mut events, mut answered) = (Vec::new(), 0);
        while begin.elapsed() < SPAN {
            answered += turn(&there, &connected, &mut events);
        }
        let (span, counters) = (begin.elapsed(), server.counters(None).since(&before));
        stop.store(true, Ordering::Relaxed);
        let rate = answered as f64 / span.as_secs_f64();
        let calls = counters.system_calls() as f64 / (answered as f64).max(1.0);
        println!(
            "{:<14} depth {depth:>3}  {rate:>9.0} requests/s  {calls:>8.4} system calls/request",
            mode.to_string()
        );
    });
}

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let (depths, modes): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|word| word.parse::<usize>().is_ok());
    let depths =
        if depths.is_empty() { vec![1, 64] } else { depths.iter().filter_map(|word| word.parse().ok()).collect() };
    for name in Mode::EXAMPLES {
        if modes.is_empty() || modes.iter().any(|chosen| chosen == name) {
            for &depth in &depths {
                // A thread of its own, because it is pinned.
                let run = std::thread::spawn(move || run(name.parse().expect("a mode"), depth));
                run.join().expect("the run's panic was printed");
            }
        }
    }
}
