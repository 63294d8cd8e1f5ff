//! Statistics over runs: medians, spreads, rows and ratios.

use abey_delivery::Mode;

use crate::row::CurvePoint;
use crate::{BenchRow, Figure, Figures, Load, Run, Spreads, World};

/// Returns the median: the middle value, or the mean of the two middle values. Values that are not finite are ignored; `None`
/// without finite values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        // Halving before adding cannot overflow.
        _ => Some(sorted[middle - 1] / 2.0 + sorted[middle] / 2.0),
    }
}

/// Returns half the range over the median, as a fraction: 0.04 is about plus or minus 4 %.
///
/// It is the range and not the standard deviation, because three runs are too few to estimate a distribution. `None` with fewer than
/// two finite values, or if the median is zero.
pub fn spread(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let (first, last) = (sorted.first()?, sorted.last()?);
    let median = median(&sorted)?.abs();
    let spread = (last / 2.0 - first / 2.0) / median;
    (sorted.len() >= 2 && spread.is_finite()).then_some(spread)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    finite.sort_unstable_by(f64::total_cmp);
    finite
}

/// Returns one row for each world, mode and load of the runs, in the order of the table (world, load, mode).
///
/// The median of a figure is over the runs that measured it. A row is active if every run was, and client-bound if any run was.
pub fn aggregate(runs: &[Run]) -> Vec<BenchRow> {
    let mut keys: Vec<(World, Mode, Load)> = Vec::new();
    for run in runs {
        let key = (run.world, run.mode, run.load);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut rows: Vec<BenchRow> = keys
        .into_iter()
        .map(|key| row(key, &runs.iter().filter(|run| (run.world, run.mode, run.load) == key).collect::<Vec<_>>()))
        .collect();
    rows.sort_by_key(BenchRow::sort_key);
    rows
}

fn row((world, mode, load): (World, Mode, Load), runs: &[&Run]) -> BenchRow {
    let mut figures = Figures::default();
    let mut spreads = Spreads::default();
    for figure in Figure::ALL {
        let values: Vec<f64> = runs.iter().filter_map(|run| run.figures.get(figure)).collect();
        figures.set(figure, median(&values));
        spreads.set(figure, spread(&values));
    }
    let mut notes: Vec<String> = Vec::new();
    for note in runs.iter().flat_map(|run| &run.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    BenchRow {
        world,
        mode,
        load,
        figures,
        active: runs.iter().all(|run| run.active),
        client_bound: runs.iter().any(|run| run.client_bound),
        runs: u32::try_from(runs.len()).expect("a bench has far fewer runs"),
        spreads,
        proof: runs.iter().find_map(|run| run.proof.clone()),
        latency_curve: curve(runs),
        notes,
    }
}

/// Returns the median latency at each percentile that every run has.
fn curve(runs: &[&Run]) -> Vec<CurvePoint> {
    let at = |run: &Run, percentile: f64| {
        run.curve.iter().find(|point| point.percentile == percentile).map(|point| point.us).filter(|us| us.is_finite())
    };
    let Some(first) = runs.first() else { return Vec::new() };
    first
        .curve
        .iter()
        .filter_map(|point| {
            let values: Option<Vec<f64>> = runs.iter().map(|run| at(run, point.percentile)).collect();
            Some(CurvePoint { percentile: point.percentile, us: median(&values?)? })
        })
        .collect()
}

/// Returns the row of a world, mode and load.
pub fn find(rows: &[BenchRow], world: World, mode: Mode, load: Load) -> Option<&BenchRow> {
    rows.iter().find(|row| (row.world, row.mode, row.load) == (world, mode, load))
}

/// Returns the ratio of a figure of `from` to that of `to`; `None` if either was not measured or `to` is zero.
pub fn ratio(from: &Figures, to: &Figures, figure: Figure) -> Option<f64> {
    let ratio = from.get(figure)? / to.get(figure)?;
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn spread_is_half_the_range_over_the_median() {
        assert_eq!(spread(&[96.0, 100.0, 104.0]), Some(0.04));
        assert_eq!(spread(&[100.0]), None);
        assert_eq!(spread(&[-1.0, 0.0, 1.0]), None);
    }

    proptest! {
        #[test]
        fn at_most_half_of_the_values_are_on_each_side_of_the_median(values in prop::collection::vec(-1e12..1e12f64, 1..40)) {
            let median = median(&values).expect("not empty");
            let below = values.iter().filter(|value| **value < median).count();
            let above = values.iter().filter(|value| **value > median).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
        }

        #[test]
        fn median_and_spread_do_not_depend_on_order(mut values in prop::collection::vec(0.1..1e9f64, 0..20)) {
            let before = (median(&values), spread(&values));
            values.reverse();
            prop_assert_eq!(before, (median(&values), spread(&values)));
        }

        #[test]
        fn spread_is_scale_free_and_half_the_range(values in prop::collection::vec(1.0..1e6f64, 2..20), factor in 1.0..1e3f64) {
            let spread_of = spread(&values).expect("two values");
            let scaled: Vec<f64> = values.iter().map(|value| value * factor).collect();
            prop_assert!((spread(&scaled).expect("two values") - spread_of).abs() < 1e-9 * (1.0 + spread_of));
            let range = sorted(&values).last().unwrap() - sorted(&values)[0];
            prop_assert!((2.0 * spread_of * median(&values).unwrap() - range).abs() < 1e-6 * (1.0 + range));
        }

        #[test]
        fn equal_runs_have_no_spread(value in 0.1..1e9f64, count in 2..9usize) {
            prop_assert_eq!(spread(&vec![value; count]), Some(0.0));
        }
    }
}
