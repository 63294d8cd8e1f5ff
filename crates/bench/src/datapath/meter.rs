//! Counters of a datapath's server during a measurement: its own, its threads' context switches, and CPU time.

use abey_datapath::Counters;
use abey_datapath::control::Client;
use abey_linux::counters::{Count, Work, WorkCounter};
use abey_linux::cpu::{CpuList, Usage, thread_affinity};
use abey_loadgen::Phase;
use procfs::process::Process;

use crate::BenchError;
use crate::cpu_time::{CpuTimeReading, CpuTimeSource, ServerCpuTime};

/// The counts of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// Counters of the datapath during the measured time.
    pub(super) datapath: Counters,
    /// Counters of the datapath from the beginning of the measured time to the last response, which include requests
    /// that were answered after the measured time.
    pub(super) until_last_response: Counters,
    /// Cycles and instructions of the server's CPU, if available.
    pub(super) work: Work,
    /// Context switches of the server's threads.
    pub(super) switches: u64,
    /// Voluntary context switches: the thread slept until an interrupt, a timer or another thread woke it.
    pub(super) sleeps: u64,
    /// CPU time of the server.
    pub(super) usage: Usage,
    /// A note on the CPU time.
    pub(super) note: Option<String>,
}

/// Counters that are read at both ends of the measured time. The server spends time only on two replies on its control
/// socket, outside of the accounted time.
pub(super) struct Meter<'a> {
    server: Process,
    cpu: ServerCpuTime<'a>,
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
    cpu: CpuTimeReading,
}

impl<'a> Meter<'a> {
    pub(super) fn new(pid: u32, control: &'a Client, cpu_time: &'a CpuTimeSource) -> Result<Self, BenchError> {
        let server = Process::new(pid.cast_signed()).map_err(unreadable)?;
        let cpu = cpu_time.for_server(pid, &[])?;
        let cpus: CpuList = thread_affinity(pid)?;
        let work = WorkCounter::on_cpus(&cpus, &[Count::Cycles, Count::Instructions])?;
        Ok(Self { server, cpu, control, work, start: None, end: None, failed: None })
    }

    pub(super) fn handle_phase(&mut self, phase: Phase) {
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
        self.start = Some(Reading { datapath, work, switches, cpu: self.cpu.read()? });
        Ok(())
    }

    fn end(&mut self) -> Result<(), BenchError> {
        let cpu = self.cpu.read()?;
        let work = self.work.read()?;
        let switches = Switches::of(&self.server)?;
        self.end = Some(Reading { datapath: self.datapath()?, work, switches, cpu });
        Ok(())
    }

    fn datapath(&self) -> Result<Counters, BenchError> {
        let mut sum = Counters::default();
        for shard in self.control.status()?.shards {
            sum += Counters::from_named(|name| shard.counters.get(name).copied().unwrap_or(0));
        }
        Ok(sum)
    }

    /// Returns the counts, after the last response of the run.
    pub(super) fn finish(mut self) -> Result<Counts, BenchError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let last = self.datapath()?;
        let (start, end) = self.start.zip(self.end).expect("a successful run has both phases");
        let (usage, note) = end.cpu.since(&start.cpu);
        Ok(Counts {
            datapath: end.datapath.since(&start.datapath),
            until_last_response: last.since(&start.datapath),
            work: end.work.since(&start.work),
            switches: end.switches.all.saturating_sub(start.switches.all),
            sleeps: end.switches.voluntary.saturating_sub(start.switches.voluntary),
            usage,
            note,
        })
    }
}

/// Context switches of a process's threads so far (`/proc/PID/task/*/status`).
#[derive(Clone, Copy, Debug, Default)]
struct Switches {
    all: u64,
    /// Because the thread slept.
    voluntary: u64,
}

impl Switches {
    fn of(process: &Process) -> Result<Self, BenchError> {
        let mut sum = Self::default();
        for task in process.tasks().map_err(unreadable)?.flatten() {
            let status = task.status().map_err(unreadable)?;
            let voluntary = status.voluntary_ctxt_switches.unwrap_or(0);
            sum.voluntary += voluntary;
            sum.all += voluntary + status.nonvoluntary_ctxt_switches.unwrap_or(0);
        }
        Ok(sum)
    }
}

fn unreadable(error: procfs::ProcError) -> BenchError {
    BenchError::Io { action: "read the server's threads in /proc", source: std::io::Error::other(error) }
}
