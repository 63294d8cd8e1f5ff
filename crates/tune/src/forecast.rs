//! Forecasts latency and CPU of a choice at a load, from the nearest known cell and a few rules that hold for all
//! hosts.
//!
//! The rules are few and err on the side of caution:
//!
//! - A timeout adds itself to the tail: the packet that comes just after a poll waits all of it. Measured, a 99th
//!   percentile rises by 0.9 to 1.3 times the increase of the timeout; the forecast assumes 1.15 for a rise and 0.7 for
//!   a fall.
//! - A longer timeout makes larger batches, and so less CPU. The amount must be measured; the forecast assumes little.
//! - More load never shortens the tail; a factor of two may lengthen it by a fifth, and any load by a third.
//! - CPU for each packet falls a little with load, because batches grow.

use abey_delivery::{Family, Nanos};

use crate::choice::Choice;
use crate::memory::{Cell, Memory};

/// Factors of a 99th percentile's change to the timeout's change, up and down.
const SLOPE: (f64, f64) = (1.15, 0.7);
/// Possible growth of the tail from one region of load to the next.
const TAIL_BY_REGION: f64 = 0.05;
/// Regions beyond which the tail does not grow: a host that is not overloaded has some tail at any load.
const TAIL_REGIONS: usize = 6;
/// Exponents of CPU by timeout, and of CPU for each packet by load.
const CPU_BY_FLUSH: f64 = -0.15;
const COST_BY_LOAD: f64 = -0.15;
/// Distance in regions within which a family counts as known.
pub(crate) const NEAR: usize = 3;
/// Weight of a region in the distance to a cell; a factor of e in timeout has the weight 1.
const REGION_DISTANCE: f64 = 0.3;
/// Timeouts below this are treated as equal, in nanoseconds.
const SHORT: f64 = 20e3;

/// Expected latency and CPU of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// The 99th percentile that is rarely exceeded, in nanoseconds.
    pub(crate) latency: f64,
    /// CPU time as a share of one CPU.
    pub(crate) cpu: f64,
    /// Distance in regions to the cell of origin; `None` if nothing is known of the family.
    pub(crate) away: Option<usize>,
}

impl Memory {
    /// Returns the forecast from cells of the same family; `None` if it has none.
    pub(crate) fn known(&self, choice: Choice, load: f64) -> Option<Forecast> {
        self.nearest(choice, load).map(|(away, cell)| from(cell, away, choice, load))
    }

    /// Returns the forecast, from another family if necessary; `None` before the first sample.
    pub(crate) fn forecast(&self, choice: Choice, load: f64) -> Option<Forecast> {
        if let Some(known) = self.known(choice, load) {
            return Some(known);
        }
        let others = self.families().iter().map(|family| Choice { family: *family, ..choice });
        let known = others.filter_map(|other| self.nearest(other, load));
        let (away, cell) = known.min_by(|a, b| distance(*a, choice).total_cmp(&distance(*b, choice)))?;
        Some(guess(cell, cell.latency.upper(), away, choice, load))
    }

    /// Returns a guess for a choice of another family from the cells of the current one; `None` if that has no cell
    /// near this load.
    pub(crate) fn guess(&self, choice: Choice, by: Choice, load: f64) -> Option<Forecast> {
        let (away, cell) = self.nearest(by, load)?;
        Some(guess(cell, cell.latency.mean, away, choice, load))
    }

    fn nearest(&self, choice: Choice, load: f64) -> Option<(usize, &Cell)> {
        let mut best: Option<(f64, (usize, &Cell))> = None;
        for (away, cell) in self.around(choice.family, load) {
            let distance = distance((away, cell), choice);
            match best {
                // The cells that follow are even further away in load.
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

/// Forecasts from a cell of the same family.
fn from(cell: &Cell, away: usize, choice: Choice, load: f64) -> Forecast {
    let (was, will) = (cell.flush.as_nanos() as f64, choice.flush.as_nanos() as f64);
    let slope = if will > was { SLOPE.0 } else { SLOPE.1 };
    let latency = (cell.latency.upper() + slope * (will - was)).max(cell.latency.mean * 0.2);
    let more_load = more_load(cell, away, load);
    let by_flush = libm::pow((will + SHORT) / (was + SHORT), CPU_BY_FLUSH);
    Forecast { latency: latency * more_load, cpu: cell.cpu(load) * by_flush * by_load(cell, load), away: Some(away) }
}

/// Forecasts from a cell of another family: the same tail except for the timeouts, with a margin for unknown
/// differences.
fn guess(cell: &Cell, latency: f64, away: usize, choice: Choice, load: f64) -> Forecast {
    let intercept = (latency - cell.flush.as_nanos() as f64).max(latency * 0.3);
    let more_load = more_load(cell, away, load);
    // The NIC's own moderation delays interrupts if no timeout does.
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
