//! What the tests of `abey tune` share: a client that tells latencies, traffic, and a server that does nothing.

#![allow(dead_code, reason = "each test file uses its part")]

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

use crate::common::{Bed, Running, at, await_that};

/// A FIFO that a client writes latencies to.
pub(crate) struct Feed {
    directory: tempfile::TempDir,
    to: File,
}

impl Feed {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("latencies");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
        // For both directions, so that opening it waits for nobody.
        let to = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        Self { directory, to }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("latencies")
    }

    pub(crate) fn tell(&self, p99_us: u64) {
        let line = format!("{{\"count\":1000,\"p50_us\":20,\"p99_us\":{p99_us},\"interval_ms\":20}}");
        writeln!(&self.to, "{line}").expect("written");
    }
}

/// Twice as long as the longest deferral that the tests allow lasts without packets: 100 times 200 us.
const PAUSE: Duration = Duration::from_millis(40);

/// Packets to the server's device, two a millisecond or so, until this value goes.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// From anywhere.
    pub(crate) fn start(bed: &Bed) -> Self {
        Self::of(bed, &[(None, 1)])
    }

    /// From anywhere, over so many flows.
    pub(crate) fn start_flows(bed: &Bed, flows: usize) -> Self {
        Self::of(bed, &[(None, flows)])
    }

    /// From each of these CPUs over so many flows, with a pause now and then: an instance that is deferred is polled where
    /// its timer is, and only one that was idle for a while is polled where packets come from.
    pub(crate) fn from_cpus(bed: &Bed, cpus: &[(usize, usize)]) -> Self {
        let from: Vec<_> = cpus.iter().map(|(cpu, flows)| (Some(*cpu), *flows)).collect();
        Self::of(bed, &from)
    }

    fn of(bed: &Bed, from: &[(Option<usize>, usize)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let open = || bed.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("a socket")).expect("namespace");
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
                        // Nobody listens there: some of them fail with what the server's kernel says to the last.
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

/// What a server that answers later the longer its deferral is would be seen to do, until something holds.
pub(crate) fn answer_until(bed: &Bed, feed: &Feed, offset_us: u64, what: &str, mut holds: impl FnMut(u64) -> bool) {
    await_that(what, || {
        let flush_us = bed.settings()[0].gro_flush_timeout.as_nanos() / 1_000;
        feed.tell(offset_us + flush_us);
        std::thread::sleep(Duration::from_millis(25));
        holds(flush_us)
    });
}

/// A process that has what it inherits, and does nothing with it.
pub(crate) fn idle_server(bed: &Bed) -> Running {
    let mut command = bed.command("sleep");
    command.arg("60");
    Running::start(command)
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
