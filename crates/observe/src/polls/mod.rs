//! Counts the polls of NAPI instances one by one, for as long as somebody looks: who polled, how many packets, timers,
//! suspensions, and the CPU time of the softirq.
//!
//! [`abey_linux::polls`] counts with perf events, a few for each device and CPU, to prove a mode and go. This is for
//! keeping: small BPF programs at raw tracepoints count for all instances at once, each poll once, by the instance's ID, which
//! is unique in the machine whatever devices are called in other namespaces. What they count:
//!
//! | count | at | how |
//! | --- | --- | --- |
//! | polls, those with packets, packets, batches | `napi:napi_poll` | the event has the instance and the packets |
//! | context | the same | softirq: the receive softirq runs on this CPU (`irq:softirq_entry`, `irq:softirq_exit`), for the deferral timer if that went off there since; thread: the current task is the instance's; else a process polls |
//! | timers | `timer:hrtimer_expire_entry` | the timer lies within the instance |
//! | suspensions | `timer:hrtimer_start` | that timer is set to irq-suspend-timeout rather than to gro-flush-timeout |
//! | CPU time | `napi:napi_poll` | from the beginning of the softirq, or the poll before, to the end of the poll |
//!
//! Where the kernel keeps these things its own type information tells ([BTF](crate::polls::BtfError)). Each of these
//! events costs the machine the run of a small program while they are counted. It needs CAP_BPF and CAP_PERFMON.

mod layout;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aya::maps::{MapData, MapError, PerCpuHashMap, PerCpuValues};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};

pub use crate::btf::BtfError;

use self::layout::{BATCH_BOUNDS, WORDS};
use self::program::Offsets;
use crate::btf::Btf;
use crate::counts::{BATCHES, Counter, Counts};

/// Why polls cannot be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollsError {
    /// The kernel's types are not known.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// The kernel takes no programs from this caller.
    #[error("{what}: polls are counted by BPF programs, which takes CAP_BPF and CAP_PERFMON, or root")]
    Denied {
        /// What was refused.
        what: String,
    },
    /// The kernel did not take a program, or has no such tracepoint.
    #[error(
        "{what}: polls are counted by BPF programs at raw tracepoints, which takes a kernel with CONFIG_BPF_EVENTS"
    )]
    Refused {
        /// What was refused.
        what: String,
    },
    /// The counts could not be read or kept.
    #[error("cannot {action} the counts of NAPI {napi}: {reason}")]
    Map {
        /// What was attempted.
        action: &'static str,
        /// The instance.
        napi: u32,
        /// The system's reason.
        reason: String,
    },
}

/// Counts while it lives.
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
    /// Puts the programs in place. Nothing is counted until something is [watched](Polls::watch).
    ///
    /// # Errors
    /// [`PollsError`]: no privilege, or a kernel that cannot.
    pub fn open() -> Result<Self, PollsError> {
        let offsets = Offsets::read(&Btf::of_kernel()?)?;
        // The loader would read the kernel's types once more, for relocations that these programs do not have.
        let mut loaded =
            EbpfLoader::new().btf(None).load(&program::object(&offsets)).map_err(|error| refused(&error))?;
        let mut programs = vec![program::ENTRY, program::EXIT, program::EXPIRE];
        programs.extend(offsets.has_suspension().then_some(program::START));
        // Polls last: by then the softirq that one belongs to is known.
        programs.push(program::POLL);
        for (name, tracepoint) in programs {
            let program: Result<&mut RawTracePoint, _> = loaded.program_mut(name).expect("of the object").try_into();
            let program = program.expect("a raw tracepoint's");
            program.load().map_err(|error| refused(&error))?;
            program.attach(tracepoint).map_err(|error| refused(&error))?;
        }
        let map = loaded.take_map(program::COUNTS).expect("of the object");
        Ok(Self {
            counts: PerCpuHashMap::try_from(map).map_err(|error| refused(&error))?,
            watched: BTreeSet::new(),
            cpus: aya::util::nr_cpus().map_err(|(_, error)| refused(&error))?,
            suspensions: offsets.has_suspension(),
            _loaded: loaded,
        })
    }

    /// Whether this kernel has suspensions to count.
    #[must_use]
    pub fn counts_suspensions(&self) -> bool {
        self.suspensions
    }

    /// From here on these instances are counted, by their IDs, and no others; the counts of those that were before go on.
    ///
    /// # Errors
    /// There are too many.
    pub fn watch(&mut self, napis: &BTreeSet<u32>) -> Result<(), PollsError> {
        let gone: Vec<u32> = self.watched.difference(napis).copied().collect();
        for napi in gone {
            self.counts.remove(&napi).map_err(|error| failed("remove", napi, &error))?;
            self.watched.remove(&napi);
        }
        let new: Vec<u32> = napis.difference(&self.watched).copied().collect();
        for napi in new {
            let none = PerCpuValues::try_from(vec![[0; WORDS]; self.cpus]);
            let none = none.map_err(|error| failed("make", napi, &error.into()))?;
            self.counts.insert(napi, none, 0).map_err(|error| failed("make", napi, &error))?;
            self.watched.insert(napi);
        }
        Ok(())
    }

    /// What an instance did since it is watched.
    ///
    /// # Errors
    /// It is not watched.
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
            // Read at different moments: a poll may be in one and not yet in the other.
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
}

impl Polls {
    /// How many polls of an instance ran on each CPU since it is watched, those left out that polled nothing.
    ///
    /// # Errors
    /// It is not watched.
    pub fn by_cpu(&self, napi: u32) -> Result<BTreeMap<u32, u64>, PollsError> {
        let cpus = self.counts.get(&napi, 0).map_err(|error| failed("read", napi, &error))?;
        let polls = cpus.iter().map(|words| words[layout::POLLS..layout::WITH_WORK].iter().sum::<u64>());
        Ok((0..).zip(polls).filter(|(_, polls)| *polls > 0).collect())
    }
}

// The first bucket of a histogram is that of empty polls, which have no word of their own.
const _: () = assert!(BATCHES == BATCH_BOUNDS.len() + 2);

fn failed(action: &'static str, napi: u32, error: &MapError) -> PollsError {
    PollsError::Map { action, napi, reason: chain(error) }
}

fn refused(error: &(dyn std::error::Error + 'static)) -> PollsError {
    let is_denied = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied)
    };
    let what = chain(error);
    if causes(error).any(is_denied) { PollsError::Denied { what } } else { PollsError::Refused { what } }
}

/// An error with its causes, in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let text = causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
