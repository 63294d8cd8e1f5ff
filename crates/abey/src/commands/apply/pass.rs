//! A machine and its policy: what an apply would change, the apply itself, and the repair of one device.

use std::path::PathBuf;

use abey_linux::apply::{
    ApplyError, Keeping, Kept, Place, Restored, SettingChange, Step, Transaction, abandoned, restore_abandoned_in,
};
use abey_linux::cpu::CpuList;
use abey_linux::ethtool::PortFlow;
use abey_linux::machine::Snapshot;
use abey_linux::napi::{Napi, napis};
use abey_linux::netns::NetNs;
use abey_policy::{Act, Difference, Planned, Policy};

use super::permission;
use super::programs::Programs;
use super::show::Outcome;
use super::view::{View, to_put_back};
use super::work::{Work, plan};
use crate::failure::Failure;
use crate::signals::Signals;

/// The machine that is changed.
pub(super) struct Machine {
    netns: NetNs,
    eyes: Place,
    journals: PathBuf,
    pub(super) units: PathBuf,
    /// What turned out to be more than a driver can do, and is left out where the policy allows it.
    given_up: Vec<Act>,
}

impl Machine {
    pub(super) fn new(netns: NetNs, journals: PathBuf, units: PathBuf) -> Result<Self, Failure> {
        let eyes = Place::open(&netns)?;
        Ok(Self { netns, eyes, journals, units, given_up: Vec::new() })
    }

    pub(super) fn netns(&self) -> &NetNs {
        &self.netns
    }

    pub(super) fn look(&mut self, policy: &Policy) -> Result<View, Failure> {
        let kept = self.look_kept()?;
        View::of(&mut self.eyes, policy, &kept)
    }

    /// The NAPI instances of all devices, with their settings; none where the kernel does not tell.
    pub(super) fn instances(&mut self) -> Vec<Napi> {
        napis(self.eyes.netlink(), None).unwrap_or_default()
    }

    /// The process that keeps its policy here.
    pub(super) fn watcher(&self) -> Result<Option<u32>, Failure> {
        Ok(Keeping::look_watcher(&self.journals, self.eyes.namespace_cookie())?)
    }

    /// Whether this process keeps its policy here from now on.
    pub(super) fn set_watching(&self, watching: bool) -> Result<(), Failure> {
        let mut keeping = self.keeping()?;
        keeping.set_watching(watching);
        Ok(keeping.save()?)
    }

    /// What is kept, for a look.
    fn look_kept(&self) -> Result<Vec<Kept>, Failure> {
        Ok(Keeping::look(&self.journals, self.eyes.namespace_cookie())?)
    }

    /// What is kept, for a change; what an Abey left that was killed in the middle of one goes back first.
    fn keeping(&self) -> Result<Keeping, Failure> {
        let keeping = Keeping::open(&self.journals, self.eyes.namespace_cookie())?;
        for restored in restore_abandoned_in(&self.journals, &self.netns)? {
            let Restored::Back(step) = restored else { continue };
            for change in step.changes() {
                let (subject, SettingChange { setting, before, after, .. }) = (change.subject(), &change);
                eprintln!("abey: {subject}: {setting} {after} -> {before} (an abey was killed before all was changed)");
            }
        }
        Ok(keeping)
    }

    /// There is another policy: what was given up may be wanted by others.
    pub(super) fn forget(&mut self) {
        self.given_up.clear();
    }

    /// What an apply would change.
    pub(super) fn preview(&mut self, policy: &Policy) -> Result<Outcome, Failure> {
        let kept = self.look_kept()?;
        let mut outcome = self.prepare(policy, &kept)?.outcome;
        if !abandoned(&self.journals, &self.netns)?.is_empty() {
            outcome
                .notes
                .push("an abey was killed in the middle of a change: an apply puts that back first".to_owned());
        }
        Ok(outcome)
    }

    /// Makes the machine as the policy says, all of it or nothing; `show` is told what is about to change.
    pub(super) fn apply(
        &mut self,
        policy: &Policy,
        signals: &Signals,
        show: impl FnOnce(&Outcome) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        // What cannot be, and what this process may not do, is said before anything is locked or written.
        let kept = self.look_kept()?;
        let looked = self.prepare(policy, &kept)?;
        looked.permitted()?;
        if looked.is_done() && abandoned(&self.journals, &self.netns)?.is_empty() {
            show(&looked.outcome)?;
            return Ok(looked.outcome.shown());
        }
        let mut keeping = self.keeping()?;
        let Prepared { gone, outcome: mut shown, programs, .. } = self.prepare(policy, keeping.entries())?;
        show(&shown)?;
        gone.iter().for_each(|kept| keeping.forget(kept));
        let mut outcome = Outcome::default();
        let mut work = self.work(policy, None, Some(signals), &mut keeping)?;
        let made = work.rounds(&mut outcome).and_then(|snapshot| {
            work.programs(&programs, &mut outcome)?;
            work.keep(&snapshot)
        });
        match made {
            Ok(()) => work.transaction.finish().keep(),
            Err(failure) => return Err(work.roll_back(failure)),
        }
        outcome.changes.retain(|change| !shown.changes.contains(change));
        outcome.backs.retain(|change| !shown.backs.contains(change));
        shown = shown.shown();
        shown.changes.append(&mut outcome.changes);
        shown.backs.append(&mut outcome.backs);
        shown.skipped.append(&mut outcome.skipped);
        shown.later.clear();
        Ok(shown)
    }

    /// What has to be done, in acts and in words, if all of it can be.
    fn prepare(&mut self, policy: &Policy, kept: &[Kept]) -> Result<Prepared, Failure> {
        let mut view = View::of(&mut self.eyes, policy, kept)?;
        view.check()?;
        let programs = Programs::look(&view.wishes.programs, &self.units, &view.of_programs)?;
        let (planned, mut outcome) = (view.planned(None, &self.given_up), view.outcome());
        let backs: Vec<Step> = to_put_back(&view.backs).map(|(_, step)| step).collect();
        let of_programs = programs.backs.iter().map(|kept| &kept.step);
        for step in backs.iter().chain(of_programs) {
            match step.reversal(&mut self.eyes) {
                Ok(reversal) => outcome.note_back(&reversal.steps, reversal.left.then_some(step)),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(ApplyError::from(error).into()),
            }
        }
        for planned in &planned {
            outcome.changes.extend(preview(&mut self.eyes, &planned.act)?);
        }
        (outcome.programs, outcome.running) = (programs.changes(), programs.running.clone());
        Ok(Prepared { planned, backs, gone: [view.gone, programs.gone.clone()].concat(), outcome, programs })
    }

    /// Makes one device as the policy says, or leaves it as it was.
    pub(super) fn repair(&mut self, policy: &Policy, device: &str) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let mut keeping = self.keeping()?;
        let mut work = self.work(policy, Some(device), None, &mut keeping)?;
        match work.rounds(&mut outcome).and_then(|snapshot| work.keep(&snapshot)) {
            Ok(()) => work.transaction.finish().keep(),
            Err(failure) => return Err(work.roll_back(failure)),
        }
        Ok(outcome)
    }

    /// Gives the programs what the policy says, or leaves them as they were.
    pub(super) fn repair_programs(&mut self, policy: &Policy, programs: &Programs) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let mut keeping = self.keeping()?;
        programs.gone.iter().for_each(|kept| keeping.forget(kept));
        let mut work = self.work(policy, None, None, &mut keeping)?;
        let made = work.programs(programs, &mut outcome).and_then(|()| {
            let snapshot = Snapshot::read_at(work.transaction.place())?;
            work.keep(&snapshot)
        });
        match made {
            Ok(()) => work.transaction.finish().keep(),
            Err(failure) => return Err(work.roll_back(failure)),
        }
        outcome.programs = programs.changes();
        Ok(outcome)
    }

    /// What has gone is not kept any more.
    pub(super) fn forget_gone(&mut self, view: &View) -> Result<(), Failure> {
        if view.gone.is_empty() {
            return Ok(());
        }
        let mut keeping = self.keeping()?;
        view.gone.iter().for_each(|kept| keeping.forget(kept));
        Ok(keeping.save()?)
    }

    fn work<'a>(
        &'a mut self,
        policy: &'a Policy,
        only: Option<&'a str>,
        signals: Option<&'a Signals>,
        keeping: &'a mut Keeping,
    ) -> Result<Work<'a>, Failure> {
        let transaction = Transaction::begin(Place::open(&self.netns)?, Some(&self.journals));
        let given_up = &mut self.given_up;
        Ok(Work { transaction, policy, only, signals, given_up, keeping, taken: Vec::new() })
    }

    /// Whether this has to be done still, as far as it can be.
    pub(super) fn is_to_do(&self, difference: &Difference) -> bool {
        difference.planned.iter().any(|planned| !self.given_up.contains(&planned.act))
    }
}

/// What an apply has found to be done.
struct Prepared {
    planned: Vec<Planned>,
    backs: Vec<Step>,
    gone: Vec<Kept>,
    outcome: Outcome,
    programs: Programs,
}

impl Prepared {
    fn permitted(&self) -> Result<(), Failure> {
        permission::check(&self.planned)?;
        permission::check_back(self.backs.iter().chain(self.programs.backs.iter().map(|kept| &kept.step)))
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.backs.is_empty() && self.gone.is_empty() && self.programs.is_done()
    }
}

/// What an act would change.
fn preview(place: &mut Place, act: &Act) -> Result<Vec<SettingChange>, Failure> {
    let of_steps = |steps: &[Step]| steps.iter().flat_map(Step::changes).collect();
    match act {
        Act::Settings { device, napi, change } => Ok(of_steps(plan(place, device, *napi, change)?.steps())),
        Act::Change(change) => Ok(of_steps(&change.steps(place).map_err(ApplyError::from)?)),
        Act::Steer { device, queues, flows } => {
            let queues: CpuList = queues.iter().copied().collect();
            let one = |flow: &PortFlow| SettingChange {
                device: device.name.clone(),
                napi: None,
                part: Some(flow.to_string()),
                setting: "goes to".to_owned(),
                before: "any queue".to_owned(),
                after: format!("an RSS context over queues {queues}"),
            };
            Ok(flows.iter().map(one).collect())
        }
    }
}
