//! The comparison of a machine with a policy, before anything is changed.

use std::collections::BTreeSet;

use abey_linux::cpu::CpuList;
use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::Snapshot;
use abey_policy::{Action, DesiredState, Difference, OnUnsupported, Planned, Policy, PolicyError, Unsupported};

use crate::applied_state::AppliedStep;
use crate::disposition::{Disposition, dispositions};
use crate::error::ReconcileError;
use crate::outcome::Outcome;
use crate::permission;
use crate::setting::ChannelsEdit;
use crate::step::Step;

/// The state of a machine, the state that a policy desires, and the difference.
pub(crate) struct View {
    pub(crate) snapshot: Snapshot,
    pub(crate) desired: DesiredState,
    /// The difference of each device.
    pub(crate) differences: Vec<(String, Difference)>,
    /// The settings of earlier applies that the policy no longer names, in the order in which they are restored.
    pub(crate) stale: Vec<Stale>,
    /// Devices that are down and have more of these.
    pub(crate) waiting: BTreeSet<String>,
    /// The settings of programs from earlier applies.
    pub(crate) of_programs: Vec<AppliedStep>,
    /// The settings of earlier applies whose device, queue, interrupt or thread no longer exists.
    pub(crate) missing: Vec<AppliedStep>,
}

/// A setting of an earlier apply that is to be restored.
pub(crate) struct Stale {
    pub(crate) applied: AppliedStep,
    /// The applied step with the present numbers of its instance.
    pub(crate) step: Step,
}

impl Stale {
    pub(crate) fn device(&self) -> &str {
        self.step.device().unwrap_or_default()
    }

    /// Returns the device and its number of receive queues after the step is undone, if the step changed the channels.
    fn queues_after(&self, snapshot: &Snapshot) -> Option<(String, u32)> {
        let Step::Channels(ChannelsEdit { device, before, .. }) = &self.step else { return None };
        let now = snapshot.device(&device.name)?.channels.as_ref().ok()?;
        let count = before.rx.unwrap_or(now.rx.now) + before.combined.unwrap_or(now.combined.now);
        Some((device.name.clone(), count))
    }
}

/// Returns the steps to undo. The default RSS table goes back to its value before the channels changed.
pub(crate) fn to_undo(stale: &[Stale]) -> impl Iterator<Item = (&Stale, Step)> {
    let since = |one: &Stale| stale.iter().find_map(|other| one.step.since_before(&other.step));
    stale.iter().map(move |one| (one, since(one).unwrap_or_else(|| one.step.clone())))
}

impl View {
    /// Reads the state of a machine and compares it with a policy and with what earlier applies keep in force.
    pub(crate) fn read(
        netns: &mut NetnsHandle,
        policy: &Policy,
        applied: &[AppliedStep],
    ) -> Result<Self, ReconcileError> {
        let snapshot = Snapshot::read_at(netns)?;
        let online = CpuList::online().map_err(|error| ReconcileError::Impossible(error.to_string()))?;
        let mut desired = policy.resolve(&snapshot, &online)?;
        let mut differences = Vec::new();
        for device in &desired.devices {
            let state = snapshot.device(&device.name).expect("desired devices are in the snapshot");
            match device.difference(state, snapshot.capabilities, &online) {
                Ok(difference) => differences.push((device.name.clone(), difference)),
                Err(error) => desired.wrong.push((device.name.clone(), error)),
            }
        }
        let (mut stale, mut waiting) = (Vec::new(), BTreeSet::new());
        let (mut missing, mut of_programs) = (Vec::new(), Vec::new());
        // The last change is undone first.
        for (one, disposition) in applied.iter().zip(dispositions(&desired, applied, &snapshot)).rev() {
            match disposition {
                Disposition::Restore(step) => stale.push(Stale { applied: one.clone(), step: *step }),
                Disposition::Wait => waiting.extend(one.step.device().map(str::to_owned)),
                Disposition::Forget => missing.push(one.clone()),
                Disposition::Program => of_programs.push(one.clone()),
                Disposition::Keep => {}
            }
        }
        // Channels are restored before the settings of instances that stay, which may have other numbers afterwards, after a
        // rollback too. Settings of queues that this removes are restored first: several drivers keep them for queues of
        // the same number later.
        let remaining: Vec<(String, u32)> = stale.iter().filter_map(|one| one.queues_after(&snapshot)).collect();
        let is_removed = |one: &Stale| {
            let count = remaining.iter().find(|(device, _)| device == one.device()).map(|(_, count)| *count);
            one.applied.queue.zip(count).is_some_and(|(queue, count)| queue >= count)
        };
        stale.sort_by_key(|one| one.step.edit().instance().is_some() && !is_removed(one));
        Ok(Self { snapshot, desired, differences, stale, waiting, of_programs, missing })
    }

    /// Fails if the policy desires something that is missing or unsupported and must not be left out.
    pub(crate) fn check(&mut self) -> Result<(), ReconcileError> {
        self.desired.check()?;
        if let Some(absent) = self.desired.absent.iter().find(|absent| !absent.optional) {
            let known = self.desired.known.join(", ");
            let (origin, wanted) = (absent.origin.clone(), absent.wanted.clone());
            return Err(PolicyError::NoDevice { origin, wanted, known }.into());
        }
        self.check_support()?;
        match self.differences.iter().find_map(|(_, difference)| difference.waiting.as_ref()) {
            Some(waiting) => Err(ReconcileError::Impossible(format!("{waiting}: bring it up first"))),
            None => Ok(()),
        }
    }

    /// Fails if the policy desires something unsupported that must not be left out.
    pub(crate) fn check_support(&self) -> Result<(), ReconcileError> {
        let advice = "(on-unsupported = \"skip\" leaves it out)";
        let fails = |unsupported| ReconcileError::Impossible(format!("{unsupported} {advice}"));
        self.fatal().next().map_or(Ok(()), |unsupported| Err(fails(unsupported)))
    }

    /// Fails if this process lacks a capability for the changes.
    pub(crate) fn check_permission(&self) -> Result<(), ReconcileError> {
        permission::check(&self.planned(None, &[]))?;
        permission::check_undo(self.stale.iter().map(|one| &one.step))
    }

    /// Returns the ifindexes of the devices that the policy or an earlier apply concerns.
    pub(crate) fn devices(&self) -> BTreeSet<u32> {
        let stale = self.stale.iter().map(Stale::device);
        let names = self.differences.iter().map(|(name, _)| name.as_str()).chain(stale);
        names
            .chain(self.waiting.iter().map(String::as_str))
            .filter_map(|name| Some(self.snapshot.device(name)?.device.ifindex))
            .collect()
    }

    /// Returns the devices with settings to be restored.
    pub(crate) fn stale_devices(&self) -> BTreeSet<String> {
        self.stale.iter().map(|one| one.device().to_owned()).collect()
    }

    /// Returns what is unsupported and must not be left out.
    pub(crate) fn fatal(&self) -> impl Iterator<Item = &Unsupported> {
        let all = self.differences.iter().flat_map(|(_, difference)| &difference.unsupported);
        all.filter(|unsupported| unsupported.on_unsupported == OnUnsupported::Fail)
    }

    /// Returns the actions on one device or on all, without those that turned out to be unsupported.
    pub(crate) fn planned(&self, only: Option<&str>, unsupported: &[Action]) -> Vec<Planned> {
        let selected = self.differences.iter().filter(|(name, _)| only.is_none_or(|only| only == name));
        let planned = selected.flat_map(|(_, difference)| &difference.planned);
        planned.filter(|planned| !unsupported.contains(&planned.action)).cloned().collect()
    }

    /// Returns everything about the comparison that is no change.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::default();
        for (_, difference) in &self.differences {
            outcome.later.extend(difference.later.iter().cloned());
            outcome.skipped.extend(difference.unsupported.iter().cloned());
        }
        outcome.note_absent(&self.desired);
        outcome.notes.extend(self.waiting.iter().map(|device| waits(device)));
        outcome
    }
}

/// Returns the note on a device whose settings cannot be restored yet.
pub(crate) fn waits(device: &str) -> String {
    format!("{device} is down: an apply when it is up restores the settings of its queues")
}
