//! One interval after the other: sample, decide, apply. Independent of the kernel, the datapath and the clock.

use abey_delivery::{ModeSettings, Nanos};
use abey_tune::{Controller, Sample};

use crate::TuneError;

/// A target whose delivery settings can be changed while it runs.
pub trait Tunable {
    /// Begins an interval: events before this call are not in the next sample. `changed`: the settings differ from those of the
    /// last interval.
    ///
    /// # Errors
    /// When counters cannot be read or the target has ended.
    fn begin(&mut self, changed: bool) -> Result<(), TuneError>;

    /// Returns what happened since the interval began.
    ///
    /// # Errors
    /// When counters cannot be read or the target has ended.
    fn sample(&mut self) -> Result<Sample, TuneError>;

    /// Applies settings, all or none.
    ///
    /// # Errors
    /// [`ApplyFailure::Settings`] when other settings may succeed, [`ApplyFailure::Target`] otherwise.
    fn apply(&mut self, settings: &ModeSettings) -> Result<(), ApplyFailure>;

    /// Returns whether the source of latencies, if any, has a figure for the interval.
    ///
    /// # Errors
    /// When the source of latencies has failed.
    fn is_ready(&mut self) -> Result<bool, TuneError>;

    /// Checks that the applied settings are still in force, and applies them again where they are not. An interval with such an
    /// interruption is not judged.
    ///
    /// # Errors
    /// When settings cannot be read or applied again.
    fn restore_interrupted(&mut self) -> Result<Option<Interruption>, TuneError> {
        Ok(None)
    }
}

/// Settings that were not in force during the whole interval.
#[derive(Clone, Debug)]
pub struct Interruption {
    /// What happened, and what was done about it.
    pub reason: String,
    /// Whether it has not been reported before.
    pub is_reported: bool,
}

/// Why settings were not applied.
pub enum ApplyFailure {
    /// These settings cannot be applied; others may.
    Settings(String),
    /// The target can no longer be changed.
    Target(TuneError),
}

impl ApplyFailure {
    /// Converts into an error, where no other settings can be tried.
    pub fn into_error(self) -> TuneError {
        match self {
            Self::Settings(reason) => TuneError::Failed(reason),
            Self::Target(error) => error,
        }
    }
}

/// A controller and the settings that are in force.
pub struct Tuner {
    controller: Controller,
    in_force: ModeSettings,
    dry_run: bool,
}

/// The outcome of one interval.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Time since the tuner started.
    pub at: Nanos,
    /// The sample of the interval; `None` at the start and after an interruption.
    pub sample: Option<Sample>,
    /// The settings during the interval.
    pub before: ModeSettings,
    /// The settings from now on.
    pub settings: ModeSettings,
    /// The reason, for the user.
    pub reason: String,
    /// Whether to report it even if nothing changes.
    pub is_reported: bool,
}

impl Decision {
    /// Returns whether the settings change.
    pub fn changes(&self) -> bool {
        self.before != self.settings
    }
}

/// How many decisions in a row may be refused before tuning ends.
const MAX_REFUSALS: usize = 16;

impl Tuner {
    /// Creates a tuner of a target whose settings are `present`. With `dry_run` it applies nothing.
    pub fn new(controller: Controller, present: ModeSettings, dry_run: bool) -> Self {
        Self { controller, in_force: present, dry_run }
    }

    /// Applies the controller's initial settings and begins the first interval.
    ///
    /// # Errors
    /// When the target cannot be changed or read.
    pub fn start(&mut self, target: &mut dyn Tunable) -> Result<Decision, TuneError> {
        let desired = self.controller.settings();
        let decision = self.change(target, Nanos::ZERO, desired, None, "the beginning".to_owned())?;
        target.begin(true)?;
        Ok(decision)
    }

    /// Ends an interval, decides, applies, and begins the next one.
    ///
    /// # Errors
    /// When the target cannot be changed or read.
    pub fn end_interval(&mut self, target: &mut dyn Tunable, now: Nanos) -> Result<Decision, TuneError> {
        if let Some(Interruption { reason, is_reported }) = target.restore_interrupted()? {
            target.begin(true)?;
            let (before, settings) = (self.in_force, self.in_force);
            return Ok(Decision { at: now, sample: None, before, settings, reason, is_reported });
        }
        let sample = target.sample()?;
        let step = self.controller.handle_sample(now, &sample);
        let decision = self.change(target, now, step.settings, Some(sample), step.reason.to_string())?;
        target.begin(decision.changes())?;
        Ok(decision)
    }

    /// Applies `desired`, or what the controller chooses next where the target refuses that.
    fn change(
        &mut self,
        target: &mut dyn Tunable,
        at: Nanos,
        mut desired: ModeSettings,
        sample: Option<Sample>,
        mut reason: String,
    ) -> Result<Decision, TuneError> {
        let before = self.in_force;
        for _ in 0..MAX_REFUSALS {
            if desired == self.in_force || self.dry_run {
                return Ok(Decision { at, sample, before, settings: desired, reason, is_reported: false });
            }
            match target.apply(&desired) {
                Ok(()) => self.in_force = desired,
                Err(ApplyFailure::Target(error)) => return Err(error),
                Err(ApplyFailure::Settings(refusal)) => {
                    self.controller.reject(at, &desired);
                    reason = format!("{refusal}; so another is taken");
                    desired = self.controller.settings();
                }
            }
        }
        Err(TuneError::failed(format!("{MAX_REFUSALS} choices in a row were refused; the last: {reason}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abey_delivery::{Family, Mode};
    use abey_tune::{Bounds, Goal, Latency};

    /// A server whose CPU falls with the deferral and whose latency rises with it, at a load that steps.
    struct Fake {
        settings: ModeSettings,
        load: u64,
        applied: Vec<ModeSettings>,
        refuses: Option<Family>,
        has_ended: bool,
        interrupted: bool,
    }

    impl Tunable for Fake {
        fn begin(&mut self, _: bool) -> Result<(), TuneError> {
            Ok(())
        }

        fn sample(&mut self) -> Result<Sample, TuneError> {
            if self.has_ended {
                return Err(TuneError::failed("it has ended"));
            }
            let flush = self.settings.napi.gro_flush_timeout.as_nanos() / 1_000;
            let per_packet = 10.0 / (1.0 + flush as f64 / 50.0);
            let latency = Latency {
                count: self.load / 2,
                p50: Nanos::from_micros(20 + flush / 2),
                p99: Nanos::from_micros(60 + flush),
            };
            Ok(Sample {
                interval: Nanos::from_millis(500),
                packets: self.load / 2,
                polls: self.load / 4,
                empty_polls: 0,
                cpu: self.load as f64 * per_packet / 1e6,
                latency: Some(latency),
            })
        }

        fn apply(&mut self, settings: &ModeSettings) -> Result<(), ApplyFailure> {
            if self.refuses == Some(Family::of(settings)) {
                return Err(ApplyFailure::Settings("this device has no such thing".to_owned()));
            }
            self.settings = *settings;
            self.applied.push(*settings);
            Ok(())
        }

        fn is_ready(&mut self) -> Result<bool, TuneError> {
            Ok(true)
        }

        fn restore_interrupted(&mut self) -> Result<Option<Interruption>, TuneError> {
            let interrupted = std::mem::take(&mut self.interrupted);
            Ok(interrupted.then(|| Interruption { reason: "they were lost".to_owned(), is_reported: true }))
        }
    }

    fn fake() -> Fake {
        let settings = Mode::Base.settings();
        Fake { settings, load: 5_000, applied: Vec::new(), refuses: None, has_ended: false, interrupted: false }
    }

    fn controller(goal: &str) -> Controller {
        Controller::new(goal.parse::<Goal>().expect("a goal"), Bounds::default(), None).expect("a controller")
    }

    /// Half a minute at each load.
    fn run(tuner: &mut Tuner, target: &mut Fake, loads: &[u64]) -> Vec<Decision> {
        let mut decisions = vec![tuner.start(target).expect("started")];
        for (phase, load) in loads.iter().enumerate() {
            target.load = *load;
            for tick in 1..=60 {
                let at = Nanos::from_millis(500 * (60 * phase as u64 + tick));
                decisions.push(tuner.end_interval(target, at).expect("a decision"));
            }
        }
        decisions
    }

    #[test]
    fn decisions_hold_the_goal_and_report_the_settings_in_force() {
        let mut target = fake();
        let mut tuner = Tuner::new(controller("p99=250us"), target.settings, false);
        let decisions = run(&mut tuner, &mut target, &[5_000, 60_000, 5_000]);
        let changes: Vec<ModeSettings> =
            decisions.iter().filter(|decision| decision.changes()).map(|decision| decision.settings).collect();
        assert_eq!(changes, target.applied);
        assert!(!changes.is_empty() && decisions.iter().all(|decision| !decision.reason.is_empty()));
        assert!(decisions.windows(2).all(|pair| pair[0].settings == pair[1].before));
        let (last, sample) = decisions.last().map(|decision| (decision.settings, decision.sample)).expect("decisions");
        assert_eq!(last, target.settings);
        assert!(sample.and_then(|sample| sample.latency).is_some_and(|latency| latency.p99 <= Nanos::from_micros(250)));
    }

    #[test]
    fn an_interval_with_an_interruption_is_not_judged() {
        let mut target = fake();
        let mut tuner = Tuner::new(controller("p99=250us"), target.settings, false);
        run(&mut tuner, &mut target, &[5_000]);
        target.interrupted = true;
        let decision = tuner.end_interval(&mut target, Nanos::from_millis(31_000)).expect("a decision");
        assert!(
            decision.is_reported
                && !decision.changes()
                && decision.sample.is_none()
                && decision.reason == "they were lost",
            "{decision:?}"
        );
        assert!(tuner.end_interval(&mut target, Nanos::from_millis(31_500)).expect("a decision").sample.is_some());
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let mut target = fake();
        let mut tuner = Tuner::new(controller("p99=250us"), target.settings, true);
        let decisions = run(&mut tuner, &mut target, &[5_000]);
        assert!(target.applied.is_empty() && decisions.iter().all(|decision| decision.before == Mode::Base.settings()));
    }

    #[test]
    fn refused_settings_are_replaced_and_a_target_that_has_ended_is_an_error() {
        let mut target = Fake { refuses: Some(Family::Suspend), ..fake() };
        let mut tuner = Tuner::new(controller("p99=250us"), target.settings, false);
        run(&mut tuner, &mut target, &[5_000, 60_000]);
        assert!(target.applied.iter().all(|settings| Family::of(settings) != Family::Suspend));
        let mut target = Fake { has_ended: true, ..fake() };
        let mut tuner = Tuner::new(controller("p99=250us"), target.settings, false);
        tuner.start(&mut target).expect("started");
        assert!(
            tuner.end_interval(&mut target, Nanos::from_millis(500)).is_err(),
            "a device that has disappeared ends it"
        );
    }
}
