//! The changes of an apply: made in rounds until the machine equals the policy, and kept or rolled back together.

use std::collections::BTreeSet;

use abey_linux::device::{Device, DeviceId};
use abey_linux::ethtool::{FlowTarget, PortFlow};
use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::Snapshot;
use abey_linux::napi::NapiChange;
use abey_linux::probe::napi_capabilities;
use abey_policy::{Action, Change, OnUnsupported, Planned, Policy, Unsupported};

use crate::applied_state::AppliedState;
use crate::error::ReconcileError;
use crate::outcome::Outcome;
use crate::permission;
use crate::plan::{ApplyError, Plan, Target};
use crate::programs::Programs;
use crate::reconciler::StopRequest;
use crate::step::Step;
use crate::transaction::{Made, Transaction};
use crate::view::{Stale, View, to_undo};

/// The maximum number of rounds. Channels bring new queues, settings bring new threads, and restored settings free what
/// others needed, so that one round does not suffice.
const MAX_ROUNDS: u32 = 8;

/// The most actions that are remembered as unsupported.
const MAX_UNSUPPORTED: usize = 1024;

/// The changes of an apply, which are undone together.
pub(crate) struct Rounds<'a> {
    pub(crate) transaction: Transaction,
    pub(crate) policy: &'a Policy,
    /// The only device to change; all if `None`.
    pub(crate) only: Option<&'a str>,
    pub(crate) stop: Option<StopRequest<'a>>,
    /// Actions that turned out to be unsupported.
    pub(crate) unsupported: &'a mut Vec<Action>,
    pub(crate) state: &'a mut AppliedState,
    /// The steps taken for the policy, without those that restored a setting.
    pub(crate) taken: Vec<Step>,
}

impl Rounds<'_> {
    /// Compares and changes until there is no difference, and returns the machine's state then.
    ///
    /// In each round settings that the policy no longer names are restored first. If the numbers of queues change, nothing
    /// else does in that round, because the plan for the old queues does not apply to the new ones.
    pub(crate) fn run(&mut self, outcome: &mut Outcome) -> Result<Snapshot, ReconcileError> {
        let mut first = String::new();
        for _ in 0..MAX_ROUNDS {
            let mut view = View::read(self.transaction.host(), self.policy, self.state.entries())?;
            if self.only.is_none() {
                view.check()?;
            }
            // Settings of queues that an earlier round removed.
            view.missing.iter().for_each(|applied| self.state.forget(applied));
            let planned = view.planned(self.only, self.unsupported);
            let mut stale = std::mem::take(&mut view.stale);
            stale.retain(|one| self.only.is_none_or(|only| only == one.device()));
            match (stale.first(), planned.first()) {
                (Some(one), _) => first = format!("the restored setting of {}", one.device()),
                (None, Some(planned)) => first = format!("what {} asks for", planned.origin),
                (None, None) => return Ok(view.snapshot),
            }
            permission::check_undo(stale.iter().map(|one| &one.step))?;
            permission::check(&planned)?;
            if self.restore(&stale, outcome)? {
                continue;
            }
            let recreates = planned.iter().any(|planned| planned.action.recreates_queues());
            for planned in planned.iter().filter(|planned| !recreates || planned.action.recreates_queues()) {
                self.check_stop()?;
                self.make(planned, outcome)?;
            }
        }
        Err(ReconcileError::Failed(format!("{first} does not stay: the driver or another program changes it again")))
    }

    /// Restores settings until one recreates queues. Returns whether one did.
    fn restore(&mut self, stale: &[Stale], outcome: &mut Outcome) -> Result<bool, ReconcileError> {
        for (one, step) in to_undo(stale) {
            self.check_stop()?;
            let (made, changed_since) = self.transaction.put_back(&step)?;
            outcome.note_restored(&made.steps, changed_since.then_some(&step));
            self.state.forget(&one.applied);
            if made.steps.iter().any(|step| matches!(step, Step::Channels(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the drop-ins of units and sets the CPUs of processes, after restoring those that the policy no longer names.
    pub(crate) fn programs(&mut self, programs: &Programs, outcome: &mut Outcome) -> Result<(), ReconcileError> {
        for applied in &programs.stale {
            let (made, changed_since) = self.transaction.put_back(&applied.step)?;
            outcome.note_restored(&made.steps, changed_since.then_some(&applied.step));
            self.state.forget(applied);
        }
        for change in programs.desired() {
            match self.transaction.make(&change) {
                Ok(made) => self.taken.extend(made.steps),
                // The process has ended.
                Err(ApplyError::Machine(error)) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.transaction.reload_units()?)
    }

    /// Writes the taken steps to the applied state. The journal must not be removed before.
    pub(crate) fn save(&mut self, snapshot: &Snapshot) -> Result<(), ReconcileError> {
        self.state.record(&self.taken, snapshot);
        Ok(self.state.save()?)
    }

    fn check_stop(&self) -> Result<(), ReconcileError> {
        match self.stop.and_then(|stop| stop()) {
            Some(signal) => Err(ReconcileError::Failed(format!("ended by {signal} before all was changed"))),
            None => Ok(()),
        }
    }

    fn make(&mut self, planned: &Planned, outcome: &mut Outcome) -> Result<(), ReconcileError> {
        let made = match &planned.action {
            Action::Settings { device, napi, change } => {
                plan(self.transaction.host(), device, *napi, change).and_then(|plan| self.transaction.make_plan(plan))
            }
            Action::Change(change) => self.transaction.make(change),
            Action::Steer { device, queues, flows } => self.steer(device, queues, flows),
        };
        match made {
            Ok(made) => {
                outcome.changes.extend(made.changes);
                self.taken.extend(made.steps);
            }
            Err(error) if error.is_unsupported() && planned.on_unsupported == OnUnsupported::Skip => {
                let device = self.only.unwrap_or_default().to_owned();
                let (origin, on_unsupported) = (planned.origin.clone(), planned.on_unsupported);
                let (what, reason) = (planned.origin.key.to_owned(), error.to_string());
                outcome.skipped.push(Unsupported { device, what, reason, origin, on_unsupported });
                // Of devices that come and go each has actions of its own.
                if self.unsupported.len() >= MAX_UNSUPPORTED {
                    self.unsupported.clear();
                }
                self.unsupported.push(planned.action.clone());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Creates an RSS context for the flows, and their rules. If a rule cannot be inserted, deletes the context.
    fn steer(&mut self, device: &DeviceId, queues: &BTreeSet<u32>, flows: &[PortFlow]) -> Result<Made, ApplyError> {
        let queues = queues.iter().copied().collect();
        let mut made = self.transaction.make(&Change::Context { device: device.clone(), queues })?;
        let id = made.context.expect("a context has an ID");
        for flow in flows {
            let rule = Change::Rule { device: device.clone(), flow: *flow, target: FlowTarget::Context(id) };
            match self.transaction.make(&rule) {
                Ok(rule) => made.extend(rule),
                Err(error) => {
                    self.transaction.make(&Change::NoContext { device: device.clone(), id })?;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Keeps all changes, or rolls them back if there was an error.
    pub(crate) fn finish(self, result: Result<(), ReconcileError>) -> Result<(), ReconcileError> {
        let Err(error) = result else {
            self.transaction.finish().keep();
            return Ok(());
        };
        if self.transaction.steps().is_empty() {
            return Err(error);
        }
        Err(match self.transaction.roll_back() {
            Ok(_) => error.after_changes("what had been changed was restored"),
            Err(failed) => {
                error.after_changes(format_args!("not all that had been changed could be restored: {failed}"))
            }
        })
    }
}

/// Plans a change of one NAPI instance's settings.
pub(crate) fn plan(
    netns: &mut NetnsHandle,
    device: &Device,
    napi: u32,
    change: &NapiChange,
) -> Result<Plan, ApplyError> {
    let capabilities = napi_capabilities(netns.netlink())?;
    Plan::new(netns, device, &Target::Napi(napi), change, capabilities)
}
