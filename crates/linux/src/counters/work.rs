//! The cost of work: system calls, cycles, instructions, context switches and wake-ups of CPUs or processes.
//!
//! All figures are perf *counting* events. Those that need a tracepoint (system calls, wake-ups, switches on CPUs) cost
//! CPU time on every event, system calls most of all: while they are counted, every system call of the machine takes the
//! kernel's slow entry path, 0.11 us longer on a 2-CPU virtual machine (6 % of the CPU of a server with three calls in
//! 7 us a request; [`Count::CHEAP`] cost it 0.1 %). Count them in a separate run if CPU time is measured.

use std::collections::BTreeMap;

use perf_event::events::{Hardware, Software};

use super::perf::{CountError, Sum, Target, any_of};
use crate::cpu::CpuList;
use crate::process;
use crate::tracefs::Tracefs;

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Count {
    /// System calls entered (`raw_syscalls:sys_enter`).
    SystemCalls,
    /// CPU cycles, in user and kernel mode (hardware).
    Cycles,
    /// Instructions retired, in user and kernel mode (hardware).
    Instructions,
    /// Switches away from a task, voluntary or not. The idle task is excluded: on a CPU, going to sleep and waking up is one
    /// switch.
    ContextSwitches,
    /// Wake-ups of sleeping tasks (`sched:sched_wakeup`): on CPUs of any task that is queued on one of them, including kernel
    /// threads; of processes of their own threads.
    WakeUps,
}

impl Count {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::SystemCalls, Self::Cycles, Self::Instructions, Self::ContextSwitches, Self::WakeUps];
    /// The kinds that can be counted without noticeable cost: all but the system calls.
    pub const CHEAP: [Self; 4] = [Self::Cycles, Self::Instructions, Self::ContextSwitches, Self::WakeUps];
}

/// A reading of a [`WorkCounter`]: events since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work(BTreeMap<Count, u64>);

impl Work {
    /// Returns the count, or `None` if it was not requested or cannot be counted ([`WorkCounter::missing`] has the reason).
    #[must_use]
    pub fn get(&self, count: Count) -> Option<u64> {
        self.0.get(&count).copied()
    }

    /// Returns the events between `earlier` and this reading of the same counter.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |(&count, &now): (&Count, &u64)| (count, now.saturating_sub(earlier.get(count).unwrap_or(0)));
        Self(self.0.iter().map(difference).collect())
    }
}

/// A set of counters that run from opening to dropping.
#[derive(Debug)]
pub struct WorkCounter {
    sums: Vec<(Count, Vec<Sum>)>,
    missing: BTreeMap<Count, CountError>,
}

/// The number of attempts to attach to the threads of a tree before it is reported as unstable.
const ATTEMPTS: usize = 20;
/// Thread IDs in one filter: the kernel accepts a page (4096 bytes) of text.
const FILTER_TERMS: usize = 128;

impl WorkCounter {
    /// Counts `counts` on `cpus`, of all tasks: simple and exact for a server with CPUs of its own, and includes softirqs.
    ///
    /// # Errors
    /// A CPU is not online. Kinds that the machine cannot count are no error: see [`WorkCounter::missing`].
    pub fn on_cpus(cpus: &CpuList, counts: &[Count]) -> Result<Self, CountError> {
        cpus.check_online()?;
        let online = CpuList::online()?;
        Self::open(counts, |count, tracefs| {
            let target = Target::Cpus(cpus);
            Ok(vec![match count {
                Count::SystemCalls => Sum::tracepoint(tracefs.get()?, ("raw_syscalls", "sys_enter"), target, None)?,
                Count::Cycles => Sum::open("cycles", &Hardware::CPU_CYCLES, target, None)?,
                Count::Instructions => Sum::open("instructions", &Hardware::INSTRUCTIONS, target, None)?,
                Count::ContextSwitches => {
                    Sum::tracepoint(tracefs.get()?, ("sched", "sched_switch"), target, Some("prev_pid != 0"))?
                }
                // The event is recorded on the CPU of the waker, so it is counted on all CPUs.
                Count::WakeUps => {
                    let ids: Vec<u32> = cpus.iter().collect();
                    let filter = any_of("target_cpu", &ids);
                    let everywhere = Target::Cpus(&online);
                    Sum::tracepoint(tracefs.get()?, ("sched", "sched_wakeup"), everywhere, filter.as_deref())?
                }
            }])
        })
    }

    /// Counts `counts` for process `pid` and its descendants: all threads that exist, and all threads and processes
    /// they create from now on. Softirqs that interrupt a thread are included. Wake-ups are the exception: those of
    /// threads created later are not counted.
    ///
    /// # Errors
    /// [`CountError::NoProcess`], or [`CountError::Unstable`] if threads come and go faster than counters can be attached.
    pub fn on_process_tree(pid: u32, counts: &[Count]) -> Result<Self, CountError> {
        let list = || process::tree_threads(pid).map_err(|_| CountError::NoProcess(pid));
        for _ in 0..ATTEMPTS {
            let threads = list()?;
            let attached = Self::on_threads(&threads, counts);
            // A thread created while others were attached is either counted through its creator or not at all.
            if list()? == threads {
                return attached;
            }
        }
        Err(CountError::Unstable(pid))
    }

    /// Counts `counts` for the threads `tids`, and all threads and processes they create from now on.
    ///
    /// # Errors
    /// [`CountError::NoProcess`] if one of them does not exist.
    pub fn on_threads(tids: &[u32], counts: &[Count]) -> Result<Self, CountError> {
        let online = CpuList::online()?;
        let tasks = Target::Tasks(tids);
        Self::open(counts, |count, tracefs| {
            Ok(match count {
                Count::SystemCalls => {
                    vec![Sum::tracepoint(tracefs.get()?, ("raw_syscalls", "sys_enter"), tasks, None)?]
                }
                Count::Cycles => vec![Sum::open("cycles", &Hardware::CPU_CYCLES, tasks, None)?],
                Count::Instructions => vec![Sum::open("instructions", &Hardware::INSTRUCTIONS, tasks, None)?],
                Count::ContextSwitches => {
                    vec![Sum::open("context switches", &Software::CONTEXT_SWITCHES, tasks, None)?]
                }
                Count::WakeUps => {
                    let everywhere = Target::Cpus(&online);
                    let tracefs = tracefs.get()?;
                    let count = |tids| {
                        let filter = any_of("pid", tids);
                        Sum::tracepoint(tracefs, ("sched", "sched_wakeup"), everywhere, filter.as_deref())
                    };
                    tids.chunks(FILTER_TERMS).map(count).collect::<Result<_, _>>()?
                }
            })
        })
    }

    /// Returns the requested kinds that cannot be counted, with the reason.
    #[must_use]
    pub fn missing(&self) -> &BTreeMap<Count, CountError> {
        &self.missing
    }

    /// Reads the events since the counter was opened. A hardware counter that other programs used all the time moves to
    /// [`WorkCounter::missing`].
    ///
    /// # Errors
    /// [`CountError::Read`].
    pub fn read(&mut self) -> Result<Work, CountError> {
        let mut work = Work::default();
        for (count, sums) in &mut self.sums {
            match sums.iter_mut().map(Sum::read).sum() {
                Ok(total) => {
                    work.0.insert(*count, total);
                }
                Err(reason @ CountError::Unsupported { .. }) => {
                    self.missing.insert(*count, reason);
                }
                Err(e) => return Err(e),
            }
        }
        self.sums.retain(|(count, _)| work.get(*count).is_some());
        Ok(work)
    }

    fn open(
        counts: &[Count],
        start: impl Fn(Count, &mut LazyTracefs) -> Result<Vec<Sum>, CountError>,
    ) -> Result<Self, CountError> {
        let mut counter = Self { sums: Vec::new(), missing: BTreeMap::new() };
        let mut tracefs = LazyTracefs(None);
        for &count in counts {
            match start(count, &mut tracefs) {
                Ok(sums) => counter.sums.push((count, sums)),
                Err(error @ CountError::NoProcess(_)) => return Err(error),
                Err(reason) => {
                    counter.missing.insert(count, reason);
                }
            }
        }
        Ok(counter)
    }
}

/// tracefs, opened when the first tracepoint is needed.
struct LazyTracefs(Option<Tracefs>);

impl LazyTracefs {
    fn get(&mut self) -> Result<&Tracefs, CountError> {
        match &mut self.0 {
            Some(tracefs) => Ok(tracefs),
            empty @ None => Ok(empty.insert(Tracefs::open()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_the_kinds_of_the_later_reading() {
        let earlier = Work(BTreeMap::from([(Count::SystemCalls, 5)]));
        let later = Work(BTreeMap::from([(Count::SystemCalls, 9), (Count::WakeUps, 3)]));
        let got = later.since(&earlier);
        assert_eq!(got.get(Count::SystemCalls), Some(4));
        assert_eq!(got.get(Count::WakeUps), Some(3));
        assert_eq!(got.get(Count::Cycles), None);
    }
}
