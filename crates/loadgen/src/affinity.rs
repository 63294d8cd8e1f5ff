//! Pinning of the calling thread, and of the threads that it starts later, to CPUs.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Why a thread was not pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The list names a CPU that no mask can hold.
    #[error("CPU {cpu} does not exist: this machine numbers its CPUs below {}", CpuSet::MAX_CPU)]
    NoSuchCpu {
        /// The CPU that was asked for.
        cpu: usize,
    },
    /// The kernel refused the mask.
    #[error("cannot pin to CPUs {cpus:?}: {source}; name CPUs that are online and allowed for this process")]
    Refused {
        /// The CPUs that were asked for.
        cpus: Vec<usize>,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// Pins the calling thread to `cpus`; threads that it starts afterwards inherit the mask.
///
/// # Errors
///
/// [`PinError`] if a CPU does not exist or is not allowed; the mask is then unchanged.
pub fn pin_to_cpus(cpus: &[usize]) -> Result<(), PinError> {
    let refused = |source: rustix::io::Errno| PinError::Refused { cpus: cpus.to_vec(), source: source.into() };
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(PinError::NoSuchCpu { cpu });
        }
        set.set(cpu);
    }
    let before = rustix::thread::sched_getaffinity(None).map_err(refused)?;
    sched_setaffinity(None, &set).map_err(refused)?;
    // The kernel silently drops absent CPUs from a mask; that is an error here.
    let now = rustix::thread::sched_getaffinity(None).map_err(refused)?;
    if cpus.iter().all(|&cpu| now.is_set(cpu)) {
        return Ok(());
    }
    sched_setaffinity(None, &before).map_err(refused)?;
    Err(refused(rustix::io::Errno::INVAL))
}
