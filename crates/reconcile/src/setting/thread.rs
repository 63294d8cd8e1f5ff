//! The CPUs and the scheduling of the thread that polls a NAPI instance.

use abey_linux::machine::{Capability, MachineError, ThreadState};
use serde::{Deserialize, Serialize};

use super::{Assignment, Claim, Instance, Setting, SettingChange};
use crate::host::Host;

/// The thread that polls a NAPI instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiThread {
    /// The device.
    pub device: String,
    /// The NAPI instance.
    pub napi: u32,
}

impl NapiThread {
    fn missing(&self, what: String) -> MachineError {
        let action = format!("restore the thread of NAPI {} of {}", self.napi, self.device);
        MachineError::Gone { device: self.device.clone(), action, what }
    }
}

impl Setting for NapiThread {
    type Value = ThreadState;

    fn device(&self) -> Option<&str> {
        Some(&self.device)
    }

    fn read(&self, host: &mut dyn Host) -> Result<ThreadState, MachineError> {
        let thread = host.napi(&self.device, self.napi)?.thread;
        let tid = thread.ok_or_else(|| self.missing(format!("the thread of NAPI {}", self.napi)))?;
        host.thread(&self.device, tid)
    }

    fn write(&self, host: &mut dyn Host, thread: &ThreadState) -> Result<(), MachineError> {
        host.set_thread(&self.device, thread)
    }

    fn describe(&self, before: &ThreadState, after: &ThreadState) -> Vec<SettingChange> {
        let change = |setting: &str, before: String, after: String| {
            (before != after).then(|| SettingChange::of_napi(&self.device, self.napi, setting, before, after))
        };
        let cpus = change("thread-cpus", before.cpus.to_string(), after.cpus.to_string());
        let scheduling = change("thread-scheduling", before.scheduling.to_string(), after.scheduling.to_string());
        cpus.into_iter().chain(scheduling).collect()
    }

    fn claim(&self) -> Claim<'_> {
        Claim::NapiThread(self.napi)
    }

    fn subject(&self) -> String {
        format!("the thread of NAPI {} of {}", self.napi, self.device)
    }

    fn verified_action(&self, thread: &ThreadState) -> Option<String> {
        let ThreadState { tid, cpus, scheduling } = thread;
        Some(format!("make thread {tid} of {} {scheduling} on CPUs {cpus}", self.device))
    }

    fn format(&self, thread: &ThreadState) -> String {
        format!("{} on CPUs {}", thread.scheduling, thread.cpus)
    }

    /// CPUs and scheduling go back separately. A thread that was started since has the defaults of the system.
    fn reverted(
        &self,
        now: &ThreadState,
        before: &ThreadState,
        after: &ThreadState,
    ) -> Result<ThreadState, MachineError> {
        if now.tid != after.tid {
            return Err(self.missing(format!("thread {}", after.tid)));
        }
        let cpus = if now.cpus == after.cpus { before } else { now }.cpus.clone();
        let scheduling = if now.scheduling == after.scheduling { before } else { now }.scheduling;
        Ok(ThreadState { tid: now.tid, cpus, scheduling })
    }

    /// The CPUs and the scheduling of a thread are [parts](Self::parts), which are joined separately.
    fn continues(first: &Assignment<Self>, later: &Assignment<Self>) -> bool {
        let changes_cpus = |thread: &Assignment<Self>| thread.before.cpus != thread.after.cpus;
        first.after.tid == later.after.tid && changes_cpus(first) == changes_cpus(later)
    }

    fn parts(thread: &Assignment<Self>) -> Vec<Assignment<Self>> {
        let Assignment { setting, before, after } = thread;
        let cpus = ThreadState { scheduling: before.scheduling, ..after.clone() };
        let scheduling = ThreadState { cpus: before.cpus.clone(), ..after.clone() };
        let part = |after| Assignment { setting: setting.clone(), before: before.clone(), after };
        [cpus, scheduling].map(part).into_iter().filter(|part| part.before != part.after).collect()
    }

    fn instance(&self) -> Option<Instance> {
        Some(Instance::Napi(self.napi))
    }

    fn capability(thread: &Assignment<Self>, root: bool) -> Option<Capability> {
        let only_cpus = thread.before.scheduling == thread.after.scheduling;
        (!root || !only_cpus).then_some(Capability::SysNice)
    }
}
