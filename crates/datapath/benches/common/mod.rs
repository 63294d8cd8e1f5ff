//! What the benchmarks share: two runtimes over a shared-memory NIC, threads on CPUs, what threads cost, medians.
#![allow(dead_code, reason = "no benchmark uses all of it")]

use std::time::Duration;

use abey_datapath::{Builder, Runtime, TcpListener, TcpStream};
use abey_delivery::Mode;
use abey_nic::{MemoryQueue, MemoryShape, QueuePair};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Where the client's threads run.
pub(crate) const CLIENT_CPU: usize = 0;
/// Where the server's threads run.
pub(crate) const SERVER_CPU: usize = 1;

/// The server's address.
pub(crate) const SERVER: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 7);

fn builder(name: &str, last: u8, queues: Vec<MemoryQueue>, cpu: usize) -> Builder {
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
    let builder = Runtime::builder().queues(name, [2, 0, 0, 0, 0, last], queues, None);
    let builder = builder.address([10, 0, 0, last].into(), 24);
    if two_cpus() { builder.pin(vec![cpu]) } else { builder }
}

/// A client's and a server's runtime: their service threads are called `napi/client-1` and `napi/server-1`, and are on the
/// CPUs of their side. In `base`, in which connections are made quickly.
pub(crate) fn hosts(shape: MemoryShape) -> (Runtime, Runtime) {
    let (left, right) = abey_nic::pair(shape).expect("a pair");
    let client = builder("client", 1, left, CLIENT_CPU).build().expect("a client");
    let server = builder("server", 2, right, SERVER_CPU).build().expect("a server");
    (client, server)
}

/// Connections between two runtimes, non-blocking: the client's ends and the server's.
pub(crate) fn connect(client: &Runtime, server: &Runtime, count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind(server, SERVER).expect("a listener");
    let (mut ours, mut theirs) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let stream = TcpStream::connect(client, SERVER).expect("a connection");
        let (other, _) = listener.accept().expect("a connection");
        for stream in [&stream, &other] {
            stream.set_nodelay(true).expect("open");
            stream.set_nonblocking(true);
        }
        ours.push(stream);
        theirs.push(other);
    }
    (ours, theirs)
}

pub(crate) fn mode(name: &str) -> Mode {
    name.parse().expect("a mode")
}

/// The arguments that are no options: which parts of a benchmark to run.
pub(crate) fn chosen() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect()
}

/// Whether both CPUs that the benchmarks use are there. Asked in the main thread first, which is never pinned.
pub(crate) fn two_cpus() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        let allowed = rustix::thread::sched_getaffinity(None).expect("our own CPUs");
        allowed.is_set(CLIENT_CPU) && allowed.is_set(SERVER_CPU)
    })
}

/// Does something on a thread of its own on a CPU, if both are there.
pub(crate) fn spawn_on<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    cpu: usize,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, T> {
    let pinned = two_cpus();
    let name = if cpu == SERVER_CPU { "server" } else { "client" };
    let builder = std::thread::Builder::new().name(name.to_owned());
    let work = move || {
        if pinned {
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(None, &set).expect("an allowed CPU");
        }
        work()
    };
    builder.spawn_scoped(scope, work).expect("a thread")
}

/// CPU time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of the threads of this process whose names begin so, as the scheduler has counted it (a running thread's
/// last slice, at most 4 ms, is not in it).
pub(crate) fn named_time(names: &[&str]) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads");
    let times = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let counted = names.iter().any(|wanted| name.starts_with(wanted));
        let statistics = std::fs::read_to_string(task.path().join("schedstat")).ok().filter(|_| counted)?;
        statistics.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}

/// The middle one; of an even number the upper of the two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
