//! The runtime's own threads, and their statistics from `/proc`.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abey_delivery::NapiId;
use rustix::thread::gettid;

/// The purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    /// A shard's service thread.
    Service(NapiId),
    /// A worker of the pool.
    Worker,
    /// The control socket.
    Control,
    /// Requests to hand connections over.
    HandOver,
    /// Neighbours and ports of a device that is shared with the kernel.
    Kernel,
}

/// The list of running threads, by thread ID.
#[derive(Debug, Default)]
pub(crate) struct Threads(Mutex<Vec<(u32, ThreadRole)>>);

/// A thread and its statistics.
#[derive(Clone, Debug)]
pub(crate) struct ThreadStats {
    pub(crate) tid: u32,
    pub(crate) role: ThreadRole,
    pub(crate) name: String,
    /// Its CPU time in nanoseconds.
    pub(crate) cpu_ns: Option<u64>,
    /// The CPUs on which it may run, as a list (`0-3,8`).
    pub(crate) cpus: Option<String>,
}

impl Threads {
    fn list(&self) -> MutexGuard<'_, Vec<(u32, ThreadRole)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the calling thread.
    pub(crate) fn register(&self, role: ThreadRole) {
        self.list().push((current_tid(), role));
    }

    /// Removes the calling thread.
    pub(crate) fn unregister(&self) {
        self.list().retain(|(tid, _)| *tid != current_tid());
    }

    /// Reads the statistics of every thread.
    pub(crate) fn stats(&self) -> Vec<ThreadStats> {
        let list = self.list().clone();
        list.into_iter().map(|(tid, role)| ThreadStats::read(tid, role)).collect()
    }
}

fn current_tid() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

impl ThreadStats {
    fn read(tid: u32, role: ThreadRole) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).ok();
        Self {
            tid,
            role,
            name: read("comm").unwrap_or_default().trim_end().to_owned(),
            // The first figure is the time on a CPU (Linux Documentation/scheduler/sched-stats.rst).
            cpu_ns: read("schedstat").and_then(|text| text.split(' ').next()?.parse().ok()),
            cpus: read("status").and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
                Some(line.trim().to_owned())
            }),
        }
    }
}
