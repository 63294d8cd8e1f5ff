//! `abey set`: single settings, modes, a dry run, bad combinations.

use std::fs;

use crate::common::{Running, TestBed, UnprivilegedUser, finish, napi_settings};
use abey_delivery::{Nanos, NapiSettings, PollContext};

#[test]
fn single_settings_are_set_and_the_others_unchanged() {
    let Some(testbed) = TestBed::new(2) else { return };
    let device = testbed.device.name.as_str();
    let done = finish(testbed.abey("set", &[device, "--defer-hard-irqs", "7"]));
    let lines: Vec<&str> = done.assert_status(0).out.lines().collect();
    assert_eq!(lines.len(), 2, "{done:?}");
    assert!(lines.iter().all(|line| line.starts_with(device) && line.ends_with("defer-hard-irqs 0 -> 7")), "{done:?}");
    assert_eq!(done.errors, "");
    finish(testbed.abey("set", &[device, "--gro-flush-timeout", "1.5ms", "--threaded", "yes"])).assert_status(0);
    let wanted = NapiSettings {
        defer_hard_irqs: 7,
        gro_flush_timeout: Nanos::from_micros(1500),
        context: PollContext::Thread,
        ..NapiSettings::default()
    };
    assert_eq!(testbed.settings(), [wanted, wanted]);
    assert_eq!(fs::read_dir(testbed.journals()).expect("directory").count(), 0, "what is set for good is not put back");
}

#[test]
fn one_instance_or_one_queue_can_be_selected() {
    let Some(testbed) = TestBed::new(2) else { return };
    let id = testbed.napi_ids()[1].to_string();
    finish(testbed.abey("set", &["--napi", &id, "--defer-hard-irqs", "9"])).assert_status(0);
    finish(testbed.abey("set", &[&testbed.device.name, "--queues", "0", "--defer-hard-irqs", "3"])).assert_status(0);
    let counts: Vec<u32> = testbed.settings().iter().map(|one| one.defer_hard_irqs).collect();
    assert_eq!(counts, [3, 9]);
}

#[test]
fn a_mode_sets_all_its_settings_and_single_settings_override_it() {
    let Some(testbed) = TestBed::new(1) else { return };
    let device = testbed.device.name.as_str();
    let done = finish(testbed.abey("set", &[device, "--mode", "suspend20"]));
    // A message says that the server has to take part in the mode.
    assert!(done.assert_status(0).errors.contains("abey run"), "{done:?}");
    assert_eq!(done.errors.lines().count(), 1);
    assert!(testbed.has_mode("suspend20"));
    finish(testbed.abey("set", &[device, "--mode", "suspend20", "--gro-flush-timeout", "30us"])).assert_status(0);
    assert_eq!(
        testbed.settings(),
        [NapiSettings { gro_flush_timeout: Nanos::from_micros(30), ..napi_settings("suspend20") }]
    );
    assert_eq!(finish(testbed.abey("set", &[device, "--mode", "base"])).assert_status(0).errors, "");
    testbed.assert_as_before();
    let again = finish(testbed.abey("set", &[device, "--mode", "base"]));
    assert_eq!(again.assert_status(0).out, format!("{device}: nothing to change\n"));
}

#[test]
fn a_dry_run_prints_the_changes_and_makes_none() {
    let Some(testbed) = TestBed::new(1) else { return };
    let device = testbed.device.name.as_str();
    let done = finish(testbed.abey("set", &[device, "--mode", "defer50", "--dry-run"]));
    assert_eq!(done.assert_status(0).out.lines().filter(|line| line.contains("dry run")).count(), 2, "{done:?}");
    testbed.assert_as_before();
    let done = finish(testbed.abey("set", &[device, "--mode", "defer50", "--dry-run", "--json"]));
    let id = testbed.napi_ids()[0];
    let row = |setting: &str, before: &str, after: &str| serde_json::json!({"device": device, "napi": id, "setting": setting, "before": before, "after": after});
    let rows = [row("defer-hard-irqs", "0", "100"), row("gro-flush-timeout", "0", "50us")];
    assert_eq!(done.assert_status(0).json(), serde_json::json!({ "rows": rows }));
    testbed.assert_as_before();
}

#[test]
fn json_is_one_document_even_without_rows() {
    let Some(testbed) = TestBed::new(1) else { return };
    for arguments in [&[&testbed.device.name, "--mode", "base", "--json"][..], &["--restore", "--json"]] {
        let done = finish(testbed.abey("set", arguments));
        assert_eq!(done.assert_status(0).json(), serde_json::json!({ "rows": [] }), "{arguments:?}");
    }
}

#[test]
fn bad_input_is_refused_with_one_sentence_and_changes_nothing() {
    let Some(testbed) = TestBed::new(1) else { return };
    let device = testbed.device.name.as_str();
    let id = testbed.napi_ids()[0].to_string();
    let cases: [(i32, &[&str], &[&str]); 18] = [
        (2, &[], &["DEV"]),
        (2, &[device], &["nothing to set"]),
        (2, &["nodev0", "--mode", "base"], &["nodev0", device]),
        (2, &["--napi", "4000000", "--defer-hard-irqs", "1"], &["4000000"]),
        (2, &[device, "--napi", &id, "--defer-hard-irqs", "1"], &["--napi"]),
        (2, &[device, "--queues", "9", "--defer-hard-irqs", "1"], &["queue 9"]),
        (2, &["--napi", &id, "--queues", "0", "--defer-hard-irqs", "1"], &["--queues"]),
        (2, &[device, "--mode", "warp9"], &["warp9"]),
        (2, &[device, "--mode", "hold50"], &["hold50", "datapath"]),
        (2, &[device, "--irq-suspend-timeout", "20ms"], &["without deferral"]),
        (2, &[device, "--mode", "defer50", "--irq-suspend-timeout", "50us"], &["longer than gro-flush-timeout"]),
        (2, &[device, "--defer-hard-irqs", "2147483648"], &["2147483648", "out of range"]),
        (2, &[device, "--defer-hard-irqs=-1"], &["-1"]),
        (2, &[device, "--gro-flush-timeout", "5s"], &["gro-flush-timeout 5s", "out of range"]),
        (2, &[device, "--gro-flush-timeout", "5"], &["unit"]),
        (2, &[device, "--threaded", "maybe"], &["maybe"]),
        (2, &["--restore", device], &["--restore"]),
        (2, &["--restore", "--mode", "base"], &["--restore"]),
    ];
    for (code, arguments, words) in cases {
        finish(testbed.abey("set", arguments)).assert_refused(code, words);
        finish(testbed.abey("set", &[arguments, &["--dry-run"]].concat())).assert_sentence(2, &[]);
        testbed.assert_as_before();
    }
    finish(testbed.abey("set", &[device, "--mode", "base", "--netns", "no-such-netns"]))
        .assert_refused(2, &["no-such-netns"]);
    if !testbed.capabilities.threaded_busy {
        finish(testbed.abey("set", &[device, "--threaded", "busy"])).assert_refused(3, &["threaded"]);
        testbed.assert_as_before();
    }
}

#[test]
fn a_device_that_a_run_holds_is_refused() {
    let Some(testbed) = TestBed::new(1) else { return };
    let run = Running::start(testbed.run_mode("suspend20", &["sleep", "60"]));
    run.await_program("sleep");
    let pid = run.pid().to_string();
    finish(testbed.abey("set", &[&testbed.device.name, "--mode", "defer50"])).assert_refused(1, &[&pid]);
    let restored = finish(testbed.abey("set", &["--restore"]));
    assert!(restored.assert_status(0).out.contains("nothing to put back"), "{restored:?}");
    assert!(testbed.has_mode("suspend20"));
    run.terminate().assert_status(143);
    testbed.assert_as_before();
}

#[test]
fn without_privileges_it_is_refused_with_status_3() {
    let Some(testbed) = TestBed::new(1) else { return };
    let Some(unprivileged) = UnprivilegedUser::new() else { return };
    let device = testbed.device.name.as_str();
    finish(testbed.abey_unprivileged(&unprivileged, "set", &[device, "--mode", "defer50"]))
        .assert_refused(3, &["root"]);
    testbed.assert_as_before();
    assert_eq!(fs::read_dir(unprivileged.journals()).expect("directory").count(), 0);
    // A dry run needs no privileges.
    let dry = finish(testbed.abey_unprivileged(&unprivileged, "set", &[device, "--mode", "defer50", "--dry-run"]));
    assert_eq!(dry.assert_status(0).out.lines().count(), 2, "{dry:?}");
}
