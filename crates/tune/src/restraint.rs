//! Avoids choices that failed recently, and limits swings.
//!
//! A move is *towards gain* (less CPU under a goal for latency, less latency under a goal for CPU) or *back*. Moves
//! back are never delayed: they keep the goal. Every swing contains a move towards gain, so delaying those bounds the
//! swings: at about the same load, directions change at most twice an hour, unless the goal itself demands more.
//!
//! A choice that failed is not taken again at that load until its ban expires, nor is one that reaches further in the
//! same direction. Each failure lengthens the ban.

use abey_delivery::{Family, Nanos};

use crate::choice::Choice;
use crate::memory::region;

/// Limit of direction changes within [`WINDOW`] at about the same load.
const REVERSALS: usize = 2;
/// A little over an hour, so that no single hour can contain more.
const WINDOW: Nanos = Nanos::from_millis(65 * 60 * 1_000);
/// Loads within this many octaves of each other count as about the same.
const SAME_LOAD: f64 = 0.5;
/// First ban of a choice that failed soon after it was taken.
const AVOIDED: Nanos = Nanos::from_millis(70 * 60 * 1_000);
/// First ban of a choice that had kept the goal before: the settings may not have been the cause.
const AVOIDED_IF_PROVEN: Nanos = Nanos::from_millis(60 * 1_000);
/// Time for which a family without gain is not tried again at loads where less gain is expected.
const IN_VAIN: Nanos = Nanos::from_millis(6 * 3_600_000);
/// Each further failure doubles the ban, up to this factor.
const DOUBLINGS: u32 = 3;

/// Direction of a move.
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
    /// The last move, and the load at which it was made.
    last: Option<(Direction, f64)>,
    reversals: Vec<(Nanos, f64)>,
    failures: Vec<Failure>,
    /// Families that were tried without gain, with the time and the load.
    vain: Vec<(Family, Nanos, f64)>,
    /// Choices that the caller could not apply, and the end of their ban.
    rejected: Vec<(Choice, Nanos)>,
}

impl Restraint {
    /// Returns whether a move towards gain is allowed. One that `may_fail` must leave budget for the move back.
    pub(crate) fn allows_gain(&self, now: Nanos, load: f64, may_fail: bool) -> bool {
        let recent = |at: Nanos| now.saturating_sub(at) < WINDOW;
        let spent = self.reversals.iter().filter(|(at, of)| recent(*at) && same(*of, load)).count();
        let turns = matches!(self.last, Some((Direction::Back, of)) if same(of, load));
        spent + usize::from(turns) + usize::from(may_fail) <= REVERSALS
    }

    /// Records a move at a load.
    pub(crate) fn moved(&mut self, now: Nanos, load: f64, direction: Direction) {
        if matches!(self.last, Some((last, of)) if last != direction && same(of, load)) {
            self.reversals.retain(|(at, _)| now.saturating_sub(*at) < WINDOW);
            self.reversals.push((now, load));
        }
        self.last = Some((direction, load));
    }

    /// Records a move that follows a change of the load. It has no direction.
    pub(crate) fn followed(&mut self) {
        self.last = None;
    }

    /// Records that a choice missed the goal at a load; `proven`: it had kept the goal there before.
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
        // A choice that has not failed again for a day is removed.
        let day = Nanos::from_millis(86_400_000);
        self.failures.retain(|failure| now.saturating_sub(failure.until) < day);
    }

    /// Clears a failed choice that remains in use because no other is better: it was not the cause.
    pub(crate) fn pardoned(&mut self, choice: Choice, load: f64) {
        let region = region(load);
        self.failures.retain(|one| (one.family, one.flush, one.region) != (choice.family, choice.flush, region));
    }

    /// Records that a family was tried at a load without gain.
    pub(crate) fn failed_to_pay(&mut self, now: Nanos, family: Family, load: f64) {
        self.vain.retain(|(_, at, _)| now.saturating_sub(*at) < IN_VAIN);
        self.vain.push((family, now, load));
    }

    /// Returns whether a recent trial of a family predicts that one at this load would fail as well.
    pub(crate) fn tried_in_vain(&self, now: Nanos, family: Family, load: f64) -> bool {
        let predicts = |of: f64| match family {
            // Batches save more at higher loads.
            Family::Base => load > of / 1.2,
            // At higher loads the application finds packets by polling more often, which avoids interrupts.
            Family::Suspend => load < of * 1.2,
            _ => same(load, of),
        };
        self.vain.iter().any(|(other, at, of)| *other == family && now.saturating_sub(*at) < IN_VAIN && predicts(*of))
    }

    /// Records that the caller could not apply a choice.
    pub(crate) fn rejected(&mut self, now: Nanos, choice: Choice) {
        let again = Nanos::from_nanos(AVOIDED.as_nanos() << DOUBLINGS);
        self.rejected.retain(|(other, until)| *other != choice && *until > now);
        self.rejected.push((choice, now + again));
    }

    /// Returns whether a choice is banned at this load: it failed near this load, or one that reaches less far did;
    /// `longer`: a longer timeout reaches further.
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
        // One reversal is used up. Another, which would imply a third, exceeds the limit.
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
