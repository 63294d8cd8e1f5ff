//! `abey plan`: an answer that meets the goal, files that other commands read, goals that cannot be met, bad input.

use std::fs;
use std::process::Command;

use crate::common::{ABEY, Finished, abey, finish, has};
use abey_delivery::PollContext;
use abey_sim::SettingsFile;
use abey_sim::plan::P99_MARGIN;
use serde_json::Value;

/// One queue and few requests, so that a simulation is short.
const SMALL: [&str; 5] = ["plan", "--queues", "1", "--requests", "2000"];

fn plan(more: &[&str]) -> Finished {
    plan_at("40k", more)
}

fn plan_at(load: &str, more: &[&str]) -> Finished {
    finish(abey(&[&SMALL[..], &["--load", load], more].concat()))
}

fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no figure: {value}"))
}

#[test]
fn the_answer_meets_the_goal_and_nothing_cheaper_does() {
    let document = plan(&["--p99", "320us", "--json"]).assert_status(0).json();
    assert_eq!(document["goal"]["met"], true);
    assert_eq!(document["recommended"]["settings"], document["rows"][0]["settings"]);
    let row = &document["rows"][0];
    assert!(figure(&row["worst_p99_us"]) * (1.0 + P99_MARGIN) <= 320.0, "{row}");
    let cpu = figure(&row["cpu_percent"]);
    let frontier = document["frontier"].as_array().expect("frontier");
    assert!(frontier.len() > 5, "{frontier:?}");
    for point in frontier {
        let meets = figure(&point["p99_us"]) * (1.0 + P99_MARGIN) <= 320.0;
        assert!(!meets || figure(&point["cpu_percent"]) >= cpu - 1e-9, "{point} is cheaper than {row}");
    }
    let families: Vec<&str> =
        document["others"].as_array().expect("others").iter().filter_map(|one| one["family"].as_str()).collect();
    assert_eq!(families.len(), 6, "every family but the chosen one: {families:?}");
    assert!(!families.contains(&"hold"), "the kernel has no such mode");
    assert!(figure(&document["wait_added_us"]) < figure(&document["wait_bound_us"]));
}

#[test]
fn the_plan_is_the_same_every_time_and_on_one_cpu() {
    let arguments = [&SMALL[..], &["--load", "40k", "--p99", "320us"]].concat();
    let once = finish(abey(&arguments));
    assert_eq!(once.assert_status(0).out, finish(abey(&arguments)).out);
    if !has("taskset") {
        return;
    }
    let mut alone = Command::new("taskset");
    alone.args(["-c", "0", ABEY]).args(&arguments);
    let alone = finish(alone);
    if alone.status.success() {
        assert_eq!(once.out, alone.out);
    } else {
        eprintln!("skipped: CPU 0 is not ours: {}", alone.errors);
    }
}

#[test]
fn what_is_written_is_read_by_the_simulator_and_meets_the_goal() {
    let here = tempfile::tempdir().expect("directory");
    let at = |name: &str| here.path().join(name).to_str().expect("UTF-8").to_owned();
    let (best, picture) = (at("best.toml"), at("frontier.svg"));
    let done = plan(&["--p99", "320us", "--output", &best, "--svg", &picture]);
    let last = done.assert_status(0).out.lines().last().unwrap_or_default().to_owned();
    assert!(last.contains(&format!("abey run --settings {best} -- CMD")), "{last}");
    let settings = SettingsFile::load(best.as_ref()).expect("a settings file").settings;
    assert!(settings.napi.context == PollContext::Softirq && settings.napi.defers(), "{settings:?}");
    let scenario = "settings = \"best.toml\"\nload = \"40k\"\nlinux = true\nseed = 99\n";
    fs::write(at("scenario.toml"), scenario).expect("written");
    let rows = finish(abey(&["sim", &at("scenario.toml"), "--json"])).assert_status(0).json()["rows"].clone();
    assert!(figure(&rows[0]["p99_us"]) <= 320.0, "{rows}");
    let svg = fs::read_to_string(picture).expect("a picture");
    let document = roxmltree::Document::parse(&svg).expect("well-formed");
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    for words in ["CPU use, %", "latency, us", "goal: p99 at most 320us", "fullbusy", "threaded-busy"] {
        assert!(texts.iter().any(|text| text.contains(words)), "no `{words}` in {texts:?}");
    }
    let marks = document.descendants().filter(|node| node.attribute("class") == Some("mark"));
    assert!(marks.count() > 20);
    assert_eq!(document.root_element().attribute("viewBox"), Some("0 0 1280 760"));
}

#[test]
fn a_cpu_limit_finds_the_fastest_settings_within_it() {
    let document = plan(&["--cpu", "40%", "--json"]).assert_status(0).json();
    let worst = figure(&document["rows"][0]["worst_cpu_percent"]);
    assert!(worst <= 38.5, "{worst}");
    // With all of the CPU time the fastest settings are those that spin.
    let all = plan(&["--cpu", "100", "--json"]).assert_status(0).json();
    assert!(figure(&all["rows"][0]["p99_us"]) < figure(&document["rows"][0]["p99_us"]));
}

#[test]
fn a_range_of_loads_meets_the_goal_at_all_of_them() {
    let done = plan_at("20k..60k", &["--p99", "400us", "--json"]);
    let rows = done.assert_status(0).json()["rows"].clone();
    let loads: Vec<f64> = rows.as_array().expect("rows").iter().map(|row| figure(&row["load"])).collect();
    assert_eq!(loads, [20e3, 30e3, 40e3, 50e3, 60e3]);
    for row in rows.as_array().expect("rows") {
        assert!(figure(&row["worst_p99_us"]) * (1.0 + P99_MARGIN) <= 400.0, "{row}");
    }
}

#[test]
fn the_simulated_world_has_more_families() {
    let document = plan(&["--world", "sim", "--p99", "320us", "--json"]).assert_status(0).json();
    let families = document["others"].to_string() + &document["frontier"].to_string();
    for family in ["hold", "hold-timer", "workqueue"] {
        assert!(families.contains(&format!("\"{family}\"")), "no {family}");
    }
}

#[test]
fn a_goal_that_cannot_be_met_is_status_1_and_says_how_near() {
    let done = plan(&["--p99", "180us"]);
    assert!(done.assert_status(1).out.contains("No settings meet the goal"), "{done:?}");
    done.assert_sentence(1, &["p99 at most 180us", "nearest", " us"]);
    let document = plan(&["--p99", "180us", "--json"]).assert_status(1).json();
    assert!(document["recommended"].is_null() && document["goal"]["met"] == false);
    let much = plan_at("900k", &["--p99", "1ms"]);
    assert!(much.assert_status(1).errors.contains("no settings answer 900k requests per second"), "{much:?}");
    let idle = plan(&["--cpu", "2%"]);
    assert!(idle.assert_status(1).errors.contains("CPU at most 2 %"), "{idle:?}");
}

#[test]
fn bad_input_is_refused_with_one_sentence() {
    let goal = ["--p99", "250us"];
    let cases: [(&[&str], &[&str]); 18] = [
        (&["--load", "10", "--p99", "250us"], &["load = 10", "100 requests per second"]),
        (&["--load", "400k"], &["--p99", "--cpu"]),
        (&goal, &["--load"]),
        (&["--load", "400k", "--p99", "250us", "--cpu", "50%"], &["--p99", "--cpu"]),
        (&["--load", "400k", "--p99", "250"], &["`250` has no unit"]),
        (&["--load", "400k", "--p99=-250us"], &["-250us"]),
        (&["--load", "400k", "--p99", "0us"], &["p99", "above 0"]),
        (&["--load", "40k", "--p99", "20us"], &["20us", "the least is", "us"]),
        (&["--load", "400k", "--cpu", "0%"], &["0%", "above 0%"]),
        (&["--load", "400k", "--cpu", "101%"], &["101%", "up to 100%"]),
        (&["--load", "600k..100k", "--p99", "250us"], &["600k..100k", "reversed"]),
        (&["--load", "lots", "--p99", "250us"], &["lots", "20k"]),
        (&["--load", "max", "--p99", "250us"], &["max", "400k"]),
        (&["--load", "100k..", "--p99", "250us"], &["100k.."]),
        (&["--load", "1000m", "--p99", "250us"], &["1000m", "from 1 to 10m"]),
        (&["--load", "400k", "--p99", "250us", "--queues", "0"], &["queues = 0"]),
        (&["--load", "400k", "--p99", "250us", "--profile", "turbo"], &["turbo", "epyc-7662"]),
        (&["--load", "400k", "--p99", "250us", "--svg", "/no/such/place.svg"], &["/no/such/place.svg"]),
    ];
    for (arguments, words) in cases {
        finish(abey(&[&["plan"], arguments].concat())).assert_refused(2, words);
    }
}

#[test]
fn a_long_search_says_how_long_it_takes() {
    let done = finish(abey(&["plan", "--queues", "2", "--load", "50k..150k", "--p99", "1ms"]));
    let lines: Vec<&str> = done.errors.lines().collect();
    let last = lines.last().expect("a line");
    let seconds = last.strip_suffix(" s").and_then(|line| line.rsplit_once(" in ")).map(|(_, seconds)| seconds);
    let seconds: f64 = seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("{done:?}"));
    let shown = lines.iter().filter(|line| line.contains("simulations are done, at least")).count();
    // The line comes with the first batch of simulations that ends after ten seconds.
    assert!(if seconds < 10.0 { shown == 0 } else { shown == 1 || seconds < 20.0 }, "{done:?}");
}
