//! A group: queues with one goal, one controller and one plant.

use std::collections::BTreeSet;
use std::time::Instant;

use abey_datapath::control::Change;
use abey_delivery::{ModeSettings, Nanos};
use abey_linux::process::EpollNote;
use abey_tune::{Bounds, Controller, Goal};

use super::datapath::Served;
use super::kernel::Kernel;
use super::name::Name;
use super::report::Sum;
use super::tuner::{Look, Plant, Tuner};
use crate::commands::guard::Guard;
use crate::failure::Failure;

/// What is tuned.
pub(crate) enum Tuned {
    Kernel(Box<Kernel>),
    Datapath(Box<Served>),
}

impl Tuned {
    pub(crate) fn plant(&mut self) -> &mut dyn Plant {
        match self {
            Self::Kernel(kernel) => &mut **kernel,
            Self::Datapath(served) => &mut **served,
        }
    }

    /// Which queues these are.
    pub(crate) fn name(&self) -> Name {
        match self {
            Self::Kernel(kernel) => kernel.name(),
            Self::Datapath(served) => served.name().clone(),
        }
    }

    /// The process of a datapath.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Kernel(_) => None,
            Self::Datapath(served) => Some(served.pid()),
        }
    }

    fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, Failure> {
        match self {
            Self::Kernel(kernel) => kernel.differences(settings),
            Self::Datapath(served) => served.differences(settings),
        }
    }

    fn finish(self, keep: bool) -> Result<(), Failure> {
        match self {
            Self::Kernel(kernel) => kernel.finish(keep),
            Self::Datapath(served) => served.finish(keep),
        }
    }
}

/// What leads back, but for what is in journals.
#[derive(Default)]
pub(super) struct Notes<'a> {
    epolls: BTreeSet<EpollNote>,
    datapath: Option<(u32, &'a [Change])>,
}

impl Notes<'_> {
    /// Tells the guard.
    pub(super) fn tell(&self, guard: &mut Guard) {
        guard.put_back_epolls(&self.epolls);
        if let Some((pid, back)) = self.datapath {
            guard.put_back_datapath(pid, back);
        }
    }
}

/// Some queues that are steered together.
pub(super) struct Group {
    /// Those with the same number are steered for the same reason, and may become one.
    rule: usize,
    goal: Goal,
    bounds: Bounds,
    pub(super) tuned: Tuned,
    tuner: Tuner,
    /// What is in force.
    present: ModeSettings,
    is_dry: bool,
    pub(super) sum: Sum,
    /// When the interval ends, and when no latency is waited for any more.
    pub(super) next: Instant,
    pub(super) patience: Instant,
}

impl Group {
    /// A group that has not begun; `present` is what its queues have now.
    pub(super) fn new(
        (rule, goal, bounds): (usize, Goal, Bounds),
        tuned: Tuned,
        present: ModeSettings,
        is_dry: bool,
    ) -> Result<Self, Failure> {
        let tuner = tuner(goal, &bounds, present, is_dry)?;
        let now = Instant::now();
        Ok(Self { rule, goal, bounds, tuned, tuner, present, is_dry, sum: Sum::default(), next: now, patience: now })
    }

    pub(super) fn goal(&self) -> Goal {
        self.goal
    }

    /// Applies what it begins with, and begins the first interval.
    pub(super) fn start(&mut self) -> Result<Look, Failure> {
        self.tuner.start(self.tuned.plant())
    }

    /// Ends an interval, decides, and begins the next.
    pub(super) fn look(&mut self, now: Nanos) -> Result<Look, Failure> {
        self.tuner.look(self.tuned.plant(), now)
    }

    /// Takes in what a look came to.
    pub(super) fn told(&mut self, look: &Look) -> Result<(), Failure> {
        self.sum.add(look, self.goal);
        if !self.is_dry {
            self.present = look.settings;
        } else if look.changes() && look.sample.is_some() {
            // What it sees from here on is not what it decided on.
            self.tuner = tuner(self.goal, &self.bounds, self.present, true)?;
            self.tuned.plant().begin(false)?;
        }
        Ok(())
    }

    /// What would change, one line for each setting.
    pub(super) fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, Failure> {
        self.tuned.differences(settings)
    }

    /// Adds what leads back.
    pub(super) fn note<'a>(&'a self, notes: &mut Notes<'a>) {
        match &self.tuned {
            Tuned::Kernel(kernel) => notes.epolls.extend(kernel.server().notes()),
            Tuned::Datapath(served) => notes.datapath = Some((served.pid(), served.back())),
        }
    }

    /// Whether both can only be steered together.
    pub(super) fn meets(&self, other: &Self) -> bool {
        match (&self.tuned, &other.tuned) {
            (Tuned::Kernel(one), Tuned::Kernel(other_one)) => self.rule == other.rule && one.meets(other_one),
            _ => false,
        }
    }

    /// Takes another in. What is in force here is what both have from here on, and they begin to learn anew.
    pub(super) fn unite(&mut self, other: Self, now: Nanos) -> Result<Look, Failure> {
        let gone = other.tuned.name();
        let (Tuned::Kernel(own), Tuned::Kernel(others)) = (&mut self.tuned, other.tuned) else {
            unreachable!("only the kernel's instances meet");
        };
        own.unite(*others)?;
        self.tuner = tuner(self.goal, &self.bounds, self.present, self.is_dry)?;
        self.tuned.plant().begin(true)?;
        let (before, settings) = (self.present, self.present);
        let reason = format!("with {gone}, which the same CPU polls: from here on they are steered together");
        Ok(Look { at: now, sample: None, before, settings, reason, is_news: true })
    }

    /// How it went, in a sentence.
    pub(super) fn summary(&self) -> String {
        format!("{}: {}", self.tuned.name(), self.sum.line(self.goal, &self.present))
    }

    /// Puts everything back, or leaves it for good.
    pub(super) fn finish(self, keep: bool) -> Result<(), Failure> {
        self.tuned.finish(keep)
    }
}

fn tuner(goal: Goal, bounds: &Bounds, present: ModeSettings, is_dry: bool) -> Result<Tuner, Failure> {
    Ok(Tuner::new(controller(goal, bounds, &present)?, present, is_dry))
}

/// A controller that begins with what is in force, if the bounds allow that.
pub(crate) fn controller(goal: Goal, bounds: &Bounds, present: &ModeSettings) -> Result<Controller, Failure> {
    let start = bounds.contains(present).then_some(*present);
    Controller::new(goal, bounds.clone(), start).map_err(Failure::usage)
}
