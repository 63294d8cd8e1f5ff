//! `abey bench --steps`: every contender runs all steps, the tuner changes settings, and bad input is refused.

use crate::common::{abey, finish, is_root, library};

#[test]
fn a_mode_and_the_tuner_run_all_steps_and_are_judged() {
    if !is_root() {
        return;
    }
    library();
    let out = tempfile::tempdir().expect("a directory");
    let file = out.path().join("steps.json");
    let arguments = [
        "bench",
        "--steps",
        "1k",
        "--goal",
        "p50=500ms",
        "--modes",
        "base",
        "--app",
        "kv",
        "--step-time",
        "800ms",
        "--slice",
        "100ms",
        "--warmup",
        "200ms",
        "--reps",
        "1",
        "--seed",
        "5",
        "--tune",
        "--families defer",
        "--out",
    ];
    let done = finish(abey(&[&arguments[..], &[file.to_str().expect("text")]].concat()));
    let text = &done.assert_status(0).out;
    assert!(text.contains("tuned") && text.contains("base") && text.contains("p50=500ms"), "{text}");
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("written")).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), rows[0]["runs"].as_u64()), (2, Some(1)), "{rows:?}");
    let cpu = |row: &serde_json::Value| row["cpu_percent"].as_f64().is_some_and(|cpu| cpu > 0.0);
    assert!(rows.iter().all(|row| row["held"] == true && cpu(row)), "{rows:?}");
    let tuned = document["runs"].as_array().expect("runs").iter().filter(|run| run["contender"] == "tuned");
    for run in tuned {
        let steps = run["tuner"].as_array().expect("rows of the tuner");
        assert!(steps.iter().any(|step| step["settings"].as_str().is_some_and(|name| name.starts_with("defer"))));
        assert!(
            steps.iter().any(|step| step["requests"].as_u64() > Some(0)),
            "the tuner gets the latencies of the load: {steps:?}"
        );
    }
}

#[test]
fn contradictory_options_are_refused_before_anything_is_measured() {
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--steps", "1k"], &["--goal"]),
        (&["--goal", "p99=1ms"], &["--steps"]),
        (&["--steps", "1k,max", "--goal", "p99=1ms"], &["max"]),
        (&["--steps", "1k", "--goal", "p75=1ms"], &["p75=1ms", "p95"]),
        (&["--steps", "1k", "--goal", "p99=1ms", "--step-time", "300ms"], &["four slices"]),
        (&["--steps", "1k", "--goal", "p99=1ms", "--tune", "'--all"], &["quote"]),
        (&["--steps", "1k", "--goal", "p99=1ms", "--modes", "hold20"], &["hold20"]),
    ];
    for (arguments, words) in cases {
        finish(abey(&[&["bench"], arguments].concat())).assert_refused(2, words);
    }
}
