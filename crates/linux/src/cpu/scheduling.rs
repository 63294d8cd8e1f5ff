//! The scheduling class, priority and niceness of a thread (`sched(7)`).

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::CpuError;

/// A scheduling class of `sched(7)`, by the names of `chrt(1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SchedulingPolicy {
    /// `SCHED_OTHER`: the default.
    Other,
    /// `SCHED_FIFO`: runs until it sleeps or a thread of higher priority is runnable.
    Fifo,
    /// `SCHED_RR`: the same, with time slices among threads of equal priority.
    Rr,
    /// `SCHED_BATCH`: like `other`, but assumed to be CPU-bound.
    Batch,
    /// `SCHED_IDLE`: runs only if no other thread is runnable.
    Idle,
    /// `SCHED_DEADLINE`: can be read, but not set here.
    Deadline,
    /// `SCHED_EXT`: a scheduler in BPF; can be read, but not set here.
    Ext,
}

const POLICIES: [(SchedulingPolicy, &str, u32); 7] = [
    (SchedulingPolicy::Other, "other", libc::SCHED_OTHER as u32),
    (SchedulingPolicy::Fifo, "fifo", libc::SCHED_FIFO as u32),
    (SchedulingPolicy::Rr, "rr", libc::SCHED_RR as u32),
    (SchedulingPolicy::Batch, "batch", libc::SCHED_BATCH as u32),
    (SchedulingPolicy::Idle, "idle", libc::SCHED_IDLE as u32),
    (SchedulingPolicy::Deadline, "deadline", libc::SCHED_DEADLINE as u32),
    (SchedulingPolicy::Ext, "ext", SCHED_EXT),
];

/// From `linux/sched.h`; the C library's headers lack it.
const SCHED_EXT: u32 = 7;

impl SchedulingPolicy {
    /// Returns whether it has a priority from 1 to 99.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Fifo | Self::Rr)
    }

    fn entry(self) -> (&'static str, u32) {
        let found = POLICIES.iter().find(|(policy, ..)| *policy == self);
        let (_, name, number) = found.expect("every policy is in the table");
        (name, *number)
    }
}

impl fmt::Display for SchedulingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().0)
    }
}

impl FromStr for SchedulingPolicy {
    type Err = SchedulingError;

    fn from_str(text: &str) -> Result<Self, SchedulingError> {
        let found = POLICIES.iter().find(|(_, name, _)| *name == text);
        found.map(|(policy, ..)| *policy).ok_or_else(|| SchedulingError::UnknownPolicy(text.to_owned()))
    }
}

/// A valid combination of class, priority and niceness of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    policy: SchedulingPolicy,
    priority: u8,
    nice: i8,
}

/// Why a combination is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulingError {
    /// An unknown name of a class.
    #[error("{0:?} is not a scheduling policy: choose other, batch, idle, fifo or rr")]
    UnknownPolicy(String),
    /// Fifo and rr have priorities from 1 to 99.
    #[error("{policy} needs a priority from 1 to 99, not {priority}")]
    Priority {
        /// The class.
        policy: SchedulingPolicy,
        /// The given priority.
        priority: u8,
    },
    /// The other classes have no priority.
    #[error("{policy} has no priority; only fifo and rr have one (the others have nice)")]
    NoPriority {
        /// The class.
        policy: SchedulingPolicy,
    },
    /// Nice values go from -20 to 19.
    #[error("nice goes from -20 to 19, {0} is out of range")]
    Nice(i8),
    /// Real-time classes ignore nice values.
    #[error("{policy} has no nice value; only other and batch have one")]
    NoNice {
        /// The class.
        policy: SchedulingPolicy,
    },
    /// The class can be read, but not set.
    #[error("{policy} cannot be set here; choose other, batch, idle, fifo or rr")]
    ReadOnly {
        /// The class.
        policy: SchedulingPolicy,
    },
}

impl Scheduling {
    /// Returns a combination. `priority` is 1 to 99 for fifo and rr, else 0; `nice` is -20 to 19 for other and batch, else 0.
    ///
    /// # Errors
    /// The combination is invalid.
    pub fn new(policy: SchedulingPolicy, priority: u8, nice: i8) -> Result<Self, SchedulingError> {
        if matches!(policy, SchedulingPolicy::Deadline | SchedulingPolicy::Ext) {
            return Err(SchedulingError::ReadOnly { policy });
        }
        match (policy.is_real_time(), priority) {
            (true, 1..=99) | (false, 0) => {}
            (true, _) => return Err(SchedulingError::Priority { policy, priority }),
            (false, _) => return Err(SchedulingError::NoPriority { policy }),
        }
        if !(-20..=19).contains(&nice) {
            return Err(SchedulingError::Nice(nice));
        }
        if nice != 0 && !matches!(policy, SchedulingPolicy::Other | SchedulingPolicy::Batch) {
            return Err(SchedulingError::NoNice { policy });
        }
        Ok(Self { policy, priority, nice })
    }

    /// Returns the class.
    #[must_use]
    pub const fn policy(&self) -> SchedulingPolicy {
        self.policy
    }

    /// Returns the priority, 1 to 99 for fifo and rr, else 0.
    #[must_use]
    pub const fn priority(&self) -> u8 {
        self.priority
    }

    /// Returns the niceness, -20 to 19; 0 for the real-time classes.
    #[must_use]
    pub const fn nice(&self) -> i8 {
        self.nice
    }

    /// Reads the scheduling of thread `tid` (`sched_getattr(2)`).
    ///
    /// # Errors
    /// [`CpuError::NoProcess`] if it does not exist.
    pub fn of_thread(tid: u32) -> Result<Self, CpuError> {
        let attr = read(tid)?;
        let found = POLICIES.iter().find(|(.., number)| *number == attr.sched_policy);
        let (policy, ..) = *found.ok_or_else(|| CpuError::Parse {
            path: format!("sched_getattr of thread {tid}"),
            text: format!("policy {}", attr.sched_policy),
        })?;
        // The kernel keeps the nice value of a real-time thread, but ignores it.
        let nice = if policy.is_real_time() { 0 } else { i8::try_from(attr.sched_nice).unwrap_or(0) };
        Ok(Self { policy, priority: u8::try_from(attr.sched_priority).unwrap_or(0), nice })
    }

    /// Sets it on thread `tid` (`sched_setattr(2)`).
    ///
    /// # Errors
    /// [`CpuError::NoProcess`] if it does not exist, [`CpuError::NoPermission`] without `CAP_SYS_NICE`, and
    /// [`CpuError::Change`] if the thread is in the deadline class or under a BPF scheduler, whose parameters would
    /// be lost.
    pub fn set_on_thread(&self, tid: u32) -> Result<(), CpuError> {
        let what = format!("make thread {tid} {self}");
        let now = Self::of_thread(tid)?;
        if matches!(now.policy, SchedulingPolicy::Deadline | SchedulingPolicy::Ext) {
            let source = io::Error::other(format!("its policy is {}, which Abey cannot restore", now.policy));
            return Err(CpuError::Change { what, source });
        }
        let mut attr = read(tid)?;
        attr.size = size_of::<libc::sched_attr>() as u32;
        attr.sched_policy = self.policy.entry().1;
        attr.sched_priority = self.priority.into();
        attr.sched_nice = if self.policy.is_real_time() { attr.sched_nice } else { self.nice.into() };
        // SAFETY: the kernel reads `size` bytes of `attr`, which is valid for the call.
        let status = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
        if status == 0 { Ok(()) } else { Err(explain(tid, what, io::Error::last_os_error())) }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.policy.is_real_time(), self.nice) {
            (true, _) => write!(f, "{} {}", self.policy, self.priority),
            (false, 0) => write!(f, "{}", self.policy),
            (false, nice) => write!(f, "{} nice {nice}", self.policy),
        }
    }
}

fn read(tid: u32) -> Result<libc::sched_attr, CpuError> {
    // SAFETY: the structure is plain numbers, for which zeroes are a value.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which has that size.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size, 0) };
    if status == 0 {
        return Ok(attr);
    }
    Err(explain(tid, format!("read the scheduling of thread {tid}"), io::Error::last_os_error()))
}

fn explain(tid: u32, what: String, source: io::Error) -> CpuError {
    match source.raw_os_error() {
        Some(libc::ESRCH) => CpuError::NoProcess(tid),
        Some(libc::EPERM) => CpuError::NoPermission { what: format!("to {what}") },
        _ => CpuError::Change { what, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_changed_and_read_back() {
        // A new thread, so that no other test is affected. Batch with a higher niceness needs no privilege.
        std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            let before = Scheduling::of_thread(tid).expect("read");
            assert_eq!((before.policy(), before.priority()), (SchedulingPolicy::Other, 0));
            let nice = Scheduling::new(SchedulingPolicy::Batch, 0, 7).expect("valid");
            nice.set_on_thread(tid).expect("a higher niceness is permitted");
            assert_eq!(Scheduling::of_thread(tid).expect("read"), nice);
            let fifo = Scheduling::new(SchedulingPolicy::Fifo, 3, 0).expect("valid");
            if rustix::process::geteuid().is_root() {
                fifo.set_on_thread(tid).expect("root is permitted");
                assert_eq!(Scheduling::of_thread(tid).expect("read"), fifo);
                before.set_on_thread(tid).expect("back");
                assert_eq!(Scheduling::of_thread(tid).expect("read"), before);
            }
        })
        .join()
        .expect("no panic");
        let error = Scheduling::of_thread(4_194_304).expect_err("above the highest thread ID");
        assert!(matches!(error, CpuError::NoProcess(_)), "{error}");
    }

    #[test]
    fn invalid_combinations_are_refused() {
        use SchedulingPolicy::{Batch, Deadline, Fifo, Idle, Other, Rr};
        for (policy, priority, nice) in [
            (Fifo, 0, 0),
            (Rr, 100, 0),
            (Other, 5, 0),
            (Other, 0, 20),
            (Batch, 0, -21),
            (Fifo, 1, 1),
            (Deadline, 0, 0),
            (Idle, 0, 3),
        ] {
            let error = Scheduling::new(policy, priority, nice).expect_err("invalid");
            assert!(!error.to_string().is_empty());
        }
        for (policy, name, _) in POLICIES {
            assert_eq!(name.parse::<SchedulingPolicy>(), Ok(policy));
        }
        assert!("FIFO".parse::<SchedulingPolicy>().is_err());
        assert_eq!(Scheduling::new(Rr, 7, 0).expect("valid").to_string(), "rr 7");
        assert_eq!(Scheduling::new(Other, 0, -5).expect("valid").to_string(), "other nice -5");
    }
}
