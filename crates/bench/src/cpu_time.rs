//! CPU time of the server's side while it is measured.

use std::time::{Duration, Instant};

use abey_linux::cpu::{ProcessCpuClock, Usage};
use abey_linux::process;

use crate::BenchError;
use crate::ledger::{Balance, Ledger};

/// How CPU time is counted.
pub(crate) enum CpuTime {
    /// The server's process, in which everything runs that delivers its packets. This needs no privilege.
    OfProcess,
    /// The server's whole CPU but for what other programs had of it: softirqs and interrupts are in.
    OfCpu(Box<Ledger>),
}

/// Counts for one server.
pub(crate) struct Watch<'a> {
    how: &'a CpuTime,
    process: ProcessCpuClock,
}

/// CPU time so far.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spent {
    OfProcess(Duration, Instant),
    OfCpu(Balance),
}

impl CpuTime {
    /// Of the whole CPU.
    pub(crate) fn of_cpu(cpu: u32) -> Result<Self, BenchError> {
        Ok(Self::OfCpu(Box::new(Ledger::open(cpu)?)))
    }

    /// For the server with this number, the processes that it has started by now, and threads of the kernel that poll its
    /// packets.
    pub(crate) fn watch(&self, pid: u32, kthreads: &[u32]) -> Result<Watch<'_>, BenchError> {
        if let Self::OfCpu(ledger) = self {
            let mut ids = process::descendants(pid).unwrap_or_default();
            ids.push(pid);
            ids.extend(kthreads);
            ledger.serve(&ids)?;
        }
        Ok(Watch { how: self, process: ProcessCpuClock::of(pid)? })
    }
}

impl Watch<'_> {
    pub(crate) fn read(&self) -> Result<Spent, BenchError> {
        Ok(match self.how {
            CpuTime::OfProcess => Spent::OfProcess(self.process.read()?, Instant::now()),
            CpuTime::OfCpu(ledger) => Spent::OfCpu(ledger.read()?),
        })
    }
}

impl Spent {
    /// What was spent since an earlier reading of the same watch, and a word about it where there is something to say.
    pub(crate) fn since(&self, earlier: &Self) -> (Usage, Option<String>) {
        let (busy_time, interval, others) = match (self, earlier) {
            (Self::OfCpu(now), Self::OfCpu(before)) => {
                let charged = now.since(before);
                (charged.server + charged.kernel, charged.interval, charged.others)
            }
            (Self::OfProcess(now, at), Self::OfProcess(before, since)) => {
                (now.saturating_sub(*before), *at - *since, Duration::ZERO)
            }
            _ => unreachable!("both are of one watch"),
        };
        let share = |time: Duration| time.as_secs_f64() / interval.as_secs_f64();
        let note = (share(others) > NOTICEABLE)
            .then(|| "other programs ran on the server's CPU, whose latency is then theirs as well".to_owned());
        (Usage { busy: share(busy_time).min(1.0), busy_time, interval, resolution: 0.0 }, note)
    }
}

/// A share of the CPU that other programs may have without a word.
const NOTICEABLE: f64 = 0.02;
