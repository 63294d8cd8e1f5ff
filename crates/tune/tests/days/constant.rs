//! Hours of constant load: the controller must not swing.

use abey_delivery::{ModeSettings, Nanos, describe};
use abey_tune::{Bounds, Controller, Goal};

use crate::chance;
use crate::slices::{INTERVAL, Slices};

const HOURS: usize = 6;
const AN_HOUR: usize = (3_600_000_000_000 / INTERVAL.as_nanos()) as usize;

/// A swing is a return to settings that were in use within the hour before.
pub(crate) fn swings_at_most_twice_an_hour(bounds: &Bounds, slices: &mut Slices) {
    for load in [2_500.0, 8_000.0, 20_000.0, 45_000.0, 75_000.0] {
        for goal_us in [260, 350] {
            let goal = Goal::P99(Nanos::from_micros(goal_us));
            let mut tuner = Controller::new(goal, bounds.clone(), None).expect("sound");
            let at = slices.grid.nearest(load);
            let mut left: Vec<(usize, ModeSettings)> = Vec::new();
            let mut swings: Vec<usize> = Vec::new();
            for index in 0..HOURS * AN_HOUR {
                let before = tuner.settings();
                let now = Nanos::from_nanos(INTERVAL.as_nanos() * (index as u64 + 1));
                let step = tuner.handle_sample(now, &slices.slice(&before, at, chance(index)));
                if !step.changed {
                    continue;
                }
                if left.iter().any(|(when, other)| *other == step.settings && index - when < AN_HOUR) {
                    swings.push(index);
                }
                left.push((index, before));
            }
            let most =
                swings.iter().map(|from| swings.iter().filter(|at| (*from..from + AN_HOUR).contains(at)).count());
            let most = most.max().unwrap_or(0);
            println!(
                "constant {load}/s, p99={goal_us}us: {} changes in {HOURS} hours, {most} swings in one; {} at the end",
                left.len(),
                describe(&tuner.settings())
            );
            assert!(most <= 2, "{most} swings in an hour");
        }
    }
}
