//! Settings that are replaced again and again: what leads back to the first ones stays one step for each instance.

use crate::napi::NapiChange;

use super::kernel::Kernel;
use super::plan::{ApplyError, Plan};
use super::step::Step;
use super::transaction::{Made, Transaction};
use super::wire::ChangeRecord;

impl<K: Kernel> Transaction<K> {
    /// As [`Transaction::make_plan`], for a plan about what this transaction has changed before: however often it is done,
    /// rolling back goes from the last settings to the first in one step, and the journal does not grow.
    ///
    /// # Errors
    /// As [`Transaction::make_plan`]; what was in force before the call then still is, and is still rolled back later.
    pub fn replace(&mut self, plan: Plan) -> Result<Made, ApplyError> {
        // Until it is made the journal leads back from either, whether or not this process is still there then.
        let made = self.make_plan(plan)?;
        let merged = merge(self.steps());
        if merged.len() < self.steps().len() {
            self.rewrite(merged)?;
        }
        Ok(made)
    }
}

/// One step for each instance and each file of a device, from the first state to the last; other steps as they are.
fn merge(steps: &[Step]) -> Vec<Step> {
    let mut merged: Vec<Step> = Vec::new();
    for step in steps {
        let joined = merged.iter().enumerate().find_map(|(at, before)| Some((at, join(before, step)?)));
        match joined {
            Some((at, joined)) => merged[at] = joined,
            None => merged.push(step.clone()),
        }
    }
    merged
}

/// Two steps as one, where both are of the same instance or the same file.
pub(super) fn join(first: &Step, second: &Step) -> Option<Step> {
    match (first, second) {
        (Step::Napi { id, device, before, change }, Step::Napi { id: other, change: later, .. }) if id == other => {
            let change = NapiChange::from(later).over(NapiChange::from(change));
            let (device, before) = (device.clone(), before.clone());
            Some(Step::Napi { id: *id, device, before, change: ChangeRecord::from(&change) })
        }
        (Step::DeviceFile { device, file, before, .. }, Step::DeviceFile { device: other, file: its, after, .. })
            if device == other && file == its =>
        {
            Some(Step::DeviceFile {
                device: device.clone(),
                file: file.clone(),
                before: before.clone(),
                after: after.clone(),
            })
        }
        _ => None,
    }
}
