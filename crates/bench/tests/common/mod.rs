//! A sample document with invented figures, for tests.

#![allow(dead_code, reason = "each test file uses a part of it")]

use abey_bench::row::CURVE_PERCENTILES;
use abey_bench::{CurvePoint, Document, Figures, Load, Machine, Run, Setup, TestBedSetup, World, ratios, stats};

/// Mode, and average, p99 and CPU use at the low and at the high load.
const MODES: [(&str, [f64; 3], [f64; 3]); 6] = [
    ("base", [30.1, 63.0, 19.0], [36.2, 80.0, 46.0]),
    ("defer50", [78.4, 131.0, 16.0], [86.0, 144.0, 38.0]),
    ("napibusy", [81.0, 249.0, 53.0], [51.3, 248.0, 91.0]),
    ("fullbusy", [22.3, 69.0, 99.0], [24.1, 74.0, 100.0]),
    ("suspend20", [52.2, 116.0, 41.0], [59.0, 168.0, 87.0]),
    ("threaded", [35.0, 72.0, 28.0], [64.1, 226.0, 76.0]),
];

/// Returns three invented runs of each of six modes. Loads up to 20k are low; `max` has ten times the latency of the high load.
pub(crate) fn runs(loads: &[&str]) -> Vec<Run> {
    let mut runs = Vec::new();
    for repetition in 0..3u32 {
        for (mode, low, high) in MODES {
            for load in loads {
                let load: Load = load.parse().expect("a load");
                let [avg, p99, cpu] = if load.rate().is_some_and(|rate| rate <= 20_000) { low } else { high };
                let factor = 1.0 + f64::from(repetition) * 0.02 + if load == Load::Max { 9.0 } else { 0.0 };
                let qps = load.rate().map_or(140_000.0 - avg * 300.0, |rate| rate as f64 - 3.0) - f64::from(repetition);
                runs.push(run(
                    mode,
                    load,
                    [avg * factor, p99 * factor, (cpu * (1.0 + f64::from(repetition) * 0.01)).min(100.0)],
                    qps,
                ));
            }
        }
    }
    runs
}

fn run(mode: &str, load: Load, [avg, p99, cpu]: [f64; 3], qps: f64) -> Run {
    // A smooth curve through the median, slightly below the average, and p99.
    let median = avg * 0.93;
    let growth = (p99 / median).ln() / (50f64).ln();
    let at = |percentile: f64| {
        let rarer = 50.0 / (100.0 - percentile);
        let bend = if percentile < 50.0 { 0.35 } else { 1.0 };
        median * rarer.powf(growth * bend)
    };
    Run {
        world: World::Linux,
        mode: mode.parse().expect("a mode"),
        load,
        figures: Figures {
            qps: Some(qps),
            avg_us: Some(avg),
            p50_us: Some(at(50.0)),
            p95_us: Some(at(95.0)),
            p99_us: Some(at(99.0)),
            p999_us: Some(at(99.9)),
            cpu_percent: Some(cpu),
            cpu_us_per_query: Some(cpu * 1e4 / qps),
            wakeups_per_s: Some(qps * 0.4),
            context_switches_per_query: Some(0.41),
            system_calls_per_query: Some(3.02),
            ..Figures::default()
        },
        curve: CURVE_PERCENTILES
            .into_iter()
            .filter(|percentile| *percentile <= 99.99)
            .map(|percentile| CurvePoint { percentile, us: at(percentile) })
            .collect(),
        active: true,
        proof: Some(format!("{qps:.0} packets, invented")),
        client_bound: load == Load::Max && mode == "fullbusy",
        notes: Vec::new(),
    }
}

/// Returns a document with invented figures, which its texts mention.
pub(crate) fn document(loads: &[&str]) -> Document {
    Document {
        rows: stats::aggregate(&runs(loads)),
        machine: Machine {
            cpu_model: Some("Sample CPU @ 3.00GHz".to_owned()),
            cpus: Some(2),
            kernel: Some("6.18.0-sample".to_owned()),
            hypervisor: Some(true),
            memory_bytes: Some(8 << 30),
            hardware_counters: false,
            date: "2026-01-01 12:00 UTC".to_owned(),
        },
        seed: 0xABE1,
        ratios: Vec::new(),
        profile: "release".to_owned(),
        setup: Setup {
            side_by_side: false,
            command: "abey bench --loads 20k,50k --compare reference".to_owned(),
            test_beds: vec![test_bed(World::Linux)],
            load: "GET, 20 connections, Poisson arrivals".to_owned(),
            run_ms: 1_000,
            warmup_ms: 250,
            repetitions: 3,
            abey_version: "0.1.0".to_owned(),
        },
        notes: vec!["Sample data: every figure in this report is invented. Nothing was measured.".to_owned()],
    }
}

/// Returns an invented test bed.
pub(crate) fn test_bed(world: World) -> TestBedSetup {
    TestBedSetup {
        world,
        server: "sample server with invented figures".to_owned(),
        client: format!("over the sockets of {world}, from CPU 0"),
        wire: format!("{world} wire between two samples"),
    }
}

/// Returns the document with a second world, ten times as slow.
pub(crate) fn two_worlds(loads: &[&str]) -> Document {
    let mut document = document(loads);
    let mut other = runs(loads);
    for run in &mut other {
        run.world = World::Datapath;
        run.figures.avg_us = run.figures.avg_us.map(|avg| avg * 10.0);
        run.curve.iter_mut().for_each(|point| point.us *= 10.0);
    }
    document.rows.extend(stats::aggregate(&other));
    document.setup.test_beds.push(test_bed(World::Datapath));
    document
}

/// Returns the document of two worlds that can be compared.
pub(crate) fn side_by_side(loads: &[&str]) -> Document {
    let mut document = two_worlds(loads);
    document.setup.side_by_side = true;
    document.ratios = ratios::ratio_rows(&document.rows);
    document
}
