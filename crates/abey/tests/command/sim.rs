//! `abey sim`: scenarios, timelines, published tables, bad input.

use std::process::{Command, Output};

use serde_json::Value;

fn abey(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abey")).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn a_scenario_has_a_row_for_each_mode_and_is_deterministic() {
    let file = file("modes = [\"base\", \"suspend20\"]\nload = \"60k\"\nduration = \"20ms\"\n");
    let args = ["sim", file.path().to_str().unwrap(), "--json"];
    let once = abey(&args);
    assert_eq!(once.stdout, abey(&args).stdout);
    let rows = json(&once)["rows"].as_array().unwrap().clone();
    assert_eq!(rows.iter().map(|row| row["mode"].as_str().unwrap()).collect::<Vec<_>>(), ["base", "suspend20"]);
    for row in rows {
        assert!((50e3..70e3).contains(&row["qps"].as_f64().unwrap()), "{row}");
        assert!(row["p99_us"].as_f64().unwrap() > row["avg_us"].as_f64().unwrap(), "{row}");
    }
}

#[test]
fn a_timeline_is_written_for_one_mode_only() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.json");
    let one = file("modes = [\"suspend20\"]\nload = \"60k\"\nwarmup = \"1ms\"\nduration = \"2ms\"\n");
    let output = abey(&["sim", one.path().to_str().unwrap(), "--trace", trace.to_str().unwrap()]);
    assert!(output.status.success());
    let events: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    assert!(events["traceEvents"].as_array().unwrap().iter().any(|event| event["name"] == "suspended"));
    let two = file("modes = [\"base\", \"suspend20\"]\nload = \"60k\"\n");
    let output = abey(&["sim", two.path().to_str().unwrap(), "--trace", trace.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_picture_has_the_given_arrivals_and_rows_with_their_delivery() {
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("three.svg");
    let path = picture.to_str().unwrap();
    let args = ["sim", "timeline", "--mode", "defer50", "--arrivals", "20us,40us,1ms", "--output", path, "--json"];
    let rows = json(&abey(&args))["rows"].as_array().unwrap().clone();
    assert_eq!(rows.iter().map(|row| row["arrived_us"].as_f64().unwrap()).collect::<Vec<_>>(), [20.0, 40.0, 1_000.0]);
    // The first request raises an interrupt. The others wait for a timer.
    let waits: Vec<f64> =
        rows.iter().map(|row| row["delivered_us"].as_f64().unwrap() - row["arrived_us"].as_f64().unwrap()).collect();
    assert!(waits[0] < waits[1] && waits.iter().all(|wait| *wait < 60.0), "{waits:?}");
    let text = std::fs::read_to_string(&picture).unwrap();
    assert!(roxmltree::Document::parse(&text).unwrap().descendants().any(|node| node.text() == Some("defer50")));
    for (args, part) in [
        (vec![], "--mode"),
        (vec!["--mode", "turbo"], "turbo"),
        (vec!["--mode", "base", "--arrivals", "40us,20us"], "order"),
        (vec!["--mode", "base", "--arrivals", "1s"], "26 ms"),
        (vec!["--mode", "base", "--all", "/tmp"], "--all"),
    ] {
        let output = abey(&[&["sim", "timeline"], &args[..]].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(part), "no `{part}` in {message}");
    }
}

#[test]
fn a_published_table_has_both_figures_in_every_row() {
    let rows = json(&abey(&["sim", "--reference", "poll-hold", "--json"]))["rows"].clone();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["fitted"].is_boolean() && row["cpu_percent"]["published"].is_number(), "{row}");
        assert!(row["cpu_percent"]["predicted"].is_number(), "{row}");
    }
}

#[test]
fn bad_input_is_refused_with_the_key_and_the_allowed_values() {
    let unknown = file("modes = [\"base\"]\nlaod = \"60k\"\n");
    for (args, parts) in [
        (vec!["sim", unknown.path().to_str().unwrap()], vec!["laod", "line 2", "`load`"]),
        (vec!["sim", "/nowhere/at-all.toml"], vec!["/nowhere/at-all.toml"]),
        (vec!["sim", "--reference", "poll-hold", "--profile", "turbo"], vec!["turbo", "epyc-7662"]),
        (vec!["sim", "--reference", "turbo"], vec!["turbo", "irq-suspension"]),
    ] {
        let output = abey(&args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        for part in parts {
            assert!(message.contains(part), "no `{part}` in {message}");
        }
    }
}
