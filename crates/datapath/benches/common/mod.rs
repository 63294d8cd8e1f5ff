//! Helpers of the benchmarks: two runtimes over a shared-memory NIC, pinned threads, CPU times, medians.
#![allow(dead_code, reason = "no benchmark uses all of it")]

use std::time::Duration;

use abey_datapath::{Builder, Runtime, TcpListener, TcpStream};
use abey_delivery::Mode;
use abey_nic::{MemoryQueue, MemoryShape, QueuePair};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The CPU of the client's threads.
pub(crate) const CLIENT_CPU: usize = 0;
/// The CPU of the server's threads.
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

/// Returns the runtimes of a client and a server in `base`, in which connections open quickly. Their service threads
/// `napi/client-1` and `napi/server-1` run on the CPUs of their side.
pub(crate) fn hosts(shape: MemoryShape) -> (Runtime, Runtime) {
    let (left, right) = abey_nic::pair(shape).expect("a pair");
    let client = builder("client", 1, left, CLIENT_CPU).build().expect("a client");
    let server = builder("server", 2, right, SERVER_CPU).build().expect("a server");
    (client, server)
}

/// Opens non-blocking connections between two runtimes. Returns the client's ends and the server's.
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

/// Returns the arguments that are not options: the parts of a benchmark to run.
pub(crate) fn chosen() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect()
}

/// Returns whether both CPUs of the benchmarks exist. The main thread, which is never pinned, must call it first.
pub(crate) fn two_cpus() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        let allowed = rustix::thread::sched_getaffinity(None).expect("our own CPUs");
        allowed.is_set(CLIENT_CPU) && allowed.is_set(SERVER_CPU)
    })
}

/// Runs `work` on a new thread, pinned to a CPU if both exist.
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

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time of this process's threads with a name prefix, from the scheduler's counters, which lack the last
/// slice of a running thread (at most 4 ms).
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

/// Returns the median; of an even number of values the upper one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
