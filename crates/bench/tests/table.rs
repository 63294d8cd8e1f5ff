//! Tables for a terminal and as Markdown.

mod common;

use abey_bench::reference::ReferenceTable;
use abey_bench::{BenchRow, Comparison, Figures, Load, stats, table};
use abey_delivery::Mode;

fn rows(loads: &[&str]) -> Vec<BenchRow> {
    stats::aggregate(&common::runs(loads))
}

/// Splits a line into cells, which are at least two spaces apart.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn rows_are_ordered_by_load_then_mode() {
    let rows = rows(&["50k", "20k", "max"]);
    let text = table::terminal(&rows, &[]);
    println!("{text}");
    let names: Vec<Vec<&str>> =
        text.lines().skip(5).map(cells).filter(|cells| cells.len() > 5).map(|cells| cells[..2].to_vec()).collect();
    let modes = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"];
    let expected: Vec<Vec<&str>> = ["20k", "50k", "max"]
        .iter()
        .flat_map(|load| {
            modes.map(|mode| vec![*load, if (*load, mode) == ("max", "fullbusy") { "fullbusy *" } else { mode }])
        })
        .collect();
    assert_eq!(names, expected);
}

#[test]
fn a_terminal_of_140_columns_is_wide_enough() {
    let mut rows = rows(&["20k", "max"]);
    for row in &mut rows {
        row.figures.cycles_per_query = Some(25_261.0);
        row.figures.instructions_per_query = Some(123_785.4);
        row.mode = if row.mode == Mode::Threaded { Mode::ThreadedBusy } else { row.mode };
        row.figures.qps = Some(1_236_608.0);
        row.figures.p999_us = Some(114_805.0);
    }
    let text = table::terminal(&rows, &[]);
    let widest = text.lines().map(|line| line.chars().count()).max().expect("a table");
    assert!(widest <= 140, "{widest} columns:\n{text}");
    assert!(text.contains("25,261") && text.contains("123,785") && !text.contains("no hardware counters"));
}

#[test]
fn figures_that_were_not_measured_are_blank_with_a_note() {
    let text = table::terminal(&rows(&["20k"]), &[]);
    assert!(text.contains("cycles and instructions: this machine has no hardware counters"), "{text}");
    assert!(!text.contains("client-bound") && !text.contains("not proved active"));
    let mut rows = rows(&["20k"]);
    for row in &mut rows {
        row.figures.wakeups_per_s = None;
    }
    rows[1].active = false;
    rows[1].notes = vec!["the first run was repeated".to_owned()];
    let text = table::terminal(&rows, &[]);
    assert!(text.contains("not measured: interrupts or wake-ups per second"), "{text}");
    assert!(text.contains("defer50 !") && text.contains("! not proved active"));
    assert!(text.contains("defer50 at 20k: the first run was repeated"));
    assert_eq!(table::terminal(&[], &[]).lines().last(), Some("nothing was measured"));
}

#[test]
fn spreads_are_percent_of_the_median() {
    let mut runs = common::runs(&["20k"]);
    runs.retain(|run| run.mode == Mode::Base);
    for (run, avg) in runs.iter_mut().zip([28.9, 30.1, 31.3]) {
        run.figures.avg_us = Some(avg);
    }
    let text = table::terminal(&stats::aggregate(&runs), &[]);
    assert!(text.contains("30.1 ±4%"), "{text}");
    assert!(table::markdown(&stats::aggregate(&runs), &[]).contains("| 30.1 ±4% |"));
    runs[2].figures.avg_us = Some(30_000.0);
    assert!(table::markdown(&stats::aggregate(&runs), &[]).contains("| 30.1 ±>999% |"));
}

#[test]
fn markdown_lines_have_the_same_number_of_cells() {
    let text = table::markdown(&rows(&["20k", "max"]), &[]);
    println!("{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + 12);
    for line in &lines {
        assert_eq!(line.matches('|').count(), 16, "{line}");
    }
    assert!(lines[0].starts_with("| load | mode | qps | avg us | p50 us |"), "{}", lines[0]);
    assert!(lines[1].starts_with("| --- | --- | ---: |"));
    assert!(text.contains("fullbusy \\*"), "a mark is no emphasis");
    assert!(text.contains("\n\n- cycles and instructions: this machine"));
}

#[test]
fn each_world_has_a_table_below_its_test_bed() {
    let document = common::two_worlds(&["20k"]);
    let text = table::terminal(&document.rows, &document.setup.test_beds);
    println!("{text}");
    let first_of = |text: &str, words: &str| text.find(words).unwrap_or_else(|| panic!("no {words:?}: {text}"));
    let [linux, datapath] = ["linux: sample server", "datapath: sample server"].map(|words| first_of(&text, words));
    assert!(linux < datapath);
    let (linux, datapath) = (&text[linux..datapath], &text[datapath..]);
    for (table, avg) in [(linux, "30.7"), (datapath, "307")] {
        let base: Vec<Vec<&str>> = table.lines().map(cells).filter(|cells| cells.get(1) == Some(&"base")).collect();
        assert_eq!(base.len(), 1, "{table}");
        assert!(base[0][3].starts_with(avg), "{base:?}");
    }
    let markdown = table::markdown(&document.rows, &document.setup.test_beds);
    assert_eq!(markdown.matches("| load | mode |").count(), 2, "{markdown}");
    assert!(markdown.contains("datapath wire between two samples; load over the sockets of datapath, from CPU 0\n\n|"));
}

#[test]
fn measured_rows_are_compared_with_published_ones() {
    let comparison = Comparison::new(&rows(&["20k", "50k", "max"]), &ReferenceTable::memcached());
    // Base uses 19 % and 46 % of the CPU; published at 200k 25 %, at 400k 39 %, at 600k 61 %.
    let pairs: Vec<(Load, Load)> = comparison.pairs.iter().map(|pair| (pair.measured, pair.published)).collect();
    let load = |text: &str| text.parse::<Load>().expect(text);
    assert_eq!(pairs, [(load("20k"), load("200k")), (load("50k"), load("400k")), (Load::Max, Load::Max)]);
    let text = table::comparison(&comparison);
    println!("{text}");
    assert!(text.contains("linux 20k beside published 200k (base uses 19 % and 25 % of the CPU)"));
    let fullbusy = text.lines().map(cells).find(|cells| cells.first() == Some(&"fullbusy")).expect("a row");
    assert_eq!(fullbusy[..5], ["fullbusy", "22.7", "58.0", "0.74x", "0.46x"]);
    assert!(text.lines().any(|line| cells(line)[..] == ["threaded", "not published"]));
    let published =
        text.lines().map(cells).filter(|cells| cells.get(1) == Some(&"published") && cells[0] == "suspend20");
    assert_eq!(published.count(), 6, "every published load of a measured mode");
    let widest = text.lines().map(|line| line.chars().count()).max().expect("text");
    assert!(widest <= 140, "{widest} columns");
}

#[test]
fn without_base_the_lowest_and_highest_loads_are_paired() {
    let mut rows = rows(&["20k", "50k"]);
    rows.retain(|row| row.mode != Mode::Base);
    let comparison = Comparison::new(&rows, &ReferenceTable::memcached());
    let published: Vec<String> = comparison.pairs.iter().map(|pair| pair.published.to_string()).collect();
    assert_eq!(published, ["200k", "1000k"]);
    assert!(comparison.pairs[0].modes.iter().all(|mode| mode.measured_ratios.iter().all(Option::is_none)));
}

#[test]
fn published_rows_agree_with_themselves() {
    let table = ReferenceTable::memcached();
    let mut rows = rows(&["200k"]);
    for row in &mut rows {
        row.figures = table.find(row.mode, row.load).map_or(Figures::default(), |published| published.figures);
    }
    let comparison = Comparison::new(&rows, &table);
    let pair = &comparison.pairs[0];
    assert_eq!(pair.published, pair.measured);
    assert!(pair.orders.iter().all(|order| order.same == order.of && order.of >= 6), "{:?}", pair.orders);
    for mode in pair.modes.iter().filter(|mode| mode.published.is_some()) {
        assert_eq!(mode.measured_ratios, mode.published_ratios);
    }
}

#[test]
fn comparable_worlds_share_a_table_with_ratios() {
    let document = common::side_by_side(&["20k", "max"]);
    let text = table::side_by_side(&document);
    let widest = text.lines().map(|line| line.chars().count()).max().expect("a table");
    assert!(widest <= 140, "{widest} columns:\n{text}");
    let lines: Vec<Vec<&str>> = text.lines().map(cells).collect();
    let of = |mode: &str| -> Vec<&str> {
        let rows = lines.iter().filter(|line| line.len() > 8 && line[..2] == ["20k", mode]);
        rows.map(|line| line[2]).collect()
    };
    // Once per world in the results, and once in the ratios.
    assert_eq!(of("suspend20"), ["linux", "datapath", "datapath"], "{text}");
    let ratios = lines.iter().rfind(|line| line.len() > 8 && line[..2] == ["20k", "suspend20"]).expect("a row");
    // Ten times the average; the lowest average of linux is that of `fullbusy`.
    assert_eq!((ratios[4], ratios[8]), ("10.0x", "23.4x fullbusy"), "{ratios:?}");
    assert_eq!(document.ratios.len(), 12);
}
