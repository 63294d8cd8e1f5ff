//! The candidate choices, and their expected latency and CPU.

use abey_delivery::{Family, Nanos};

use super::{CALM, Controller, ROOM};
use crate::choice::Choice;
use crate::forecast::{Forecast, NEAR};
use crate::goal::Goal;
use crate::memory::Cell;

/// Share of a goal for latency that the host may use where only the host's share is measured.
const HOSTS_SHARE: f64 = 0.5;
/// Number of batches that irq-suspend-timeout must exceed.
const BATCHES: f64 = 20.0;

impl Controller {
    /// Returns the choice of the least price that keeps the goal, of a known family. Knowledge from near this load
    /// takes precedence over knowledge from far away, even if that is cheaper: the cost of a timer for each packet
    /// depends on the load.
    pub(super) fn best(&self, now: Nanos, load: f64) -> Option<(Choice, Forecast)> {
        let allowed = self.choices.iter().map(|choice| self.with_suspend(*choice));
        let known = allowed.filter_map(|choice| {
            let forecast = self.memory().known(choice, load)?;
            let keeps = self.held(&forecast) <= self.limit() * ROOM;
            (keeps && !self.forbids(now, choice, load)).then_some((choice, forecast))
        });
        known.min_by(|(_, a), (_, b)| {
            let is_far = |forecast: &Forecast| forecast.away.is_none_or(|away| away > NEAR);
            is_far(a).cmp(&is_far(b)).then(self.price(a).total_cmp(&self.price(b)))
        })
    }

    /// Returns a family without knowledge near this load that is likely to keep the goal.
    pub(super) fn untried(&self, now: Nanos, load: f64) -> Option<Choice> {
        let mut families: Vec<Family> = self.choices.iter().map(|choice| choice.family).collect();
        families.dedup();
        families
            .retain(|family| *family != self.current.family && !(spins(*family) && matches!(self.goal, Goal::P99(_))));
        // A family that both defers and, while the application is busy, avoids the timer comes before one that only
        // defers.
        families.sort_by_key(|family| *family != Family::Suspend);
        families.into_iter().find_map(|family| {
            let choice = self.trial_of(family, load)?;
            let known = self.memory().known(choice, load).and_then(|known| known.away).is_some_and(|away| away <= NEAR);
            let guess = self.memory().guess(choice, self.current, load)?;
            let may_hold = self.held(&guess) <= self.limit() * ROOM;
            let in_vain = self.restraint.tried_in_vain(now, family, load) || self.forbids(now, choice, load);
            (!known && may_hold && !in_vain).then_some(choice)
        })
    }

    /// Returns the choice to try a family with: the current timeout or, without one, the longest that is likely to keep
    /// a goal for latency, because a short one may cost a timer interrupt for every packet and then reveals little
    /// about the family.
    fn trial_of(&self, family: Family, load: f64) -> Option<Choice> {
        let of_family = || self.choices.iter().filter(|choice| choice.family == family);
        let flush = self.current.flush;
        let alike = of_family().min_by_key(|choice| choice.flush.as_nanos().abs_diff(flush.as_nanos()));
        let longest = || {
            of_family().rfind(|choice| {
                let guess = self.memory().guess(**choice, self.current, load);
                guess.is_some_and(|guess| self.held(&guess) <= self.limit() * ROOM)
            })
        };
        let choice = if flush.is_zero() && matches!(self.goal, Goal::P99(_)) { longest().or(alike) } else { alike };
        choice.map(|choice| self.with_suspend(*choice))
    }

    /// Returns whether the current choice has kept the goal at this load, with a margin for noise.
    pub(super) fn is_proven(&self, load: f64) -> bool {
        self.memory().exact(self.current, load).is_some_and(|cell| {
            let held = match self.goal {
                Goal::P99(_) => cell.latency.upper(),
                Goal::Cpu(_) => cell.cpu(load),
            };
            cell.samples >= CALM && held <= self.limit()
        })
    }

    /// Returns whether the current choice keeps the goal at this load most of the time, except for stalls of the
    /// machine.
    pub(super) fn usually_keeps(&self, load: f64) -> bool {
        let usual = |cell: &Cell| match self.goal {
            Goal::P99(_) => cell.latency.mean,
            Goal::Cpu(_) => cell.cpu(load),
        };
        self.memory().exact(self.current, load).is_some_and(|cell| usual(cell) <= self.limit() * ROOM)
    }

    /// Returns whether noise alone would break the goal now and then.
    pub(super) fn room_is_thin(&self, load: f64) -> bool {
        let Some(cell) = self.memory().exact(self.current, load).filter(|cell| cell.samples >= 2 * CALM) else {
            return false;
        };
        match self.goal {
            Goal::P99(_) => cell.latency.mean + 1.5 * cell.latency.deviation > self.limit(),
            Goal::Cpu(_) => cell.cpu(load) > self.limit(),
        }
    }

    pub(super) fn with_suspend(&self, choice: Choice) -> Choice {
        if choice.family != Family::Suspend {
            return choice;
        }
        let needed = (self.batch * BATCHES) as u64;
        let enough = self.suspends.iter().find(|span| span.as_nanos() >= needed);
        Choice { suspend: *enough.or(self.suspends.last()).unwrap_or(&choice.suspend), ..choice }
    }

    /// Returns the quantity that the goal limits.
    pub(super) fn held(&self, forecast: &Forecast) -> f64 {
        match self.goal {
            Goal::P99(_) => forecast.latency,
            Goal::Cpu(_) => forecast.cpu,
        }
    }

    /// Returns the quantity that the goal minimizes.
    pub(super) fn price(&self, forecast: &Forecast) -> f64 {
        match self.goal {
            Goal::P99(_) => forecast.cpu,
            Goal::Cpu(_) => forecast.latency,
        }
    }

    /// Returns the saving in price, as a share.
    pub(super) fn gain(&self, of: &Forecast, over: &Forecast) -> f64 {
        1.0 - self.price(of) / self.price(over).max(f64::MIN_POSITIVE)
    }

    pub(super) fn limit(&self) -> f64 {
        match self.goal {
            Goal::P99(limit) if self.is_estimated => limit.as_nanos() as f64 * HOSTS_SHARE,
            Goal::P99(limit) => limit.as_nanos() as f64,
            Goal::Cpu(share) => share,
        }
    }

    pub(super) fn forbids(&self, now: Nanos, choice: Choice, load: f64) -> bool {
        self.restraint.forbids(now, choice, load, matches!(self.goal, Goal::P99(_)))
    }

    /// Returns the choice that comes nearest to the goal.
    pub(super) fn nearest_to_goal(&self, now: Nanos, load: f64) -> Option<(Choice, Forecast)> {
        let all = self.choices.iter().map(|choice| self.with_suspend(*choice));
        let allowed = all.filter(|choice| *choice == self.current || !self.forbids(now, *choice, load));
        let known = allowed.filter_map(|choice| Some((choice, self.memory().forecast(choice, load)?)));
        known.min_by(|(_, a), (_, b)| self.held(a).total_cmp(&self.held(b)))
    }
}

fn spins(family: Family) -> bool {
    matches!(family, Family::NapiBusy | Family::FullBusy)
}

/// Returns the initial settings: the mildest permitted family, with a timeout well within a goal for latency, or the
/// longest under a goal for CPU.
pub(super) fn cautious(goal: Goal, choices: &[Choice]) -> Choice {
    let gentle = [Family::Defer, Family::Suspend, Family::Base, Family::NapiBusy, Family::FullBusy];
    let family = gentle.into_iter().find(|family| choices.iter().any(|choice| choice.family == *family));
    let mut of_family = choices.iter().filter(|choice| Some(choice.family) == family);
    let first = *of_family.clone().next().expect("bounds allow at least one family");
    match goal {
        Goal::P99(limit) => {
            let short = |choice: &&Choice| choice.flush.as_nanos() <= limit.as_nanos() / 6;
            *of_family.rfind(short).unwrap_or(&first)
        }
        Goal::Cpu(_) => *of_family.next_back().unwrap_or(&first),
    }
}
