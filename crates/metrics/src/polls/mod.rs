//! Per-instance poll counters: polls by context, packets, timers, suspensions and softirq CPU time.
//!
//! [`abey_linux::polls`] counts with perf events, a few per device and CPU, for a short time, to prove a mode active. This
//! module counts for as long as a monitor runs: small BPF programs at raw tracepoints count every poll of all instances once, by NAPI
//! ID, which is unique in the machine whatever the devices are called in other namespaces.
//!
//! | count | tracepoint | method |
//! | --- | --- | --- |
//! | polls, polls with packets, packets, batches | `napi:napi_poll` | the event has the instance and the packets |
//! | context | `napi:napi_poll` | softirq: the receive softirq runs on this CPU (`irq:softirq_entry`, `irq:softirq_exit`); timer: also, the deferral timer expired there since the last poll; thread: the current task is the instance's thread; busy: anything else |
//! | timers | `timer:hrtimer_expire_entry` | the timer lies within the instance |
//! | suspensions | `timer:hrtimer_start` | that timer is set to irq-suspend-timeout rather than to gro-flush-timeout |
//! | CPU time | `napi:napi_poll` | from the beginning of the softirq, or the previous poll, to the end of the poll |
//!
//! Member offsets come from the kernel's own type information ([BTF](crate::polls::BtfError)). While the programs are attached, each
//! of these events costs the machine the run of a small program. Loading them needs CAP_BPF and CAP_PERFMON.

mod layout;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use abey_bpf::BtfError;
use abey_bpf::{Btf, error_chain};
use aya::Ebpf;
use aya::maps::{MapData, MapError, PerCpuHashMap, PerCpuValues};

use self::layout::{BATCH_BOUNDS, WORDS};
use self::program::Offsets;
use crate::counts::{BATCH_BUCKETS, Counter, Counts};

/// An error of the poll counters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollsError {
    /// The kernel's type information could not be read.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// The caller lacks the privilege to load BPF programs.
    #[error("{what}: counting polls needs CAP_BPF and CAP_PERFMON, or root")]
    Denied {
        /// The error.
        what: String,
    },
    /// The kernel rejected a program or lacks a tracepoint.
    #[error("{what}: counting polls needs BPF programs at raw tracepoints (a kernel with CONFIG_BPF_EVENTS)")]
    Refused {
        /// The error.
        what: String,
    },
    /// An operation on the map of counts failed.
    #[error("cannot {action} the counts of NAPI {napi}: {reason}")]
    Map {
        /// The operation.
        action: &'static str,
        /// The NAPI ID.
        napi: u32,
        /// The system's reason.
        reason: String,
    },
}

/// Attached BPF programs, which count until this value is dropped.
pub struct Polls {
    counts: PerCpuHashMap<MapData, u32, [u64; WORDS]>,
    watched: BTreeSet<u32>,
    cpus: usize,
    suspensions: bool,
    _loaded: Ebpf,
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polls").field("watched", &self.watched).finish_non_exhaustive()
    }
}

impl Polls {
    /// Loads and attaches the programs. They count nothing until [`watch`](Polls::watch) names instances.
    ///
    /// # Errors
    /// [`PollsError`] without the privilege or on a kernel without support.
    pub fn open() -> Result<Self, PollsError> {
        let offsets = Offsets::read(&Btf::of_kernel()?)?;
        let mut loaded = abey_bpf::load(&program::object(&offsets)).map_err(|error| refused(&error))?;
        let mut programs = vec![program::ENTRY, program::EXIT, program::EXPIRE];
        programs.extend(offsets.has_suspension().then_some(program::START));
        // The poll program last: by then the softirq programs track the softirq that a poll belongs to.
        programs.push(program::POLL);
        for (name, tracepoint) in programs {
            abey_bpf::attach_raw_tracepoints(&mut loaded, name, &[tracepoint]).map_err(|error| refused(&error))?;
        }
        let map = loaded.take_map(program::COUNTS).expect("in the object");
        Ok(Self {
            counts: PerCpuHashMap::try_from(map).map_err(|error| refused(&error))?,
            watched: BTreeSet::new(),
            cpus: aya::util::nr_cpus().map_err(|(_, error)| refused(&error))?,
            suspensions: offsets.has_suspension(),
            _loaded: loaded,
        })
    }

    /// Returns whether this kernel has IRQ suspension, so that suspensions are counted.
    #[must_use]
    pub fn counts_suspensions(&self) -> bool {
        self.suspensions
    }

    /// Sets the instances to count, by NAPI ID. Instances that were counted before keep their counts.
    ///
    /// # Errors
    /// [`PollsError::Map`] if there are too many.
    pub fn watch(&mut self, napis: &BTreeSet<u32>) -> Result<(), PollsError> {
        let removed: Vec<u32> = self.watched.difference(napis).copied().collect();
        for napi in removed {
            self.counts.remove(&napi).map_err(|error| failed("remove", napi, &error))?;
            self.watched.remove(&napi);
        }
        let added: Vec<u32> = napis.difference(&self.watched).copied().collect();
        for napi in added {
            let zeros = PerCpuValues::try_from(vec![[0; WORDS]; self.cpus]);
            let zeros = zeros.map_err(|error| failed("create", napi, &error.into()))?;
            self.counts.insert(napi, zeros, 0).map_err(|error| failed("create", napi, &error))?;
            self.watched.insert(napi);
        }
        Ok(())
    }

    /// Returns the counts of an instance since it was added by [`watch`](Polls::watch).
    ///
    /// # Errors
    /// [`PollsError::Map`] if the instance is not watched.
    pub fn read(&self, napi: u32) -> Result<Counts, PollsError> {
        let cpus = self.counts.get(&napi, 0).map_err(|error| failed("read", napi, &error))?;
        let word = |at: usize| cpus.iter().map(|words| words[at]).sum::<u64>();
        let all = |group: usize| (group..group + 4).map(word).sum::<u64>();
        let mut counts = Counts::default();
        for (counter, count) in [
            (Counter::SoftirqPolls, word(layout::POLLS + layout::SOFTIRQ)),
            (Counter::TimerPolls, word(layout::POLLS + layout::TIMER)),
            (Counter::BusyPolls, word(layout::POLLS + layout::BUSY)),
            (Counter::ThreadPolls, word(layout::POLLS + layout::THREAD)),
            // The two sums are read at different times, so that a poll may be in one of them only.
            (Counter::EmptyPolls, all(layout::POLLS).saturating_sub(all(layout::WITH_WORK))),
            (Counter::Packets, all(layout::PACKETS)),
            (Counter::BusyPollPackets, word(layout::PACKETS + layout::BUSY)),
            (Counter::Timers, word(layout::TIMERS)),
            (Counter::SoftirqNanos, word(layout::SOFTIRQ_NS)),
        ] {
            counts.set(counter, count);
        }
        if self.suspensions {
            counts.set(Counter::Suspensions, word(layout::SUSPENSIONS));
        }
        let empty = counts.get(Counter::EmptyPolls).unwrap_or(0);
        counts.batches = Some(std::array::from_fn(|at| if at == 0 { empty } else { word(layout::BATCHES + at - 1) }));
        Ok(counts)
    }

    /// Returns the polls of an instance by CPU, without CPUs that polled nothing.
    ///
    /// # Errors
    /// [`PollsError::Map`] if the instance is not watched.
    pub fn by_cpu(&self, napi: u32) -> Result<BTreeMap<u32, u64>, PollsError> {
        let cpus = self.counts.get(&napi, 0).map_err(|error| failed("read", napi, &error))?;
        let polls = cpus.iter().map(|words| words[layout::POLLS..layout::WITH_WORK].iter().sum::<u64>());
        Ok((0..).zip(polls).filter(|(_, polls)| *polls > 0).collect())
    }
}

// The first bucket of the histogram holds empty polls, which have no word of their own.
const _: () = assert!(BATCH_BUCKETS == BATCH_BOUNDS.len() + 2);

fn failed(action: &'static str, napi: u32, error: &MapError) -> PollsError {
    PollsError::Map { action, napi, reason: error_chain(error) }
}

fn refused(error: &(dyn std::error::Error + 'static)) -> PollsError {
    let is_denied = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied)
    };
    let what = error_chain(error);
    if causes(error).any(is_denied) { PollsError::Denied { what } } else { PollsError::Refused { what } }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
