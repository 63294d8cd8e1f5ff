//! Pareto frontier: the points with two figures to be minimized that no other point dominates.

/// CPU use and latency.
pub(super) type Point = (f64, f64);

/// Returns the indices of the points that no other point dominates, by increasing CPU use. Of equal points the first
/// one counts.
pub(super) fn frontier(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| compare(points[*a], points[*b]).then(a.cmp(b)));
    let mut least = f64::INFINITY;
    order.retain(|at| {
        let best = points[*at].1 < least;
        least = least.min(points[*at].1);
        best
    });
    order
}

/// Returns the points worth further simulation: no other point is better in both figures by more than `share`, and
/// none is slightly worse in one figure and much better in the other.
pub(super) fn worthwhile(points: &[Point], share: f64) -> Vec<usize> {
    let much_better = |a: f64, b: f64| a < b * (1.0 - MUCH);
    let beaten = |(cpu, latency): Point| {
        points.iter().any(|(other_cpu, other_latency)| {
            let both = *other_cpu < cpu * (1.0 - share) && *other_latency < latency * (1.0 - share);
            let faster = much_better(*other_latency, latency) && *other_cpu <= cpu * (1.0 + LITTLE_CPU);
            let cheaper = much_better(*other_cpu, cpu) && *other_latency <= latency * (1.0 + LITTLE_LATENCY);
            both || faster || cheaper
        })
    };
    (0..points.len()).filter(|at| !beaten(points[*at])).collect()
}

const MUCH: f64 = 0.15;
const LITTLE_CPU: f64 = 0.005;
/// Share of latency that is insignificant; a percentile is less certain than a mean.
const LITTLE_LATENCY: f64 = 0.01;

fn compare(a: Point, b: Point) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frontier_by_hand() {
        let points = [(40.0, 200.0), (30.0, 300.0), (44.0, 220.0), (100.0, 150.0), (30.0, 300.0), (41.0, 199.0)];
        assert_eq!(frontier(&points), [1, 0, 5, 3]);
        assert_eq!(worthwhile(&points, 0.2), [0, 1, 2, 3, 4, 5]);
        assert_eq!(worthwhile(&points, 0.05), [0, 1, 3, 4, 5]);
        // A third of the latency for a thousandth of the CPU.
        assert_eq!(worthwhile(&[(32.6, 1_500.0), (32.63, 500.0)], 0.05), [1]);
    }

    proptest! {
        #[test]
        fn nothing_beats_the_frontier_and_it_beats_everything_else(
            points in prop::collection::vec((1.0..100.0f64, 1.0..1000.0f64), 1..40),
        ) {
            let chosen = frontier(&points);
            for (at, point) in points.iter().enumerate() {
                let beaten = points.iter().any(|other| other.0 < point.0 && other.1 < point.1);
                prop_assert!(!(beaten && chosen.contains(&at)));
                let covered = chosen.iter().any(|at| points[*at].0 <= point.0 && points[*at].1 <= point.1);
                prop_assert!(covered);
            }
            prop_assert!(!worthwhile(&points, 0.1).is_empty());
        }
    }
}
