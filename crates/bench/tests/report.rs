//! The report is one self-contained file, and a browser shows its charts.

#[path = "common/browser.rs"]
mod browser;
mod common;

use std::fs;
use std::path::Path;

use abey_bench::reference::ReferenceTable;
use abey_bench::{Comparison, Document, report};
use serde_json::Value;

fn html(document: &Document) -> String {
    report::render(document, Some(&Comparison::new(&document.rows, &ReferenceTable::memcached())))
}

/// Returns what a browser shows of a report; `None` without a browser.
fn probe(html: &str) -> Option<Value> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report.html");
    let watch = "<head><script>window.violations = 0; document.addEventListener('securitypolicyviolation', () => window.violations++)</script>";
    let script = format!("<script>{}</script></body>", include_str!("common/probe.js"));
    let copy = html.replacen("<head>", watch, 1).replacen("</body>", &script, 1);
    assert!(copy.len() > html.len() + script.len() - 10, "the probe was inserted");
    fs::write(&file, copy).expect("a file");
    let Some(dom) = browser::dump_dom(&file) else {
        eprintln!("skipped: no chromium on this machine to open the report in");
        return None;
    };
    let (_, rest) = dom.split_once("<pre id=\"probe\">").expect("the probe ran");
    let (json, _) = rest.split_once("</pre>").expect("a whole element");
    Some(serde_json::from_str(&json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).expect("JSON"))
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().expect("an array").iter().filter_map(Value::as_str).collect()
}

/// Width and height in pixels.
fn size(value: &Value) -> (f64, f64) {
    (value["size"][0].as_f64().expect("a width"), value["size"][1].as_f64().expect("a height"))
}

#[test]
fn a_browser_shows_every_chart_without_requests() {
    let Some(seen) = probe(&html(&common::document(&["20k", "50k", "max"]))) else { return };
    let charts = seen["charts"].as_array().expect("charts");
    let ids: Vec<&str> = charts.iter().filter_map(|chart| chart["id"].as_str()).collect();
    let expected = ["percentiles-20k", "percentiles-50k", "percentiles-max", "avg-us", "p99-us", "cpu-percent"];
    assert_eq!(ids, expected.map(|name| format!("linux-{name}")));
    let modes = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"];
    for chart in charts {
        let (width, height) = size(chart);
        assert!(width > 400.0 && height > 200.0, "{chart}");
        assert_eq!(chart["described"], true, "{chart}");
        let lines = chart["lines"].as_array().expect("lines");
        let drawn: Vec<&str> = lines.iter().filter_map(|line| line["mode"].as_str()).collect();
        assert_eq!(drawn, modes.map(|mode| format!("m-{mode}")), "one line for each mode");
        assert_eq!(strings(&chart["names"]), modes, "each line has its name at its end");
        for line in lines {
            // The CPU line of `fullbusy` is horizontal, with no height but that of its stroke.
            assert!(size(line).0 > 50.0, "{line}");
        }
        assert!(lines.iter().filter(|line| size(line).1 > 10.0).count() >= 5, "{chart}");
        let mut colours: Vec<&str> = lines.iter().filter_map(|line| line["stroke"].as_str()).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), modes.len(), "a colour for each mode: {colours:?}");
        assert!(chart["points"].as_u64() >= Some(18), "every value has a hover text");
    }
    // Three loads, three figures each; `threaded` was not published.
    let agreement = seen["agreement"].as_array().expect("charts");
    assert_eq!(agreement.len(), 9);
    for chart in agreement {
        assert_eq!(strings(&chart["names"]), modes[..5], "{chart}");
        assert!(size(chart).0 > 200.0 && chart["points"] == 5 && chart["described"] == true, "{chart}");
    }
    for (what, count) in [("requests", 0), ("violations", 0), ("overflow", 0)] {
        assert_eq!(seen[what], count, "{what}");
    }
    let sorted: Vec<f64> = seen["sorted"].as_array().expect("values").iter().filter_map(Value::as_f64).collect();
    assert!(sorted.len() == 18 && sorted.is_sorted(), "{sorted:?}");
}

#[test]
fn a_browser_shows_one_load_as_points() {
    let Some(seen) = probe(&html(&common::document(&["20k"]))) else { return };
    let charts = seen["charts"].as_array().expect("charts");
    assert_eq!(charts.len(), 4);
    for chart in &charts[1..] {
        assert_eq!(chart["points"], 6, "{chart}");
    }
}

#[test]
fn comparable_worlds_share_every_chart() {
    let document = common::side_by_side(&["20k", "50k"]);
    let html = html(&document);
    assert!(html.contains("Ratios to the linux world") && html.contains("World: datapath"));
    let Some(seen) = probe(&html) else { return };
    let charts = seen["charts"].as_array().expect("charts");
    let ids: Vec<&str> = charts.iter().filter_map(|chart| chart["id"].as_str()).collect();
    let expected = ["percentiles-20k", "percentiles-50k", "avg-us", "p99-us", "cpu-percent"];
    assert_eq!(ids, expected.map(|name| format!("worlds-{name}")));
    for chart in charts {
        let lines = chart["lines"].as_array().expect("lines");
        assert_eq!(lines.len(), 12, "six modes in two worlds: {chart}");
        let names = strings(&chart["names"]);
        assert!(names.contains(&"suspend20 linux") && names.contains(&"suspend20 datapath"), "{names:?}");
        // A mode has one colour in all worlds.
        let mut colours: Vec<&str> = lines.iter().filter_map(|line| line["stroke"].as_str()).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 6, "{colours:?}");
    }
    for (what, count) in [("requests", 0), ("violations", 0), ("overflow", 0)] {
        assert_eq!(seen[what], count, "{what}");
    }
}

#[test]
fn the_file_has_no_external_references() {
    let html = html(&common::document(&["20k", "50k"]));
    assert!(html.contains("default-src 'none'"));
    for outside in ["http://", "https://", " src=", " href=", "url(", "@import", "<link", "<img", "<iframe"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn input_is_escaped() {
    let mut document = common::document(&["20k"]);
    let input = "</script><script>alert(1)</script>\"'&";
    document.setup.command = input.to_owned();
    document.setup.load = input.to_owned();
    let bed = &mut document.setup.test_beds[0];
    (bed.server, bed.client, bed.wire) = (input.to_owned(), input.to_owned(), input.to_owned());
    document.machine.cpu_model = Some(input.to_owned());
    document.notes = vec![input.to_owned()];
    document.rows[0].notes = vec![input.to_owned()];
    document.rows[0].proof = Some(input.to_owned());
    let html = html(&document);
    assert!(!html.contains("<script>alert"));
    assert_eq!(html.matches("&lt;script&gt;alert(1)").count(), 12, "all of it is shown as text");
}

#[test]
fn the_report_has_all_facts() {
    let document = common::document(&["20k", "max"]);
    let html = html(&document);
    let facts =
        ["Sample CPU @ 3.00GHz", "Linux 6.18.0-sample", "linux wire between", "44001", "abey bench --loads 20k,50k"];
    let notes = [
        "no hardware counters",
        "client-bound",
        "every figure in this report is invented",
        "Proofs that each mode was active",
    ];
    let compared = ["linux 20k beside published 200k", "of 10 pairs of modes", "not published"];
    for text in facts.into_iter().chain(notes).chain(compared) {
        assert!(html.contains(text), "{text}");
    }
    assert!(!report::render(&document, None).contains("Comparison with published"));
}

#[test]
fn worlds_have_separate_charts_and_tables() {
    let html = html(&common::two_worlds(&["20k", "max"]));
    let (_, charts) = html.split_once("<h2>Charts").expect("charts");
    let (charts, tables) = charts.split_once("<h2>Results").expect("tables");
    for part in [charts, &tables[..tables.find("<section").expect("more")]] {
        let (linux, datapath) = part.split_once("World: datapath").expect("a heading");
        assert!(linux.contains("World: linux") && linux.contains("linux wire between two samples"), "{linux}");
        assert!(datapath.contains("datapath wire between two samples"), "{datapath}");
    }
    assert!(charts.contains("linux-percentiles-20k") && charts.contains("datapath-percentiles-20k"));
    assert_eq!(tables.matches("<table class=\"sortable\"").count(), 2);
    for compared in ["linux max beside published max", "datapath max beside published max"] {
        assert!(html.contains(compared), "{compared}");
    }
    // The proofs are separate too.
    assert_eq!(html.matches("<td>datapath</td><td>max</td>").count(), 6);
}

#[test]
fn an_empty_document_makes_a_report() {
    let document = common::document(&[]);
    assert!(html(&document).contains("nothing was measured"));
    let mut document = common::document(&["20k"]);
    document.rows.iter_mut().for_each(|row| row.latency_curve.clear());
    assert!(html(&document).contains("Nothing was measured for this chart."));
}

#[test]
fn colours_do_not_depend_on_other_modes() {
    let all = html(&common::document(&["20k"]));
    let mut one = common::document(&["20k"]);
    one.rows.retain(|row| row.mode.to_string() == "suspend20");
    let colour = |html: &str| {
        html.split_once(".m-suspend20{").and_then(|(_, rest)| rest.split_once('}')).map(|(css, _)| css.to_owned())
    };
    assert!(colour(&all).is_some());
    assert_eq!(colour(&all), colour(&html(&one)));
}

/// Writes `tmp/sample-report.html` in the target directory, to open in a browser.
#[test]
fn a_sample_report_is_written() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample-report.html");
    fs::write(&path, html(&common::document(&["20k", "50k", "max"]))).expect("the target directory is writable");
    println!("{}", path.display());
}

/// Shows published rows as measured ones: eleven modes at six loads, more than a bench usually has.
#[test]
fn many_modes_at_many_loads_have_separate_lines() {
    let table = ReferenceTable::counters();
    let mut document = common::document(&["20k"]);
    let pattern = document.rows[0].clone();
    document.notes = vec!["Sample data: published figures shown as measured ones, with invented curves.".to_owned()];
    document.rows = table
        .rows
        .iter()
        .map(|row| {
            let mut drawn =
                abey_bench::BenchRow { mode: row.mode, load: row.load, figures: row.figures, ..pattern.clone() };
            drawn.latency_curve.iter_mut().for_each(|point| point.us *= row.figures.avg_us.unwrap_or(1.0) / 30.0);
            drawn
        })
        .collect();
    let html = html(&document);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample-many.html");
    fs::write(path, &html).expect("the target directory is writable");
    let Some(seen) = probe(&html) else { return };
    let charts = seen["charts"].as_array().expect("charts");
    assert_eq!(charts.len(), 6 + 3);
    for chart in charts {
        let lines = chart["lines"].as_array().expect("lines");
        let mut strokes: Vec<&str> = lines.iter().filter_map(|line| line["stroke"].as_str()).collect();
        strokes.sort_unstable();
        strokes.dedup();
        assert_eq!((lines.len(), strokes.len()), (11, 11), "{chart}");
    }
    assert_eq!(seen["overflow"], 0);
}
