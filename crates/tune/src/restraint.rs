//! Not doing what was seen to fail, and not swinging.
//!
//! A move is *towards gain* (less CPU under a goal for latency, less latency under one for CPU) or *back*. Moves back are
//! never held up: they keep the goal. Every swing has a move towards gain in it, so swings are bounded by holding those up:
//! at much the same load directions change at most twice an hour, unless the goal itself asks for more.
//!
//! A choice that failed is not taken again at that load, nor one that reaches further in the same direction, until it has
//! aged: longer every time.

use abey_delivery::{Family, Nanos};

use crate::choice::Choice;
use crate::memory::region;

/// Changes of direction within [`WINDOW`] at much the same load.
const REVERSALS: usize = 2;
/// A little over an hour, so that every hour is covered.
const WINDOW: Nanos = Nanos::from_millis(65 * 60 * 1_000);
/// Loads within this many octaves of each other are much the same.
const SAME_LOAD: f64 = 0.5;
/// How long a choice that failed soon after it was taken is avoided, the first time.
const AVOIDED: Nanos = Nanos::from_millis(70 * 60 * 1_000);
/// How long one is that had held before: it may not have been the settings' fault.
const AVOIDED_IF_PROVEN: Nanos = Nanos::from_millis(60 * 1_000);
/// How long a family that did not pay is not tried again at loads where it is expected to pay less.
const IN_VAIN: Nanos = Nanos::from_millis(6 * 3_600_000);
/// Each further failure doubles it, up to this many times.
const DOUBLINGS: u32 = 3;

/// Where a move leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Gain,
    Back,
}

#[derive(Clone, Debug)]
struct Failure {
    family: Family,
    flush: Nanos,
    region: usize,
    until: Nanos,
    times: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Restraint {
    /// The last move at the load that it was made at.
    last: Option<(Direction, f64)>,
    reversals: Vec<(Nanos, f64)>,
    failures: Vec<Failure>,
    /// Families that were tried in vain, when and at which load.
    vain: Vec<(Family, Nanos, f64)>,
    /// What the world could not apply, until when.
    rejected: Vec<(Choice, Nanos)>,
}

impl Restraint {
    /// Whether a move towards gain is in order; one that may fail must leave room for the move back.
    pub(crate) fn allows_gain(&self, now: Nanos, load: f64, may_fail: bool) -> bool {
        let recent = |at: Nanos| now.saturating_sub(at) < WINDOW;
        let spent = self.reversals.iter().filter(|(at, of)| recent(*at) && same(*of, load)).count();
        let turns = matches!(self.last, Some((Direction::Back, of)) if same(of, load));
        spent + usize::from(turns) + usize::from(may_fail) <= REVERSALS
    }

    /// A move was made at a load.
    pub(crate) fn moved(&mut self, now: Nanos, load: f64, direction: Direction) {
        if matches!(self.last, Some((last, of)) if last != direction && same(of, load)) {
            self.reversals.retain(|(at, _)| now.saturating_sub(*at) < WINDOW);
            self.reversals.push((now, load));
        }
        self.last = Some((direction, load));
    }

    /// A move was made because the load has changed: it has no direction.
    pub(crate) fn followed(&mut self) {
        self.last = None;
    }

    /// A choice missed the goal at a load; `proven`: after it had kept it there.
    pub(crate) fn failed(&mut self, now: Nanos, choice: Choice, load: f64, proven: bool) {
        let region = region(load);
        let same = |one: &&mut Failure| (one.family, one.flush, one.region) == (choice.family, choice.flush, region);
        let times = match self.failures.iter_mut().find(same) {
            Some(failure) => {
                failure.times += 1;
                failure.times
            }
            None => {
                let (family, flush) = (choice.family, choice.flush);
                self.failures.push(Failure { family, flush, region, until: now, times: 1 });
                1
            }
        };
        let first = if proven && times == 1 { AVOIDED_IF_PROVEN } else { AVOIDED };
        let span = first.as_nanos() << (times - 1).min(DOUBLINGS);
        if let Some(failure) = self.failures.iter_mut().find(same) {
            failure.until = now + Nanos::from_nanos(span);
        }
        // What has not failed again for a day is forgotten.
        let day = Nanos::from_millis(86_400_000);
        self.failures.retain(|failure| now.saturating_sub(failure.until) < day);
    }

    /// A choice that failed is kept, for nothing is better: it was not the choice's fault.
    pub(crate) fn pardoned(&mut self, choice: Choice, load: f64) {
        let region = region(load);
        self.failures.retain(|one| (one.family, one.flush, one.region) != (choice.family, choice.flush, region));
    }

    /// A family was tried at a load, and was no better.
    pub(crate) fn failed_to_pay(&mut self, now: Nanos, family: Family, load: f64) {
        self.vain.retain(|(_, at, _)| now.saturating_sub(*at) < IN_VAIN);
        self.vain.push((family, now, load));
    }

    /// Whether a trial of a family lately tells that one at this load would be in vain as well.
    pub(crate) fn tried_in_vain(&self, now: Nanos, family: Family, load: f64) -> bool {
        let tells = |of: f64| match family {
            // The more load, the more there is to save by batches.
            Family::Base => load > of / 1.2,
            // The more load, the more often the application finds work and spares an interrupt.
            Family::Suspend => load < of * 1.2,
            _ => same(load, of),
        };
        self.vain.iter().any(|(other, at, of)| *other == family && now.saturating_sub(*at) < IN_VAIN && tells(*of))
    }

    /// The world could not apply a choice.
    pub(crate) fn rejected(&mut self, now: Nanos, choice: Choice) {
        let again = Nanos::from_nanos(AVOIDED.as_nanos() << DOUBLINGS);
        self.rejected.retain(|(other, until)| *other != choice && *until > now);
        self.rejected.push((choice, now + again));
    }

    /// Whether a choice is not to be taken at this load: it failed hereabouts, or one did that reaches less far; `longer`:
    /// a longer timeout reaches further.
    pub(crate) fn forbids(&self, now: Nanos, choice: Choice, load: f64, longer: bool) -> bool {
        let here = region(load);
        let failed = |failure: &Failure| {
            let further = if longer { choice.flush >= failure.flush } else { choice.flush <= failure.flush };
            let near = here + 1 >= failure.region && here <= failure.region + 1;
            failure.family == choice.family && further && near && now < failure.until
        };
        self.rejected.iter().any(|(other, until)| *other == choice && now < *until) || self.failures.iter().any(failed)
    }
}

fn same(one: f64, other: f64) -> bool {
    libm::log2(one / other).abs() < SAME_LOAD
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn minutes(n: u64) -> Nanos {
        Nanos::from_millis(n * MINUTE)
    }

    fn defer(flush: u64) -> Choice {
        Choice { family: Family::Defer, flush: Nanos::from_micros(flush), suspend: Nanos::ZERO }
    }

    #[test]
    fn swings_are_counted_by_load() {
        let mut restraint = Restraint::default();
        for (at, direction) in [(0, Direction::Gain), (1, Direction::Gain), (2, Direction::Back)] {
            assert!(restraint.allows_gain(minutes(at), 1e4, true));
            restraint.moved(minutes(at), 1e4, direction);
        }
        // One reversal is spent: another, with a third behind it, is too many.
        assert!(!restraint.allows_gain(minutes(3), 1e4, true));
        assert!(restraint.allows_gain(minutes(3), 1e4, false));
        assert!(restraint.allows_gain(minutes(3), 5e4, true), "another load");
        assert!(restraint.allows_gain(minutes(2 + 66), 1e4, true), "another hour");
        restraint.moved(minutes(3), 1e4, Direction::Gain);
        restraint.moved(minutes(4), 1e4, Direction::Back);
        assert!(!restraint.allows_gain(minutes(5), 1e4, false));
    }

    #[test]
    fn a_trial_in_vain_tells_about_other_loads() {
        let mut restraint = Restraint::default();
        restraint.failed_to_pay(minutes(0), Family::Base, 1e4);
        restraint.failed_to_pay(minutes(0), Family::Suspend, 1e4);
        let vain = |family, load, at| restraint.tried_in_vain(minutes(at), family, load);
        assert!(vain(Family::Base, 5e4, 1) && !vain(Family::Base, 5e3, 1));
        assert!(vain(Family::Suspend, 5e3, 1) && !vain(Family::Suspend, 5e4, 1));
        assert!(!vain(Family::Defer, 1e4, 1) && !vain(Family::Base, 5e4, 361));
    }

    #[test]
    fn failures_age() {
        let mut restraint = Restraint::default();
        restraint.failed(minutes(0), defer(100), 1e4, false);
        let forbids = |restraint: &Restraint, at, flush, load| restraint.forbids(minutes(at), defer(flush), load, true);
        assert!(forbids(&restraint, 1, 100, 1e4) && forbids(&restraint, 1, 150, 1e4));
        assert!(!forbids(&restraint, 1, 50, 1e4) && !forbids(&restraint, 1, 100, 2e4));
        assert!(!forbids(&restraint, 71, 100, 1e4));
        restraint.failed(minutes(80), defer(100), 1e4, false);
        assert!(forbids(&restraint, 80 + 139, 100, 1e4) && !forbids(&restraint, 80 + 141, 100, 1e4));
        restraint.rejected(minutes(300), defer(20));
        assert!(forbids(&restraint, 301, 20, 1.0) && !forbids(&restraint, 301, 25, 1.0));
    }
}
