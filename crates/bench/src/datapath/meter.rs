//! What a datapath's server used while it was measured: its own counters, its threads' switches and CPU time.

use std::time::{Duration, Instant};

use abey_datapath::Counters;
use abey_datapath::control::Client;
use abey_linux::counters::{Count, Work, WorkCounter};
use abey_linux::cpu::{CpuList, Usage};
use abey_load::Phase;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use procfs::process::Process;

use crate::BenchError;

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// By the datapath.
    pub(super) datapath: Counters,
    /// Cycles and instructions of the server's CPU, as far as this user and this machine can count them.
    pub(super) work: Work,
    /// Times a thread of the server was switched out.
    pub(super) switches: u64,
    /// Those of them in which it went to sleep, to be woken later: by an interrupt, a timer or another thread.
    pub(super) sleeps: u64,
    /// CPU time of the server's process, in which everything runs that delivers packets. Not its CPU's idle time: the
    /// kernel samples that by the tick where sleeps are shorter than one, and was seen to call a CPU 88 % busy on which
    /// threads ran for 55 % of the time.
    pub(super) usage: Usage,
}

/// Counts exactly while the load is measured. None of it costs the server anything but the two answers at its control
/// socket, which lie outside of the time that is billed to it.
pub(super) struct Meter<'a> {
    server: Process,
    clock: ClockId,
    control: &'a Client,
    work: WorkCounter,
    start: Option<Reading>,
    end: Option<Reading>,
    failed: Option<BenchError>,
}

struct Reading {
    datapath: Counters,
    work: Work,
    switches: Switches,
    cpu: Duration,
    at: Instant,
}

impl<'a> Meter<'a> {
    pub(super) fn new(pid: u32, control: &'a Client, cpu: u32) -> Result<Self, BenchError> {
        let pid = pid.cast_signed();
        let server = Process::new(pid).map_err(unreadable)?;
        let clock = clock_getcpuclockid(Pid::from_raw(pid)).map_err(no_clock)?;
        let cpus: CpuList = std::iter::once(cpu).collect();
        let work = WorkCounter::on_cpus(&cpus, &[Count::Cycles, Count::Instructions])?;
        Ok(Self { server, clock, control, work, start: None, end: None, failed: None })
    }

    pub(super) fn at(&mut self, phase: Phase) {
        let read = match phase {
            Phase::MeasureStart => self.begin(),
            Phase::MeasureEnd => self.end(),
        };
        if let Err(error) = read {
            self.failed = Some(error);
        }
    }

    fn begin(&mut self) -> Result<(), BenchError> {
        let datapath = self.datapath()?;
        let switches = Switches::of(&self.server)?;
        let work = self.work.read()?;
        self.start = Some(Reading { datapath, work, switches, cpu: self.cpu()?, at: Instant::now() });
        Ok(())
    }

    fn end(&mut self) -> Result<(), BenchError> {
        let (cpu, at) = (self.cpu()?, Instant::now());
        let work = self.work.read()?;
        let switches = Switches::of(&self.server)?;
        self.end = Some(Reading { datapath: self.datapath()?, work, switches, cpu, at });
        Ok(())
    }

    /// CPU time of the server's threads so far.
    fn cpu(&self) -> Result<Duration, BenchError> {
        Ok(clock_gettime(self.clock).map_err(no_clock)?.into())
    }

    fn datapath(&self) -> Result<Counters, BenchError> {
        let mut sum = Counters::default();
        for shard in self.control.status()?.shards {
            sum += Counters::from_named(|name| shard.counters.get(name).copied().unwrap_or(0));
        }
        Ok(sum)
    }

    pub(super) fn finish(self) -> Result<Counts, BenchError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let (start, end) = self.start.zip(self.end).expect("a run that ended well has both phases");
        let (busy_time, interval) = (end.cpu.saturating_sub(start.cpu), end.at - start.at);
        let busy = busy_time.as_secs_f64() / interval.as_secs_f64();
        Ok(Counts {
            datapath: end.datapath.since(&start.datapath),
            work: end.work.since(&start.work),
            switches: end.switches.all.saturating_sub(start.switches.all),
            sleeps: end.switches.willing.saturating_sub(start.switches.willing),
            usage: Usage { busy, busy_time, interval, resolution: 0.0 },
        })
    }
}

/// Context switches of a process's threads so far (`/proc/PID/task/*/status`).
#[derive(Clone, Copy, Debug, Default)]
struct Switches {
    all: u64,
    /// Because the thread had nothing to do.
    willing: u64,
}

impl Switches {
    fn of(process: &Process) -> Result<Self, BenchError> {
        let mut sum = Self::default();
        for task in process.tasks().map_err(unreadable)?.flatten() {
            let status = task.status().map_err(unreadable)?;
            let willing = status.voluntary_ctxt_switches.unwrap_or(0);
            sum.willing += willing;
            sum.all += willing + status.nonvoluntary_ctxt_switches.unwrap_or(0);
        }
        Ok(sum)
    }
}

fn no_clock(errno: nix::errno::Errno) -> BenchError {
    BenchError::Io { action: "read the CPU time of the server", source: errno.into() }
}

fn unreadable(error: procfs::ProcError) -> BenchError {
    BenchError::Io { action: "read what the server's threads did in /proc", source: std::io::Error::other(error) }
}
