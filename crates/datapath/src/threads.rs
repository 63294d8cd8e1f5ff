//! The runtime's own threads: which there are, and what the kernel says of them.

use std::fs;
use std::sync::{Mutex, PoisonError};

use abey_delivery::NapiId;
use rustix::thread::gettid;

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Service(NapiId),
    Worker,
    /// The control socket.
    Control,
    /// Neighbours and ports of a device that is shared with the kernel.
    Kernel,
}

/// The threads that are there.
#[derive(Debug, Default)]
pub(crate) struct Threads(Mutex<Vec<(u32, Work)>>);

/// A thread, looked at.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) tid: u32,
    pub(crate) work: Work,
    pub(crate) name: String,
    pub(crate) cpu_ns: Option<u64>,
    pub(crate) cpus: Option<String>,
}

impl Threads {
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<(u32, Work)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread is one of them.
    pub(crate) fn enter(&self, work: Work) {
        self.list().push((me(), work));
    }

    /// The calling thread is about to end.
    pub(crate) fn leave(&self) {
        self.list().retain(|(tid, _)| *tid != me());
    }

    /// Looks at all of them.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let list = self.list().clone();
        list.into_iter().map(|(tid, work)| Seen::look(tid, work)).collect()
    }
}

fn me() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

impl Seen {
    fn look(tid: u32, work: Work) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).ok();
        Self {
            tid,
            work,
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
