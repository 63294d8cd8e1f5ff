//! Trials: their progress and their result.

use abey_delivery::Nanos;

use super::{Controller, WORTH};
use crate::choice::Choice;
use crate::goal::Goal;
use crate::memory::Lesson;
use crate::reason::Why;
use crate::restraint::Direction;

/// Factor of the previous choice's CPU that ends a trial.
const FAR_MORE: f64 = 1.25;

impl Controller {
    /// Returns whether the trial can end early: the CPU of one sample suffices, while latency needs several.
    pub(super) fn costs_far_more(&self, lesson: &Lesson, load: f64) -> bool {
        let home = self.trial.and_then(|home| self.memory().forecast(home, load));
        matches!(self.goal, Goal::P99(_)) && home.is_some_and(|home| lesson.cpu > FAR_MORE * home.cpu)
    }

    /// Ends the trial.
    pub(super) fn end_trial(&mut self, now: Nanos, load: f64) -> Why {
        let Some(home) = self.trial.take() else { return Why::Holds };
        let memory = self.memory();
        let (Some(here), Some(there)) = (memory.forecast(self.current, load), memory.forecast(home, load)) else {
            return Why::Holds;
        };
        let gain = self.gain(&here, &there);
        if gain >= WORTH && self.held(&here) <= self.limit() {
            return self.keep(Why::TrialPaid(gain));
        }
        // The trial used a short timeout for caution. With its results, a longer one may pay.
        let is_further = |best: Choice| best.family == self.current.family && best.flush > self.current.flush;
        let further = self.best(now, load).filter(|(best, _)| is_further(*best));
        if let Some((best, gain)) = further.map(|(best, forecast)| (best, self.gain(&forecast, &there)))
            && gain >= WORTH
        {
            self.take(load, best);
            return Why::Gain(gain);
        }
        self.restraint.failed_to_pay(now, self.current.family, load);
        self.restraint.moved(now, load, Direction::Back);
        self.take(load, home);
        Why::TrialOver
    }
}
