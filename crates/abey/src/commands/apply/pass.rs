//! One pass over the policy: look at the machine, and make it as it shall be, all or nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use abey_linux::apply::{ApplyError, Change, Made, Place, Plan, SettingChange, Step, Target, Transaction};
use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, DeviceId};
use abey_linux::ethtool::{FlowTarget, PortFlow};
use abey_linux::machine::Snapshot;
use abey_linux::napi::NapiChange;
use abey_linux::netns::NetNs;
use abey_linux::probe::napi_capabilities;
use abey_policy::{Act, Difference, OnUnsupported, Planned, Policy, PolicyError, Unsupported, Wishes};

use super::permission;
use super::programs::Programs;
use super::show::Outcome;
use crate::failure::Failure;
use crate::signals::Signals;

/// How often the difference is taken, at most: channels make new queues, and settings new threads.
const ROUNDS: u32 = 5;

/// The machine that is changed.
pub(super) struct Machine {
    netns: NetNs,
    eyes: Place,
    journals: PathBuf,
    pub(super) units: PathBuf,
    /// What turned out to be more than a driver can do, and is left out where the policy allows it.
    given_up: Vec<Act>,
}

/// What there is, what is wanted, and what lies between.
pub(super) struct View {
    pub(super) wishes: Wishes,
    /// By device.
    pub(super) differences: Vec<(String, Difference)>,
}

impl View {
    fn of(place: &mut Place, policy: &Policy) -> Result<Self, Failure> {
        let snapshot = Snapshot::read_at(place)?;
        let online = CpuList::online().map_err(Failure::lacks)?;
        let mut wishes = policy.resolve(&snapshot, &online)?;
        let mut differences = Vec::new();
        for wish in &wishes.devices {
            let state = snapshot.device(&wish.name).expect("wishes are of devices in the snapshot");
            match wish.difference(state, snapshot.able, &online) {
                Ok(difference) => differences.push((wish.name.clone(), difference)),
                Err(error) => wishes.wrong.push((wish.name.clone(), error)),
            }
        }
        Ok(Self { wishes, differences })
    }

    /// Fails if something is wanted that is not here or cannot be, and the policy does not allow to leave it out.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        self.wishes.check()?;
        if let Some(absent) = self.wishes.absent.iter().find(|absent| !absent.optional) {
            let known = self.wishes.known.join(", ");
            let (origin, wanted) = (absent.origin.clone(), absent.wanted.clone());
            return Err(PolicyError::NoDevice { origin, wanted, known }.into());
        }
        if let Some(fatal) = self.fatal().next() {
            return Err(unsupported(fatal));
        }
        match self.differences.iter().find_map(|(_, difference)| difference.waiting.as_ref()) {
            Some(waiting) => Err(Failure::lacks(format!("{waiting}: bring it up first"))),
            None => Ok(()),
        }
    }

    /// Fails if this process may not do what has to be done.
    pub(super) fn permitted(&self) -> Result<(), Failure> {
        permission::check(&self.planned(None, &[]))
    }

    /// What cannot be, and must.
    pub(super) fn fatal(&self) -> impl Iterator<Item = &Unsupported> {
        let all = self.differences.iter().flat_map(|(_, difference)| &difference.unsupported);
        all.filter(|unsupported| unsupported.on_unsupported == OnUnsupported::Fail)
    }

    /// What has to be done, on one device or on all.
    fn planned(&self, only: Option<&str>, given_up: &[Act]) -> Vec<Planned> {
        let meant = self.differences.iter().filter(|(name, _)| only.is_none_or(|only| only == name));
        let planned = meant.flat_map(|(_, difference)| &difference.planned);
        planned.filter(|planned| !given_up.contains(&planned.act)).cloned().collect()
    }

    fn outcome(&self) -> Outcome {
        let differences = self.differences.iter().map(|(_, difference)| difference);
        let mut outcome = Outcome::default();
        for difference in differences {
            outcome.later.extend(difference.later.iter().cloned());
            outcome.skipped.extend(difference.unsupported.iter().cloned());
        }
        outcome.note_absent(&self.wishes);
        outcome
    }
}

/// How a wish that cannot be fulfilled ends an apply.
pub(super) fn unsupported(unsupported: &Unsupported) -> Failure {
    Failure::lacks(format!("{unsupported} (on-unsupported = \"skip\" leaves it out)"))
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
        View::of(&mut self.eyes, policy)
    }

    /// There is another policy: what was given up may be wanted by others.
    pub(super) fn forget(&mut self) {
        self.given_up.clear();
    }

    /// What an apply would change.
    pub(super) fn preview(&mut self, policy: &Policy) -> Result<Outcome, Failure> {
        Ok(self.prepare(policy)?.1)
    }

    /// Makes the machine as the policy says, all of it or nothing; `show` is told what is about to change.
    pub(super) fn apply(
        &mut self,
        policy: &Policy,
        signals: &Signals,
        show: impl FnOnce(&Outcome) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let (planned, mut shown, programs) = self.prepare(policy)?;
        permission::check(&planned)?;
        show(&shown)?;
        let mut outcome = Outcome::default();
        if planned.is_empty() {
            programs.make()?;
        } else {
            let mut work = self.work(policy, None, Some(signals))?;
            match work.rounds(&mut outcome).and_then(|()| programs.make()) {
                Ok(()) => work.transaction.finish().keep(),
                Err(failure) => return Err(work.roll_back(failure)),
            }
        }
        outcome.changes.retain(|change| !shown.changes.contains(change));
        shown.shown = shown.changes.len();
        shown.changes.append(&mut outcome.changes);
        shown.skipped.append(&mut outcome.skipped);
        shown.later.clear();
        Ok(shown)
    }

    /// What has to be done, in acts and in words, if all of it can be.
    fn prepare(&mut self, policy: &Policy) -> Result<(Vec<Planned>, Outcome, Programs), Failure> {
        let mut view = self.look(policy)?;
        view.check()?;
        let programs = Programs::look(&view.wishes.programs, &self.units)?;
        let (planned, mut outcome) = (view.planned(None, &self.given_up), view.outcome());
        for planned in &planned {
            outcome.changes.extend(preview(&mut self.eyes, &planned.act)?);
        }
        (outcome.programs, outcome.running) = (programs.changes(), programs.running.clone());
        Ok((planned, outcome, programs))
    }

    /// Makes one device as the policy says, or leaves it as it was.
    pub(super) fn repair(&mut self, policy: &Policy, device: &str) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let mut work = self.work(policy, Some(device), None)?;
        match work.rounds(&mut outcome) {
            Ok(()) => work.transaction.finish().keep(),
            Err(failure) => return Err(work.roll_back(failure)),
        }
        Ok(outcome)
    }

    fn work<'a>(
        &'a mut self,
        policy: &'a Policy,
        only: Option<&'a str>,
        signals: Option<&'a Signals>,
    ) -> Result<Work<'a>, Failure> {
        let transaction = Transaction::begin(Place::open(&self.netns)?, Some(&self.journals));
        Ok(Work { transaction, policy, only, signals, given_up: &mut self.given_up })
    }

    /// Whether this has to be done still, as far as it can be.
    pub(super) fn is_to_do(&self, difference: &Difference) -> bool {
        difference.planned.iter().any(|planned| !self.given_up.contains(&planned.act))
    }
}

/// Changes on their way, which are undone together.
struct Work<'a> {
    transaction: Transaction,
    policy: &'a Policy,
    only: Option<&'a str>,
    signals: Option<&'a Signals>,
    given_up: &'a mut Vec<Act>,
}

impl Work<'_> {
    /// Takes the difference and makes the changes, until there is none. New queues come first: nothing that was known of
    /// the old ones holds then.
    fn rounds(&mut self, outcome: &mut Outcome) -> Result<(), Failure> {
        let mut last = Vec::new();
        for _ in 0..ROUNDS {
            let mut view = View::of(self.transaction.place(), self.policy)?;
            if self.only.is_none() {
                view.check()?;
            }
            last = view.planned(self.only, self.given_up);
            if last.is_empty() {
                return Ok(());
            }
            permission::check(&last)?;
            let renew = last.iter().any(|planned| planned.act.renews_queues());
            for planned in last.iter().filter(|planned| !renew || planned.act.renews_queues()) {
                self.interrupted()?;
                self.make(planned, outcome)?;
            }
        }
        let first = &last[0];
        Err(Failure::check(format!(
            "what {} asks for does not stay: the driver or another program changes it",
            first.origin
        )))
    }

    fn interrupted(&self) -> Result<(), Failure> {
        use nix::sys::signal::Signal::{SIGINT, SIGTERM};
        match self.signals.and_then(Signals::next) {
            Some(signal @ (SIGINT | SIGTERM)) => {
                Err(Failure::check(format!("ended by {signal} before all was changed")))
            }
            _ => Ok(()),
        }
    }

    fn make(&mut self, planned: &Planned, outcome: &mut Outcome) -> Result<(), Failure> {
        let made = match &planned.act {
            Act::Settings { device, napi, change } => {
                plan(self.transaction.place(), device, *napi, change).and_then(|plan| self.transaction.make_plan(plan))
            }
            Act::Change(change) => self.transaction.make(change),
            Act::Steer { device, queues, flows } => self.steer(device, queues, flows),
        };
        match made {
            Ok(made) => outcome.changes.extend(made.changes),
            Err(error) if error.is_unsupported() && planned.on_unsupported == OnUnsupported::Skip => {
                let device = self.only.unwrap_or_default().to_owned();
                let (origin, on_unsupported) = (planned.origin.clone(), planned.on_unsupported);
                let (what, reason) = (planned.origin.key.to_owned(), error.to_string());
                outcome.skipped.push(Unsupported { device, what, reason, origin, on_unsupported });
                self.given_up.push(planned.act.clone());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A context of its own for the flows. If their rules cannot be made, it goes again.
    fn steer(&mut self, device: &DeviceId, queues: &BTreeSet<u32>, flows: &[PortFlow]) -> Result<Made, ApplyError> {
        let queues = queues.iter().copied().collect();
        let mut made = self.transaction.make(&Change::Context { device: device.clone(), queues })?;
        let id = made.context.expect("a context has an ID");
        for flow in flows {
            let rule = Change::Rule { device: device.clone(), flow: *flow, target: FlowTarget::Context(id) };
            match self.transaction.make(&rule) {
                Ok(rule) => made.changes.extend(rule.changes),
                Err(error) => {
                    self.transaction.make(&Change::NoContext { device: device.clone(), id })?;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    fn roll_back(self, failure: Failure) -> Failure {
        if self.transaction.steps().is_empty() {
            return failure;
        }
        // Whatever it was: it is no longer the input, or what this machine lacks, that decided.
        let failure = Failure::check(failure);
        match self.transaction.roll_back() {
            Ok(_) => failure.and("what had been changed was put back"),
            Err(error) => failure.and(format_args!("not all that had been changed could be put back: {error}")),
        }
    }
}

/// The change of one NAPI instance's settings.
fn plan(place: &mut Place, device: &Device, napi: u32, change: &NapiChange) -> Result<Plan, ApplyError> {
    let able = napi_capabilities(place.netlink())?;
    Plan::new(place, device, &Target::Napi(napi), change, able)
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
