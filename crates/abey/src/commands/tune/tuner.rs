//! The loop of `abey tune`: an interval, a sample, a decision, and what is made of it. It knows neither the kernel nor a
//! datapath nor a clock.

use abey_delivery::{ModeSettings, Nanos};
use abey_tune::{Controller, Sample};

use crate::failure::Failure;

/// What is tuned.
pub(crate) trait Plant {
    /// An interval begins: what was before is not in the next sample. `changed`: under other settings than the last one.
    fn begin(&mut self, changed: bool) -> Result<(), Failure>;

    /// What happened since it began.
    fn sample(&mut self) -> Result<Sample, Failure>;

    /// Gives it other settings, all or none.
    fn apply(&mut self, settings: &ModeSettings) -> Result<(), Refused>;

    /// Whether whoever sees latencies has something to say of the interval.
    fn is_ready(&mut self) -> Result<bool, Failure>;

    /// Sees to it that what was given is in force still. If it was not, the interval says nothing.
    fn keep(&mut self) -> Result<Option<Lost>, Failure> {
        Ok(None)
    }
}

/// Settings that were not in force all the time.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// What happened, and what was done.
    pub(crate) why: String,
    /// Whether that was not said before.
    pub(crate) is_news: bool,
}

/// Why settings were not taken.
pub(crate) enum Refused {
    /// These cannot be had; others may.
    Settings(String),
    /// Nothing can be done any more.
    Lost(Failure),
}

impl Refused {
    /// Where there is no other choice.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Settings(why) => Failure::check(why),
            Self::Lost(failure) => failure,
        }
    }
}

/// A controller at work.
pub(crate) struct Tuner {
    controller: Controller,
    in_force: ModeSettings,
    /// Nothing is changed.
    dry: bool,
}

/// What one look led to.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// Since the beginning.
    pub(crate) at: Nanos,
    /// What was seen; nothing at the beginning.
    pub(crate) sample: Option<Sample>,
    /// The settings that it was seen under.
    pub(crate) before: ModeSettings,
    /// The settings from here on.
    pub(crate) settings: ModeSettings,
    /// Why.
    pub(crate) reason: String,
    /// Whether something happened that is to be said, though nothing changes.
    pub(crate) is_news: bool,
}

impl Look {
    /// Whether other settings are in force from here on.
    pub(crate) fn changes(&self) -> bool {
        self.before != self.settings
    }
}

/// How many choices in a row may be refused before it is given up.
const REFUSALS: usize = 16;

impl Tuner {
    /// `present` is what is in force now. A tuner that is `dry` changes nothing.
    pub(crate) fn new(controller: Controller, present: ModeSettings, dry: bool) -> Self {
        Self { controller, in_force: present, dry }
    }

    /// Applies what the controller begins with, and begins the first interval.
    pub(crate) fn start(&mut self, plant: &mut dyn Plant) -> Result<Look, Failure> {
        let wanted = self.controller.settings();
        let look = self.change(plant, Nanos::ZERO, wanted, None, "the beginning".to_owned())?;
        plant.begin(true)?;
        Ok(look)
    }

    /// Ends an interval, decides, and begins the next.
    pub(crate) fn look(&mut self, plant: &mut dyn Plant, now: Nanos) -> Result<Look, Failure> {
        if let Some(Lost { why, is_news }) = plant.keep()? {
            plant.begin(true)?;
            let (before, settings) = (self.in_force, self.in_force);
            return Ok(Look { at: now, sample: None, before, settings, reason: why, is_news });
        }
        let sample = plant.sample()?;
        let step = self.controller.handle_sample(now, &sample);
        let look = self.change(plant, now, step.settings, Some(sample), step.reason.to_string())?;
        plant.begin(look.changes())?;
        Ok(look)
    }

    /// Makes the change, or another where that one is refused.
    fn change(
        &mut self,
        plant: &mut dyn Plant,
        at: Nanos,
        mut wanted: ModeSettings,
        sample: Option<Sample>,
        mut reason: String,
    ) -> Result<Look, Failure> {
        let before = self.in_force;
        for _ in 0..REFUSALS {
            if wanted == self.in_force || self.dry {
                return Ok(Look { at, sample, before, settings: wanted, reason, is_news: false });
            }
            match plant.apply(&wanted) {
                Ok(()) => self.in_force = wanted,
                Err(Refused::Lost(failure)) => return Err(failure),
                Err(Refused::Settings(why)) => {
                    self.controller.reject(at, &wanted);
                    reason = format!("{why}; so another is taken");
                    wanted = self.controller.settings();
                }
            }
        }
        Err(Failure::check(format!("one choice after the other was refused; the last: {reason}")))
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
        gone: bool,
        lost: bool,
    }

    impl Plant for Fake {
        fn begin(&mut self, _: bool) -> Result<(), Failure> {
            Ok(())
        }

        fn sample(&mut self) -> Result<Sample, Failure> {
            if self.gone {
                return Err(Failure::check("gone"));
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

        fn apply(&mut self, settings: &ModeSettings) -> Result<(), Refused> {
            if self.refuses == Some(Family::of(settings)) {
                return Err(Refused::Settings("this device has no such thing".to_owned()));
            }
            self.settings = *settings;
            self.applied.push(*settings);
            Ok(())
        }

        fn is_ready(&mut self) -> Result<bool, Failure> {
            Ok(true)
        }

        fn keep(&mut self) -> Result<Option<Lost>, Failure> {
            let lost = std::mem::take(&mut self.lost);
            Ok(lost.then(|| Lost { why: "they were gone".to_owned(), is_news: true }))
        }
    }

    fn fake() -> Fake {
        let settings = Mode::Base.settings();
        Fake { settings, load: 5_000, applied: Vec::new(), refuses: None, gone: false, lost: false }
    }

    fn controller(goal: &str) -> Controller {
        Controller::new(goal.parse::<Goal>().expect("a goal"), Bounds::default(), None).expect("a controller")
    }

    /// Half a minute at each load.
    fn run(tuner: &mut Tuner, plant: &mut Fake, loads: &[u64]) -> Vec<Look> {
        let mut looks = vec![tuner.start(plant).expect("started")];
        for (phase, load) in loads.iter().enumerate() {
            plant.load = *load;
            for tick in 1..=60 {
                let at = Nanos::from_millis(500 * (60 * phase as u64 + tick));
                looks.push(tuner.look(plant, at).expect("a look"));
            }
        }
        looks
    }

    #[test]
    fn settings_are_changed_within_the_goal_and_what_is_told_is_what_is_in_force() {
        let mut plant = fake();
        let mut tuner = Tuner::new(controller("p99=250us"), plant.settings, false);
        let looks = run(&mut tuner, &mut plant, &[5_000, 60_000, 5_000]);
        let changes: Vec<ModeSettings> = looks.iter().filter(|look| look.changes()).map(|look| look.settings).collect();
        assert_eq!(changes, plant.applied);
        assert!(!changes.is_empty() && looks.iter().all(|look| !look.reason.is_empty()));
        assert!(looks.windows(2).all(|pair| pair[0].settings == pair[1].before));
        let (last, sample) = looks.last().map(|look| (look.settings, look.sample)).expect("looks");
        assert_eq!(last, plant.settings);
        assert!(sample.and_then(|sample| sample.latency).is_some_and(|latency| latency.p99 <= Nanos::from_micros(250)));
    }

    #[test]
    fn an_interval_in_which_settings_were_lost_says_nothing() {
        let mut plant = fake();
        let mut tuner = Tuner::new(controller("p99=250us"), plant.settings, false);
        run(&mut tuner, &mut plant, &[5_000]);
        plant.lost = true;
        let look = tuner.look(&mut plant, Nanos::from_millis(31_000)).expect("a look");
        assert!(
            look.is_news && !look.changes() && look.sample.is_none() && look.reason == "they were gone",
            "{look:?}"
        );
        assert!(tuner.look(&mut plant, Nanos::from_millis(31_500)).expect("a look").sample.is_some());
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let mut plant = fake();
        let mut tuner = Tuner::new(controller("p99=250us"), plant.settings, true);
        let looks = run(&mut tuner, &mut plant, &[5_000]);
        assert!(plant.applied.is_empty() && looks.iter().all(|look| look.before == Mode::Base.settings()));
    }

    #[test]
    fn what_is_refused_is_not_tried_for_ever_and_something_else_is_taken() {
        let mut plant = Fake { refuses: Some(Family::Suspend), ..fake() };
        let mut tuner = Tuner::new(controller("p99=250us"), plant.settings, false);
        run(&mut tuner, &mut plant, &[5_000, 60_000]);
        assert!(plant.applied.iter().all(|settings| Family::of(settings) != Family::Suspend));
        let mut plant = Fake { gone: true, ..fake() };
        let mut tuner = Tuner::new(controller("p99=250us"), plant.settings, false);
        tuner.start(&mut plant).expect("started");
        assert!(tuner.look(&mut plant, Nanos::from_millis(500)).is_err(), "a device that has gone ends it");
    }
}
