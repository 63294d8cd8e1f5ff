//! The controller's rules.
//!
//! A goal limits one quantity and minimizes another. `p99=X` limits the 99th percentile of latency and minimizes CPU;
//! `cpu=Y` limits CPU and minimizes latency. The rules below are written for `p99=X`.
//!
//! *Feed forward, then correct.* The right settings depend mostly on the load, and the load is known from the very
//! sample in which it changes. So the controller responds to a step of the load with one decision: the settings that
//! were right there before or, at an unknown load, settings that the forecast considers safe even if the load's effect
//! is at the unfavourable end. Measurements correct that decision later.
//!
//! *Back at once, forward rarely.* When the goal is missed, and noise does not explain it, the next settings are the
//! cheapest that are known or expected to keep it with a margin. The choice that failed is stored, and avoided there
//! for an hour at first, then longer. The controller moves towards less CPU only when the goal has held for some
//! samples, when the gain is worth a change, and when [`Restraint`] allows it: a swing at constant load raises latency
//! twice.
//!
//! *Short trials of unknown families.* The cheapest family depends on the host. A family without knowledge near this
//! load is tried for three samples, if the forecast expects it to keep the goal, and stays if it pays; one sample is
//! enough to detect a high cost. Results at one load apply to its neighbours, and further: plain interrupts that do not
//! pay at a low load do not at a higher one either; suspension that does not pay at a high load does not at a lower
//! one. So there are few trials in a day.
//!
//! *Margin for noise.* A forecast is the value that is rarely exceeded: the mean plus two and a half measured
//! deviations. Settings come close to the goal at a steady load, and stay away from it at an unsteady one.
//!
//! *Stalls are not the settings' fault.* On a machine whose host, or whose firmware, takes the CPU away for
//! milliseconds, some samples have a tail that is independent of the settings. A sample far beyond what the settings
//! usually give at this load is counted as a stall and not stored, unless it is the third in a row. The more stalls a
//! machine has, the more evidence it takes against the settings.
//!
//! *Unmeasured latency* is replaced by a model: the timeout and two batches, from polls and CPU time ([`Sample`]). The
//! model excludes the network and most of the server, so half of the goal is reserved for those.
//!
//! *irq-suspend-timeout* does not affect the price: it must only exceed the time of the application between two polls,
//! and every further millisecond may delay other flows on the queue. So it is the shortest within the bounds that is
//! twenty times the time of a batch.

mod options;
mod trial;

use abey_delivery::{ModeSettings, Nanos};

use crate::bounds::Bounds;
use crate::choice::Choice;
use crate::forecast::NEAR;
use crate::goal::{Goal, ParseGoalError};
use crate::memory::{Lesson, Memory};
use crate::reason::{Reason, Why};
use crate::restraint::{Direction, Restraint};
use crate::sample::Sample;
use crate::watch::{GoalWatch, Hiccups, LoadWatch};
use options::cautious;

/// Share of the limit that forecasts must stay within.
const ROOM: f64 = 0.97;
/// Gains below this are not worth a change.
const WORTH: f64 = 0.02;
/// The same where the load has changed, and the settings still suit.
const WORTH_FOLLOWING: f64 = 0.04;
/// Samples between two searches for a better choice.
const CALM: u32 = 6;
/// Samples of a trial.
const TRIAL: u32 = 3;
/// Samples without a latency after which it counts as unmeasured.
const BLIND: u32 = 4;
/// Octaves of drift in load after which the choice is made anew.
const DRIFT: f64 = 0.25;

/// A controller's decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The settings from now on; always within the bounds.
    pub settings: ModeSettings,
    /// Whether the settings differ from those before. If so, apply them, and begin the next sample after that.
    pub changed: bool,
    /// The reason of the decision.
    pub reason: Reason,
}

/// The reason why a controller cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The goal cannot be met.
    #[error(transparent)]
    Goal(#[from] ParseGoalError),
    /// The initial settings are outside of the bounds.
    #[error("the settings to start with ({}) are outside of the bounds: start within them, or widen them", abey_delivery::describe(.0))]
    OutOfBounds(Box<ModeSettings>),
}

/// A controller for the settings of one NAPI instance, or of a group of queues that share a goal.
#[derive(Clone, Debug)]
pub struct Controller {
    goal: Goal,
    choices: Vec<Choice>,
    suspends: Vec<Nanos>,
    current: Choice,
    /// The choice to return to if the caller cannot apply the current one.
    previous: Choice,
    measured: Memory,
    estimated: Memory,
    is_estimated: bool,
    blind: u32,
    restraint: Restraint,
    load: LoadWatch,
    /// The load for which the current choice was made.
    chosen_at: Option<f64>,
    watch: GoalWatch,
    hiccups: Hiccups,
    /// Whether the next sample is the first after a change.
    settling: bool,
    /// Samples of the current choice since the last search for a better one, or since the trial began.
    calm: u32,
    /// The baseline of a trial.
    trial: Option<Choice>,
    /// CPU time of a batch, smoothed, in nanoseconds.
    batch: f64,
}

impl Controller {
    /// Returns a controller without any knowledge. Without `start` it begins with a cautious choice.
    ///
    /// # Errors
    /// Returns an error if the goal cannot be met, or if `start` is outside of the bounds.
    pub fn new(goal: Goal, bounds: Bounds, start: Option<ModeSettings>) -> Result<Self, StartError> {
        goal.validate()?;
        let choices = bounds.choices();
        let current = match start {
            Some(settings) => Choice::of(&settings)
                .filter(|_| bounds.contains(&settings))
                .ok_or_else(|| StartError::OutOfBounds(Box::new(settings)))?,
            None => cautious(goal, &choices),
        };
        Ok(Self {
            goal,
            choices,
            suspends: bounds.suspends(),
            current,
            previous: current,
            measured: Memory::default(),
            estimated: Memory::default(),
            is_estimated: false,
            blind: 0,
            restraint: Restraint::default(),
            load: LoadWatch::default(),
            chosen_at: None,
            watch: GoalWatch::default(),
            hiccups: Hiccups::default(),
            settling: true,
            calm: 0,
            trial: None,
            batch: 0.0,
        })
    }

    /// Returns the goal.
    pub const fn goal(&self) -> Goal {
        self.goal
    }

    /// Returns the settings that should be in effect now, also before the first sample.
    pub fn settings(&self) -> ModeSettings {
        self.current.settings()
    }

    /// Decides on the next settings, from a sample taken under [`settings`](Self::settings). A sample without traffic
    /// or with invalid figures changes nothing. `now` must not decrease.
    pub fn handle_sample(&mut self, now: Nanos, sample: &Sample) -> Step {
        let from = self.current;
        let why = self.decide(now, sample);
        let latency = sample.measured().map(|latency| latency.p99);
        let estimate = || Nanos::from_nanos(sample.estimated_wait(from.flush) as u64);
        let load = sample.load();
        Step {
            settings: self.settings(),
            changed: self.current != from,
            reason: Reason {
                why,
                goal: self.goal,
                load,
                latency: latency.or_else(|| (self.is_estimated && load.is_some()).then(estimate)),
                cpu: load.map(|_| sample.cpu),
                from: from.settings(),
                to: self.settings(),
                estimated: self.is_estimated && latency.is_none(),
            },
        }
    }

    /// Records that `settings` could not be applied: they are not chosen again for hours. If they are the current ones,
    /// the previous ones become current again; read them from [`settings`](Self::settings).
    pub fn reject(&mut self, now: Nanos, settings: &ModeSettings) {
        let Some(choice) = Choice::of(settings) else { return };
        self.restraint.rejected(now, choice);
        if choice == self.current {
            self.current = self.previous;
            self.restart();
        }
    }

    fn decide(&mut self, now: Nanos, sample: &Sample) -> Why {
        let Some(load) = sample.load() else { return Why::Quiet };
        let Some(lesson) = self.see(load, sample) else { return Why::Unseen };
        let stepped = self.load.follow(load, sample.packets);
        if stepped {
            return self.follow_load(now, load);
        }
        if std::mem::take(&mut self.settling) {
            // The sample is partly of the previous settings. If its cost or latency is already too high, there is no
            // reason to wait.
            let is_over = self.trial.is_some() && (self.costs_far_more(&lesson, load) || self.misses(&lesson, false));
            if !is_over {
                return Why::Settling;
            }
            let current = self.current;
            self.memory_mut().learn(now, current, lesson);
            return self.end_trial(now, load);
        }
        let proven = self.is_proven(load);
        let current = self.current;
        let lesson = self.without_hiccups(lesson);
        self.memory_mut().learn(now, current, lesson);
        self.calm += 1;
        let load = self.load.load().unwrap_or(load);
        if self.misses(&lesson, proven) {
            return self.back_off(now, load, Why::Missed, proven);
        }
        if self.trial.is_some() {
            let is_over = self.calm >= TRIAL || self.costs_far_more(&lesson, load);
            return if is_over { self.end_trial(now, load) } else { Why::Trial };
        }
        let drift = self.chosen_at.map_or(f64::INFINITY, |at| libm::log2(load / at).abs());
        if drift > DRIFT {
            return self.follow_load(now, load);
        }
        if self.calm < CALM { Why::Holds } else { self.improve(now, load) }
    }

    /// Converts a sample to the units of the memory that it belongs to.
    fn see(&mut self, load: f64, sample: &Sample) -> Option<Lesson> {
        let productive = sample.polls.saturating_sub(sample.empty_polls);
        if productive > 0 {
            let batch = sample.cpu * sample.interval.as_nanos() as f64 / productive as f64;
            self.batch = if self.batch == 0.0 { batch } else { self.batch + 0.1 * (batch - self.batch) };
        }
        match (sample.measured(), sample.latency) {
            (Some(latency), _) => {
                self.blind = 0;
                self.set_estimated(false);
                let p99 = latency.p99.as_nanos() as f64;
                let noise = p99 * (1.0 / (latency.count as f64).sqrt()).clamp(0.01, 0.15);
                Some(Lesson { load, latency: p99, latency_counts: true, noise, cpu: sample.cpu })
            }
            (None, Some(_)) => None,
            (None, None) => {
                self.blind = self.blind.saturating_add(1);
                if self.blind < BLIND && !self.is_estimated {
                    return None;
                }
                self.set_estimated(true);
                let latency = sample.estimated_wait(self.current.flush);
                Some(Lesson { load, latency, latency_counts: true, noise: latency * 0.05, cpu: sample.cpu })
            }
        }
    }

    /// Returns the lesson of a sample. Its latency does not count if it is far from what these settings usually give
    /// here.
    fn without_hiccups(&mut self, lesson: Lesson) -> Lesson {
        let known = self.memory().exact(self.current, lesson.load);
        let Some(is_far_out) = known.map(|cell| cell.is_far_out(lesson.latency)) else { return lesson };
        Lesson { latency_counts: !self.hiccups.follow(is_far_out), ..lesson }
    }

    fn set_estimated(&mut self, is_estimated: bool) {
        if self.is_estimated != is_estimated {
            self.is_estimated = is_estimated;
            self.restart();
        }
    }

    /// Returns whether the goal is missed, and noise does not explain it.
    fn misses(&mut self, lesson: &Lesson, proven: bool) -> bool {
        let (limit, hiccups) = (self.limit(), self.hiccups);
        match self.goal {
            Goal::P99(_) => self.watch.follow(lesson.latency, limit, lesson.noise, proven, hiccups),
            Goal::Cpu(_) => self.watch.follow(lesson.cpu, limit, lesson.cpu * 0.02 + 0.002, proven, hiccups),
        }
    }

    /// Handles a changed load.
    fn follow_load(&mut self, now: Nanos, load: f64) -> Why {
        self.chosen_at = Some(load);
        let Some(here) = self.memory().forecast(self.current, load) else { return Why::LoadChangedKept };
        let suits = self.held(&here) <= self.limit() * ROOM && !self.forbids(now, self.current, load);
        match self.best(now, load) {
            Some((best, there)) => {
                let away = there.away.unwrap_or_default();
                let gain = self.gain(&there, &here);
                let worth = gain >= WORTH_FOLLOWING && self.restraint.allows_gain(now, load, away > 0);
                if best == self.current || (suits && !worth) {
                    let why = self.keep(Why::LoadChangedKept);
                    // At an unknown load there may be more to gain, so the search begins at once.
                    self.calm = if here.away > Some(NEAR) { CALM - TRIAL } else { 0 };
                    return why;
                }
                self.restraint.followed();
                self.take(load, best);
                Why::LoadChanged { away }
            }
            None => self.reach(now, load, Direction::Back, Why::LoadChangedKept),
        }
    }

    /// Returns to settings that keep the goal.
    fn back_off(&mut self, now: Nanos, load: f64, why: Why, proven: bool) -> Why {
        let proven = proven || (self.watch.has_held() && self.trial.is_none());
        if self.trial.is_some() {
            self.restraint.failed_to_pay(now, self.current.family, load);
        }
        self.restraint.failed(now, self.current, load, proven);
        let Some(here) = self.memory().forecast(self.current, load) else { return why };
        let home = self.trial.take().and_then(|home| Some((home, self.memory().forecast(home, load)?)));
        let home =
            home.filter(|(_, forecast)| self.held(forecast) <= self.limit() && self.held(forecast) < self.held(&here));
        match home.or_else(|| self.best(now, load)) {
            Some((best, there)) if best != self.current && self.held(&there) < self.held(&here) => {
                self.restraint.moved(now, load, Direction::Back);
                self.take(load, best);
                why
            }
            _ => self.reach(now, load, Direction::Back, Why::OutOfReach),
        }
    }

    /// Takes the nearest choice where no choice keeps the goal, if it is much nearer.
    fn reach(&mut self, now: Nanos, load: f64, direction: Direction, otherwise: Why) -> Why {
        let nearest = self.nearest_to_goal(now, load);
        let here = self.memory().forecast(self.current, load);
        self.watch = GoalWatch::default();
        self.trial = None;
        // A choice that usually keeps the goal here missed it by chance, and no choice is known to be safer.
        let by_chance = self.usually_keeps(load);
        match (nearest, here) {
            (Some((nearest, there)), Some(here)) if !by_chance && self.held(&there) < 0.95 * self.held(&here) => {
                self.restraint.moved(now, load, direction);
                self.take(load, nearest);
                Why::OutOfReach
            }
            _ => {
                self.restraint.pardoned(self.current, load);
                self.keep(otherwise)
            }
        }
    }

    /// Searches for a better choice while the goal holds.
    fn improve(&mut self, now: Nanos, load: f64) -> Why {
        self.calm = 0;
        let Some(here) = self.memory().forecast(self.current, load) else { return Why::Holds };
        if self.room_is_thin(load) {
            return self.back_off(now, load, Why::RoomTooThin, true);
        }
        if let Some(why) = self.lengthen_suspension() {
            return why;
        }
        let mut held_up = false;
        if let Some((best, there)) = self.best(now, load).filter(|(best, _)| !best.is_alike(self.current)) {
            let gain = self.gain(&there, &here);
            let known = self.memory().exact(best, load).is_some_and(|cell| cell.samples >= TRIAL);
            let well_within = there.away == Some(0) && self.held(&there) <= 0.93 * self.limit();
            if gain >= WORTH && self.restraint.allows_gain(now, load, !known && !well_within) {
                self.restraint.moved(now, load, Direction::Gain);
                self.take(load, best);
                return Why::Gain(gain);
            }
            held_up = gain >= WORTH;
        }
        match self.untried(now, load) {
            Some(choice) if self.restraint.allows_gain(now, load, true) => {
                self.restraint.moved(now, load, Direction::Gain);
                let home = self.current;
                self.take(load, choice);
                self.trial = Some(home);
                Why::Trial
            }
            Some(_) => Why::Restrained,
            None if held_up => Why::Restrained,
            None => Why::Holds,
        }
    }

    /// Lengthens an irq-suspend-timeout that the batches exceed.
    fn lengthen_suspension(&mut self) -> Option<Why> {
        let wanted = self.with_suspend(self.current);
        (wanted.suspend > self.current.suspend).then(|| {
            self.previous = std::mem::replace(&mut self.current, wanted);
            self.settling = true;
            Why::LongerSuspension
        })
    }

    fn take(&mut self, load: f64, choice: Choice) {
        self.previous = std::mem::replace(&mut self.current, choice);
        self.chosen_at = Some(load);
        self.restart();
    }

    /// Resets the observation of the current settings.
    fn restart(&mut self) {
        self.watch = GoalWatch::default();
        self.settling = true;
        self.calm = 0;
        self.trial = None;
    }

    fn keep(&mut self, why: Why) -> Why {
        self.trial = None;
        self.calm = 0;
        why
    }

    fn memory(&self) -> &Memory {
        if self.is_estimated { &self.estimated } else { &self.measured }
    }

    fn memory_mut(&mut self) -> &mut Memory {
        if self.is_estimated { &mut self.estimated } else { &mut self.measured }
    }
}
