//! `abey calibrate`: a profile that other commands accept, measured costs in a plausible order, bad input. No test depends on the
//! speed of the machine or on the accuracy of the prediction.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, UnprivilegedUser, abey, finish, is_root};
use abey_sim::Profile;
use serde_json::Value;

/// The shortest calibration: one run of each row, and few steps of the search.
const SHORT: [&str; 13] = [
    "calibrate",
    "--reps",
    "1",
    "--time",
    "1s",
    "--duration",
    "50ms",
    "--evaluations",
    "10",
    "--loads",
    "5k,7k,9k",
    "--no-check",
    "--json",
];

fn calibrate(world: &str, file: &Path) -> Finished {
    let file = file.to_str().expect("UTF-8");
    let since = Instant::now();
    loop {
        let mut run = Running::start(abey(&[&SHORT[..], &["--world", world, "--output", file]].concat()));
        // There are 48 runs, and each starts a server.
        while !run.has_ended() && since.elapsed() < Duration::from_secs(1200) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let done = run.end();
        // Rightly refused where other programs leave the server's thread no time to busy poll.
        if !done.errors.contains("did not engage") || since.elapsed() > Duration::from_secs(600) {
            return done;
        }
    }
}

fn cost(document: &Value, operation: &str) -> f64 {
    let costs = document["profiles"][0]["costs"].as_array().expect("costs");
    let found = costs.iter().find(|cost| cost["operation"] == operation);
    found.and_then(|cost| cost["ns"].as_f64()).unwrap_or_else(|| panic!("no cost of {operation}: {costs:?}"))
}

/// Asserts that the file is a profile of this world, and that `abey plan` accepts it.
fn assert_planned(world: &str, file: &Path) {
    let name = file.to_str().expect("UTF-8");
    let profile = Profile::load(name).expect("a profile");
    let calibrated = profile.calibrated.expect("it says what it was measured with");
    assert_eq!((calibrated.queues, calibrated.connections), (1, 20));
    let text = std::fs::read_to_string(file).expect("it is there");
    assert!(text.contains(&format!("world = \"{world}\"")), "{text}");
    let sources = ["# measured: ", "# fitted", "# estimated"];
    assert!(sources.iter().all(|source| text.contains(source)), "{text}");
    let plan = ["plan", "--profile", name, "--load", "1k", "--cpu", "100%", "--requests", "1000", "--json"];
    let document = finish(abey(&plan)).assert_status(0).json();
    let families = document["others"].as_array().expect("others").iter().filter_map(|one| one["family"].as_str());
    assert_eq!(families.into_iter().any(|family| family == "hold"), world == "datapath", "the world is the profile's");
}

fn assert_rows(document: &Value, world: &str) {
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 24, "eight modes at three loads");
    assert_eq!(rows.iter().filter(|row| row["fitted"] == true).count(), 10, "five modes at two loads");
    for row in rows {
        assert_eq!(row["world"], world);
        for figure in ["predicted_avg_us", "predicted_cpu_percent", "predicted_p99_us"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{row}");
        }
    }
    let accuracy = &document["accuracy"][0];
    let counted = |key: &str| accuracy[key].as_u64().unwrap_or_else(|| panic!("no {key}: {accuracy}"));
    assert_eq!(counted("judged") + counted("unsteady"), 14, "what was not fitted: {accuracy}");
    assert!(counted("within") <= counted("judged"));
}

#[test]
fn the_datapath_is_calibrated_without_root() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("mine.toml");
    let finished = calibrate("datapath", &file);
    let document = finished.assert_status(0).json();
    assert!(finished.errors.contains("about "), "it says how long it takes: {}", finished.errors);
    assert_rows(&document, "datapath");
    for operation in ["clock-read", "system-call", "timer-set", "timed-sleep", "empty-poll", "memory-datagram"] {
        assert!(cost(&document, operation) > 0.0, "{operation}");
    }
    assert!(cost(&document, "epoll-wait") > cost(&document, "clock-read") / 10.0);
    assert!(cost(&document, "wake-other-cpu") > cost(&document, "system-call"), "a wake-up has a system call in it");
    assert!(cost(&document, "memory-datagram") > cost(&document, "empty-poll"), "a datagram takes a poll");
    assert_planned("datapath", &file);
}

#[test]
fn the_linux_world_is_calibrated_in_namespaces_of_its_own() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("mine.toml");
    let document = calibrate("linux", &file).assert_status(0).json();
    assert_rows(&document, "linux");
    assert!(cost(&document, "veth-send") > cost(&document, "system-call"), "sending is a system call");
    assert!(cost(&document, "veth-receive") > 0.0);
    assert_planned("linux", &file);
}

#[test]
fn without_root_the_linux_world_is_refused_before_anything_is_measured() {
    let Some(unprivileged) = UnprivilegedUser::new() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut command: Command = unprivileged.command();
    command.args(["calibrate", "--world", "linux", "--output"]).arg(directory.path().join("mine.toml"));
    finish(command).assert_refused(3, &["linux", "root"]);
}

#[test]
fn bad_input_is_refused_with_one_sentence() {
    let refuse = |arguments: &[&str], words: &[&str]| {
        finish(abey(&[&["calibrate", "--world", "datapath"], arguments].concat())).assert_refused(2, words);
    };
    refuse(&["--loads", "10k,20k"], &["--loads", "three"]);
    refuse(&["--loads", "10k,20k,max"], &["max", "rate"]);
    refuse(&["--loads", "fast"], &["fast"]);
    refuse(&["--duration", "1ms"], &["--duration", "50ms"]);
    refuse(&["--reps", "0"], &["--reps"]);
    refuse(&["--time", "10ms"], &["--time", "1s"]);
    refuse(&["--output", "mine.txt"], &["mine.txt", ".toml"]);
    refuse(&["--output", "/nowhere/at/all/mine.toml"], &["/nowhere/at/all/mine.toml", "--output"]);
    finish(abey(&["calibrate", "--world", "mars"])).assert_refused(2, &["mars"]);
}
