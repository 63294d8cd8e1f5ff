//! `abey run --mode auto`: tunes what the program receives from, as long as it runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use abey_delivery::{Family, Mode, Nanos, ParseModeError};
use abey_supervise::supervisor::Next;
use abey_tune::Goal;
use abey_tuner::datapath::DatapathTarget;
use abey_tuner::group::{TuneTarget, controller};
use abey_tuner::kernel::KernelTarget;
use abey_tuner::report::TuneRow;
use abey_tuner::selection::KernelSubject;
use abey_tuner::tuner::Tuner;

use crate::commands::tune::{GoalArgs, ProbeArgs, without_latencies};
use crate::datapath_world::Datapaths;
use crate::failure::Failure;
use crate::linux_world::Namespace;

/// A mode, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModeChoice {
    /// A fixed mode.
    Mode(Mode),
    /// The tuner's choice within the goal.
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

/// Arguments of `--mode auto`.
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

/// Length of one interval.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often to search for datapaths of the program that are not tuned yet.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);

impl AutoArgs {
    /// Creates the tuner, if `--mode auto` is given. Its arguments are an error otherwise.
    pub(super) fn wanted(&self, choice: Option<ModeChoice>, is_datapath: bool) -> Result<Option<Auto<'_>>, Failure> {
        if choice != Some(ModeChoice::Auto) {
            if self.goal.is_given() || self.probe.probe.is_some() || self.latencies.is_some() {
                return Err(Failure::usage("a goal, its bounds and sources of latencies need --mode auto: add it"));
            }
            return Ok(None);
        }
        let goal = self.goal.wanted()?;
        self.goal.bounds(&[Family::Base])?;
        let is_measured = is_datapath || self.probe.probe.is_some() || self.latencies.is_some();
        if matches!(goal, Goal::P99(_)) && !is_measured {
            return Err(without_latencies(goal));
        }
        if is_datapath && (self.probe.probe.is_some() || self.latencies.is_some()) {
            return Err(Failure::usage("a datapath measures latencies itself: leave --probe and --latencies out"));
        }
        let now = Instant::now();
        Ok(Some(Auto { args: self, goal, engaged: Vec::new(), began: now, next: now, searched: None }))
    }
}

/// The tuner of a program.
pub(super) struct Auto<'a> {
    args: &'a AutoArgs,
    goal: Goal,
    engaged: Vec<Engaged>,
    began: Instant,
    next: Instant,
    /// When datapaths were last searched for.
    searched: Option<Instant>,
}

/// A target and its tuner.
struct Engaged {
    target: TuneTarget,
    tuner: Tuner,
}

impl Auto<'_> {
    /// Starts tuning a device.
    pub(super) fn engage_kernel(&mut self, subject: KernelSubject, namespace: &Namespace) -> Result<(), Failure> {
        if !self.engaged.is_empty() {
            return Err(Failure::usage("--mode auto tunes one device: name the one that matters with --dev"));
        }
        let mut kernel =
            KernelTarget::open(subject, INTERVAL, self.args.probe.open(self.args.latencies.as_deref(), namespace)?)?;
        let bounds = self.args.goal.bounds(&kernel.families(&self.args.goal.families)?)?;
        let present = kernel.present()?;
        let tuner = Tuner::new(controller(self.goal, &bounds, &present)?, present, false);
        self.engage(TuneTarget::Kernel(Box::new(kernel)), tuner)
    }

    /// Starts tuning the datapaths of these processes.
    fn engage_datapaths(&mut self, members: &[u32]) -> Result<(), Failure> {
        let mut all = Datapaths::all()?;
        let known: Vec<u32> = self.engaged.iter().filter_map(|one| one.target.pid()).collect();
        all.reached
            .retain(|one| one.client.local_pid().is_some_and(|pid| members.contains(&pid) && !known.contains(&pid)));
        for found in all.reached {
            let datapath = DatapathTarget::open(found.client, &found.status, INTERVAL, None);
            let bounds = self.args.goal.bounds(&[Family::Base, Family::Defer, Family::Suspend])?;
            let tuner = Tuner::new(controller(self.goal, &bounds, &datapath.present())?, datapath.present(), false);
            self.engage(TuneTarget::Datapath(Box::new(datapath)), tuner)?;
        }
        Ok(())
    }

    fn engage(&mut self, target: TuneTarget, tuner: Tuner) -> Result<(), Failure> {
        let mut engaged = Engaged { target, tuner };
        let (decision, name) = (engaged.tuner.start(engaged.target.tunable()), engaged.target.name());
        // Added before the outcome is known, so that its changes are restored in any case.
        self.engaged.push(engaged);
        eprintln!("abey: {}: {}", self.goal, TuneRow::new(&name, &decision?, self.goal).line(false).trim_start());
        self.next = Instant::now() + INTERVAL;
        Ok(())
    }

    /// Like [`Self::end_interval`], for the datapaths of these processes.
    pub(super) fn end_datapath_interval(&mut self, members: &[u32]) -> Result<Next, Failure> {
        if self.searched.is_none_or(|searched| searched.elapsed() > SEARCH_INTERVAL) || self.engaged.is_empty() {
            self.searched = Some(Instant::now());
            self.engage_datapaths(members)?;
        }
        if self.engaged.is_empty() {
            return Ok(Next::CheckAfter(Duration::from_millis(50)));
        }
        self.end_interval(members)
    }

    /// Ends the interval if it is over, and prints changes. Returns when to call again.
    pub(super) fn end_interval(&mut self, members: &[u32]) -> Result<Next, Failure> {
        let left = self.next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Ok(Next::CheckAfter(left));
        }
        self.next = Instant::now() + INTERVAL;
        let now = Nanos::from_nanos(self.began.elapsed().as_nanos() as u64);
        // A datapath ends with its process.
        self.engaged.retain(|one| one.target.pid().is_none_or(|pid| members.contains(&pid)));
        for engaged in &mut self.engaged {
            if let TuneTarget::Kernel(kernel) = &mut engaged.target {
                kernel.set_server(members.to_vec());
            }
            let target = engaged.target.tunable();
            if !target.is_ready()? {
                self.next = Instant::now() + Duration::from_millis(20);
                continue;
            }
            let decision = engaged.tuner.end_interval(target, now)?;
            if decision.changes() || decision.is_reported {
                eprintln!(
                    "abey: {}",
                    TuneRow::new(&engaged.target.name(), &decision, self.goal).line(false).trim_start()
                );
            }
        }
        Ok(Next::CheckAfter(self.next.saturating_duration_since(Instant::now())))
    }

    /// Restores settings that outlive the program.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for engaged in self.engaged {
            let finished = match engaged.target {
                TuneTarget::Kernel(kernel) => kernel.finish(false),
                // The settings of a datapath end with its process.
                TuneTarget::Datapath(_) => Ok(()),
            };
            outcome = outcome.and(finished);
        }
        Ok(outcome?)
    }
}
