//! NAPI polls of one device by context, counted at the `napi:napi_poll` tracepoint.
//!
//! # Method
//!
//! One perf *counting* event per CPU and figure, with a filter that the kernel evaluates in the tracepoint: no sample is
//! written and no task is woken. A counter costs about 0.15 us for every poll on the machine, of any device (2-CPU virtual
//! machine; 5 % of the CPU of a server that takes 7 us a request): prove a mode with it, then drop it before CPU time is
//! measured. The context follows from fields that every trace event has:
//!
//! | context | condition |
//! | --- | --- |
//! | softirq (also in `ksoftirqd`) | `common_flags` has the "serving softirq" bit 0x10 |
//! | kthread (threaded NAPI) | not softirq, and `common_pid` is one of the NAPI threads given |
//! | busy poll | neither: a process polls from within a system call |
//!
//! # Limits
//!
//! * `common_pid` is the ID in the *initial* PID namespace. In the PID namespace of a container the caller's IDs differ.
//! * Device names belong to a network namespace, the tracepoint to the machine: polls of a device of the same name in
//!   another namespace are counted too. The event has the kernel address of the NAPI instance, but user space cannot find
//!   the device of an address, so the filter cannot be narrowed. Measure on a device with a name that is unique on the
//!   machine ([`PollCounter::device`] returns the requested name).
//! * A NAPI thread that is created after the counter was opened (by turning `threaded` off and on) counts as
//!   busy polling: open the counter after the mode was applied.
//!
//! # Timers and interrupts
//!
//! A poll in softirq does not show what raised the softirq: the device's interrupt, the deferral timer, a requeue because
//! the budget was used up, or an interrupt that was missed while a busy poller owned the queue. `irq:softirq_entry` and
//! `irq:softirq_raise` show only the kind of softirq. Expiries of the deferral timer can be counted exactly: each runs the
//! kernel function `napi_watchdog`, and `timer:hrtimer_expire_entry` reports the address of the function, which root can read
//! from `/proc/kallsyms`. [`TimerCounter`] does that. An expiry while the NAPI instance is not scheduled schedules exactly one
//! poll, so *polls in softirq minus expiries* estimates polls due to interrupts and requeues.

mod timers;

pub use timers::TimerCounter;

use crate::counters::{CountError, Sum, Target, any_of};
use crate::cpu::CpuList;
use crate::tracefs::Tracefs;

/// The bit of `common_flags` for an event in softirq context.
pub(crate) const IN_SOFTIRQ: u32 = 0x10;

/// Polls of one device since its counter was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Polls in softirq.
    pub softirq: u64,
    /// Polls in softirq that processed at least one packet (or transmit completion that the driver counts as work).
    pub softirq_with_work: u64,
    /// Polls by processes from within a system call.
    pub busy: u64,
    /// Polls by processes that processed at least one packet.
    pub busy_with_work: u64,
    /// Polls by the device's NAPI threads.
    pub kthread: u64,
    /// Polls by NAPI threads that processed at least one packet.
    pub kthread_with_work: u64,
}

impl PollCounts {
    /// Returns the polls in all contexts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.softirq + self.busy + self.kthread
    }

    /// Returns the polls between `earlier` and this reading of the same counter.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            softirq: self.softirq.saturating_sub(earlier.softirq),
            softirq_with_work: self.softirq_with_work.saturating_sub(earlier.softirq_with_work),
            busy: self.busy.saturating_sub(earlier.busy),
            busy_with_work: self.busy_with_work.saturating_sub(earlier.busy_with_work),
            kthread: self.kthread.saturating_sub(earlier.kthread),
            kthread_with_work: self.kthread_with_work.saturating_sub(earlier.kthread_with_work),
        }
    }
}

/// Counters of one context: of all polls, and of those with work.
#[derive(Debug)]
struct Context {
    all: Sum,
    with_work: Sum,
}

/// A counter of the polls of one device, on all CPUs, by context. It runs from opening to dropping.
#[derive(Debug)]
pub struct PollCounter {
    device: String,
    softirq: Context,
    busy: Context,
    kthread: Option<Context>,
}

impl PollCounter {
    /// Counts polls of device `device`, with the NAPI threads `kthreads` (the IDs that `napi-get` reports).
    ///
    /// # Errors
    /// [`CountError`]: no tracefs, no privilege, no such tracepoint, or an invalid device name. The existence of the device is
    /// *not* checked (it may be in another namespace, or be created later).
    pub fn open(device: &str, kthreads: &[u32]) -> Result<Self, CountError> {
        Self::open_filtered(device, kthreads, None)
    }

    /// Counts as [`PollCounter::open`] does, but only the busy polls of the threads `pollers`. These are thread IDs, not process
    /// IDs.
    ///
    /// # Errors
    /// Those of [`PollCounter::open`].
    pub fn open_for(device: &str, kthreads: &[u32], pollers: &[u32]) -> Result<Self, CountError> {
        Self::open_filtered(device, kthreads, Some(pollers))
    }

    fn open_filtered(device: &str, kthreads: &[u32], pollers: Option<&[u32]>) -> Result<Self, CountError> {
        check_name(device)?;
        let tracefs = Tracefs::open()?;
        let cpus = CpuList::online()?;
        let filters = Filters::new(device, kthreads, pollers);
        let open = |filter: &str| open_context(&tracefs, &cpus, filter);
        Ok(Self {
            device: device.into(),
            softirq: open(&filters.softirq)?,
            busy: open(&filters.busy)?,
            kthread: filters.kthread.as_deref().map(open).transpose()?,
        })
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Reads the polls since the counter was opened. The counts are read one after the other while polls continue; those with
    /// work are read first, so they never exceed their total.
    ///
    /// # Errors
    /// [`CountError::Read`].
    pub fn read(&mut self) -> Result<PollCounts, CountError> {
        let (softirq_with_work, softirq) = self.softirq.read()?;
        let (busy_with_work, busy) = self.busy.read()?;
        let (kthread_with_work, kthread) = self.kthread.as_mut().map_or(Ok((0, 0)), Context::read)?;
        Ok(PollCounts { softirq, softirq_with_work, busy, busy_with_work, kthread, kthread_with_work })
    }
}

impl Context {
    fn read(&mut self) -> Result<(u64, u64), CountError> {
        let with_work = self.with_work.read()?;
        Ok((with_work, self.all.read()?))
    }
}

fn open_context(tracefs: &Tracefs, cpus: &CpuList, filter: &str) -> Result<Context, CountError> {
    let open = |filter: &str| Sum::tracepoint(tracefs, ("napi", "napi_poll"), Target::Cpus(cpus), Some(filter));
    Ok(Context { all: open(filter)?, with_work: open(&format!("work > 0 && {filter}"))? })
}

/// The event filters of the three contexts.
struct Filters {
    softirq: String,
    busy: String,
    kthread: Option<String>,
}

impl Filters {
    fn new(device: &str, kthreads: &[u32], pollers: Option<&[u32]>) -> Self {
        // The kernel evaluates the parts in order, so the comparison of the name comes last.
        let on_device = format!("dev_name == \"{device}\"");
        let in_task = format!("!(common_flags & {IN_SOFTIRQ})");
        let threads = any_of("common_pid", kthreads);
        let mut busy = in_task.clone();
        if let Some(threads) = &threads {
            busy += &format!(" && !{threads}");
        }
        if let Some(pollers) = pollers {
            // Without pollers no event may match, and no ID is negative.
            busy += &format!(" && {}", any_of("common_pid", pollers).unwrap_or_else(|| "common_pid < 0".into()));
        }
        Self {
            softirq: format!("common_flags & {IN_SOFTIRQ} && {on_device}"),
            busy: format!("{busy} && {on_device}"),
            kthread: threads.map(|threads| format!("{in_task} && {threads} && {on_device}")),
        }
    }
}

fn check_name(device: &str) -> Result<(), CountError> {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '"' | '\'' | '\\');
    if device.is_empty() || device.len() > 15 || device.contains(forbidden) {
        return Err(CountError::DeviceName(device.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_separate_the_contexts() {
        let none = Filters::new("veth0", &[], None);
        assert_eq!(none.softirq, "common_flags & 16 && dev_name == \"veth0\"");
        assert_eq!(none.busy, "!(common_flags & 16) && dev_name == \"veth0\"");
        assert_eq!(none.kthread, None);
        let both = Filters::new("e", &[5, 6], Some(&[9]));
        assert_eq!(
            both.busy,
            "!(common_flags & 16) && !(common_pid == 5 || common_pid == 6) && (common_pid == 9) && dev_name == \"e\""
        );
        assert!(both.kthread.unwrap().contains(" && (common_pid == 5 || common_pid == 6) && "));
        assert!(Filters::new("e", &[], Some(&[])).busy.contains("common_pid < 0"));
    }

    #[test]
    fn invalid_device_names_are_refused() {
        for name in ["", "0123456789abcdef", "a b", "a/b", "eth0:1", "a\"", "a\n"] {
            assert!(matches!(PollCounter::open(name, &[]), Err(CountError::DeviceName(_))), "{name:?}");
        }
    }

    #[test]
    fn a_difference_is_taken_field_by_field() {
        let later = PollCounts {
            softirq: 5,
            softirq_with_work: 4,
            busy: 9,
            busy_with_work: 2,
            kthread: 7,
            kthread_with_work: 3,
        };
        let earlier = PollCounts { softirq: 1, busy: 4, kthread: 7, ..PollCounts::default() };
        let got = later.since(&earlier);
        assert_eq!((got.softirq, got.softirq_with_work, got.busy, got.kthread, got.total()), (4, 4, 5, 0, 9));
    }
}
