//! Perf events that count (never sample), one descriptor per CPU or per task, optionally behind an event filter.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

use perf_event::events::{Event, Tracepoint};
use perf_event::{Builder, Counter};

use crate::cpu::{CpuError, CpuList};
use crate::tracefs::{Tracefs, TracefsError};

nix::ioctl_write_ptr_bad!(
    /// `PERF_EVENT_IOC_SET_FILTER` of `perf_event_open(2)`.
    perf_set_filter,
    nix::request_code_write!(b'$', 6, size_of::<*const libc::c_char>()),
    libc::c_char
);

/// Why something could not be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountError {
    /// The tracepoint could not be found.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The list of CPUs could not be read.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The caller may not count this.
    #[error("{what} cannot be counted without privilege; run as root (CAP_PERFMON)")]
    NoPermission {
        /// What was to be counted.
        what: String,
    },
    /// The machine or the kernel cannot count this.
    #[error("this machine cannot count {what}: {reason}")]
    Unsupported {
        /// What was to be counted.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The process or thread to count is gone.
    #[error("no process {0}; it may have exited")]
    NoProcess(u32),
    /// New threads appeared as fast as counters could be attached.
    #[error("the threads of process {0} change too fast to be counted exactly; count on its CPUs instead")]
    Unstable(u32),
    /// A device name that the kernel's filter language cannot express.
    #[error("{0:?} cannot be the name of a network device: it must have 1 to 15 bytes and no '/', ':', quote or space")]
    DeviceName(String),
    /// The kernel refused a filter.
    #[error("the kernel refused the event filter {filter:?} on {what}: {source}")]
    Filter {
        /// What was to be counted.
        what: String,
        /// The filter.
        filter: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A counter could not be opened or started.
    #[error("cannot count {what}: {source}")]
    Open {
        /// What was to be counted.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A counter could not be read.
    #[error("cannot read the count of {what}: {source}")]
    Read {
        /// What is counted.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// Where events are counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    /// Everything that happens on these CPUs, one descriptor each.
    Cpus(&'a CpuList),
    /// What these threads do, and the threads and processes they create from now on.
    Tasks(&'a [u32]),
}

/// Several descriptors whose counts are one figure.
#[derive(Debug)]
pub(crate) struct Sum {
    what: String,
    counters: Vec<Counter>,
}

impl Sum {
    /// Counts `event` on `target`, starting now.
    pub(crate) fn open<E>(what: &str, event: &E, target: Target<'_>, filter: Option<&str>) -> Result<Self, CountError>
    where
        E: Event + Clone,
    {
        let mut counters = Vec::new();
        match target {
            Target::Cpus(cpus) => {
                for cpu in cpus.iter() {
                    let mut builder = Builder::new(event.clone());
                    builder.any_pid().one_cpu(cpu as usize);
                    counters.push(start(what, builder, filter)?);
                }
            }
            Target::Tasks(tids) => {
                for &tid in tids {
                    let mut builder = Builder::new(event.clone());
                    builder.observe_pid(tid as i32).any_cpu().inherit(true);
                    counters.push(start(what, builder, filter).map_err(|e| if_gone(e, tid))?);
                }
            }
        }
        Ok(Self { what: what.into(), counters })
    }

    /// Counts the tracepoint `group:name` on `target`, starting now.
    pub(crate) fn tracepoint(
        tracefs: &Tracefs,
        (group, name): (&str, &str),
        target: Target<'_>,
        filter: Option<&str>,
    ) -> Result<Self, CountError> {
        let id = tracefs.tracepoint_id(group, name)?;
        Self::open(&format!("{group}:{name}"), &Tracepoint::with_id(id), target, filter)
    }

    /// Events since the counter was opened. A counter that had to share its hardware is scaled up to the whole time; one
    /// that never got any is [`CountError::Unsupported`], not 0.
    pub(crate) fn read(&mut self) -> Result<u64, CountError> {
        let mut sum = 0_u64;
        for counter in &mut self.counters {
            let got =
                counter.read_count_and_time().map_err(|source| CountError::Read { what: self.what.clone(), source })?;
            let (enabled, running) = (u128::from(got.time_enabled), u128::from(got.time_running));
            sum += match running {
                _ if enabled == running => got.count,
                0 => {
                    let reason = "others held the hardware counter all the time".into();
                    return Err(CountError::Unsupported { what: self.what.clone(), reason });
                }
                _ => (u128::from(got.count) * enabled / running) as u64,
            };
        }
        Ok(sum)
    }
}

fn start(what: &str, mut builder: Builder<'_>, filter: Option<&str>) -> Result<Counter, CountError> {
    builder.include_kernel().include_hv();
    let mut counter = builder.build().map_err(|e| explain_open(what, e))?;
    if let Some(filter) = filter {
        set_filter(&counter, filter).map_err(|source| CountError::Filter {
            what: what.into(),
            filter: filter.into(),
            source,
        })?;
    }
    counter.enable().map_err(|source| CountError::Open { what: what.into(), source })?;
    Ok(counter)
}

fn set_filter(counter: &Counter, filter: &str) -> io::Result<()> {
    let text = CString::new(filter)?;
    // SAFETY: the descriptor is an open perf event and `text` is a NUL-terminated string that outlives the call, which
    // copies it.
    unsafe { perf_set_filter(counter.as_raw_fd(), text.as_ptr()) }?;
    Ok(())
}

fn explain_open(what: &str, source: io::Error) -> CountError {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => CountError::NoPermission { what: what.into() },
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => CountError::Unsupported {
            what: what.into(),
            reason: "it has no such counter (common in virtual machines)".into(),
        },
        _ => CountError::Open { what: what.into(), source },
    }
}

fn if_gone(error: CountError, tid: u32) -> CountError {
    match error {
        CountError::Open { source, .. } if source.raw_os_error() == Some(libc::ESRCH) => CountError::NoProcess(tid),
        other => other,
    }
}

/// `field == a || field == b ...`, in parentheses; `None` for no values.
pub(crate) fn any_of(field: &str, values: &[u32]) -> Option<String> {
    let terms: Vec<String> = values.iter().map(|v| format!("{field} == {v}")).collect();
    (!terms.is_empty()).then(|| format!("({})", terms.join(" || ")))
}

#[cfg(test)]
mod tests {
    use super::any_of;

    #[test]
    fn alternatives_are_joined_and_none_is_none() {
        assert_eq!(any_of("pid", &[]), None);
        assert_eq!(any_of("pid", &[7]).as_deref(), Some("(pid == 7)"));
        assert_eq!(any_of("pid", &[7, 8]).as_deref(), Some("(pid == 7 || pid == 8)"));
    }
}
