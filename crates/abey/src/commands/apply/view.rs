//! What there is, what a policy wants, and what lies between: before anything is changed.

use std::collections::BTreeSet;

use abey_linux::apply::{Kept, Place, Step};
use abey_linux::cpu::CpuList;
use abey_linux::machine::Snapshot;
use abey_policy::{Act, Difference, Fate, OnUnsupported, Planned, Policy, PolicyError, Unsupported, Wishes};

use super::permission;
use super::show::Outcome;
use crate::failure::Failure;

/// What there is, what is wanted, and what lies between.
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    pub(super) wishes: Wishes,
    /// By device.
    pub(super) differences: Vec<(String, Difference)>,
    /// What was applied before and is not wanted any more, in the order in which it is put back.
    pub(super) backs: Vec<Back>,
    /// Devices that have to be up for the rest of that.
    pub(super) waits: BTreeSet<String>,
    /// What was applied before to programs.
    pub(super) of_programs: Vec<Kept>,
    /// What was applied before and is not there any more.
    pub(super) gone: Vec<Kept>,
}

/// Something that goes back to what it was before.
pub(super) struct Back {
    pub(super) kept: Kept,
    /// As it was kept, with the numbers that are valid now.
    pub(super) step: Step,
}

impl Back {
    pub(super) fn device(&self) -> &str {
        self.step.device().unwrap_or_default()
    }

    /// Of channels: the device, and how many receive queues it will have.
    fn queues_after(&self, snapshot: &Snapshot) -> Option<(String, u32)> {
        let Step::Channels { device, before, .. } = &self.step else { return None };
        let now = snapshot.device(&device.name)?.channels.as_ref().ok()?;
        let count = before.rx.unwrap_or(now.rx.now) + before.combined.unwrap_or(now.combined.now);
        Some((device.name.clone(), count))
    }
}

/// As the steps go back: the default table with the channels, to what it was before those.
pub(super) fn to_put_back(backs: &[Back]) -> impl Iterator<Item = (&Back, Step)> {
    let since = |back: &Back| backs.iter().find_map(|other| back.step.since_before(&other.step));
    backs.iter().map(move |back| (back, since(back).unwrap_or_else(|| back.step.clone())))
}

impl View {
    pub(super) fn of(place: &mut Place, policy: &Policy, kept: &[Kept]) -> Result<Self, Failure> {
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
        let (mut backs, mut waits, mut gone, mut of_programs) = (Vec::new(), BTreeSet::new(), Vec::new(), Vec::new());
        // The last change goes back first, as when it is undone.
        for (kept, fate) in kept.iter().zip(wishes.fates(kept, &snapshot)).rev() {
            match fate {
                Fate::Back(step) => backs.push(Back { kept: kept.clone(), step: *step }),
                Fate::Waits => waits.extend(kept.step.device().map(str::to_owned)),
                Fate::Gone => gone.push(kept.clone()),
                Fate::OfPrograms => of_programs.push(kept.clone()),
                Fate::Stays => {}
            }
        }
        // Channels go back before what is of the instances that stay: those may have other numbers afterwards, for a
        // rollback too. What is of queues that go with them goes back first: several drivers keep it for their return.
        let staying: Vec<(String, u32)> = backs.iter().filter_map(|back| back.queues_after(&snapshot)).collect();
        let goes = |back: &Back| {
            let count = staying.iter().find(|(device, _)| device == back.device()).map(|(_, count)| *count);
            back.kept.queue.zip(count).is_some_and(|(queue, count)| queue >= count)
        };
        let of_instance = |step: &Step| matches!(step, Step::Napi { .. } | Step::Irq { .. } | Step::Thread { .. });
        backs.sort_by_key(|back| of_instance(&back.step) && !goes(back));
        Ok(Self { snapshot, wishes, differences, backs, waits, of_programs, gone })
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
        permission::check(&self.planned(None, &[]))?;
        permission::check_back(self.backs.iter().map(|back| &back.step))
    }

    /// The devices that have something to be put back.
    pub(super) fn left_behind(&self) -> BTreeSet<String> {
        self.backs.iter().map(|back| back.device().to_owned()).collect()
    }

    /// What cannot be, and must.
    pub(super) fn fatal(&self) -> impl Iterator<Item = &Unsupported> {
        let all = self.differences.iter().flat_map(|(_, difference)| &difference.unsupported);
        all.filter(|unsupported| unsupported.on_unsupported == OnUnsupported::Fail)
    }

    /// What has to be done, on one device or on all.
    pub(super) fn planned(&self, only: Option<&str>, given_up: &[Act]) -> Vec<Planned> {
        let meant = self.differences.iter().filter(|(name, _)| only.is_none_or(|only| only == name));
        let planned = meant.flat_map(|(_, difference)| &difference.planned);
        planned.filter(|planned| !given_up.contains(&planned.act)).cloned().collect()
    }

    pub(super) fn outcome(&self) -> Outcome {
        let differences = self.differences.iter().map(|(_, difference)| difference);
        let mut outcome = Outcome::default();
        for difference in differences {
            outcome.later.extend(difference.later.iter().cloned());
            outcome.skipped.extend(difference.unsupported.iter().cloned());
        }
        outcome.note_absent(&self.wishes);
        outcome.notes.extend(self.waits.iter().map(|device| waits(device)));
        outcome
    }
}

/// What cannot go back yet, in words.
pub(super) fn waits(device: &str) -> String {
    format!("{device} is down: what was set on its queues goes back by an apply when it is up")
}

/// How a wish that cannot be fulfilled ends an apply.
pub(super) fn unsupported(unsupported: &Unsupported) -> Failure {
    Failure::lacks(format!("{unsupported} (on-unsupported = \"skip\" leaves it out)"))
}
