//! `abey set` from outside: single settings, modes, a dry run, bad combinations.

mod common;

use std::fs;

use abey_delivery::{Nanos, NapiSettings, PollContext};
use common::{Bed, Nobody, Running, finish, napi_settings};

#[test]
fn single_settings_stay_and_leave_the_others_alone() {
    let Some(bed) = Bed::new(2) else { return };
    let device = bed.device.name.as_str();
    let done = finish(bed.abey("set", &[device, "--defer-hard-irqs", "7"]));
    let lines: Vec<&str> = done.assert_status(0).out.lines().collect();
    assert_eq!(lines.len(), 2, "{done:?}");
    assert!(lines.iter().all(|line| line.starts_with(device) && line.ends_with("defer-hard-irqs 0 -> 7")), "{done:?}");
    assert_eq!(done.errors, "");
    finish(bed.abey("set", &[device, "--gro-flush-timeout", "1.5ms", "--threaded", "yes"])).assert_status(0);
    let wanted = NapiSettings {
        defer_hard_irqs: 7,
        gro_flush_timeout: Nanos::from_micros(1500),
        context: PollContext::Thread,
        ..NapiSettings::default()
    };
    assert_eq!(bed.settings(), [wanted, wanted]);
    assert_eq!(fs::read_dir(bed.journals()).expect("directory").count(), 0, "what is set for good is not put back");
}

#[test]
fn one_instance_or_one_queue_can_be_meant() {
    let Some(bed) = Bed::new(2) else { return };
    let id = bed.napi_ids()[1].to_string();
    finish(bed.abey("set", &["--napi", &id, "--defer-hard-irqs", "9"])).assert_status(0);
    finish(bed.abey("set", &[&bed.device.name, "--queues", "0", "--defer-hard-irqs", "3"])).assert_status(0);
    let counts: Vec<u32> = bed.settings().iter().map(|one| one.defer_hard_irqs).collect();
    assert_eq!(counts, [3, 9]);
}

#[test]
fn a_mode_is_all_its_settings_and_single_ones_win() {
    let Some(bed) = Bed::new(1) else { return };
    let device = bed.device.name.as_str();
    let done = finish(bed.abey("set", &[device, "--mode", "suspend20"]));
    // That the server has its part to do as well is said.
    assert!(done.assert_status(0).errors.contains("abey run"), "{done:?}");
    assert_eq!(done.errors.lines().count(), 1);
    assert!(bed.has_mode("suspend20"));
    finish(bed.abey("set", &[device, "--mode", "suspend20", "--gro-flush-timeout", "30us"])).assert_status(0);
    assert_eq!(
        bed.settings(),
        [NapiSettings { gro_flush_timeout: Nanos::from_micros(30), ..napi_settings("suspend20") }]
    );
    assert_eq!(finish(bed.abey("set", &[device, "--mode", "base"])).assert_status(0).errors, "");
    bed.assert_as_before();
    let again = finish(bed.abey("set", &[device, "--mode", "base"]));
    assert_eq!(again.assert_status(0).out, format!("{device}: nothing to change\n"));
}

#[test]
fn a_dry_run_says_what_it_would_change_and_changes_nothing() {
    let Some(bed) = Bed::new(1) else { return };
    let device = bed.device.name.as_str();
    let done = finish(bed.abey("set", &[device, "--mode", "defer50", "--dry-run"]));
    assert_eq!(done.assert_status(0).out.lines().filter(|line| line.contains("dry run")).count(), 2, "{done:?}");
    bed.assert_as_before();
    let done = finish(bed.abey("set", &[device, "--mode", "defer50", "--dry-run", "--json"]));
    let id = bed.napi_ids()[0];
    let row = |setting: &str, before: &str, after: &str| serde_json::json!({"device": device, "napi": id, "setting": setting, "before": before, "after": after});
    let rows = [row("defer-hard-irqs", "0", "100"), row("gro-flush-timeout", "0", "50us")];
    assert_eq!(done.assert_status(0).json(), serde_json::json!({ "rows": rows }));
    bed.assert_as_before();
}

#[test]
fn json_is_one_document_also_when_there_is_nothing_to_say() {
    let Some(bed) = Bed::new(1) else { return };
    for arguments in [&[&bed.device.name, "--mode", "base", "--json"][..], &["--restore", "--json"]] {
        let done = finish(bed.abey("set", arguments));
        assert_eq!(done.assert_status(0).json(), serde_json::json!({ "rows": [] }), "{arguments:?}");
    }
}

#[test]
fn bad_input_is_one_sentence_and_changes_nothing() {
    let Some(bed) = Bed::new(1) else { return };
    let device = bed.device.name.as_str();
    let id = bed.napi_ids()[0].to_string();
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
        finish(bed.abey("set", arguments)).assert_refused(code, words);
        finish(bed.abey("set", &[arguments, &["--dry-run"]].concat())).assert_sentence(2, &[]);
        bed.assert_as_before();
    }
    finish(bed.abey("set", &[device, "--mode", "base", "--netns", "no-such-netns"]))
        .assert_refused(2, &["no-such-netns"]);
    if !bed.able.threaded_busy {
        finish(bed.abey("set", &[device, "--threaded", "busy"])).assert_refused(3, &["threaded"]);
        bed.assert_as_before();
    }
}

#[test]
fn what_a_run_holds_is_refused() {
    let Some(bed) = Bed::new(1) else { return };
    let run = Running::start(bed.run_mode("suspend20", &["sleep", "60"]));
    run.await_program("sleep");
    let pid = run.pid().to_string();
    finish(bed.abey("set", &[&bed.device.name, "--mode", "defer50"])).assert_refused(1, &[&pid]);
    let restored = finish(bed.abey("set", &["--restore"]));
    assert!(restored.assert_status(0).out.contains("nothing to put back"), "{restored:?}");
    assert!(bed.has_mode("suspend20"));
    run.terminate().assert_status(143);
    bed.assert_as_before();
}

#[test]
fn without_permission_it_is_one_sentence_and_status_3() {
    let Some(bed) = Bed::new(1) else { return };
    let Some(nobody) = Nobody::new() else { return };
    let device = bed.device.name.as_str();
    finish(bed.abey_as_nobody(&nobody, "set", &[device, "--mode", "defer50"])).assert_refused(3, &["root"]);
    bed.assert_as_before();
    assert_eq!(fs::read_dir(nobody.journals()).expect("directory").count(), 0);
    // Looking is allowed.
    let dry = finish(bed.abey_as_nobody(&nobody, "set", &[device, "--mode", "defer50", "--dry-run"]));
    assert_eq!(dry.assert_status(0).out.lines().count(), 2, "{dry:?}");
}
