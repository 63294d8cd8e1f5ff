//! A short bench of a few modes at a few loads: some rows to fit, the others to hold the result against.

use std::fmt;
use std::time::{Duration, Instant};

use abey_bench::{BenchError, Conditions, Figure, Load, Part, Progress, Run, stats};
use abey_delivery::Mode;
use abey_sim::profile::Delivery;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::prediction::{CPU_LIMIT, LATENCY_LIMIT};

/// A world that is calibrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// The kernel's NAPI, memcached (or the built-in server) over a veth pair between two namespaces.
    Linux,
    /// The datapath, the built-in server over a shared-memory NIC.
    Datapath,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Linux => "linux",
            Self::Datapath => "datapath",
        })
    }
}

impl World {
    /// As a profile says it.
    pub const fn delivery(self) -> Delivery {
        match self {
            Self::Linux => Delivery::Linux,
            Self::Datapath => Delivery::Datapath,
        }
    }
}

/// Modes that are fitted, at the first and the last of the loads: every mechanism once, and deferral twice, since what a timer
/// costs and how late it is are told apart by deferrals of different lengths.
pub const TRAINED: [&str; 5] = ["base", "defer20", "defer50", "fullbusy", "suspend20"];
/// Modes that the search never sees.
pub const HELD_OUT: [&str; 3] = ["defer100", "napibusy", "suspend50"];

/// All modes of the bench.
pub fn modes() -> Vec<Mode> {
    TRAINED.iter().chain(&HELD_OUT).map(|name| name.parse().expect("the bench's own modes are modes")).collect()
}

/// Whether a row is fitted; otherwise the result is held against it.
pub fn is_trained(mode: Mode, load: Load, loads: &[Load]) -> bool {
    let (least, most) = (loads.iter().min(), loads.iter().max());
    TRAINED.contains(&mode.to_string().as_str()) && (Some(&load) == least || Some(&load) == most)
}

/// One mode at one load, as it was benched: medians of its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// The mode.
    #[serde(with = "as_text")]
    pub mode: Mode,
    /// Requests per second that were asked for.
    pub rate: u64,
    /// The search fits it; otherwise it is held out.
    pub fitted: bool,
    /// Runs that count.
    pub runs: usize,
    /// Runs that do not, because other programs had the server's CPU during them.
    pub disturbed: usize,
    /// Average latency in microseconds, and how far its median is uncertain.
    pub avg_us: Measured,
    /// Median latency.
    pub p50_us: Measured,
    /// 95th percentile.
    pub p95_us: Measured,
    /// 99th percentile.
    pub p99_us: Measured,
    /// CPU of the server, in percent.
    pub cpu_percent: Measured,
}

impl Trained {
    /// How uncertain its medians are, as a share of what a prediction may be off by: above 1 the row tells nothing.
    pub fn unsteadiness(&self) -> f64 {
        let avg = self.avg_us.uncertain / (LATENCY_LIMIT * self.avg_us.median.max(1e-3));
        avg.max(self.cpu_percent.uncertain / CPU_LIMIT)
    }
}

/// A mode as its name.
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

/// A median and how far it may be off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The median over the runs.
    pub median: f64,
    /// Half the width of its 95 % interval (1.57 times the distance of the quartiles over the root of the number of runs:
    /// McGill, Tukey and Larsen, "Variations of box plots", 1978), in its unit.
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

/// Why there is nothing to fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// A bench did not come to its end.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The server or the load was the limit.
    #[error(
        "{world}: {mode} answers {qps:.0} requests per second where {rate} were asked for: calibrate with lower --loads"
    )]
    Overloaded {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// What was asked for.
        rate: u64,
        /// What was answered.
        qps: f64,
    },
}

/// Runs of a row with one server, one after the other among those of the other rows of its mode. Many short runs in place
/// of a few long ones: what disturbs the machine for some milliseconds then spoils a few of them, and not the median.
const RUNS_A_SERVER: u32 = 4;

/// Runs of each row that there must be, however long that takes.
const LEAST_RUNS: usize = 3;

/// Benches the modes at the loads: as many runs of every row as there are to be repetitions, and after that, until `time` is
/// over, more of the mode that has the least steady row, unless all are steady.
///
/// # Errors
/// [`TrainingError`]; nothing is left behind.
pub fn bench(
    world: World,
    part: &Part,
    loads: &[Load],
    conditions: &Conditions,
    time: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Trained>, TrainingError> {
    let mut random = StdRng::seed_from_u64(conditions.seed);
    let (since, mut runs) = (Instant::now(), Vec::new());
    let mut order: Vec<Mode> = Vec::new();
    let mut left = conditions.repetitions;
    let (rows_of_mode, modes) = (loads.len(), modes());
    let mut all = modes.len() * rows_of_mode * left as usize;
    loop {
        let is_over = since.elapsed() >= time;
        let enough = least_runs(&runs, &modes, loads) >= LEAST_RUNS.min(conditions.repetitions as usize);
        if is_over && enough {
            break;
        }
        if order.is_empty() && left > 0 {
            order.clone_from(&modes);
            order.shuffle(&mut random);
        }
        let (mode, each) = match order.last() {
            Some(mode) => (*mode, left.min(RUNS_A_SERVER)),
            None => match least_steady(&rows(world, &runs, loads, conditions.duration)?) {
                Some(mode) => (mode, RUNS_A_SERVER),
                None => break,
            },
        };
        let mut of_mode: Vec<Load> = (0..each).flat_map(|_| loads).copied().collect();
        of_mode.shuffle(&mut random);
        all = all.max(runs.len() + of_mode.len());
        progress(Progress { world: part.bed().setup().world, mode, done: runs.len(), all });
        runs.extend(part.bed().measure(mode, &of_mode, random.random(), conditions)?);
        if order.pop().is_some() && order.is_empty() {
            left -= each;
        }
    }
    rows(world, &runs, loads, conditions.duration)
}

/// Runs of the row that has the fewest.
fn least_runs(runs: &[Run], modes: &[Mode], loads: &[Load]) -> usize {
    let of_row = |mode, load| runs.iter().filter(|run| run.mode == mode && run.load == load).count();
    modes.iter().flat_map(|mode| loads.iter().map(move |load| of_row(*mode, *load))).min().unwrap_or(0)
}

/// A row is steady enough once its medians are certain to this share of what they may be off by to tell anything.
const STEADY: f64 = 0.3;

/// Runs that count from which on it can be told how steady a row is: fewer may be alike by chance, or of one server.
const ENOUGH_RUNS: usize = 8;

/// The mode of the row that is the least steady, unless all are steady enough.
fn least_steady(rows: &[Trained]) -> Option<Mode> {
    let unsteadiness = |row: &Trained| match row.runs {
        few @ ..ENOUGH_RUNS => row.unsteadiness().max(STEADY * ENOUGH_RUNS as f64 / few.max(1) as f64),
        _ => row.unsteadiness(),
    };
    let worst = rows.iter().max_by(|a, b| unsteadiness(a).total_cmp(&unsteadiness(b)))?;
    (unsteadiness(worst) > STEADY).then_some(worst.mode)
}

/// The rows of these runs, each of this duration, in the order of the table.
///
/// # Errors
/// [`TrainingError::Overloaded`].
pub fn rows(world: World, runs: &[Run], loads: &[Load], duration: Duration) -> Result<Vec<Trained>, TrainingError> {
    let mut rows = Vec::new();
    for row in stats::aggregate(runs) {
        let Some(rate) = row.load.rate() else { continue };
        let of_row: Vec<&Run> = runs.iter().filter(|run| run.mode == row.mode && run.load == row.load).collect();
        let quiet: Vec<&Run> = of_row.iter().copied().filter(|run| run.notes.is_empty()).collect();
        // Where hardly anything was undisturbed, what was disturbed counts as well, and is uncertain.
        let counted = if quiet.len() >= 3.min(of_row.len()) { &quiet } else { &of_row };
        let measured = |runs: &[&Run], figure: Figure| {
            Measured::of(&runs.iter().filter_map(|run| run.figures.get(figure)).collect::<Vec<_>>())
        };
        // The few that were found undisturbed among many may be so by chance: they are as uncertain as all together.
        let may_be_chance = 2 * counted.len() < of_row.len();
        let figure = |figure: Figure| {
            let told = measured(counted, figure);
            let all = if may_be_chance { measured(&of_row, figure).uncertain } else { 0.0 };
            Measured { uncertain: told.uncertain.max(all), ..told }
        };
        let qps = figure(Figure::Qps).median;
        // Arrivals are random, and what was disturbed tells nothing of the server.
        let by_chance = 4.0 * (rate as f64 / duration.as_secs_f64()).sqrt();
        if qps + by_chance < 0.9 * rate as f64 && !quiet.is_empty() {
            return Err(TrainingError::Overloaded { world, mode: row.mode, rate, qps });
        }
        rows.push(Trained {
            mode: row.mode,
            rate,
            fitted: is_trained(row.mode, row.load, loads),
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
        let fitted = |mode: &str, rate| is_trained(mode.parse().expect(mode), Load::Rate(rate), &loads);
        assert!(fitted("base", 10_000) && fitted("suspend20", 40_000));
        assert!(!fitted("base", 20_000) && !fitted("suspend50", 10_000));
        assert_eq!(modes().len(), TRAINED.len() + HELD_OUT.len());
    }

    #[test]
    fn a_median_is_the_less_certain_the_more_its_runs_differ() {
        let steady = Measured::of(&[10.0, 10.1, 9.9, 10.0]);
        let unsteady = Measured::of(&[5.0, 10.0, 15.0, 40.0]);
        assert!((steady.median - 10.0).abs() < 1e-9);
        assert!(steady.uncertain < 0.2 && unsteady.uncertain > 3.0, "{steady:?} {unsteady:?}");
        assert_eq!(Measured::of(&[7.0]).uncertain, 0.0);
    }

    #[test]
    fn a_row_of_few_runs_is_benched_on_before_one_of_many() {
        let row = |mode: &str, runs: usize, uncertain: f64| {
            let of = |median, uncertain| Measured { median, uncertain };
            let (avg_us, cpu_percent) = (of(100.0, uncertain), of(50.0, 0.1));
            let other = avg_us;
            let mode = mode.parse().expect(mode);
            let (p50_us, p95_us, p99_us) = (other, other, other);
            Trained { mode, rate: 1, fitted: true, runs, disturbed: 0, avg_us, p50_us, p95_us, p99_us, cpu_percent }
        };
        let next = |rows: &[Trained]| least_steady(rows).map(|mode| mode.to_string());
        // The limit is 25 us, and three tenths of that are steady.
        assert_eq!(next(&[row("base", 3, 0.1), row("defer20", 40, 9.0)]).as_deref(), Some("base"));
        assert_eq!(next(&[row("base", 8, 0.1), row("defer20", 40, 9.0)]).as_deref(), Some("defer20"));
        assert_eq!(next(&[row("base", 8, 0.1), row("defer20", 40, 7.0)]), None);
    }
}
