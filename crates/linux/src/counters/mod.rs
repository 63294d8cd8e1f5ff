//! Counters of the kernel's receive path and of servers: per namespace, IRQ, CPU and process.

mod interrupts;
mod netstat;
mod perf;
mod softnet;
mod work;

pub use interrupts::{InterruptLine, Interrupts};
pub use netstat::NetStat;
pub use perf::CountError;
pub(crate) use perf::{Sum, Target, any_of};
pub use softnet::{SoftirqCounts, Softnet, SoftnetCpu};
pub use work::{Count, Work, WorkCounter};

use std::io;
use std::path::{Path, PathBuf};

/// Why a table under `/proc` could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcTableError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file does not have the documented form.
    #[error("{} does not have the expected form at {text:?}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The text that was not understood.
        text: String,
    },
}

pub(crate) fn read_table(path: &Path) -> Result<String, ProcTableError> {
    std::fs::read_to_string(path).map_err(|source| ProcTableError::Read { path: path.into(), source })
}
