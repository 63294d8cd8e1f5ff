//! Shared by the tests of `abey tune`: a client that reports latencies, traffic, and an idle server.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::common::{Running, TestBed, at, await_that};

/// A FIFO that a client writes latencies to.
pub(crate) struct LatencyFifo {
    directory: tempfile::TempDir,
    writer: File,
}

impl LatencyFifo {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("latencies");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
        // Open for reading and writing, so that the open does not wait for the other end.
        let writer = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        Self { directory, writer }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("latencies")
    }

    pub(crate) fn report(&self, p99_us: u64) {
        let line = format!("{{\"count\":1000,\"p50_us\":20,\"p99_us\":{p99_us},\"interval_ms\":20}}");
        writeln!(&self.writer, "{line}").expect("written");
    }
}

/// Twice the longest deferral without packets that the tests allow, which is 100 times 200 us.
const PAUSE: Duration = Duration::from_millis(40);

/// Packets to the server's device, about two a millisecond, until this value is dropped.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Sends one flow from any CPU.
    pub(crate) fn start(testbed: &TestBed) -> Self {
        Self::of(testbed, &[(None, 1)])
    }

    /// Sends `flows` flows from any CPU.
    pub(crate) fn start_flows(testbed: &TestBed, flows: usize) -> Self {
        Self::of(testbed, &[(None, flows)])
    }

    /// Sends from each of these CPUs this many flows, with pauses: a deferred instance is polled on the CPU of its timer,
    /// and only an instance that was idle is polled on the CPU that the packets come from.
    pub(crate) fn from_cpus(testbed: &TestBed, cpus: &[(usize, usize)]) -> Self {
        let from: Vec<_> = cpus.iter().map(|(cpu, flows)| (Some(*cpu), *flows)).collect();
        Self::of(testbed, &from)
    }

    fn of(testbed: &TestBed, from: &[(Option<usize>, usize)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let open = || testbed.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("a socket")).expect("namespace");
        let send = |(cpu, flows): &(Option<usize>, usize)| {
            let (cpu, flag) = (*cpu, Arc::clone(&stop));
            let sockets: Vec<UdpSocket> = (0..*flows).map(|_| open()).collect();
            std::thread::spawn(move || {
                if let Some(cpu) = cpu {
                    let mut cpus = CpuSet::new();
                    cpus.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus)).expect("pinned");
                }
                for round in 1.. {
                    if flag.load(Ordering::Relaxed) {
                        return;
                    }
                    for socket in &sockets {
                        // The port is closed: some calls return the ICMP error about an earlier packet.
                        let _ = socket.send_to(&[7; 64], at(9));
                    }
                    let pauses = cpu.is_some() && round % 64 == 0;
                    std::thread::sleep(if pauses { PAUSE } else { Duration::from_micros(400) });
                }
            })
        };
        let threads = from.iter().map(send).collect();
        Self { stop, threads }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Reports latencies that grow with the deferral, as those of a real server do, until `holds` returns true.
pub(crate) fn answer_until(
    testbed: &TestBed,
    fifo: &LatencyFifo,
    offset_us: u64,
    what: &str,
    mut holds: impl FnMut(u64) -> bool,
) {
    await_that(what, || {
        let flush_us = testbed.settings()[0].gro_flush_timeout.as_nanos() / 1_000;
        fifo.report(offset_us + flush_us);
        std::thread::sleep(Duration::from_millis(25));
        holds(flush_us)
    });
}

/// Starts a process that inherits this process's descriptors and sleeps.
pub(crate) fn idle_server(testbed: &TestBed) -> Running {
    let mut command = testbed.command("sleep");
    command.arg("600");
    Running::start(command)
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
