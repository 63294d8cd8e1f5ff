//! Undoing steps: each setting goes back to its value before, unless it no longer exists or another program has changed it
//! since.

use std::collections::BTreeMap;

use abey_linux::device::DeviceId;
use abey_linux::machine::MachineError;

use crate::host::Host;
use crate::setting::{Assignment, DropIn};
use crate::step::Step;
use crate::units::is_systemds;

/// The outcome of undoing one step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restored {
    /// The setting has the value that it had before.
    Back(Step),
    /// The NAPI instance, device, thread or process no longer exists.
    Missing(Step),
    /// Another program has changed the setting since, and its value stays.
    ChangedSince(Step),
}

impl Restored {
    /// Returns the step that was undone.
    pub fn step(&self) -> &Step {
        match self {
            Self::Back(step) | Self::Missing(step) | Self::ChangedSince(step) => step,
        }
    }
}

/// Undoes the steps in reverse order. After a failure it continues, to restore as much as possible.
///
/// # Errors
/// The first failure.
pub(crate) fn undo_all(host: &mut dyn Host, steps: &[Step]) -> Result<Vec<Restored>, MachineError> {
    let mut failed = None;
    let mut restored = Vec::new();
    let mut undo = Undo { host, contexts: BTreeMap::new(), reload: false };
    for (at, step) in steps.iter().enumerate().rev() {
        let since = steps[..at].iter().find_map(|earlier| step.since_before(earlier));
        match undo.step(since.as_ref().unwrap_or(step)) {
            Ok(false) => restored.push(Restored::Back(step.clone())),
            Ok(true) => restored.push(Restored::ChangedSince(step.clone())),
            Err(error) if error.is_gone() => restored.push(Restored::Missing(step.clone())),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if undo.reload
        && let Err(error) = undo.host.reload_units()
    {
        failed = failed.or(Some(error));
    }
    failed.map_or(Ok(restored), Err)
}

struct Undo<'k> {
    host: &'k mut dyn Host,
    /// RSS contexts that were recreated under another number, for the rules that point at them.
    contexts: BTreeMap<(DeviceId, u32), u32>,
    /// Whether systemd has to read its units again.
    reload: bool,
}

impl Undo<'_> {
    /// Undoes one step. Returns whether something stays because another program has changed it since.
    fn step(&mut self, step: &Step) -> Result<bool, MachineError> {
        let reversal = match step {
            Step::RuleDeleted(deleted) => Step::from(deleted.with_contexts(&self.contexts)).reversal(self.host)?,
            _ => step.reversal(self.host)?,
        };
        for back in &reversal.steps {
            let created = back.edit().write(self.host)?;
            match (step, back, created) {
                (Step::RssContextDeleted(deleted), _, Some(id)) => {
                    self.contexts.insert((deleted.device.clone(), deleted.context.id), id);
                }
                (_, Step::DropIn(Assignment { setting: DropIn { path, .. }, .. }), _) => {
                    self.reload |= is_systemds(path);
                }
                _ => {}
            }
        }
        if let (Some(saved), Step::Channels(channels)) = (reversal.saved, step) {
            saved.restore(self.host, &channels.device)?;
        }
        Ok(reversal.changed_since)
    }
}
