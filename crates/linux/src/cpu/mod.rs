//! CPUs: lists, CPU time, and the affinity and scheduling of processes, threads and interrupts.

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

/// Why CPU time, affinity or scheduling could not be read or changed.
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
    /// A file does not have the documented form.
    #[error("{path} does not have the expected form at {text:?}")]
    Parse {
        /// The file.
        path: String,
        /// The text that was not understood.
        text: String,
    },
    /// A list of CPUs was not understood.
    #[error(transparent)]
    List(#[from] ParseCpuListError),
    /// An empty list of CPUs was given.
    #[error("a list of CPUs must name at least one")]
    Empty,
    /// A CPU is not online.
    #[error("CPU {cpu} is not online; this machine has {online}")]
    Offline {
        /// The CPU.
        cpu: u32,
        /// The online CPUs.
        online: CpuList,
    },
    /// There is no such process.
    #[error("no process {0}; it may have exited")]
    NoProcess(u32),
    /// There is no such interrupt.
    #[error("no IRQ {0} in /proc/irq; /proc/interrupts lists them")]
    NoIrq(u32),
    /// The affinity of the interrupt is fixed.
    #[error("IRQ {0} cannot be moved: the kernel chose its CPUs itself (a managed or per-CPU interrupt)")]
    FixedIrq(u32),
    /// The caller lacks the privilege.
    #[error("{what} is not permitted; run as root")]
    NoPermission {
        /// The action.
        what: String,
    },
    /// The kernel refused a change.
    #[error("cannot {what}: {source}")]
    Change {
        /// The action.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}
