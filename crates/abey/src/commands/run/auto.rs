//! `abey run --mode auto`: the tuner at work on what the program receives from, as long as it runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use abey_delivery::{Family, Mode, Nanos, ParseModeError};
use abey_tune::Goal;

use crate::commands::tune::{
    Feed, GoalArgs, Kernel, Probe, ProbeArgs, Row, Served, Subject, Tuned, Tuner, Witness, controller, nobody_sees,
};
use crate::datapath_world::Datapaths;
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::supervise::Watch;

/// A mode, or the tuner's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModeChoice {
    /// This one.
    Mode(Mode),
    /// Whichever meets the goal.
    Auto,
}

impl FromStr for ModeChoice {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Mode) }
    }
}

impl fmt::Display for ModeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Auto => f.pad("auto"),
        }
    }
}

/// What `--mode auto` is told.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "With --mode auto")]
pub(crate) struct AutoArgs {
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    probe: ProbeArgs,
    /// Read latencies from a FIFO or a file, as `abey tune` does
    #[arg(long, value_name = "FILE", conflicts_with = "probe")]
    latencies: Option<PathBuf>,
}

/// How long one measurement takes.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often it is looked whether the program has a datapath that is not tuned yet.
const LOOK_FOR_MORE: Duration = Duration::from_secs(2);

impl AutoArgs {
    /// The tuner that is asked for. Without `--mode auto` nothing may be said that is only for it.
    pub(super) fn wanted(&self, choice: Option<ModeChoice>, is_datapath: bool) -> Result<Option<Auto<'_>>, Failure> {
        if choice != Some(ModeChoice::Auto) {
            if self.goal.is_given() || self.probe.probe.is_some() || self.latencies.is_some() {
                return Err(Failure::usage("a goal, its bounds and who sees latencies are for --mode auto: add it"));
            }
            return Ok(None);
        }
        let goal = self.goal.wanted()?;
        self.goal.bounds(&[Family::Base])?;
        let is_seen = is_datapath || self.probe.probe.is_some() || self.latencies.is_some();
        if matches!(goal, Goal::P99(_)) && !is_seen {
            return Err(nobody_sees(goal));
        }
        if is_datapath && (self.probe.probe.is_some() || self.latencies.is_some()) {
            return Err(Failure::usage("a datapath sees latencies by itself: leave --probe and --latencies out"));
        }
        let now = Instant::now();
        Ok(Some(Auto { args: self, goal, engaged: Vec::new(), began: now, next: now, looked: None }))
    }
}

/// The tuner of a program.
pub(super) struct Auto<'a> {
    args: &'a AutoArgs,
    goal: Goal,
    engaged: Vec<Engaged>,
    began: Instant,
    next: Instant,
    /// When datapaths were last looked for.
    looked: Option<Instant>,
}

/// One thing that is tuned.
struct Engaged {
    plant: Tuned,
    tuner: Tuner,
}

impl Auto<'_> {
    /// Begins to tune a device.
    pub(super) fn engage_kernel(&mut self, subject: Subject, namespace: &Namespace) -> Result<(), Failure> {
        if !self.engaged.is_empty() {
            return Err(Failure::usage("--mode auto tunes one device: name the one that matters with --dev"));
        }
        let mut kernel = Kernel::open(subject, INTERVAL, self.witness(namespace)?)?;
        let bounds = self.args.goal.bounds(&kernel.families(&self.args.goal.families)?)?;
        let present = kernel.present()?;
        let tuner = Tuner::new(controller(self.goal, &bounds, &present)?, present, false);
        self.engage(Tuned::Kernel(Box::new(kernel)), tuner)
    }

    /// Begins to tune the datapaths that these processes have by now.
    fn engage_datapaths(&mut self, members: &[u32]) -> Result<(), Failure> {
        let mut all = Datapaths::all()?;
        let known: Vec<u32> = self.engaged.iter().filter_map(|one| one.plant.pid()).collect();
        all.reached.retain(|one| members.contains(&one.client.pid()) && !known.contains(&one.client.pid()));
        for found in all.reached {
            let served = Served::open(found, INTERVAL, None);
            let bounds = self.args.goal.bounds(&[Family::Base, Family::Defer, Family::Suspend])?;
            let tuner = Tuner::new(controller(self.goal, &bounds, &served.present())?, served.present(), false);
            self.engage(Tuned::Datapath(Box::new(served)), tuner)?;
        }
        Ok(())
    }

    fn engage(&mut self, plant: Tuned, tuner: Tuner) -> Result<(), Failure> {
        let mut engaged = Engaged { plant, tuner };
        let (look, name) = (engaged.tuner.start(engaged.plant.plant()), engaged.plant.name());
        // What it changed is put back with the others, whether or not it went well.
        self.engaged.push(engaged);
        eprintln!("abey: {}: {}", self.goal, Row::new(&name, &look?, self.goal).line(false).trim_start());
        self.next = Instant::now() + INTERVAL;
        Ok(())
    }

    fn witness(&self, namespace: &Namespace) -> Result<Option<Box<dyn Witness>>, Failure> {
        Ok(match (&self.args.probe.probe, &self.args.latencies) {
            (Some(target), _) => Some(Box::new(Probe::start(&self.args.probe, target, namespace)?)),
            (None, Some(path)) => Some(Box::new(Feed::open(path)?)),
            (None, None) => None,
        })
    }

    /// As [`Self::look`], with the datapaths of these processes.
    pub(super) fn look_at_datapaths(&mut self, members: &[u32]) -> Result<Watch, Failure> {
        if self.looked.is_none_or(|looked| looked.elapsed() > LOOK_FOR_MORE) || self.engaged.is_empty() {
            self.looked = Some(Instant::now());
            self.engage_datapaths(members)?;
        }
        if self.engaged.is_empty() {
            return Ok(Watch::After(Duration::from_millis(50)));
        }
        self.look(members)
    }

    /// Ends an interval, if it is over, and says what is changed. When to look next.
    pub(super) fn look(&mut self, members: &[u32]) -> Result<Watch, Failure> {
        let left = self.next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Ok(Watch::After(left));
        }
        self.next = Instant::now() + INTERVAL;
        let now = Nanos::from_nanos(self.began.elapsed().as_nanos() as u64);
        // A process that has ended took its datapath along.
        self.engaged.retain(|one| one.plant.pid().is_none_or(|pid| members.contains(&pid)));
        for engaged in &mut self.engaged {
            if let Tuned::Kernel(kernel) = &mut engaged.plant {
                kernel.serve(members.to_vec());
            }
            let plant = engaged.plant.plant();
            if !plant.is_ready()? {
                self.next = Instant::now() + Duration::from_millis(20);
                continue;
            }
            let look = engaged.tuner.look(plant, now)?;
            if look.changes() || look.is_news {
                eprintln!("abey: {}", Row::new(&engaged.plant.name(), &look, self.goal).line(false).trim_start());
            }
        }
        Ok(Watch::After(self.next.saturating_duration_since(Instant::now())))
    }

    /// Puts back what outlives the program.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for engaged in self.engaged {
            let finished = match engaged.plant {
                Tuned::Kernel(kernel) => kernel.finish(false),
                // Its settings end with it.
                Tuned::Datapath(_) => Ok(()),
            };
            outcome = outcome.and(finished);
        }
        outcome
    }
}
