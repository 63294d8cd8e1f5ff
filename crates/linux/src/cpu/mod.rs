//! CPUs: lists of them, the time they spend, and which of them processes and interrupts may use.

mod affinity;
mod list;
mod scheduling;
mod time;

pub use affinity::{
    effective_irq_affinity, irq_affinity, process_affinity, set_irq_affinity, set_process_affinity,
    set_thread_affinity, thread_affinity,
};
pub use list::{CpuList, ParseCpuListError};
pub use scheduling::{Scheduling, SchedulingError, SchedulingPolicy};
pub use time::{CpuTimes, ProcessCpuClock, Usage};

use std::io;

/// What went wrong with a CPU, its time or its users.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file has another form than documented.
    #[error("{path} does not have the expected form at {text:?}")]
    Parse {
        /// The file.
        path: String,
        /// What was not understood.
        text: String,
    },
    /// A list of CPUs was not understood.
    #[error(transparent)]
    List(#[from] ParseCpuListError),
    /// An empty list of CPUs was given.
    #[error("a list of CPUs must name at least one")]
    Empty,
    /// A CPU that is not there.
    #[error("CPU {cpu} is not online; this machine has {online}")]
    Offline {
        /// The CPU.
        cpu: u32,
        /// Those that are.
        online: CpuList,
    },
    /// There is no such process.
    #[error("no process {0}; it may have exited")]
    NoProcess(u32),
    /// There is no such interrupt.
    #[error("no IRQ {0} in /proc/irq; /proc/interrupts lists those there are")]
    NoIrq(u32),
    /// An interrupt that stays where it is.
    #[error("IRQ {0} cannot be moved: the kernel chose its CPUs itself (a managed or per-CPU interrupt)")]
    FixedIrq(u32),
    /// The caller may not.
    #[error("{what} is not permitted; run as root")]
    NoPermission {
        /// What was to be done.
        what: String,
    },
    /// The kernel refused a change.
    #[error("cannot {what}: {source}")]
    Change {
        /// What was to be done.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}
