//! Tells changes from noise: of the load, and of the latency against the goal.

/// A load that differs by more than this share counts as changed, unless noise explains it because so few packets came.
const STEP: f64 = 0.25;
/// Weight of a new sample in the smoothed load.
const SMOOTHING: f64 = 0.25;
/// Steps in a row after which the load counts as unsteady.
const UNSTEADY: u32 = 3;

/// The smoothed load, with detection of steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadWatch {
    smooth: Option<f64>,
    steps: u32,
}

impl LoadWatch {
    pub(crate) fn load(&self) -> Option<f64> {
        self.smooth
    }

    /// Adds a sample. Returns true if it contains a step, and so a mixture of two loads.
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

/// Threshold of the sum, in deviations.
const DECISION: f64 = 3.0;
/// Limit of one sample's contribution for settings that have kept the goal here: an outlier may be a hiccup of the
/// machine.
const MOST_IF_HELD: f64 = 2.0;
/// Limit of one sample's contribution for settings that are new here.
const MOST: f64 = 3.5;
/// Share of samples beyond a limit when settings do not keep it.
const MISSING: f64 = 0.9;
/// Weight of the evidence in one outlier: with one hiccup in a hundred samples, one outlier suffices against new
/// settings; with one in ten, it takes three.
const WEIGHT: f64 = 0.75;
/// Samples within the goal after which settings count as proven.
const HELD: u32 = 8;

/// Detection of a missed goal: the cumulative sum of the distances of samples beyond it, in deviations of noise (E. S.
/// Page, "Continuous inspection schemes", Biometrika 41, 1954). Samples within the goal reduce the sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GoalWatch {
    sum: f64,
    held: u32,
}

impl GoalWatch {
    /// Adds a sample. Returns true if the goal is missed. `proven`: these settings have kept it here before.
    pub(crate) fn follow(&mut self, value: f64, limit: f64, chance: f64, proven: bool, hiccups: Hiccups) -> bool {
        let most = if proven || self.has_held() { MOST_IF_HELD } else { MOST };
        let off = ((value - limit) / chance.max(f64::MIN_POSITIVE)).clamp(-2.0, most.min(hiccups.evidence()));
        self.sum = (self.sum + off).max(0.0);
        self.held = if off <= 0.0 { self.held.saturating_add(1) } else { self.held };
        self.sum >= DECISION
    }

    /// Returns whether the goal was kept long enough that a miss may have another cause than the settings.
    pub(crate) const fn has_held(&self) -> bool {
        self.held >= HELD
    }
}

/// Minimal weight of one sample in the share of hiccups.
const HICCUP_SHARE: f64 = 1.0 / 100.0;
/// Initially the machine is assumed to have many hiccups, with the weight of this many samples.
const PRESUMED: (f64, u32) = (0.15, 5);

/// Consecutive outliers after which they no longer count as hiccups.
const IN_A_ROW: u32 = 3;

/// The rate of hiccups of the machine: the share of samples far beyond what these settings usually give at this load. A
/// virtual machine on a busy host has many, and they are weak evidence against the settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hiccups {
    share: f64,
    samples: u32,
    in_a_row: u32,
}

impl Default for Hiccups {
    fn default() -> Self {
        Self { share: PRESUMED.0, samples: PRESUMED.1, in_a_row: 0 }
    }
}

impl Hiccups {
    /// Adds a sample; `is_far_out`: it is an outlier. Returns true if it counts as a hiccup of the machine, independent of the
    /// settings.
    pub(crate) fn follow(&mut self, is_far_out: bool) -> bool {
        self.samples = self.samples.saturating_add(1);
        let share = (1.0 / f64::from(self.samples)).max(HICCUP_SHARE);
        self.share += share * (f64::from(u8::from(is_far_out)) - self.share);
        self.in_a_row = if is_far_out { self.in_a_row + 1 } else { 0 };
        is_far_out && self.in_a_row < IN_A_ROW
    }

    /// Returns the evidence of an outlier, in deviations, that the settings rather than the machine are at fault: the
    /// weighted logarithm of the likelihood ratio.
    fn evidence(self) -> f64 {
        WEIGHT * libm::log(MISSING / self.share.clamp(0.005, 0.3))
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
        // With thirty packets the noise is larger.
        let mut few = LoadWatch::default();
        assert!(!few.follow(60.0, 30) && !few.follow(90.0, 45));
        // A load that changes all the time is unsteady, not a chain of steps.
        let mut restless = LoadWatch::default();
        let steps: Vec<bool> = (0..9).map(|n| restless.follow(if n % 2 == 0 { 1e4 } else { 4e4 }, 9_999)).collect();
        assert!(steps[5..].iter().all(|step| !step), "{steps:?}");
    }

    /// Returns the state for a machine with so many hiccups in a hundred samples.
    fn machine(percent: u32) -> Hiccups {
        let mut hiccups = Hiccups::default();
        (0..1_000).for_each(|n| _ = hiccups.follow(n * 37 % 100 < percent));
        hiccups
    }

    #[test]
    fn one_far_sample_decides_only_over_what_is_new() {
        let steady = machine(0);
        let mut new = GoalWatch::default();
        assert!(new.follow(400.0, 300.0, 5.0, false, steady));
        let mut known = GoalWatch::default();
        assert!(!known.follow(400.0, 300.0, 5.0, true, steady) && known.follow(400.0, 300.0, 5.0, true, steady));
        let mut held = GoalWatch::default();
        assert!((0..20).all(|_| !held.follow(280.0, 300.0, 5.0, false, steady)));
        assert!(!held.follow(9_000.0, 300.0, 5.0, false, steady));
        assert!(held.follow(9_000.0, 300.0, 5.0, false, steady));
        // A small but permanent excess is detected after some time; a random occasional one is not.
        let mut little = GoalWatch::default();
        assert!((0..20).any(|_| little.follow(303.0, 300.0, 6.0, false, steady)));
        let mut chance = GoalWatch::default();
        let mut at = |n| chance.follow(if n % 20 == 0 { 312.0 } else { 292.0 }, 300.0, 5.0, false, steady);
        assert!((0..1_000).all(|n| !at(n)));
    }

    #[test]
    fn a_third_far_sample_in_a_row_is_no_hiccup() {
        let mut hiccups = Hiccups::default();
        let far = [true, true, false, true, true, true, true];
        assert_eq!(far.map(|is_far| hiccups.follow(is_far)), [true, true, false, true, true, false, false]);
    }

    #[test]
    fn where_the_machine_stalls_it_takes_three_in_a_row() {
        let stalls = machine(15);
        let mut watch = GoalWatch::default();
        let missed: Vec<bool> = (0..3).map(|_| watch.follow(9_000.0, 300.0, 5.0, false, stalls)).collect();
        assert_eq!(missed, [false, false, true]);
        let mut now_and_then = GoalWatch::default();
        let mut at = |n| now_and_then.follow(if n % 7 < 2 { 9_000.0 } else { 250.0 }, 300.0, 5.0, false, stalls);
        assert!((0..1_000).all(|n| !at(n)));
    }
}
