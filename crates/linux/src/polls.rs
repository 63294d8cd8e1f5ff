//! Counts the NAPI polls of one device by the context they ran in, from the `napi:napi_poll` tracepoint.
//!
//! # How
//!
//! One perf *counting* event per CPU, context and question, with a filter the kernel evaluates in the tracepoint: no
//! sample is written and nothing is woken. A counter costs about 0.15 us for every poll on the machine, of whichever
//! device (2-CPU virtual machine; 5 % of the CPU of a server that takes 7 us a request): prove a mode with it, then drop
//! it before CPU time is measured. The context follows from fields
//! every trace event has:
//!
//! | context | how it is told |
//! | --- | --- |
//! | softirq (also in `ksoftirqd`) | `common_flags` has the "serving softirq" bit 0x10 |
//! | kthread (threaded NAPI) | not softirq, and `common_pid` is one of the NAPI threads given |
//! | busy poll | neither: a process polls from within its own system call |
//!
//! # Limits
//!
//! * `common_pid` is the number in the *initial* PID namespace. Inside a container's own PID namespace the numbers a
//!   caller knows do not match.
//! * Device names belong to a network namespace, the tracepoint to the machine: polls of a device of the same name in
//!   another namespace are counted too. The event carries the kernel address of the NAPI instance, but user space has no
//!   way to learn which address belongs to which device, so the filter cannot be narrowed. Measure on a device whose
//!   name is unique on the machine ([`PollCounter::device`] says which was asked for).
//! * A NAPI thread that is created after the counter was opened (by turning `threaded` off and on) is not known to it
//!   and would count as busy polling: open the counter after the mode was applied.
//!
//! # Timers and interrupts
//!
//! A poll in softirq does not say who raised the softirq: the device's interrupt, the deferral timer, a requeue because
//! the budget was used up, or an interrupt that was missed while a busy poller owned the queue. `irq:softirq_entry` and
//! `irq:softirq_raise` name only the softirq's kind. What can be counted exactly is how often the deferral timer fired:
//! every expiry runs the kernel function `napi_watchdog`, and `timer:hrtimer_expire_entry` reports the function's
//! address, which `/proc/kallsyms` gives to root. [`TimerCounter`] does that. An expiry that finds the NAPI free schedules
//! exactly one poll, so *polls in softirq minus expiries* estimates polls due to interrupts and requeues.

mod timers;

pub use timers::TimerCounter;

use crate::counters::{CountError, Sum, Target, any_of};
use crate::cpu::CpuList;
use crate::tracefs::Tracefs;

/// The bit of `common_flags` that says a softirq is being served.
pub(crate) const IN_SOFTIRQ: u32 = 0x10;

/// Polls of one device since its counter was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Polls in softirq.
    pub softirq: u64,
    /// Those of them that processed at least one packet (or transmit completion the driver counts as work).
    pub softirq_with_work: u64,
    /// Polls by a process from within a system call.
    pub busy: u64,
    /// Those of them that processed at least one packet.
    pub busy_with_work: u64,
    /// Polls by the device's NAPI threads.
    pub kthread: u64,
    /// Those of them that processed at least one packet.
    pub kthread_with_work: u64,
}

impl PollCounts {
    /// Polls in any context.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.softirq + self.busy + self.kthread
    }

    /// The polls between `earlier` and this reading of the same counter.
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

/// Polls in one context: all of them, and those with work.
#[derive(Debug)]
struct Context {
    all: Sum,
    with_work: Sum,
}

/// Counts the polls of one device, on all CPUs, by context. Counting starts when it is opened and ends when it is dropped.
#[derive(Debug)]
pub struct PollCounter {
    device: String,
    softirq: Context,
    busy: Context,
    kthread: Option<Context>,
}

impl PollCounter {
    /// Counts polls of device `device`, whose NAPI threads (if any) are `kthreads` (pids as `napi-get` gives them).
    ///
    /// # Errors
    /// [`CountError`]: no tracefs, no privilege, no such tracepoint, or a name that can be no device. That the device
    /// exists is *not* checked (it may be in another namespace, or come later).
    pub fn open(device: &str, kthreads: &[u32]) -> Result<Self, CountError> {
        Self::open_filtered(device, kthreads, None)
    }

    /// As [`PollCounter::open`], but busy polls are counted only when one of the threads `pollers` does them. That tells
    /// whose busy polls they are. Every thread has its own number: give the thread IDs, not only the process's.
    ///
    /// # Errors
    /// As [`PollCounter::open`].
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

    /// The name of the device whose polls are counted.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Polls since the counter was opened. The figures are read one after the other while polls go on; those with work
    /// are read first, so they never exceed their total.
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
        // The kernel stops at the first part that decides, so comparing the name comes last.
        let on_device = format!("dev_name == \"{device}\"");
        let in_task = format!("!(common_flags & {IN_SOFTIRQ})");
        let threads = any_of("common_pid", kthreads);
        let mut busy = in_task.clone();
        if let Some(threads) = &threads {
            busy += &format!(" && !{threads}");
        }
        if let Some(pollers) = pollers {
            // No poller: nothing can match, and no task that polls has this number.
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
    fn names_that_no_device_can_have_are_refused_before_anything_is_opened() {
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
