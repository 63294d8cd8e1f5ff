//! Predictions of a profile, and their accuracy.

use abey_sim::profile::Delivery;
use abey_sim::reference::run_all;
use abey_sim::{InputError, Outcome, Profile, Scenario};
use serde::Serialize;

use crate::fit::scenario;
use crate::training::BenchedRow;

/// Maximum error of an average latency, as a share of the measured value.
pub const LATENCY_LIMIT: f64 = 0.25;
/// Maximum error of CPU use, in points.
pub const CPU_LIMIT: f64 = 8.0;
/// Responses to simulate per prediction and seed.
const REQUESTS: f64 = 20_000.0;
/// Seeds of predictions; the search uses others.
const SEEDS: [u64; 3] = [101, 102, 103];

/// A row of the bench and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The world.
    pub world: Delivery,
    /// The measured row.
    #[serde(flatten)]
    pub benched: BenchedRow,
    /// Predicted average latency in microseconds.
    pub predicted_avg_us: f64,
    /// Predicted median latency.
    pub predicted_p50_us: f64,
    /// Predicted 99th percentile of latency.
    pub predicted_p99_us: f64,
    /// Predicted CPU use of the server in percent.
    pub predicted_cpu_percent: f64,
    /// Error of the average latency, as a share of the measured value.
    pub avg_error: f64,
    /// Error of the CPU use, in points.
    pub cpu_error: f64,
    /// Whether its runs differ by more than the limits, so that it cannot be judged.
    pub unsteady: bool,
}

impl Prediction {
    fn new(world: Delivery, benched: BenchedRow, outcomes: &[Outcome]) -> Self {
        let mean = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).sum::<f64>() / outcomes.len() as f64;
        let (avg, cpu) = (mean(|outcome| outcome.avg_us), mean(|outcome| outcome.cpu_percent));
        let BenchedRow { avg_us, cpu_percent, .. } = benched;
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

    /// Returns whether both errors are within their limits.
    pub fn holds(&self) -> bool {
        self.avg_error.abs() <= LATENCY_LIMIT && self.cpu_error.abs() <= CPU_LIMIT
    }
}

/// Predicts every row.
///
/// # Errors
/// [`InputError`] if the profile is not valid for the scenarios.
pub fn predict(world: Delivery, profile: &Profile, rows: Vec<BenchedRow>) -> Result<Vec<Prediction>, InputError> {
    let each = |row: &BenchedRow| SEEDS.map(|seed| scenario(world, profile, row, REQUESTS, seed));
    let scenarios: Vec<Scenario> = rows.iter().flat_map(each).collect();
    let outcomes = run_all(profile, &scenarios)?;
    let of_rows = outcomes.chunks(SEEDS.len());
    Ok(rows.into_iter().zip(of_rows).map(|(row, outcomes)| Prediction::new(world, row, outcomes)).collect())
}

/// Accuracy of the predictions of held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The world.
    pub world: Delivery,
    /// Number of held-out rows that can be judged.
    pub judged: usize,
    /// Number of these rows within both limits.
    pub within: usize,
    /// Number of held-out rows whose runs differ too much to be judged.
    pub unsteady: usize,
    /// Median error of average latency, as a share.
    pub median_avg_error: f64,
    /// The largest of these errors.
    pub worst_avg_error: f64,
    /// Median error of CPU use, in points.
    pub median_cpu_error: f64,
    /// The largest of these errors.
    pub worst_cpu_error: f64,
}

impl Accuracy {
    /// Computes the accuracy over the held-out rows.
    pub fn of(world: Delivery, predictions: &[Prediction]) -> Self {
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

    /// Returns whether more rows can be judged than not, and all of them are within both limits.
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
        let benched = BenchedRow {
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
            world: Delivery::Linux,
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
    fn only_steady_held_out_rows_are_judged_and_all_must_be_within_the_limits() {
        let good = row(100.0, 120.0, 57.0, 1.0, false);
        let fitted = row(100.0, 300.0, 50.0, 1.0, true);
        let unsteady = row(100.0, 300.0, 50.0, 80.0, false);
        let accuracy = Accuracy::of(Delivery::Linux, &[good.clone(), good.clone(), fitted, unsteady.clone()]);
        assert_eq!((accuracy.judged, accuracy.within, accuracy.unsteady), (2, 2, 1));
        assert!(accuracy.holds());
        for bad in [row(100.0, 126.0, 50.0, 1.0, false), row(100.0, 100.0, 58.5, 1.0, false)] {
            assert!(!Accuracy::of(Delivery::Linux, &[good.clone(), good.clone(), bad]).holds());
        }
        assert!(!Accuracy::of(Delivery::Linux, &[good, unsteady]).holds(), "too few rows can be judged");
    }
}
