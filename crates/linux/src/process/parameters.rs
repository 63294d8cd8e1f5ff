//! Changes to the busy poll parameters of epoll instances of running processes, and their restoration.
//!
//! The parameters belong to the open file (`ioctl_eventpoll(2)`), so setting them on a duplicate of the descriptor changes them
//! for the process that waits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;

use abey_delivery::EpollBusyPoll;
use procfs::process::FDTarget;

use super::{ProcessError, Target, start_time};
use crate::epoll::{self, EpollError};

/// The parameters of a new instance, which mean "none".
const NONE: EpollBusyPoll = EpollBusyPoll { usecs: 0, budget: 0, prefer: false };

/// One epoll instance whose parameters were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChangedEpoll {
    /// The process.
    pid: u32,
    /// The start time of the process ([`start_time`]), because IDs are reused.
    started: u64,
    /// A descriptor of the instance in the process.
    fd: i32,
}

/// Changed parameters, which [`EpollChanges::restore`] or dropping this value restores.
#[derive(Debug, Default)]
pub struct EpollChanges {
    /// The parameters before the change.
    before: BTreeMap<ChangedEpoll, EpollBusyPoll>,
    /// The parameters that were set; `None` before the first call of [`Self::set`].
    after: Option<EpollBusyPoll>,
}

impl EpollChanges {
    /// Sets or clears the parameters of every epoll instance of these processes, and returns the number of instances. Call it
    /// repeatedly to include instances that were made since the last call. Processes that have exited are skipped.
    ///
    /// # Errors
    /// [`ProcessError`]. [`Self::restore`] restores what was changed until then.
    pub fn set(&mut self, pids: &[u32], wanted: Option<EpollBusyPoll>) -> Result<usize, ProcessError> {
        let wanted = wanted.unwrap_or(NONE);
        self.after = Some(wanted);
        let mut count = 0;
        for pid in pids {
            match self.set_in(*pid, wanted) {
                Ok(instances) => count += instances,
                Err(ProcessError::NoProcess(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn set_in(&mut self, pid: u32, wanted: EpollBusyPoll) -> Result<usize, ProcessError> {
        let started = start_time(pid).ok_or(ProcessError::NoProcess(pid))?;
        let target = Target::open(pid)?;
        let fds = target.descriptors()?;
        let mut count = 0;
        for (&fd, _) in fds.iter().filter(|(_, kind)| is_epoll(kind)) {
            let Some(duplicate) = target.duplicate(fd)? else { continue };
            let refused =
                |error: EpollError| target.unreadable("the parameters of an epoll instance", &error.to_string());
            let now = match epoll::get(duplicate.as_fd()) {
                Ok(now) => now,
                // The descriptor was reused since the list was read.
                Err(EpollError::NotEpoll(_)) => continue,
                Err(error) => return Err(refused(error)),
            };
            count += 1;
            if now != wanted {
                self.before.entry(ChangedEpoll { pid, started, fd }).or_insert(now);
                put(&duplicate, wanted).map_err(refused)?;
            }
        }
        Ok(count)
    }

    /// Returns how to restore each changed instance, for another process that restores them if this one cannot.
    pub fn notes(&self) -> BTreeSet<EpollNote> {
        let Some(after) = self.after else { return BTreeSet::new() };
        self.before
            .iter()
            .map(|(&epoll, &before)| EpollNote { epoll, before: words(before), after: words(after) })
            .collect()
    }

    /// Restores the parameters that still have the value set here. Instances that do not exist any more or were changed since
    /// are skipped.
    ///
    /// # Errors
    /// The first failure; the other instances are restored nevertheless.
    pub fn restore(mut self) -> Result<(), ProcessError> {
        self.put_back()
    }

    /// Leaves the parameters as they are.
    pub fn keep(mut self) {
        self.before.clear();
    }

    fn put_back(&mut self) -> Result<(), ProcessError> {
        let notes = self.notes();
        self.before.clear();
        let failed: Vec<ProcessError> = notes.iter().filter_map(|note| note.put_back().err()).collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Drop for EpollChanges {
    fn drop(&mut self) {
        if let Err(error) = self.put_back() {
            eprintln!("abey: the parameters of an epoll instance could not be restored: {error}");
        }
    }
}

/// How to restore one epoll instance, as a line of text: `PID:START:FD:0,0,0:0,64,1`, with the parameters before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EpollNote {
    epoll: ChangedEpoll,
    before: (u32, u16, bool),
    after: (u32, u16, bool),
}

impl EpollNote {
    /// Restores the parameters, if the instance exists and still has the parameters that were set.
    ///
    /// # Errors
    /// The caller lacks the privilege, or the kernel refuses.
    pub fn put_back(&self) -> Result<(), ProcessError> {
        let ChangedEpoll { pid, started, fd } = self.epoll;
        if start_time(pid) != Some(started) {
            return Ok(());
        }
        let found = Target::open(pid).and_then(|target| Ok((target.duplicate(fd)?, target)));
        let (duplicate, target) = match found {
            Ok((Some(duplicate), target)) => (duplicate, target),
            Ok((None, _)) | Err(ProcessError::NoProcess(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        match epoll::get(duplicate.as_fd()) {
            Ok(now) if words(now) == self.after => put(&duplicate, parameters(self.before))
                .map_err(|error| target.unreadable("the parameters of an epoll instance", &error.to_string())),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for EpollNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChangedEpoll { pid, started, fd } = self.epoll;
        let text = |(usecs, budget, prefer): (u32, u16, bool)| format!("{usecs},{budget},{}", u8::from(prefer));
        write!(f, "{pid}:{started}:{fd}:{}:{}", text(self.before), text(self.after))
    }
}

impl FromStr for EpollNote {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not PID:START:FD:BEFORE:AFTER");
        let mut parts = text.split(':');
        let mut next = || parts.next().ok_or_else(wrong);
        let (pid, started, fd) = (next()?, next()?, next()?);
        let (before, after) = (next()?, next()?);
        let words = |text: &str| {
            let mut words = text.split(',');
            let usecs = words.next()?.parse().ok()?;
            let budget = words.next()?.parse().ok()?;
            Some((usecs, budget, words.next()? == "1"))
        };
        let number = |_| wrong();
        let epoll = ChangedEpoll {
            pid: pid.parse().map_err(number)?,
            started: started.parse().map_err(number)?,
            fd: fd.parse().map_err(number)?,
        };
        Ok(Self { epoll, before: words(before).ok_or_else(wrong)?, after: words(after).ok_or_else(wrong)? })
    }
}

fn words(parameters: EpollBusyPoll) -> (u32, u16, bool) {
    (parameters.usecs, parameters.budget, parameters.prefer)
}

fn parameters((usecs, budget, prefer): (u32, u16, bool)) -> EpollBusyPoll {
    EpollBusyPoll { usecs, budget, prefer }
}

fn put(epoll: &impl AsFd, wanted: EpollBusyPoll) -> Result<(), EpollError> {
    if wanted == NONE { epoll::clear(epoll.as_fd()) } else { epoll::set(epoll.as_fd(), &wanted) }
}

fn is_epoll(kind: &FDTarget) -> bool {
    matches!(kind, FDTarget::AnonInode(name) if name.contains("eventpoll"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{Epoll, EpollCreateFlags};
    use std::os::fd::AsRawFd;

    #[test]
    fn parameters_of_a_process_are_changed_and_restored_unless_changed_since() {
        if !epoll::supported().expect("the probe runs") {
            eprintln!("skipped: this kernel has no EPIOCSPARAMS");
            return;
        }
        // Other tests of this process make instances concurrently: only these two are read.
        let made = || Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll instance");
        let (plain, own) = (made(), made());
        let before = EpollBusyPoll { usecs: 7, budget: 9, prefer: false };
        epoll::set(own.0.as_fd(), &before).expect("set");
        let of = |epoll: &Epoll| epoll::get(epoll.0.as_fd()).expect("get");
        let me = std::process::id();
        let started = start_time(me).expect("running");
        let suspend = EpollBusyPoll { usecs: 0, budget: 64, prefer: true };
        let note = |epoll: &Epoll, before| EpollNote {
            epoll: ChangedEpoll { pid: me, started, fd: epoll.0.as_raw_fd() },
            before: words(before),
            after: words(suspend),
        };
        let notes = [note(&plain, NONE), note(&own, before)];
        let read: Vec<EpollNote> = notes.iter().map(|note| note.to_string().parse().expect("a note")).collect();
        assert_eq!(read, notes);
        put(&plain.0, suspend).expect("set");
        put(&own.0, EpollBusyPoll { usecs: 8, ..suspend }).expect("set");
        notes.iter().for_each(|note| note.put_back().expect("restored"));
        assert_eq!((of(&plain), of(&own).usecs), (NONE, 8), "a later change stays");
        let exited = EpollNote { epoll: ChangedEpoll { started: started + 1, ..notes[0].epoll }, ..notes[0] };
        exited.put_back().expect("an exited process has no instance");
        for wrong in ["", "1:2:3", "1:2:3:0,0,0:x", "a:2:3:0,0,0:0,0,0"] {
            assert!(wrong.parse::<EpollNote>().is_err(), "{wrong}");
        }
    }
}
