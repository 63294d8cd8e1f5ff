//! Measured latency and CPU of each choice, by load.
//!
//! Loads are divided into *regions*, four to a factor of two. In each region, every choice that was used there has a
//! cell with two figures: the latency of requests, and the CPU time for each packet; each with its mean and mean
//! deviation. The first five samples give the median of the CPU times and the second lowest of the latencies, so that a
//! stall of the machine in some of them has no effect: stalls only increase latency. Each later sample has a weight of
//! at least a twelfth, so that old samples fade, and an outlier moves a figure by a few deviations at the most.

use abey_delivery::{Family, Nanos};

use crate::choice::Choice;

/// Regions to a factor of two in load.
const PER_OCTAVE: f64 = 4.0;
/// Number of regions: 32 octaves.
const REGIONS: usize = 128;
/// Minimal weight of a sample.
const LEAST_SHARE: f64 = 1.0 / 12.0;
/// Age beyond which a cell counts for no more than a few samples.
const STALE: Nanos = Nanos::from_millis(10 * 60 * 1_000);
/// Limit, in deviations, of a sample's distance for the mean and for the deviation. With two, a fifth of the samples
/// may be outliers, and the deviation stays within 1.4 times that of the others.
const FAR_OUT: (f64, f64) = (3.0, 2.0);
/// Samples that initialize a figure.
const FIRST: usize = 5;
/// Samples after which the usual range is known.
const USUAL: u32 = 3;
/// Limit of the deviation of the first samples, as a share of the mean.
const MOST_EARLY: f64 = 0.2;

/// Returns the region of a load in packets per second.
pub(crate) fn region(load: f64) -> usize {
    ((libm::log2(load.max(1.0)) * PER_OCTAVE) as usize).min(REGIONS - 1)
}

/// Rank, from the lowest, of the early sample that initializes the figure.
type Rank = fn(usize) -> usize;
const MIDDLE: Rank = |count| (count - 1) / 2;
const LOW: Rank = |count| (count - 1) / 3;

/// A mean and the mean deviation of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    /// The first samples, and their possible error by chance, as a share.
    first: [f64; FIRST],
    chance: f64,
}

impl Figure {
    /// Returns the value that about one sample in a hundred exceeds.
    pub(crate) fn upper(&self) -> f64 {
        self.mean + 2.5 * self.deviation
    }

    fn new(value: f64, deviation: f64) -> Self {
        Self { mean: value, deviation, first: [value; FIRST], chance: deviation / value.max(f64::MIN_POSITIVE) }
    }

    /// Adds a sample after `samples` others.
    fn learn(&mut self, value: f64, samples: u32, share: f64, rank: Rank) {
        let samples = samples as usize;
        if samples < FIRST {
            self.first[samples] = value;
            self.begin(samples + 1, rank);
            return;
        }
        let off = value - self.mean;
        let within = |deviations: f64| off.clamp(-deviations * self.deviation, deviations * self.deviation);
        let (by, away) = (within(FAR_OUT.0), within(FAR_OUT.1).abs());
        self.mean += share * by;
        self.deviation = (self.deviation + share * (away - self.deviation)).max(self.mean * 0.003);
    }

    /// Initializes the figure from the first few samples.
    fn begin(&mut self, count: usize, rank: Rank) {
        let mut first = self.first;
        let known = &mut first[..count];
        known.sort_unstable_by(f64::total_cmp);
        self.mean = known[rank(count)];
        let nearest = known.iter().map(|value| (value - self.mean).abs()).filter(|off| *off > 0.0);
        let nearest = nearest.fold(f64::INFINITY, f64::min);
        self.deviation = nearest.clamp(self.mean * self.chance, self.mean * MOST_EARLY.max(self.chance));
    }
}

/// The measured figures of one choice in one region.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) family: Family,
    pub(crate) flush: Nanos,
    /// Mean of packets per second.
    pub(crate) load: f64,
    /// The 99th percentile of latency, or its estimate, in nanoseconds.
    pub(crate) latency: Figure,
    /// CPU time for each packet, in nanoseconds.
    pub(crate) cost: Figure,
    /// Number of samples.
    pub(crate) samples: u32,
    /// Time of the last sample.
    pub(crate) at: Nanos,
}

impl Cell {
    /// Returns whether a latency is far beyond the usual range of this cell; false while the cell has too few samples.
    pub(crate) fn is_far_out(&self, latency: f64) -> bool {
        let usual = self.latency.mean;
        self.samples >= USUAL && latency > usual + (6.0 * self.latency.deviation).max(0.5 * usual)
    }

    /// Returns CPU time at a load near the cell's, as a share of one CPU.
    pub(crate) fn cpu(&self, load: f64) -> f64 {
        self.cost.mean * load / 1e9
    }
}

/// One sample, in the units of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lesson {
    pub(crate) load: f64,
    pub(crate) latency: f64,
    /// Whether the latency is due to the settings, rather than to a stall of the machine.
    pub(crate) latency_counts: bool,
    /// Possible error of the latency by chance, in nanoseconds.
    pub(crate) noise: f64,
    pub(crate) cpu: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    regions: Vec<Vec<Cell>>,
    /// The families with at least one cell.
    families: Vec<Family>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { regions: vec![Vec::new(); REGIONS], families: Vec::new() }
    }
}

impl Memory {
    pub(crate) fn learn(&mut self, now: Nanos, choice: Choice, lesson: Lesson) {
        let cost = lesson.cpu * 1e9 / lesson.load;
        let cells = &mut self.regions[region(lesson.load)];
        let known = cells.iter_mut().find(|cell| cell.family == choice.family && cell.flush == choice.flush);
        let Some(cell) = known else {
            let latency = Figure::new(lesson.latency, lesson.noise);
            let cost = Figure::new(cost, cost * 0.02);
            let Choice { family, flush, .. } = choice;
            if !self.families.contains(&family) {
                self.families.push(family);
            }
            cells.push(Cell { family, flush, load: lesson.load, latency, cost, samples: 1, at: now });
            return;
        };
        if now.saturating_sub(cell.at) > STALE {
            cell.samples = cell.samples.min(FIRST as u32);
        }
        let share = (1.0 / f64::from(cell.samples + 1)).max(LEAST_SHARE);
        cell.load += share * (lesson.load - cell.load);
        if let Some(latency) = lesson.latency_counts.then_some(lesson.latency) {
            cell.latency.learn(latency, cell.samples, share, LOW);
        }
        cell.cost.learn(cost, cell.samples, share, MIDDLE);
        cell.samples = cell.samples.saturating_add(1);
        cell.at = now;
    }

    /// Returns the families with at least one cell.
    pub(crate) fn families(&self) -> &[Family] {
        &self.families
    }

    /// Returns the cell of exactly this choice at this load.
    pub(crate) fn exact(&self, choice: Choice, load: f64) -> Option<&Cell> {
        self.regions[region(load)].iter().find(|cell| cell.family == choice.family && cell.flush == choice.flush)
    }

    /// Returns the cells of a family, those of near loads first, each with its distance in regions.
    pub(crate) fn around(&self, family: Family, load: f64) -> impl Iterator<Item = (usize, &Cell)> {
        let here = region(load);
        let known = if self.families.contains(&family) { REGIONS } else { 0 };
        (0..known).flat_map(move |away| {
            let below = here.checked_sub(away);
            let above = Some(here + away).filter(|above| away > 0 && *above < REGIONS);
            let cells = below.into_iter().chain(above).flat_map(|at| &self.regions[at]);
            cells.filter(move |cell| cell.family == family).map(move |cell| (away, cell))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(flush: u64) -> Choice {
        Choice { family: Family::Defer, flush: Nanos::from_micros(flush), suspend: Nanos::ZERO }
    }

    fn lesson(load: f64, latency: f64) -> Lesson {
        Lesson { load, latency, latency_counts: true, noise: latency * 0.01, cpu: load * 1e-5 }
    }

    #[test]
    fn figures_follow_and_are_not_carried_away() {
        let mut memory = Memory::default();
        for n in 0..50 {
            memory.learn(Nanos::from_millis(n * 500), choice(20), lesson(10_000.0, 200.0));
        }
        memory.learn(Nanos::from_millis(30_000), choice(20), lesson(10_000.0, 9_000.0));
        let after_one = memory.exact(choice(20), 10_000.0).expect("known").latency.mean;
        assert!((200.0..210.0).contains(&after_one), "{after_one}");
        for n in 0..60 {
            memory.learn(Nanos::from_millis(31_000 + n * 500), choice(20), lesson(10_000.0, 300.0));
        }
        let after_many = memory.exact(choice(20), 10_000.0).expect("known").latency.mean;
        assert!((290.0..301.0).contains(&after_many), "{after_many}");
        assert!(memory.exact(choice(20), 13_000.0).is_none());
    }

    #[test]
    fn the_nearest_load_comes_first() {
        let mut memory = Memory::default();
        for load in [1_000.0, 10_000.0, 40_000.0] {
            memory.learn(Nanos::ZERO, choice(20), lesson(load, load));
        }
        let order: Vec<f64> = memory.around(Family::Defer, 12_000.0).map(|(_, cell)| cell.load).collect();
        assert_eq!(order, [10_000.0, 40_000.0, 1_000.0]);
        assert_eq!(memory.around(Family::Base, 12_000.0).count(), 0);
        for load in [0.0, 1e30, f64::MAX] {
            assert!(region(load) < REGIONS);
        }
    }
}
