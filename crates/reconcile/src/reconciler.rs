//! Applies a policy to the machine: the preview, the apply itself, and the repair of one device.

use std::path::PathBuf;

use abey_linux::cpu::CpuList;
use abey_linux::ethtool::PortFlow;
use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::Snapshot;
use abey_linux::napi::{Napi, napis};
use abey_linux::netns::NetNs;
use abey_policy::{Action, Difference, Planned, Policy};

use crate::applied_state::{AppliedState, AppliedStep};
use crate::bounds::Bounds;
use crate::change::steps_for;
use crate::error::ReconcileError;
use crate::journal::{has_abandoned, restore_abandoned_in};
use crate::outcome::Outcome;
use crate::permission;
use crate::plan::ApplyError;
use crate::programs::Programs;
use crate::rounds::{Rounds, plan};
use crate::setting::SettingChange;
use crate::step::Step;
use crate::transaction::Transaction;
use crate::undo::Restored;
use crate::view::{View, to_undo};

/// Returns the name of a signal that arrived since the last call and ends the apply.
pub type StopRequest<'a> = &'a dyn Fn() -> Option<String>;

/// The devices of a network namespace and the programs of the machine, to which policies are applied.
pub struct Reconciler {
    netns: NetNs,
    handle: NetnsHandle,
    journals: PathBuf,
    units: PathBuf,
    /// Actions that turned out to be unsupported by a driver, where the policy allows to leave them out.
    unsupported: Vec<Action>,
}

impl Reconciler {
    /// Opens a namespace. `journals` is the directory of journals and applied states, `units` that of drop-ins.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn new(netns: NetNs, journals: PathBuf, units: PathBuf) -> Result<Self, ReconcileError> {
        let handle = NetnsHandle::open(&netns)?;
        Ok(Self { netns, handle, journals, units, unsupported: Vec::new() })
    }

    pub(crate) fn netns(&self) -> &NetNs {
        &self.netns
    }

    pub(crate) fn view(&mut self, policy: &Policy) -> Result<View, ReconcileError> {
        let applied = self.applied()?;
        View::read(&mut self.handle, policy, &applied)
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds { journals: &self.journals, units: &self.units }
    }

    pub(crate) fn programs(&self, view: &View) -> Result<Programs, ReconcileError> {
        Programs::compare(&view.desired.programs, self.bounds(), &view.of_programs)
    }

    /// Returns the NAPI instances of all devices; none on a kernel that does not list them.
    pub(crate) fn instances(&mut self) -> Vec<Napi> {
        napis(self.handle.netlink(), None).unwrap_or_default()
    }

    /// Returns the ID of another process that runs `abey apply --watch` in the namespace.
    ///
    /// # Errors
    /// When the applied state cannot be read.
    pub fn watcher(&self) -> Result<Option<u32>, ReconcileError> {
        Ok(AppliedState::watcher(&self.journals, &self.units, self.handle.namespace_cookie())?)
    }

    /// Records whether this process runs `abey apply --watch` in the namespace.
    pub(crate) fn set_watching(&self, watching: bool) -> Result<(), ReconcileError> {
        let mut state = self.open_state()?;
        state.set_watching(watching);
        Ok(state.save()?)
    }

    fn applied(&self) -> Result<Vec<AppliedStep>, ReconcileError> {
        Ok(AppliedState::read(&self.journals, &self.units, self.handle.namespace_cookie())?)
    }

    /// Locks the applied state, and restores what a killed process left half changed.
    fn open_state(&self) -> Result<AppliedState, ReconcileError> {
        let state = AppliedState::open(&self.journals, &self.units, self.handle.namespace_cookie())?;
        for restored in restore_abandoned_in(self.bounds(), &self.netns)? {
            let Restored::Back(step) = restored else { continue };
            for change in step.changes() {
                let (subject, SettingChange { setting, before, after, .. }) = (change.subject(), &change);
                eprintln!(
                    "abey: {subject}: {setting} {after} -> {before} (an abey process was killed before all was changed)"
                );
            }
        }
        Ok(state)
    }

    /// Forgets which actions were unsupported, because the policy has changed.
    pub(crate) fn reset(&mut self) {
        self.unsupported.clear();
    }

    /// Returns what an apply would change.
    ///
    /// # Errors
    /// When the policy cannot be applied to the machine, or the machine cannot be read.
    pub fn preview(&mut self, policy: &Policy) -> Result<Outcome, ReconcileError> {
        let applied = self.applied()?;
        let mut outcome = self.prepare(policy, &applied)?.outcome;
        if std::fs::read_dir(&self.journals).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
            let (only, directory) =
                ("only root knows what earlier applies have set, because only root can read", self.journals.display());
            outcome.notes.push(format!("{only} {directory}: what an apply would restore is left out here"));
        }
        if has_abandoned(&self.journals, &self.netns)? {
            let note = "an abey process was killed before all was changed: an apply undoes its changes first";
            outcome.notes.push(note.to_owned());
        }
        Ok(outcome)
    }

    /// Applies the policy, all of it or nothing. `announce` gets the changes before they are made.
    ///
    /// # Errors
    /// When the policy cannot be applied; all changes are rolled back then.
    pub fn apply<E: From<ReconcileError>>(
        &mut self,
        policy: &Policy,
        stop: StopRequest<'_>,
        announce: impl FnOnce(&Outcome) -> Result<(), E>,
    ) -> Result<Outcome, E> {
        // Errors of the policy and missing capabilities are reported before anything is locked or written.
        let applied = self.applied()?;
        let prepared = self.prepare(policy, &applied)?;
        prepared.check_permission()?;
        if prepared.is_done() && !has_abandoned(&self.journals, &self.netns).map_err(ReconcileError::from)? {
            announce(&prepared.outcome)?;
            return Ok(prepared.outcome.announced());
        }
        let mut state = self.open_state()?;
        let Prepared { missing, outcome: announced, programs, .. } = self.prepare(policy, state.entries())?;
        announce(&announced)?;
        missing.iter().for_each(|applied| state.forget(applied));
        let mut made = Outcome::default();
        let mut rounds = self.rounds(policy, None, Some(stop), &mut state)?;
        let result = rounds.run(&mut made).and_then(|snapshot| {
            rounds.programs(&programs, &mut made)?;
            rounds.save(&snapshot)
        });
        rounds.finish(result)?;
        // What was announced is followed by what turned out to be needed in addition.
        made.changes.retain(|change| !announced.changes.contains(change));
        made.restored.retain(|change| !announced.restored.contains(change));
        let mut outcome = announced.announced();
        outcome.changes.append(&mut made.changes);
        outcome.restored.append(&mut made.restored);
        outcome.skipped.append(&mut made.skipped);
        outcome.later.clear();
        Ok(outcome)
    }

    /// Compares the machine with the policy; fails if the policy cannot be applied.
    fn prepare(&mut self, policy: &Policy, applied: &[AppliedStep]) -> Result<Prepared, ReconcileError> {
        let mut view = View::read(&mut self.handle, policy, applied)?;
        view.check()?;
        let programs = self.programs(&view)?;
        let (planned, mut outcome) = (view.planned(None, &self.unsupported), view.outcome());
        let undone: Vec<Step> = to_undo(&view.stale).map(|(_, step)| step).collect();
        for step in undone.iter().chain(programs.stale.iter().map(|applied| &applied.step)) {
            match step.reversal(&mut self.handle) {
                Ok(reversal) => outcome.note_restored(&reversal.steps, reversal.changed_since.then_some(step)),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(ApplyError::from(error).into()),
            }
        }
        for planned in &planned {
            outcome.changes.extend(preview(&mut self.handle, &planned.action)?);
        }
        (outcome.programs, outcome.running) = (programs.changes(), programs.running.clone());
        let missing = [view.missing, programs.missing.clone()].concat();
        Ok(Prepared { planned, undone, missing, outcome, programs })
    }

    /// Applies the policy to one device, or leaves the device unchanged.
    pub(crate) fn repair(&mut self, policy: &Policy, device: &str) -> Result<Outcome, ReconcileError> {
        let mut outcome = Outcome::default();
        let mut state = self.open_state()?;
        let mut rounds = self.rounds(policy, Some(device), None, &mut state)?;
        let result = rounds.run(&mut outcome).and_then(|snapshot| rounds.save(&snapshot));
        rounds.finish(result)?;
        Ok(outcome)
    }

    /// Applies the policy to the programs, or leaves them unchanged.
    pub(crate) fn repair_programs(&mut self, policy: &Policy, programs: &Programs) -> Result<Outcome, ReconcileError> {
        let mut outcome = Outcome::default();
        let mut state = self.open_state()?;
        programs.missing.iter().for_each(|applied| state.forget(applied));
        let mut rounds = self.rounds(policy, None, None, &mut state)?;
        let result = rounds.programs(programs, &mut outcome).and_then(|()| {
            let snapshot = Snapshot::read_at(rounds.transaction.host())?;
            rounds.save(&snapshot)
        });
        rounds.finish(result)?;
        outcome.programs = programs.changes();
        Ok(outcome)
    }

    /// Removes settings from the applied state whose device, queue, interrupt or thread no longer exists.
    pub(crate) fn forget_missing(&mut self, view: &View) -> Result<(), ReconcileError> {
        if view.missing.is_empty() {
            return Ok(());
        }
        let mut state = self.open_state()?;
        view.missing.iter().for_each(|applied| state.forget(applied));
        Ok(state.save()?)
    }

    fn rounds<'a>(
        &'a mut self,
        policy: &'a Policy,
        only: Option<&'a str>,
        stop: Option<StopRequest<'a>>,
        state: &'a mut AppliedState,
    ) -> Result<Rounds<'a>, ReconcileError> {
        let transaction = Transaction::begin(NetnsHandle::open(&self.netns)?, Some(&self.journals));
        Ok(Rounds { transaction, policy, only, stop, unsupported: &mut self.unsupported, state, taken: Vec::new() })
    }

    /// Whether a difference has actions that are supported, as far as is known.
    pub(crate) fn has_actions(&self, difference: &Difference) -> bool {
        difference.planned.iter().any(|planned| !self.unsupported.contains(&planned.action))
    }
}

/// The changes that an apply has to make.
struct Prepared {
    planned: Vec<Planned>,
    /// Steps of earlier applies to be undone.
    undone: Vec<Step>,
    /// Settings to be removed from the applied state, because they no longer exist.
    missing: Vec<AppliedStep>,
    outcome: Outcome,
    programs: Programs,
}

impl Prepared {
    fn check_permission(&self) -> Result<(), ReconcileError> {
        permission::check(&self.planned)?;
        permission::check_undo(self.undone.iter().chain(self.programs.stale.iter().map(|applied| &applied.step)))
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.undone.is_empty() && self.missing.is_empty() && self.programs.is_done()
    }
}

/// Returns what an action would change.
fn preview(netns: &mut NetnsHandle, action: &Action) -> Result<Vec<SettingChange>, ReconcileError> {
    let changes = |steps: &[Step]| steps.iter().flat_map(Step::changes).collect();
    match action {
        Action::Settings { device, napi, change } => Ok(changes(plan(netns, device, *napi, change)?.steps())),
        Action::Change(change) => Ok(changes(&steps_for(change, netns).map_err(ApplyError::from)?)),
        Action::Steer { device, queues, flows } => {
            let queues: CpuList = queues.iter().copied().collect();
            let (before, after) = ("any queue".to_owned(), format!("an RSS context over queues {queues}"));
            let one = |flow: &PortFlow| {
                SettingChange::of_part(&device.name, &flow.to_string(), "goes to", before.clone(), after.clone())
            };
            Ok(flows.iter().map(one).collect())
        }
    }
}
