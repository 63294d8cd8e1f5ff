//! How well a profile predicts what was benched.

use abey_sim::reference::run_all;
use abey_sim::{InputError, Outcome, Profile, Scenario};
use serde::Serialize;

use crate::fit::scenario;
use crate::training::{Trained, World};

/// How far an average latency may be off: a share of what was benched.
pub const LATENCY_LIMIT: f64 = 0.25;
/// How far CPU may be off, in points.
pub const CPU_LIMIT: f64 = 8.0;
/// Answers that a prediction is simulated with, for each of its seeds.
const REQUESTS: f64 = 20_000.0;
/// None of them the search's.
const SEEDS: [u64; 3] = [101, 102, 103];

/// One row: predicted beside benched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The world.
    pub world: World,
    /// What was benched.
    #[serde(flatten)]
    pub benched: Trained,
    /// Average latency, in microseconds, as the simulator has it.
    pub predicted_avg_us: f64,
    /// Median latency.
    pub predicted_p50_us: f64,
    /// 99th percentile.
    pub predicted_p99_us: f64,
    /// CPU of the server, in percent.
    pub predicted_cpu_percent: f64,
    /// Predicted average less benched, as a share of that.
    pub avg_error: f64,
    /// Predicted CPU less benched, in points.
    pub cpu_error: f64,
    /// Its runs differ by more than the limits: it tells nothing.
    pub unsteady: bool,
}

impl Prediction {
    fn new(world: World, benched: Trained, outcomes: &[Outcome]) -> Self {
        let mean = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).sum::<f64>() / outcomes.len() as f64;
        let (avg, cpu) = (mean(|outcome| outcome.avg_us), mean(|outcome| outcome.cpu_percent));
        let Trained { avg_us, cpu_percent, .. } = benched;
        let unsteady = benched.unsteadiness() > 1.0;
        Self {
            world,
            predicted_avg_us: avg,
            predicted_p50_us: mean(|outcome| outcome.p50_us),
            predicted_p99_us: mean(|outcome| outcome.p99_us),
            predicted_cpu_percent: cpu,
            avg_error: avg / avg_us.median.max(1e-3) - 1.0,
            cpu_error: cpu - cpu_percent.median,
            unsteady,
            benched,
        }
    }

    /// Both figures are within their limits.
    pub fn holds(&self) -> bool {
        self.avg_error.abs() <= LATENCY_LIMIT && self.cpu_error.abs() <= CPU_LIMIT
    }
}

/// Predicts every row.
///
/// # Errors
/// If the profile cannot be used.
pub fn predict(world: World, profile: &Profile, rows: Vec<Trained>) -> Result<Vec<Prediction>, InputError> {
    let each = |row: &Trained| SEEDS.map(|seed| scenario(world, profile, row, REQUESTS, seed));
    let scenarios: Vec<Scenario> = rows.iter().flat_map(each).collect();
    let outcomes = run_all(profile, &scenarios)?;
    let of_rows = outcomes.chunks(SEEDS.len());
    Ok(rows.into_iter().zip(of_rows).map(|(row, outcomes)| Prediction::new(world, row, outcomes)).collect())
}

/// How good the predictions of the rows are that were held out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The world.
    pub world: World,
    /// Rows that were held out and were steady.
    pub judged: usize,
    /// Those of them within both limits.
    pub within: usize,
    /// Rows that were held out and differed too much from run to run to tell.
    pub unsteady: usize,
    /// The median of the errors of the average, as a share.
    pub median_avg_error: f64,
    /// The worst.
    pub worst_avg_error: f64,
    /// The median of the errors of CPU, in points.
    pub median_cpu_error: f64,
    /// The worst.
    pub worst_cpu_error: f64,
}

impl Accuracy {
    /// Of the rows that were held out.
    pub fn of(world: World, predictions: &[Prediction]) -> Self {
        let held_out = || predictions.iter().filter(|one| !one.benched.fitted);
        let judged: Vec<&Prediction> = held_out().filter(|one| !one.unsteady).collect();
        let errors = |error: fn(&Prediction) -> f64| {
            let mut errors: Vec<f64> = judged.iter().map(|one| error(one).abs()).collect();
            errors.sort_unstable_by(f64::total_cmp);
            let median = errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN);
            (median, errors.last().copied().unwrap_or(f64::NAN))
        };
        let (median_avg_error, worst_avg_error) = errors(|one| one.avg_error);
        let (median_cpu_error, worst_cpu_error) = errors(|one| one.cpu_error);
        Self {
            world,
            judged: judged.len(),
            within: judged.iter().filter(|one| one.holds()).count(),
            unsteady: held_out().count() - judged.len(),
            median_avg_error,
            worst_avg_error,
            median_cpu_error,
            worst_cpu_error,
        }
    }

    /// Every row that can be judged is within both limits, and there are some.
    pub fn holds(&self) -> bool {
        self.judged > self.unsteady && self.within == self.judged
    }
}

#[cfg(test)]
mod tests {
    use abey_delivery::Mode;

    use super::*;
    use crate::training::Measured;

    fn row(avg: f64, predicted: f64, cpu: f64, uncertain: f64, fitted: bool) -> Prediction {
        let measured = |median| Measured { median, uncertain };
        let benched = Trained {
            mode: Mode::Base,
            rate: 1_000,
            fitted,
            runs: 5,
            disturbed: 0,
            avg_us: measured(avg),
            p50_us: measured(avg),
            p95_us: measured(avg),
            p99_us: measured(avg),
            cpu_percent: Measured { median: 50.0, uncertain: 0.0 },
        };
        Prediction {
            world: World::Linux,
            predicted_avg_us: predicted,
            predicted_p50_us: predicted,
            predicted_p99_us: predicted,
            predicted_cpu_percent: cpu,
            avg_error: predicted / avg - 1.0,
            cpu_error: cpu - 50.0,
            unsteady: uncertain > LATENCY_LIMIT * avg,
            benched,
        }
    }

    #[test]
    fn only_steady_rows_that_were_held_out_are_judged_and_all_of_them_must_hold() {
        let good = row(100.0, 120.0, 57.0, 1.0, false);
        let fitted = row(100.0, 300.0, 50.0, 1.0, true);
        let unsteady = row(100.0, 300.0, 50.0, 80.0, false);
        let accuracy = Accuracy::of(World::Linux, &[good.clone(), good.clone(), fitted, unsteady.clone()]);
        assert_eq!((accuracy.judged, accuracy.within, accuracy.unsteady), (2, 2, 1));
        assert!(accuracy.holds());
        for bad in [row(100.0, 126.0, 50.0, 1.0, false), row(100.0, 100.0, 58.5, 1.0, false)] {
            assert!(!Accuracy::of(World::Linux, &[good.clone(), good.clone(), bad]).holds());
        }
        assert!(!Accuracy::of(World::Linux, &[good, unsteady]).holds(), "too little can be told");
    }
}
