//! The CPUs of the threads of a process.

use std::collections::BTreeSet;

use abey_linux::cpu::CpuList;
use abey_linux::machine::{Capability, MachineError, ThreadState};
use abey_linux::process::start_time;
use serde::{Deserialize, Serialize};

use super::{Claim, Edit, Reversal, SettingChange, edit_of};
use crate::host::Host;
use crate::step::Step;

/// A change of the CPUs of a process, thread by thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEdit {
    /// The process.
    pub pid: u32,
    /// Its start time in clock ticks since boot, because process IDs are reused.
    pub started: u64,
    /// The CPUs of each thread before.
    pub before: Vec<(u32, CpuList)>,
    /// The CPUs of every thread after, except those in `but`.
    pub after: CpuList,
    /// Threads that get other CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub but: Vec<(u32, CpuList)>,
}

impl ProcessEdit {
    /// Returns the CPUs of a thread after the change.
    fn after_of(&self, tid: u32) -> &CpuList {
        self.but.iter().find(|(known, _)| *known == tid).map_or(&self.after, |(_, cpus)| cpus)
    }

    /// Returns the CPUs of a thread before the change. A thread that was started since inherited those of the thread that
    /// started it; the first thread's are the best guess.
    fn before_of(&self, tid: u32) -> Option<&CpuList> {
        self.before.iter().find(|(known, _)| *known == tid).or(self.before.first()).map(|(_, cpus)| cpus)
    }

    /// Fails with [`MachineError::Gone`] if the process has ended and its ID may belong to another one.
    fn check_alive(&self) -> Result<(), MachineError> {
        if start_time(self.pid) == Some(self.started) {
            return Ok(());
        }
        let action = format!("restore the CPUs of process {}", self.pid);
        Err(MachineError::Gone { device: String::new(), action, what: format!("process {}", self.pid) })
    }
}

impl Edit for ProcessEdit {
    fn device(&self) -> Option<&str> {
        None
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Process(self.pid)
    }

    fn subject(&self) -> String {
        format!("the CPUs of process {}", self.pid)
    }

    fn describe(&self) -> Vec<SettingChange> {
        let before: CpuList = self.before.iter().flat_map(|(_, cpus)| cpus.iter()).collect();
        let others = self.but.iter().flat_map(|(_, cpus)| cpus.iter());
        let after: CpuList = self.after.iter().chain(others).collect();
        let part = format!("process {}", self.pid);
        vec![SettingChange::of_part("", &part, "cpus", before.to_string(), after.to_string())]
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        // A thread that is started during a pass inherits the CPUs of its creator, which may not have been pinned yet.
        let mut pinned = BTreeSet::new();
        loop {
            let mut new = host.process_threads(self.pid)?;
            new.retain(|tid| pinned.insert(*tid));
            if new.is_empty() {
                return Ok(None);
            }
            for tid in new {
                pin(host, tid, self.after_of(tid))?;
            }
        }
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        self.check_alive()?;
        let (mut now, mut back, mut changed_since) = (Vec::new(), Vec::new(), false);
        for tid in host.process_threads(self.pid)? {
            let (Some(before), Ok(thread)) = (self.before_of(tid), host.thread("", tid)) else { continue };
            let unchanged = thread.cpus == *self.after_of(tid);
            changed_since |= !unchanged && thread.cpus != *before;
            back.push((tid, if unchanged { before.clone() } else { thread.cpus.clone() }));
            now.push((tid, thread.cpus));
        }
        if back == now {
            return Ok(Reversal { changed_since, ..Reversal::default() });
        }
        // Most threads of a process have the same CPUs, so that `but` is short.
        let after = back[0].1.clone();
        let but = back.into_iter().filter(|(_, cpus)| *cpus != after).collect();
        let step = Self { pid: self.pid, started: self.started, before: now, after, but };
        Ok(Reversal { steps: vec![step.into()], changed_since, saved: None })
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn joined_to(&self, first: &Step) -> Option<Step> {
        let first = edit_of::<Self>(first)?;
        let same = (first.pid, first.started) == (self.pid, self.started);
        same.then(|| Self { before: first.before.clone(), ..self.clone() }.into())
    }

    fn is_nothing(&self) -> bool {
        self.before.iter().all(|(_, cpus)| *cpus == self.after)
    }

    fn capability(&self, root: bool) -> Option<Capability> {
        (!root).then_some(Capability::SysNice)
    }
}

/// Sets the CPUs of a thread; a thread that has ended is no error.
fn pin(host: &mut dyn Host, tid: u32, cpus: &CpuList) -> Result<(), MachineError> {
    let pinned = host.thread("", tid).and_then(|now| host.set_thread("", &ThreadState { cpus: cpus.clone(), ..now }));
    match pinned {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}
