//! Counting (not sampling) perf events, one descriptor per CPU or task, optionally with an event filter.

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

/// Why events could not be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountError {
    /// The tracepoint could not be found.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The list of CPUs could not be read.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The caller lacks the privilege.
    #[error("{what} cannot be counted without privilege; run as root (CAP_PERFMON)")]
    NoPermission {
        /// The event.
        what: String,
    },
    /// The machine or the kernel cannot count this.
    #[error("this machine cannot count {what}: {reason}")]
    Unsupported {
        /// The event.
        what: String,
        /// The reason.
        reason: String,
    },
    /// The process or thread does not exist.
    #[error("no process {0}; it may have exited")]
    NoProcess(u32),
    /// New threads appeared during every attempt to attach the counters.
    #[error("the threads of process {0} change too fast to be counted exactly; count on its CPUs instead")]
    Unstable(u32),
    /// The kernel's filter language cannot express the device name.
    #[error("{0:?} cannot be the name of a network device: it must have 1 to 15 bytes and no '/', ':', quote or space")]
    DeviceName(String),
    /// The kernel refused a filter.
    #[error("the kernel refused the event filter {filter:?} on {what}: {source}")]
    Filter {
        /// The event.
        what: String,
        /// The filter.
        filter: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A counter could not be opened or started.
    #[error("cannot count {what}: {source}")]
    Open {
        /// The event.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A counter could not be read.
    #[error("cannot read the count of {what}: {source}")]
    Read {
        /// The event.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// The scope of a counter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    /// All tasks on these CPUs, one descriptor each.
    Cpus(&'a CpuList),
    /// These threads, and the threads and processes they create from now on.
    Tasks(&'a [u32]),
}

/// A counter that is the sum of several descriptors.
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
                    counters.push(start(what, builder, filter).map_err(|e| if_exited(e, tid))?);
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

    /// Reads the events since the counter was opened. A counter that shared the hardware counter with others is scaled to the
    /// whole time; one that never had it is [`CountError::Unsupported`], not 0.
    pub(crate) fn read(&mut self) -> Result<u64, CountError> {
        let mut sum = 0_u64;
        for counter in &mut self.counters {
            let got =
                counter.read_count_and_time().map_err(|source| CountError::Read { what: self.what.clone(), source })?;
            let (enabled, running) = (u128::from(got.time_enabled), u128::from(got.time_running));
            sum += match running {
                _ if enabled == running => got.count,
                0 => {
                    let reason = "other programs used the hardware counter all the time".into();
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
    // SAFETY: the descriptor is an open perf event, and `text` is a NUL-terminated string that is valid for the call, which
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

fn if_exited(error: CountError, tid: u32) -> CountError {
    match error {
        CountError::Open { source, .. } if source.raw_os_error() == Some(libc::ESRCH) => CountError::NoProcess(tid),
        other => other,
    }
}

/// Returns `field == a || field == b ...` in parentheses; `None` for no values.
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
