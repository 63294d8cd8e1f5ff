//! What each choice gave and cost, by load.
//!
//! Loads are kept in *regions*, four to a factor of two. In a region every choice that was ever used there has a cell with
//! two figures: the time that requests took, and the CPU time for each packet; each with its mean and its usual deviation.
//! The first five samples give the median of what they cost, and the second lowest of their latencies, so that a stall of the
//! machine in some of them is no lesson: stalls only ever add to latency. Later ones count for at least a twelfth, so that what
//! is long past fades, and one that is far out moves a figure by a few deviations at the most.

use abey_delivery::{Family, Nanos};

use crate::choice::Choice;

/// Regions to a factor of two in load.
const PER_OCTAVE: f64 = 4.0;
/// The loads of 32 octaves have regions of their own.
const REGIONS: usize = 128;
/// How much a sample counts at least.
const LEAST_SHARE: f64 = 1.0 / 12.0;
/// What is older counts for no more than a few samples when new ones come.
const STALE: Nanos = Nanos::from_millis(10 * 60 * 1_000);
/// Deviations that a sample is taken to be away at the most, for the mean and for the deviation. With two, a fifth of the
/// samples may be far out, and the deviation stays within 1.4 times that of the others.
const FAR_OUT: (f64, f64) = (3.0, 2.0);
/// Samples that a figure begins with.
const FIRST: usize = 5;
/// Samples after which it is known what is usual.
const USUAL: u32 = 3;
/// The deviation that so few may tell, as a share of the mean.
const MOST_EARLY: f64 = 0.2;

/// The region of a load in packets per second.
pub(crate) fn region(load: f64) -> usize {
    ((libm::log2(load.max(1.0)) * PER_OCTAVE) as usize).min(REGIONS - 1)
}

/// Which of the first few samples, from the lowest, tells what is usual.
type Rank = fn(usize) -> usize;
const MIDDLE: Rank = |count| (count - 1) / 2;
const LOW: Rank = |count| (count - 1) / 3;

/// A mean, and how far samples usually are from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    /// The first samples, as many as there were, and how far they may be off by chance, as a share.
    first: [f64; FIRST],
    chance: f64,
}

impl Figure {
    /// What no more than about one sample in a hundred exceeds.
    pub(crate) fn upper(&self) -> f64 {
        self.mean + 2.5 * self.deviation
    }

    fn new(value: f64, deviation: f64) -> Self {
        Self { mean: value, deviation, first: [value; FIRST], chance: deviation / value.max(f64::MIN_POSITIVE) }
    }

    /// Takes one more after `samples` of them, for a share of what is known.
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

    /// From the first few.
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

/// What one choice gave and cost in one region.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) family: Family,
    pub(crate) flush: Nanos,
    /// Packets per second, on average.
    pub(crate) load: f64,
    /// The 99th percentile of latency, or its estimate, in nanoseconds.
    pub(crate) latency: Figure,
    /// CPU time for each packet, in nanoseconds.
    pub(crate) cost: Figure,
    /// Samples that it was learned from.
    pub(crate) samples: u32,
    /// When the last one came.
    pub(crate) at: Nanos,
}

impl Cell {
    /// Whether a latency is far beyond what this choice usually gives here; of a few samples nobody knows what is usual.
    pub(crate) fn is_far_out(&self, latency: f64) -> bool {
        let usual = self.latency.mean;
        self.samples >= USUAL && latency > usual + (6.0 * self.latency.deviation).max(0.5 * usual)
    }

    /// CPU at a load near the cell's, as a share of one CPU.
    pub(crate) fn cpu(&self, load: f64) -> f64 {
        self.cost.mean * load / 1e9
    }
}

/// One sample, in the terms that are remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lesson {
    pub(crate) load: f64,
    pub(crate) latency: f64,
    /// It says something of the settings, rather than of the machine alone.
    pub(crate) latency_counts: bool,
    /// How far the latency may be off by chance.
    pub(crate) noise: f64,
    pub(crate) cpu: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    regions: Vec<Vec<Cell>>,
    /// Those of which there is any cell.
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

    /// The families of which anything is known.
    pub(crate) fn families(&self) -> &[Family] {
        &self.families
    }

    /// What is known of exactly this choice at this load.
    pub(crate) fn exact(&self, choice: Choice, load: f64) -> Option<&Cell> {
        self.regions[region(load)].iter().find(|cell| cell.family == choice.family && cell.flush == choice.flush)
    }

    /// The cells of a family, those of near loads first, each with the regions between.
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
