//! Changes on their way: made round by round until nothing is left to do, kept or rolled back together.

use std::collections::BTreeSet;

use abey_linux::apply::{ApplyError, Change, Keeping, Made, Place, Plan, Step, Target, Transaction};
use abey_linux::device::{Device, DeviceId};
use abey_linux::ethtool::{FlowTarget, PortFlow};
use abey_linux::machine::Snapshot;
use abey_linux::napi::NapiChange;
use abey_linux::probe::napi_capabilities;
use abey_policy::{Act, OnUnsupported, Planned, Policy, Unsupported};

use super::permission;
use super::programs::Programs;
use super::show::Outcome;
use super::view::{Back, View, to_put_back};
use crate::failure::Failure;
use crate::signals::Signals;

/// How often the difference is taken, at most: channels make new queues, settings new threads, and what goes back sets free
/// what it needed.
const ROUNDS: u32 = 8;

/// Changes on their way, which are undone together.
pub(super) struct Work<'a> {
    pub(super) transaction: Transaction,
    pub(super) policy: &'a Policy,
    pub(super) only: Option<&'a str>,
    pub(super) signals: Option<&'a Signals>,
    pub(super) given_up: &'a mut Vec<Act>,
    pub(super) keeping: &'a mut Keeping,
    /// What was done for the policy: what was put back is not kept.
    pub(super) taken: Vec<Step>,
}

impl Work<'_> {
    /// Takes the difference and makes the changes, until there is none; the machine as it is then. What is not wanted any
    /// more goes back first. New queues come before anything else: nothing that was known of the old ones holds then.
    pub(super) fn rounds(&mut self, outcome: &mut Outcome) -> Result<Snapshot, Failure> {
        let mut first = String::new();
        for _ in 0..ROUNDS {
            let mut view = View::of(self.transaction.place(), self.policy, self.keeping.entries())?;
            if self.only.is_none() {
                view.check()?;
            }
            // What went with queues that were taken away.
            view.gone.iter().for_each(|kept| self.keeping.forget(kept));
            let meant = |device: &str| self.only.is_none_or(|only| only == device);
            let (planned, backs) = (view.planned(self.only, self.given_up), std::mem::take(&mut view.backs));
            let backs: Vec<Back> = backs.into_iter().filter(|back| meant(back.device())).collect();
            match (backs.first(), planned.first()) {
                (Some(back), _) => first = format!("what was before the last policy on {}", back.device()),
                (None, Some(planned)) => first = format!("what {} asks for", planned.origin),
                (None, None) => return Ok(view.snapshot),
            }
            permission::check_back(backs.iter().map(|back| &back.step))?;
            permission::check(&planned)?;
            if self.put_all_back(&backs, outcome)? {
                continue;
            }
            let renew = planned.iter().any(|planned| planned.act.renews_queues());
            for planned in planned.iter().filter(|planned| !renew || planned.act.renews_queues()) {
                self.interrupted()?;
                self.make(planned, outcome)?;
            }
        }
        Err(Failure::check(format!("{first} does not stay: the driver or another program changes it")))
    }

    /// Puts back what was there before, until queues are made anew for it: whether that was so.
    fn put_all_back(&mut self, backs: &[Back], outcome: &mut Outcome) -> Result<bool, Failure> {
        for (back, step) in to_put_back(backs) {
            self.interrupted()?;
            let (made, left) = self.transaction.put_back(&step)?;
            outcome.note_back(&made.steps, left.then_some(&step));
            self.keeping.forget(&back.kept);
            if made.steps.iter().any(|step| matches!(step, Step::Channels { .. })) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives units their drop-ins and processes their CPUs, and takes from those what is not wanted any more.
    pub(super) fn programs(&mut self, programs: &Programs, outcome: &mut Outcome) -> Result<(), Failure> {
        for kept in &programs.backs {
            let (made, left) = self.transaction.put_back(&kept.step)?;
            outcome.note_back(&made.steps, left.then_some(&kept.step));
            self.keeping.forget(kept);
        }
        for change in programs.wanted() {
            match self.transaction.make(&change) {
                Ok(made) => self.taken.extend(made.steps),
                // A process that has just ended needs no CPUs.
                Err(ApplyError::Machine(error)) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.transaction.reload_units()?)
    }

    /// Writes down what is kept from now on. Only then may the journal go.
    pub(super) fn keep(&mut self, snapshot: &Snapshot) -> Result<(), Failure> {
        self.keeping.record(&self.taken, snapshot);
        Ok(self.keeping.save()?)
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
            Ok(made) => {
                outcome.changes.extend(made.changes);
                self.taken.extend(made.steps);
            }
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
                Ok(rule) => {
                    made.changes.extend(rule.changes);
                    made.steps.extend(rule.steps);
                }
                Err(error) => {
                    self.transaction.make(&Change::NoContext { device: device.clone(), id })?;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    pub(super) fn roll_back(self, failure: Failure) -> Failure {
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
pub(super) fn plan(place: &mut Place, device: &Device, napi: u32, change: &NapiChange) -> Result<Plan, ApplyError> {
    let able = napi_capabilities(place.netlink())?;
    Plan::new(place, device, &Target::Napi(napi), change, able)
}
