//! What a datapath's server used while it was measured: its own counters, its threads' switches and CPU time.

use abey_datapath::Counters;
use abey_datapath::control::Client;
use abey_linux::counters::{Count, Work, WorkCounter};
use abey_linux::cpu::{CpuList, Usage, thread_affinity};
use abey_load::Phase;
use procfs::process::Process;

use crate::BenchError;
use crate::cpu_time::{CpuTime, Spent, Watch};

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// By the datapath, while it was measured.
    pub(super) datapath: Counters,
    /// By the datapath until the last answer was in. The requests of the measured time are in these, even if the server
    /// did not get to one of them before it was over.
    pub(super) until_answered: Counters,
    /// Cycles and instructions of the server's CPU, as far as this user and this machine can count them.
    pub(super) work: Work,
    /// Times a thread of the server was switched out.
    pub(super) switches: u64,
    /// Those of them in which it went to sleep, to be woken later: by an interrupt, a timer or another thread.
    pub(super) sleeps: u64,
    /// CPU time of the server.
    pub(super) usage: Usage,
    /// What is to be said about that.
    pub(super) note: Option<String>,
}

/// Counts exactly while the load is measured. None of it costs the server anything but the two answers at its control
/// socket, which lie outside of the time that is billed to it.
pub(super) struct Meter<'a> {
    server: Process,
    cpu: Watch<'a>,
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
    cpu: Spent,
}

impl<'a> Meter<'a> {
    pub(super) fn new(pid: u32, control: &'a Client, cpu_time: &'a CpuTime) -> Result<Self, BenchError> {
        let server = Process::new(pid.cast_signed()).map_err(unreadable)?;
        let cpu = cpu_time.watch(pid, &[])?;
        let cpus: CpuList = thread_affinity(pid)?;
        let work = WorkCounter::on_cpus(&cpus, &[Count::Cycles, Count::Instructions])?;
        Ok(Self { server, cpu, control, work, start: None, end: None, failed: None })
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

    /// Once the run is over, all answers included.
    pub(super) fn finish(mut self) -> Result<Counts, BenchError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let answered = self.datapath()?;
        let (start, end) = self.start.zip(self.end).expect("a run that ended well has both phases");
        let (usage, note) = end.cpu.since(&start.cpu);
        Ok(Counts {
            datapath: end.datapath.since(&start.datapath),
            until_answered: answered.since(&start.datapath),
            work: end.work.since(&start.work),
            switches: end.switches.all.saturating_sub(start.switches.all),
            sleeps: end.switches.willing.saturating_sub(start.switches.willing),
            usage,
            note,
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

fn unreadable(error: procfs::ProcError) -> BenchError {
    BenchError::Io { action: "read what the server's threads did in /proc", source: std::io::Error::other(error) }
}
