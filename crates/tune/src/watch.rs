//! Telling a change from chance: the load's, and the goal's.

/// A load that differs by more than this share is another one; unless so few packets came that chance may have done it.
const STEP: f64 = 0.25;
/// How much of a new sample the smoothed load takes.
const SMOOTHING: f64 = 0.25;
/// Steps in a row after which the load is just unsteady.
const UNSTEADY: u32 = 3;

/// The load, smoothed, but for steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadWatch {
    smooth: Option<f64>,
    steps: u32,
}

impl LoadWatch {
    pub(crate) fn load(&self) -> Option<f64> {
        self.smooth
    }

    /// True: the sample is of a step, and so of two loads.
    pub(crate) fn follow(&mut self, load: f64, packets: u64) -> bool {
        let Some(smooth) = self.smooth else {
            self.smooth = Some(load);
            return false;
        };
        let by_chance = 4.0 / (packets.max(1) as f64).sqrt();
        let stepped = libm::log(load / smooth).abs() > STEP.max(by_chance);
        self.smooth = Some(if stepped { load } else { smooth + SMOOTHING * (load - smooth) });
        self.steps = if stepped { self.steps + 1 } else { 0 };
        stepped && self.steps < UNSTEADY
    }
}

/// Deviations that decide.
const DECISION: f64 = 3.0;
/// What one sample adds at the most: settings that are new here may be given up at once, those that have held here after two
/// samples, for one that is far out may be a hiccup of the machine.
const MOST: (f64, f64) = (3.5, 2.0);
/// Samples after which settings have held.
const HELD: u32 = 8;

/// Whether the goal is missed: the cumulative sum of how far samples are beyond it, in deviations of chance (E. S. Page,
/// "Continuous inspection schemes", Biometrika 41, 1954). Samples within the goal take from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GoalWatch {
    sum: f64,
    held: u32,
}

impl GoalWatch {
    /// True: the goal is missed. `proven`: these settings have held here before.
    pub(crate) fn follow(&mut self, value: f64, limit: f64, chance: f64, proven: bool) -> bool {
        let most = if proven || self.has_held() { MOST.1 } else { MOST.0 };
        let off = ((value - limit) / chance.max(f64::MIN_POSITIVE)).clamp(-2.0, most);
        self.sum = (self.sum + off).max(0.0);
        self.held = if off <= 0.0 { self.held.saturating_add(1) } else { self.held };
        self.sum >= DECISION
    }

    /// Whether the goal was kept long enough that a miss may be somebody else's fault.
    pub(crate) const fn has_held(&self) -> bool {
        self.held >= HELD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_from_noise() {
        let mut watch = LoadWatch::default();
        assert!(!watch.follow(5_000.0, 2_500));
        for load in [5_400.0, 4_700.0, 5_100.0] {
            assert!(!watch.follow(load, 2_500), "{load}");
        }
        assert!(watch.follow(60_000.0, 30_000));
        assert_eq!(watch.load(), Some(60_000.0));
        assert!(!watch.follow(60_100.0, 30_000));
        // Thirty packets vary by more.
        let mut few = LoadWatch::default();
        assert!(!few.follow(60.0, 30) && !few.follow(90.0, 45));
        // A load that never rests is no chain of steps.
        let mut restless = LoadWatch::default();
        let steps: Vec<bool> = (0..9).map(|n| restless.follow(if n % 2 == 0 { 1e4 } else { 4e4 }, 9_999)).collect();
        assert!(steps[5..].iter().all(|step| !step), "{steps:?}");
    }

    #[test]
    fn one_far_sample_decides_only_over_what_is_new() {
        let mut new = GoalWatch::default();
        assert!(new.follow(400.0, 300.0, 5.0, false));
        let mut known = GoalWatch::default();
        assert!(!known.follow(400.0, 300.0, 5.0, true) && known.follow(400.0, 300.0, 5.0, true));
        let mut held = GoalWatch::default();
        assert!((0..20).all(|_| !held.follow(280.0, 300.0, 5.0, false)));
        assert!(!held.follow(9_000.0, 300.0, 5.0, false));
        assert!(held.follow(9_000.0, 300.0, 5.0, false));
        // What misses by little decides after some time; what is at times beyond by chance does not.
        let mut little = GoalWatch::default();
        assert!((0..20).any(|_| little.follow(303.0, 300.0, 6.0, false)));
        let mut chance = GoalWatch::default();
        assert!((0..1_000).all(|n| !chance.follow(if n % 20 == 0 { 312.0 } else { 292.0 }, 300.0, 5.0, false)));
    }
}
