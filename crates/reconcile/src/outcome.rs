//! The result of applying a policy, or of comparing it with the machine.

use abey_policy::{DesiredState, Unsupported};

use crate::programs::{ProgramChange, ProgramState};
use crate::setting::SettingChange;
use crate::step::Step;

/// The result of one pass over a policy: what was changed, or would be.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Changes of devices.
    pub changes: Vec<SettingChange>,
    /// The number of `changes` that were announced before they were made.
    pub announced_changes: usize,
    /// Settings that are restored because the policy no longer names them.
    pub restored: Vec<SettingChange>,
    /// The number of `restored` that were announced before they were made.
    pub announced_restored: usize,
    /// Changes that follow once queues or threads exist that do not exist yet, in words.
    pub later: Vec<String>,
    /// Changes of units and processes.
    pub programs: Vec<ProgramChange>,
    /// The running processes of the policy's programs.
    pub running: Vec<ProgramState>,
    /// Changes that the driver or kernel does not support, and that were left out.
    pub skipped: Vec<Unsupported>,
    /// Tables that match no device, in words.
    pub absent: Vec<String>,
    /// Other remarks: settings that stay or wait.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Adds the tables that match no device.
    pub(crate) fn note_absent(&mut self, desired: &DesiredState) {
        let words =
            |absent: &abey_policy::Absent| format!("{}: there is no device with {}", absent.origin, absent.wanted);
        self.absent = desired.absent.iter().map(words).collect();
    }

    /// Adds the settings that `steps` restore, and a note on `changed_since`, which another program has changed.
    pub(crate) fn note_restored(&mut self, steps: &[Step], changed_since: Option<&Step>) {
        self.restored.extend(steps.iter().flat_map(Step::changes));
        let subject =
            |step: &Step| step.changes().first().map(|change| format!("{} of {}", change.setting, change.subject()));
        self.notes.extend(changed_since.and_then(subject).map(|subject| {
            format!("{subject}: not restored, because another program has changed it since it was applied")
        }));
    }

    /// Marks everything up to here as announced.
    pub(crate) fn announced(self) -> Self {
        Self { announced_changes: self.changes.len(), announced_restored: self.restored.len(), ..self }
    }

    /// Returns the remarks that are no changes, one sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let notes = self.notes.iter().cloned();
        let skipped = notes.chain(self.skipped.iter().map(|skipped| format!("left out: {skipped}")));
        skipped.chain(self.absent.iter().cloned()).chain(self.running.iter().map(ToString::to_string)).collect()
    }
}
