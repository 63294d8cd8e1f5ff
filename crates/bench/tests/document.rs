//! The JSON document: its keys, `null` for figures that were not measured, and the round trip.

mod common;

use abey_bench::{BenchRow, CurvePoint, Document, Figure, Figures, Load, Run, Spreads, World, stats};
use proptest::prelude::*;

#[test]
fn a_row_has_its_keys_in_order() {
    let mut document = common::document(&["20k"]);
    document.rows.truncate(1);
    let text = serde_json::to_string(&document).expect("plain values");
    let keys = [
        "world",
        "mode",
        "load",
        "qps",
        "avg_us",
        "p50_us",
        "p95_us",
        "p99_us",
        "p999_us",
        "cpu_percent",
        "cpu_us_per_query",
        "cycles_per_query",
        "instructions_per_query",
        "wakeups_per_s",
        "context_switches_per_query",
        "system_calls_per_query",
        "active",
        "client_bound",
        "runs",
        "qps_spread",
        "avg_us_spread",
        "p50_us_spread",
        "p95_us_spread",
        "p99_us_spread",
        "p999_us_spread",
        "cpu_percent_spread",
        "cpu_us_per_query_spread",
    ];
    let places: Vec<usize> = keys.iter().map(|key| text.find(&format!("\"{key}\":")).expect(key)).collect();
    assert!(places.is_sorted(), "{text}");
    assert!(text.starts_with(r#"{"rows":[{"world":"linux","mode":"base","load":"20k","qps":"#), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("just written");
    assert!(json["rows"][0]["cycles_per_query"].is_null(), "a figure that was not measured is null");
    assert_eq!((&json["rows"][0]["runs"], &json["seed"]), (&3.into(), &0xABE1.into()));
}

#[test]
fn unknown_modes_loads_and_worlds_are_refused() {
    let text = serde_json::to_string(&common::document(&["20k"])).expect("plain values");
    for (good, bad) in [("\"fullbusy\"", "\"turbo\""), ("\"20k\"", "\"fast\""), ("\"linux\"", "\"moon\"")] {
        assert!(serde_json::from_str::<Document>(&text.replacen(good, bad, 1)).is_err(), "{bad}");
    }
}

#[test]
fn runs_are_aggregated_to_rows() {
    let mut runs = common::runs(&["50k", "20k"]);
    runs.reverse();
    runs[0].active = false;
    let (mode, load) = (runs[0].mode, runs[0].load);
    let rows = stats::aggregate(&runs);
    assert_eq!(rows.len(), 12);
    assert!(rows.iter().all(|row| row.runs == 3));
    for row in &rows {
        assert_eq!(
            row.active,
            (row.mode, row.load) != (mode, load),
            "only the row of the run that was not proved is inactive"
        );
    }
    let base = &rows[0];
    assert_eq!((base.mode.to_string(), base.load), ("base".to_owned(), Load::Rate(20_000)));
    assert_eq!(base.figures.avg_us, Some(30.1 * 1.02), "the middle of three");
    assert!((base.spreads.avg_us_spread.expect("three runs") - 0.02 / 1.02).abs() < 1e-12);
    assert_eq!(base.latency_curve.len(), runs[0].curve.len());
    assert!(stats::aggregate(&[]).is_empty());
}

#[test]
fn one_run_has_no_spread_and_missing_figures_are_ignored() {
    let mut runs = common::runs(&["20k"]);
    runs.truncate(1);
    assert_eq!(stats::aggregate(&runs)[0].spreads, Spreads::default());
    let mut runs = common::runs(&["20k"]);
    runs.retain(|run| run.mode == runs_mode());
    runs[0].figures.avg_us = None;
    runs[1].figures.avg_us = Some(f64::NAN);
    runs[1].curve.pop();
    let row = &stats::aggregate(&runs)[0];
    assert_eq!((row.figures.avg_us, row.spreads.avg_us_spread), (runs[2].figures.avg_us, None));
    assert_eq!(row.latency_curve.len(), runs[0].curve.len() - 1, "a percentile that one run lacks is left out");
}

fn runs_mode() -> abey_delivery::Mode {
    abey_delivery::Mode::Base
}

fn figures() -> impl Strategy<Value = Figures> {
    prop::collection::vec(prop::option::of(0.0..1e9f64), Figure::ALL.len()).prop_map(|values| {
        let mut figures = Figures::default();
        Figure::ALL.into_iter().zip(values).for_each(|(figure, value)| figures.set(figure, value));
        figures
    })
}

prop_compose! {
    fn run()(
        mode in prop::sample::select(vec!["base", "defer50", "suspend20", "hold4ms", "threaded-busy"]),
        load in prop_oneof![(1..2_000_000u64).prop_map(Load::Rate), Just(Load::Max)],
        datapath in any::<bool>(),
        figures in figures(),
        us in prop::collection::vec(0.0..1e6f64, 0..4),
        (active, client_bound) in any::<(bool, bool)>(),
        notes in prop::collection::vec(".{0,12}", 0..3),
    ) -> Run {
        Run {
            world: if datapath { World::Datapath } else { World::Linux },
            mode: mode.parse().expect("a mode"),
            load, figures,
            curve: us.into_iter().zip([0.0, 50.0, 99.0, 99.9]).map(|(us, percentile)| CurvePoint { percentile, us }).collect(),
            active, proof: notes.first().cloned(), client_bound, notes,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_document_round_trips(runs in prop::collection::vec(run(), 0..12), seed in any::<u64>()) {
        let document = Document { rows: stats::aggregate(&runs), seed, ..common::document(&[]) };
        let text = serde_json::to_string(&document).expect("plain values");
        prop_assert_eq!(serde_json::from_str::<Document>(&text).expect("just written"), document);
    }

    #[test]
    fn every_run_is_in_one_row_and_medians_are_within_the_range(runs in prop::collection::vec(run(), 0..12)) {
        let rows = stats::aggregate(&runs);
        prop_assert_eq!(rows.iter().map(|row| row.runs as usize).sum::<usize>(), runs.len());
        for row in &rows {
            let of = |row: &BenchRow| runs.iter().filter(|run| (run.world, run.mode, run.load) == (row.world, row.mode, row.load)).collect::<Vec<_>>();
            for figure in Figure::ALL {
                let values: Vec<f64> = of(row).iter().filter_map(|run| run.figures.get(figure)).collect();
                let median = row.figures.get(figure);
                prop_assert_eq!(median.is_none(), values.is_empty());
                if let Some(median) = median {
                    prop_assert!(values.iter().any(|value| *value <= median) && values.iter().any(|value| *value >= median));
                }
            }
        }
    }
}
