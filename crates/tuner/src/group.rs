//! A group: queues with one goal and one controller.

use std::collections::BTreeSet;
use std::time::Instant;

use abey_datapath::control::Change;
use abey_delivery::{ModeSettings, Nanos};
use abey_linux::process::EpollNote;
use abey_supervise::guard::Guard;
use abey_tune::{Bounds, Controller, Goal};

use crate::TuneError;
use crate::datapath::DatapathTarget;
use crate::kernel::KernelTarget;
use crate::name::TargetName;
use crate::report::Summary;
use crate::tuner::{Decision, Tunable, Tuner};

/// A target of either world.
pub enum TuneTarget {
    /// NAPI instances of the kernel.
    Kernel(Box<KernelTarget>),
    /// A running datapath.
    Datapath(Box<DatapathTarget>),
}

impl TuneTarget {
    /// Returns the target as the tuner uses it.
    pub fn tunable(&mut self) -> &mut dyn Tunable {
        match self {
            Self::Kernel(kernel) => &mut **kernel,
            Self::Datapath(datapath) => &mut **datapath,
        }
    }

    /// Returns the target's name.
    pub fn name(&self) -> TargetName {
        match self {
            Self::Kernel(kernel) => kernel.name(),
            Self::Datapath(datapath) => datapath.name().clone(),
        }
    }

    /// Returns the process of a datapath.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Kernel(_) => None,
            Self::Datapath(datapath) => Some(datapath.pid()),
        }
    }

    fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, TuneError> {
        match self {
            Self::Kernel(kernel) => kernel.differences(settings),
            Self::Datapath(datapath) => datapath.differences(settings),
        }
    }

    fn finish(self, keep: bool) -> Result<(), TuneError> {
        match self {
            Self::Kernel(kernel) => kernel.finish(keep),
            Self::Datapath(datapath) => datapath.finish(keep),
        }
    }
}

/// What restores the targets and is in no journal: the guard uses it after a `kill -9`.
#[derive(Default)]
pub(crate) struct UndoNotes<'a> {
    epolls: BTreeSet<EpollNote>,
    datapath: Option<(u32, &'a [Change])>,
}

impl UndoNotes<'_> {
    /// Sends the notes to the guard.
    pub(crate) fn send(&self, guard: &mut Guard) {
        guard.set_epolls(&self.epolls);
        if let Some((pid, undo)) = self.datapath {
            guard.set_datapath(pid, undo);
        }
    }
}

/// Queues that are tuned together.
pub struct Group {
    /// Groups of one rule may be merged.
    rule: usize,
    goal: Goal,
    bounds: Bounds,
    pub(crate) target: TuneTarget,
    tuner: Tuner,
    /// The settings in force.
    present: ModeSettings,
    dry_run: bool,
    summary: Summary,
    /// The end of the interval.
    pub(crate) next: Instant,
    /// The time until which to wait for a latency of the interval.
    pub(crate) latency_deadline: Instant,
}

impl Group {
    /// Creates a group whose queues have the settings `present`. It starts with `Group::start`.
    ///
    /// # Errors
    /// When the bounds and the goal contradict each other.
    pub fn new(
        (rule, goal, bounds): (usize, Goal, Bounds),
        target: TuneTarget,
        present: ModeSettings,
        dry_run: bool,
    ) -> Result<Self, TuneError> {
        let tuner = new_tuner(goal, &bounds, present, dry_run)?;
        let (now, summary) = (Instant::now(), Summary::default());
        Ok(Self { rule, goal, bounds, target, tuner, present, dry_run, summary, next: now, latency_deadline: now })
    }

    /// Returns the goal.
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Returns the target.
    pub fn target(&self) -> &TuneTarget {
        &self.target
    }

    /// Applies the initial settings and begins the first interval.
    pub(crate) fn start(&mut self) -> Result<Decision, TuneError> {
        self.tuner.start(self.target.tunable())
    }

    /// Ends an interval, decides, applies, and begins the next one.
    pub(crate) fn end_interval(&mut self, now: Nanos) -> Result<Decision, TuneError> {
        self.tuner.end_interval(self.target.tunable(), now)
    }

    /// Records a decision.
    pub(crate) fn record(&mut self, decision: &Decision) -> Result<(), TuneError> {
        self.summary.add(decision, self.goal);
        if !self.dry_run {
            self.present = decision.settings;
        } else if decision.changes() && decision.sample.is_some() {
            // Without the change, later samples are not those of the controller's choice: it starts anew.
            self.tuner = new_tuner(self.goal, &self.bounds, self.present, true)?;
            self.target.tunable().begin(false)?;
        }
        Ok(())
    }

    /// Describes what a change would do, one line for each setting.
    pub(crate) fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, TuneError> {
        self.target.differences(settings)
    }

    /// Adds what restores the group.
    pub(crate) fn add_undo<'a>(&'a self, notes: &mut UndoNotes<'a>) {
        match &self.target {
            TuneTarget::Kernel(kernel) => notes.epolls.extend(kernel.server().undo_notes()),
            TuneTarget::Datapath(datapath) => notes.datapath = Some((datapath.pid(), datapath.undo())),
        }
    }

    /// Returns whether both can only be tuned together.
    pub(crate) fn shares_cpu_with(&self, other: &Self) -> bool {
        match (&self.target, &other.target) {
            (TuneTarget::Kernel(kernel), TuneTarget::Kernel(others)) => {
                self.rule == other.rule && kernel.shares_cpu_with(others)
            }
            _ => false,
        }
    }

    /// Takes over another group. Both have this group's settings from now on, and a new controller.
    pub(crate) fn merge(&mut self, other: Self, now: Nanos) -> Result<Decision, TuneError> {
        let merged = other.target.name();
        let (TuneTarget::Kernel(own), TuneTarget::Kernel(others)) = (&mut self.target, other.target) else {
            unreachable!("only instances of the kernel share CPUs");
        };
        own.merge(*others)?;
        self.tuner = new_tuner(self.goal, &self.bounds, self.present, self.dry_run)?;
        self.target.tunable().begin(true)?;
        let (before, settings) = (self.present, self.present);
        let reason = format!("with {merged}, which the same CPU polls: from now on they are tuned together");
        Ok(Decision { at: now, sample: None, before, settings, reason, is_reported: true })
    }

    /// Summarises the run in a sentence.
    pub(crate) fn summary(&self) -> String {
        format!("{}: {}", self.target.name(), self.summary.line(self.goal, &self.present))
    }

    /// Restores the settings, or leaves them with `keep`.
    pub(crate) fn finish(self, keep: bool) -> Result<(), TuneError> {
        self.target.finish(keep)
    }
}

fn new_tuner(goal: Goal, bounds: &Bounds, present: ModeSettings, dry_run: bool) -> Result<Tuner, TuneError> {
    Ok(Tuner::new(controller(goal, bounds, &present)?, present, dry_run))
}

/// Creates a controller that starts with the present settings, if the bounds allow them.
///
/// # Errors
/// When the bounds and the goal contradict each other.
pub fn controller(goal: Goal, bounds: &Bounds, present: &ModeSettings) -> Result<Controller, TuneError> {
    let start = bounds.contains(present).then_some(*present);
    Controller::new(goal, bounds.clone(), start).map_err(TuneError::usage)
}
