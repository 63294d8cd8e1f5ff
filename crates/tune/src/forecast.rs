//! What a choice would give and cost at a load: from the nearest that is known, and what holds for all hosts.
//!
//! What holds for all hosts is little, and it is leant to the careful side:
//!
//! - A timeout adds itself to the tail: the packet that comes just after a poll waits all of it. Measured, a 99th percentile
//!   rises by 0.9 to 1.3 times what the timeout rises by; it is taken to rise by 1.15 and to fall by 0.7 times.
//! - A longer timeout makes larger batches, and so less CPU; by how much only measuring tells. Taken to be little.
//! - More load never makes the tail shorter; a factor of two may make it a fifth longer, and any load a third.
//! - CPU for each packet falls a little with load, for there are more packets to a batch.

use abey_delivery::{Family, Nanos};

use crate::choice::Choice;
use crate::memory::{Cell, Memory};

/// How much of a timeout's change a 99th percentile changes by, up and down.
const SLOPE: (f64, f64) = (1.15, 0.7);
/// How much longer the tail may become from one region of load to the next.
const TAIL_BY_REGION: f64 = 0.05;
/// Regions beyond which it becomes no longer: a host that is not overloaded has some tail at any load.
const TAIL_REGIONS: usize = 6;
/// CPU by timeout and CPU for each packet by load, as powers.
const CPU_BY_FLUSH: f64 = -0.15;
const COST_BY_LOAD: f64 = -0.15;
/// Regions within which what is known of a family counts as known.
pub(crate) const NEAR: usize = 3;
/// Of a region in the distance to a cell; a factor of e in timeout is 1.
const REGION_DISTANCE: f64 = 0.3;
/// Timeouts below this are all alike, in nanoseconds.
const SHORT: f64 = 20e3;

/// What is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// The 99th percentile that is hardly exceeded, in nanoseconds.
    pub(crate) latency: f64,
    /// CPU, as a share of one.
    pub(crate) cpu: f64,
    /// How many regions away the knowledge comes from; `None` if nothing is known of the family.
    pub(crate) away: Option<usize>,
}

impl Memory {
    /// What is expected of a choice by what is known of its family; `None` if nothing is.
    pub(crate) fn known(&self, choice: Choice, load: f64) -> Option<Forecast> {
        self.nearest(choice, load).map(|(away, cell)| from(cell, away, choice, load))
    }

    /// What is expected of a choice, by another family if need be; `None` before the first sample of anything.
    pub(crate) fn forecast(&self, choice: Choice, load: f64) -> Option<Forecast> {
        if let Some(known) = self.known(choice, load) {
            return Some(known);
        }
        let others = self.families().iter().map(|family| Choice { family: *family, ..choice });
        let known = others.filter_map(|other| self.nearest(other, load));
        let (away, cell) = known.min_by(|a, b| distance(*a, choice).total_cmp(&distance(*b, choice)))?;
        Some(guess(cell, cell.latency.upper(), away, choice, load))
    }

    /// What a choice of another family may be like, usually, by what is known of the one in use; `None` if nothing is, here.
    pub(crate) fn guess(&self, choice: Choice, by: Choice, load: f64) -> Option<Forecast> {
        let (away, cell) = self.nearest(by, load)?;
        Some(guess(cell, cell.latency.mean, away, choice, load))
    }

    fn nearest(&self, choice: Choice, load: f64) -> Option<(usize, &Cell)> {
        let mut best: Option<(f64, (usize, &Cell))> = None;
        for (away, cell) in self.around(choice.family, load) {
            let distance = distance((away, cell), choice);
            match best {
                // What follows is even further away in load.
                Some((least, _)) if away as f64 * REGION_DISTANCE > least => break,
                Some((least, _)) if distance >= least => {}
                _ => best = Some((distance, (away, cell))),
            }
        }
        best.map(|(_, found)| found)
    }
}

fn distance((away, cell): (usize, &Cell), choice: Choice) -> f64 {
    let log = |flush: Nanos| libm::log(flush.as_nanos() as f64 + SHORT);
    away as f64 * REGION_DISTANCE + (log(cell.flush) - log(choice.flush)).abs()
}

/// From a cell of the same family.
fn from(cell: &Cell, away: usize, choice: Choice, load: f64) -> Forecast {
    let (was, will) = (cell.flush.as_nanos() as f64, choice.flush.as_nanos() as f64);
    let slope = if will > was { SLOPE.0 } else { SLOPE.1 };
    let latency = (cell.latency.upper() + slope * (will - was)).max(cell.latency.mean * 0.2);
    let more_load = more_load(cell, away, load);
    let by_flush = libm::pow((will + SHORT) / (was + SHORT), CPU_BY_FLUSH);
    Forecast { latency: latency * more_load, cpu: cell.cpu(load) * by_flush * by_load(cell, load), away: Some(away) }
}

/// From a cell of another family: the same tail but for the timeouts, and more, because what else differs is unknown.
fn guess(cell: &Cell, latency: f64, away: usize, choice: Choice, load: f64) -> Forecast {
    let intercept = (latency - cell.flush.as_nanos() as f64).max(latency * 0.3);
    let more_load = more_load(cell, away, load);
    // The NIC's own moderation holds interrupts back where nothing else does.
    let caution = if choice.family == Family::Base { 1.5 } else { 1.1 };
    let latency = (intercept * caution + SLOPE.0 * choice.flush.as_nanos() as f64) * more_load;
    let cpu = cell.cpu(load) * by_load(cell, load);
    let cpu = match choice.family {
        Family::FullBusy => 1.0,
        Family::NapiBusy => (2.5 * cpu).min(1.0),
        _ => cpu,
    };
    Forecast { latency, cpu, away: None }
}

fn more_load(cell: &Cell, away: usize, load: f64) -> f64 {
    if load > cell.load { 1.0 + TAIL_BY_REGION * away.min(TAIL_REGIONS) as f64 } else { 1.0 }
}

fn by_load(cell: &Cell, load: f64) -> f64 {
    libm::pow(load / cell.load.max(1.0), COST_BY_LOAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Lesson;

    fn choice(family: Family, flush: u64) -> Choice {
        Choice { family, flush: Nanos::from_micros(flush), suspend: Nanos::ZERO }
    }

    fn knows() -> Memory {
        let mut memory = Memory::default();
        let lesson = Lesson { load: 20_000.0, latency: 200e3, latency_counts: true, noise: 2e3, cpu: 0.2 };
        memory.learn(Nanos::ZERO, choice(Family::Defer, 50), lesson);
        memory
    }

    #[test]
    fn what_is_known_is_forecast_as_it_was() {
        let forecast = knows().forecast(choice(Family::Defer, 50), 20_000.0).expect("known");
        assert_eq!(forecast.away, Some(0));
        assert!((forecast.latency - 205e3).abs() < 1.0 && (forecast.cpu - 0.2).abs() < 1e-9, "{forecast:?}");
    }

    #[test]
    fn longer_timeouts_are_slower_and_cheaper_and_more_load_is_slower_and_dearer() {
        let memory = knows();
        let at = |flush, load| memory.forecast(choice(Family::Defer, flush), load).expect("known");
        for (flush, next) in [(10, 20), (20, 50), (50, 100), (100, 200)] {
            let (short, long) = (at(flush, 20_000.0), at(next, 20_000.0));
            assert!(short.latency < long.latency && short.cpu > long.cpu, "{flush}");
        }
        assert!(at(50, 80_000.0).latency > 1.29 * at(50, 20_000.0).latency);
        assert!(at(50, 80_000.0).cpu > 2.0 * at(50, 20_000.0).cpu);
        assert_eq!(at(50, 2_000.0).latency, at(50, 20_000.0).latency);
    }

    #[test]
    fn another_family_is_a_guess() {
        let memory = knows();
        let guess = memory.forecast(choice(Family::Suspend, 50), 20_000.0).expect("guessed");
        assert_eq!(guess.away, None);
        assert!(guess.latency > 200e3);
        let base = memory.forecast(choice(Family::Base, 0), 20_000.0).expect("guessed");
        assert!((base.latency - 232.5e3).abs() < 1.0, "{base:?}");
        assert_eq!(Memory::default().forecast(choice(Family::Base, 0), 1.0), None);
    }
}
