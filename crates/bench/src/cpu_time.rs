//! CPU time of the server during a measurement.

use std::time::{Duration, Instant};

use abey_linux::cpu::{ProcessCpuClock, Usage};
use abey_linux::process;

use crate::BenchError;
use crate::cpu_accounting::{AccountReading, CpuAccounting};

/// A source of CPU time.
pub(crate) enum CpuTimeSource {
    /// The server's process, for a datapath whose packet delivery runs in it. Needs no privilege.
    Process,
    /// The server's CPU, including softirqs and interrupts, without the time of other programs.
    Cpu(Box<CpuAccounting>),
}

/// CPU time of one server.
pub(crate) struct ServerCpuTime<'a> {
    source: &'a CpuTimeSource,
    process: ProcessCpuClock,
}

/// A reading of the CPU time so far.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CpuTimeReading {
    Process(Duration, Instant),
    Cpu(AccountReading),
}

impl CpuTimeSource {
    /// Opens the account of a CPU.
    pub(crate) fn of_cpu(cpu: u32) -> Result<Self, BenchError> {
        Ok(Self::Cpu(Box::new(CpuAccounting::open(cpu)?)))
    }

    /// Returns the CPU time of the server with this process ID, the processes it has started so far, and kernel threads that
    /// poll its packets.
    pub(crate) fn for_server(&self, pid: u32, kthreads: &[u32]) -> Result<ServerCpuTime<'_>, BenchError> {
        if let Self::Cpu(accounting) = self {
            let mut ids = process::descendants(pid).unwrap_or_default();
            ids.push(pid);
            ids.extend(kthreads);
            accounting.set_server(&ids)?;
        }
        Ok(ServerCpuTime { source: self, process: ProcessCpuClock::of(pid)? })
    }
}

impl ServerCpuTime<'_> {
    pub(crate) fn read(&self) -> Result<CpuTimeReading, BenchError> {
        Ok(match self.source {
            CpuTimeSource::Process => CpuTimeReading::Process(self.process.read()?, Instant::now()),
            CpuTimeSource::Cpu(accounting) => CpuTimeReading::Cpu(accounting.read()?),
        })
    }
}

impl CpuTimeReading {
    /// Returns the CPU time since an earlier reading of the same server, and a note if other programs used the CPU.
    pub(crate) fn since(&self, earlier: &Self) -> (Usage, Option<String>) {
        let (busy_time, interval, others) = match (self, earlier) {
            (Self::Cpu(now), Self::Cpu(before)) => {
                let charged = now.since(before);
                (charged.server + charged.kernel, charged.interval, charged.others)
            }
            (Self::Process(now, at), Self::Process(before, since)) => {
                (now.saturating_sub(*before), *at - *since, Duration::ZERO)
            }
            _ => unreachable!("both readings are of one server"),
        };
        let share = |time: Duration| time.as_secs_f64() / interval.as_secs_f64();
        let note = (share(others) > MAX_OTHERS_SHARE)
            .then(|| "other programs ran on the server's CPU and may have delayed responses".to_owned());
        (Usage { busy: share(busy_time).min(1.0), busy_time, interval, resolution: 0.0 }, note)
    }
}

/// The share of the CPU above which the time of other programs is noted.
const MAX_OTHERS_SHARE: f64 = 0.02;
