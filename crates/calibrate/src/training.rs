//! A short bench of a few modes at a few loads. Some rows are fitted; the others are held out for validation.

use std::time::{Duration, Instant};

use abey_bench::{BenchError, Conditions, Figure, Load, Progress, Run, Suite, stats};
use abey_delivery::Mode;
use abey_sim::profile::Delivery;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::prediction::{CPU_LIMIT, LATENCY_LIMIT};

/// Modes that are fitted, at the lowest and the highest load: every mechanism once, and deferral twice, because deferrals of
/// different lengths separate the cost of a timer from its lateness.
pub const FITTED_MODES: [&str; 5] = ["base", "defer20", "defer50", "fullbusy", "suspend20"];
/// Modes that are held out at all loads.
pub const HELD_OUT_MODES: [&str; 3] = ["defer100", "napibusy", "suspend50"];

/// Returns all modes of the bench.
pub fn modes() -> Vec<Mode> {
    FITTED_MODES.iter().chain(&HELD_OUT_MODES).map(|name| name.parse().expect("a valid mode")).collect()
}

/// Returns whether a row is fitted; otherwise it is held out.
pub fn is_fitted(mode: Mode, load: Load, loads: &[Load]) -> bool {
    let (least, most) = (loads.iter().min(), loads.iter().max());
    FITTED_MODES.contains(&mode.to_string().as_str()) && (Some(&load) == least || Some(&load) == most)
}

/// A row of the bench: one mode at one load, medians of its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchedRow {
    /// The mode.
    #[serde(with = "as_text")]
    pub mode: Mode,
    /// The rate in requests per second.
    pub rate: u64,
    /// Whether the row is fitted; otherwise it is held out.
    pub fitted: bool,
    /// Number of runs that count.
    pub runs: usize,
    /// Number of runs that do not count, because other programs disturbed them.
    pub disturbed: usize,
    /// Average latency in microseconds.
    pub avg_us: Measured,
    /// Median latency.
    pub p50_us: Measured,
    /// 95th percentile.
    pub p95_us: Measured,
    /// 99th percentile.
    pub p99_us: Measured,
    /// CPU use of the server in percent.
    pub cpu_percent: Measured,
}

impl BenchedRow {
    /// Returns the uncertainty of the medians as a share of the limits of a prediction. A row above 1 cannot be judged.
    pub fn unsteadiness(&self) -> f64 {
        let avg = self.avg_us.uncertain / (LATENCY_LIMIT * self.avg_us.median.max(1e-3));
        avg.max(self.cpu_percent.uncertain / CPU_LIMIT)
    }
}

/// Serializes a mode as its name.
mod as_text {
    use super::Mode;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(mode)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A median with its uncertainty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The median over the runs.
    pub median: f64,
    /// Half the width of the 95 % confidence interval, in the unit of the median (1.57 times the interquartile range over the square root
    /// of the number of runs: McGill, Tukey and Larsen, "Variations of box plots", 1978).
    pub uncertain: f64,
}

impl Measured {
    fn of(values: &[f64]) -> Self {
        let median = stats::median(values).unwrap_or(0.0);
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| sorted.get(((sorted.len().saturating_sub(1)) as f64 * q).round() as usize).copied();
        let quartiles = at(0.75).zip(at(0.25)).map_or(0.0, |(high, low)| high - low);
        Self { median, uncertain: 1.57 * quartiles / (values.len().max(1) as f64).sqrt() }
    }
}

/// An error of the bench.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// The bench failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The server or the load cannot reach the rate.
    #[error("{world}: {mode} answers {qps:.0} of {rate} requests per second: calibrate with lower --loads")]
    Overloaded {
        /// The world.
        world: Delivery,
        /// The mode.
        mode: Mode,
        /// The rate in requests per second.
        rate: u64,
        /// Responses per second.
        qps: f64,
    },
}

/// Runs of each row of a mode per server process. There are many short runs instead of a few long ones, so that a disturbance of
/// some milliseconds affects a few runs and not the median.
const RUNS_PER_SERVER: u32 = 4;

/// Minimum number of runs of each row, whatever the time.
const MIN_RUNS: usize = 3;

/// Benches the modes at the loads: first one run of every row per repetition, then, until `time` is over, more runs of the mode
/// with the least steady row, unless all rows are steady.
///
/// # Errors
/// [`TrainingError`]; nothing is left behind.
pub fn bench(
    world: Delivery,
    suite: &Suite,
    loads: &[Load],
    conditions: &Conditions,
    time: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<BenchedRow>, TrainingError> {
    let mut random = StdRng::seed_from_u64(conditions.seed);
    let (since, mut runs) = (Instant::now(), Vec::new());
    let mut order: Vec<Mode> = Vec::new();
    let mut left = conditions.repetitions;
    let (rows_of_mode, modes) = (loads.len(), modes());
    let mut all = modes.len() * rows_of_mode * left as usize;
    loop {
        let is_over = since.elapsed() >= time;
        let enough = least_runs(&runs, &modes, loads) >= MIN_RUNS.min(conditions.repetitions as usize);
        if is_over && enough {
            break;
        }
        if order.is_empty() && left > 0 {
            order.clone_from(&modes);
            order.shuffle(&mut random);
        }
        let (mode, each) = match order.last() {
            Some(mode) => (*mode, left.min(RUNS_PER_SERVER)),
            None => match least_steady(&rows(world, &runs, loads, conditions.duration)?) {
                Some(mode) => (mode, RUNS_PER_SERVER),
                None => break,
            },
        };
        let mut of_mode: Vec<Load> = (0..each).flat_map(|_| loads).copied().collect();
        of_mode.shuffle(&mut random);
        all = all.max(runs.len() + of_mode.len());
        progress(Progress { world: suite.test_bed().setup().world, mode, done: runs.len(), total: all });
        runs.extend(suite.test_bed().measure(mode, &of_mode, random.random(), conditions)?);
        if order.pop().is_some() && order.is_empty() {
            left -= each;
        }
    }
    rows(world, &runs, loads, conditions.duration)
}

/// Returns the number of runs of the row with the fewest.
fn least_runs(runs: &[Run], modes: &[Mode], loads: &[Load]) -> usize {
    let of_row = |mode, load| runs.iter().filter(|run| run.mode == mode && run.load == load).count();
    modes.iter().flat_map(|mode| loads.iter().map(move |load| of_row(*mode, *load))).min().unwrap_or(0)
}

/// The unsteadiness below which a row is steady.
const STEADY: f64 = 0.3;

/// The number of runs from which the unsteadiness is significant. Fewer runs may agree by chance, or come from one server.
const ENOUGH_RUNS: usize = 8;

/// Returns the mode of the least steady row, unless all rows are steady.
fn least_steady(rows: &[BenchedRow]) -> Option<Mode> {
    let unsteadiness = |row: &BenchedRow| match row.runs {
        few @ ..ENOUGH_RUNS => row.unsteadiness().max(STEADY * ENOUGH_RUNS as f64 / few.max(1) as f64),
        _ => row.unsteadiness(),
    };
    let worst = rows.iter().max_by(|a, b| unsteadiness(a).total_cmp(&unsteadiness(b)))?;
    (unsteadiness(worst) > STEADY).then_some(worst.mode)
}

/// Returns the rows of these runs, each of this duration, in the order of the table.
///
/// # Errors
/// [`TrainingError::Overloaded`].
pub fn rows(
    world: Delivery,
    runs: &[Run],
    loads: &[Load],
    duration: Duration,
) -> Result<Vec<BenchedRow>, TrainingError> {
    let mut rows = Vec::new();
    for row in stats::aggregate(runs) {
        let Some(rate) = row.load.rate() else { continue };
        let of_row: Vec<&Run> = runs.iter().filter(|run| run.mode == row.mode && run.load == row.load).collect();
        let quiet: Vec<&Run> = of_row.iter().copied().filter(|run| run.notes.is_empty()).collect();
        // With fewer than three undisturbed runs, disturbed runs count as well; the row is then uncertain.
        let counted = if quiet.len() >= 3.min(of_row.len()) { &quiet } else { &of_row };
        let measured = |runs: &[&Run], figure: Figure| {
            Measured::of(&runs.iter().filter_map(|run| run.figures.get(figure)).collect::<Vec<_>>())
        };
        // A few undisturbed runs among many may agree by chance: they are as uncertain as all runs together.
        let may_be_chance = 2 * counted.len() < of_row.len();
        let figure = |figure: Figure| {
            let of_counted = measured(counted, figure);
            let all = if may_be_chance { measured(&of_row, figure).uncertain } else { 0.0 };
            Measured { uncertain: of_counted.uncertain.max(all), ..of_counted }
        };
        let qps = figure(Figure::Qps).median;
        // Arrivals are random, and disturbed runs are no evidence against the server.
        let by_chance = 4.0 * (rate as f64 / duration.as_secs_f64()).sqrt();
        if qps + by_chance < 0.9 * rate as f64 && !quiet.is_empty() {
            return Err(TrainingError::Overloaded { world, mode: row.mode, rate, qps });
        }
        rows.push(BenchedRow {
            mode: row.mode,
            rate,
            fitted: is_fitted(row.mode, row.load, loads),
            runs: counted.len(),
            disturbed: of_row.len() - counted.len(),
            avg_us: figure(Figure::Avg),
            p50_us: figure(Figure::P50),
            p95_us: figure(Figure::P95),
            p99_us: figure(Figure::P99),
            cpu_percent: figure(Figure::CpuPercent),
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outer_loads_of_some_modes_are_fitted() {
        let loads = [10_000, 20_000, 40_000].map(Load::Rate);
        let fitted = |mode: &str, rate| is_fitted(mode.parse().expect(mode), Load::Rate(rate), &loads);
        assert!(fitted("base", 10_000) && fitted("suspend20", 40_000));
        assert!(!fitted("base", 20_000) && !fitted("suspend50", 10_000));
        assert_eq!(modes().len(), FITTED_MODES.len() + HELD_OUT_MODES.len());
    }

    #[test]
    fn the_uncertainty_of_a_median_grows_with_the_differences_of_its_runs() {
        let steady = Measured::of(&[10.0, 10.1, 9.9, 10.0]);
        let unsteady = Measured::of(&[5.0, 10.0, 15.0, 40.0]);
        assert!((steady.median - 10.0).abs() < 1e-9);
        assert!(steady.uncertain < 0.2 && unsteady.uncertain > 3.0, "{steady:?} {unsteady:?}");
        assert_eq!(Measured::of(&[7.0]).uncertain, 0.0);
    }

    #[test]
    fn a_row_of_few_runs_is_less_steady_than_one_of_many() {
        let row = |mode: &str, runs: usize, uncertain: f64| {
            let of = |median, uncertain| Measured { median, uncertain };
            let (avg_us, cpu_percent) = (of(100.0, uncertain), of(50.0, 0.1));
            let other = avg_us;
            let mode = mode.parse().expect(mode);
            let (p50_us, p95_us, p99_us) = (other, other, other);
            BenchedRow { mode, rate: 1, fitted: true, runs, disturbed: 0, avg_us, p50_us, p95_us, p99_us, cpu_percent }
        };
        let next = |rows: &[BenchedRow]| least_steady(rows).map(|mode| mode.to_string());
        // The limit is 25 us; rows up to 0.3 of it are steady.
        assert_eq!(next(&[row("base", 3, 0.1), row("defer20", 40, 9.0)]).as_deref(), Some("base"));
        assert_eq!(next(&[row("base", 8, 0.1), row("defer20", 40, 9.0)]).as_deref(), Some("defer20"));
        assert_eq!(next(&[row("base", 8, 0.1), row("defer20", 40, 7.0)]), None);
    }
}
