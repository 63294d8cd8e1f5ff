//! The policy: what is decided, and when.
//!
//! A goal has a side that must hold and a side that is to be small. Under `p99=X` the 99th percentile must hold, and CPU is
//! to be small; under `cpu=Y` it is the other way round. What follows is said for the first.
//!
//! *Feed forward, then correct.* The load decides most of what is right, and it is seen in the very sample in which it
//! changes. So a step of the load is answered in one decision: with what was right there before or, where nothing is known,
//! with what the forecast holds to be safe even if the load's effect is at the unkind end. Only then does measuring correct.
//!
//! *Back at once, forward rarely.* When the goal is missed, and it is not chance, the next settings are the cheapest that are
//! known or expected to keep it, well within it. The choice that failed is remembered, and avoided there for an hour at
//! first, then longer. Towards less CPU the controller moves only when the goal has held for some samples, when the gain is
//! worth a change, and when restraint allows: a swing at constant load costs somebody latency, twice.
//!
//! *Try what is unknown, briefly.* Which family is cheapest depends on the host. A family of which nothing is known near
//! this load is tried for three samples, if a guess says that the goal would hold, and kept if it pays; one sample is enough
//! to see that it is dear. What is learned at one load serves its neighbours, and more: plain interrupts that do not pay at a
//! low load do not at a higher one either, and suspension is the other way round. So there are few trials in a day.
//!
//! *Room for chance.* A forecast is of what is hardly exceeded: the mean and two and a half deviations, as they were seen.
//! A steady load gets close to its goal, and an unsteady one keeps away from it.
//!
//! *A stall is nobody's fault.* A machine whose host, or whose firmware, takes the CPU away for milliseconds has samples with a
//! tail that no settings made. A sample far beyond what the settings usually give at this load is counted as such and is no
//! lesson, unless it is the third in a row; the more of them a machine has, the more it takes to hold the settings at fault.
//!
//! *Where latency is not seen* a model stands in: the timeout and two batches, as polls and CPU time tell
//! ([`Sample`]). It knows nothing of the network and little of the server, so half of the goal is left to those.
//!
//! *irq-suspend-timeout* is no matter of price: it must only outlast what the application does between two polls, and every
//! millisecond more is what other flows on the queue may have to wait. So it is the shortest within the bounds that is twenty
//! times the time of a batch.

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

/// Forecasts keep this far within the limit.
const ROOM: f64 = 0.97;
/// Gains below this are not worth a change.
const WORTH: f64 = 0.02;
/// The same where the load has changed, and the settings still suit.
const WORTH_FOLLOWING: f64 = 0.04;
/// Samples between two looks for something better.
const CALM: u32 = 6;
/// Samples of a trial.
const TRIAL: u32 = 3;
/// Samples without a latency after which nobody sees it.
const BLIND: u32 = 4;
/// Octaves that the load may drift before what is right is looked up again.
const DRIFT: f64 = 0.25;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The settings from now on; always within the bounds.
    pub settings: ModeSettings,
    /// Whether they differ from those before: they are to be applied, and the next sample is to begin after that.
    pub changed: bool,
    /// Why.
    pub reason: Reason,
}

/// Why a controller cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The goal can never be.
    #[error(transparent)]
    Goal(#[from] ParseGoalError),
    /// It would leave the bounds before it began.
    #[error("the settings to start with ({}) are outside of the bounds: start within them, or widen them", abey_delivery::describe(.0))]
    OutOfBounds(Box<ModeSettings>),
}

/// Steers the settings of one NAPI instance, or of a group of queues that share a goal.
#[derive(Clone, Debug)]
pub struct Controller {
    goal: Goal,
    choices: Vec<Choice>,
    suspends: Vec<Nanos>,
    current: Choice,
    /// What to go back to if the world cannot apply the current one.
    previous: Choice,
    measured: Memory,
    estimated: Memory,
    is_estimated: bool,
    blind: u32,
    restraint: Restraint,
    load: LoadWatch,
    /// The load that the current choice was made for.
    chosen_at: Option<f64>,
    watch: GoalWatch,
    hiccups: Hiccups,
    /// The next sample is the first after a change.
    settling: bool,
    /// Samples of the current choice since the last look for something better, or since the trial began.
    calm: u32,
    /// What a trial is compared with.
    trial: Option<Choice>,
    /// CPU time of a batch, smoothed, in nanoseconds.
    batch: f64,
}

impl Controller {
    /// A controller that has seen nothing. Without `start` it begins with a cautious choice.
    ///
    /// # Errors
    /// If the goal can never be met, or `start` is outside of the bounds.
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

    /// What the controller steers for.
    pub const fn goal(&self) -> Goal {
        self.goal
    }

    /// The settings that should be in effect now, also before the first sample.
    pub fn settings(&self) -> ModeSettings {
        self.current.settings()
    }

    /// Takes what happened since the last time, under [`settings`](Self::settings), and says what to do. Samples without
    /// traffic or sense change nothing. `now` never goes back.
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

    /// Takes note that `settings` could not be applied: they are not chosen again for hours. If they are the current ones
    /// then those before are, which [`settings`](Self::settings) tells.
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
            // Part of it was under the settings before, and dear or late already: there is nothing to wait for.
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

    /// What a sample says, in the terms of whichever memory it belongs to.
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

    /// The lesson, and whether its latency is one: not if it is far from what these settings usually give here.
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

    /// Whether the goal is missed, and not by chance.
    fn misses(&mut self, lesson: &Lesson, proven: bool) -> bool {
        let (limit, hiccups) = (self.limit(), self.hiccups);
        match self.goal {
            Goal::P99(_) => self.watch.follow(lesson.latency, limit, lesson.noise, proven, hiccups),
            Goal::Cpu(_) => self.watch.follow(lesson.cpu, limit, lesson.cpu * 0.02 + 0.002, proven, hiccups),
        }
    }

    /// Answers a load that has changed.
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
                    // On new ground there is more to find, and nothing to wait for.
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

    /// Goes back to what keeps the goal.
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

    /// Where nothing keeps the goal: what comes nearest, if it comes much nearer.
    fn reach(&mut self, now: Nanos, load: f64, direction: Direction, otherwise: Why) -> Why {
        let nearest = self.nearest_to_goal(now, load);
        let here = self.memory().forecast(self.current, load);
        self.watch = GoalWatch::default();
        self.trial = None;
        // What usually keeps it here was missed by chance, and nothing is known to be safer.
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

    /// Looks for something better where the goal holds.
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

    /// Lets a suspension that has become too short outlast the batches.
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

    /// Begins anew to watch what the current settings do.
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
