//! `abey tune` with several NAPI instances: each is tuned by itself, except those that one CPU polls.

use std::time::{Duration, Instant};

use crate::common::{ABEY, Finished, HANG_LIMIT, Running, TestBed, await_that, finish};
use crate::tuning::Traffic;
use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, devices};
use abey_linux::netlink::Netlink;
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Returns a test network with two queues in which CPU `n` sends on the client's queue `n`, or prints why there is none.
fn testbed() -> Option<TestBed> {
    if CpuList::online().expect("CPUs").iter().take(2).ne([0, 1]) {
        eprintln!("skipped: needs CPUs 0 and 1");
        return None;
    }
    let testbed = TestBed::new(2)?;
    send_by(&testbed, "0-1");
    Some(testbed)
}

/// Sets which CPUs send on the client's queues 0 and 1 (the policy key `xps-cpus`). With veth, the receiver's NAPI instance of
/// the same number is then polled on the CPU of the sender.
fn send_by(testbed: &TestBed, cpus: &str) {
    let mut netlink = Netlink::open(&testbed.client).expect("netlink");
    let far = devices(&mut netlink).expect("devices").into_iter().find(Device::is_veth).expect("the far end");
    let place = tempfile::tempdir().expect("directory");
    let policy = place.path().join("policy.toml");
    let text = format!(
        "version = 1\n[[device]]\nname = \"{}\"\n[[device.queues]]\nqueues = \"0-1\"\nxps-cpus = \"{cpus}\"\n",
        far.name
    );
    std::fs::write(&policy, text).expect("written");
    let mut command = std::process::Command::new(ABEY);
    command.arg("apply").arg(&policy).arg("--journals").arg(place.path()).in_netns(&testbed.client);
    finish(command).assert_status(0);
}

/// Starts `abey tune` for all queues; it prints a line for every interval.
fn tuner(testbed: &TestBed, more: &[&str]) -> Running {
    let arguments = ["--interval", "100ms", "--all", "--goal", "cpu=90%", "--families", "defer"];
    Running::start(testbed.abey("tune", &[&[&*testbed.device.name], &arguments[..], more].concat()))
}

/// Waits until its output satisfies `holds`, and returns the output.
fn await_output(tuner: &Running, what: &str, holds: impl Fn(&str) -> bool) -> String {
    let since = Instant::now();
    loop {
        let said = tuner.out_so_far();
        if holds(&said) {
            return said;
        }
        assert!(since.elapsed() < HANG_LIMIT, "{what}: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether some interval of these queues has a packet rate above 0.0k. Fewer are not the test's traffic.
fn receives(said: &str, queues: &str) -> bool {
    let mut lines = said.lines().filter(|line| line.contains(&format!(" {queues} (NAPI ")));
    lines.any(|line| line.contains("k packets/s") && !line.contains("(0.0k packets/s"))
}

fn end(testbed: &TestBed, tuner: Running) -> Finished {
    tuner.signal(Signal::SIGTERM);
    let done = tuner.end();
    done.assert_status(0);
    testbed.assert_as_before();
    done
}

#[test]
fn instances_that_different_cpus_poll_are_tuned_separately() {
    let Some(testbed) = testbed() else { return };
    let _traffic = Traffic::from_cpus(&testbed, &[(1, 4)]);
    let one_by_one = tuner(&testbed, &[]);
    let said = await_output(&one_by_one, "traffic of queue 1", |said| receives(said, "queue 1"));
    assert!(!receives(&said, "queue 0"), "each sees its own packets: {said}");
    let _more = Traffic::from_cpus(&testbed, &[(0, 4)]);
    await_output(&one_by_one, "traffic of queue 0", |said| receives(said, "queue 0"));
    let done = end(&testbed, one_by_one);
    for queue in ["queue 0", "queue 1"] {
        let begins = done.out.lines().any(|line| line.contains(queue) && line.contains("base -> defer"));
        assert!(begins && done.errors.contains(&format!("{queue} (NAPI")), "{done:?}");
    }
    assert!(!done.out.contains("together"), "{done:?}");
}

#[test]
fn the_group_option_tunes_all_instances_together() {
    let Some(testbed) = TestBed::new(2) else { return };
    let _traffic = Traffic::start(&testbed);
    let done =
        finish(testbed.abey("tune", &[&testbed.device.name, "--group", "--goal", "cpu=90%", "--for", "1s", "--json"]));
    let document = done.assert_status(0).json();
    let (rows, mut ids) = (document["rows"].as_array().expect("rows"), testbed.napi_ids());
    ids.sort_unstable();
    let is_whole = |row: &Value| {
        row["device"] == *testbed.device.name && row["queues"] == "all" && row["napis"] == serde_json::json!(ids)
    };
    assert!(!rows.is_empty() && rows.iter().all(is_whole), "{rows:?}");
    testbed.assert_as_before();
}

#[test]
fn instances_that_one_cpu_polls_become_one_group() {
    let Some(testbed) = testbed() else { return };
    let traffic = Traffic::from_cpus(&testbed, &[(0, 1), (1, 1)]);
    let tuner = tuner(&testbed, &[]);
    await_output(&tuner, "traffic of both", |said| receives(said, "queue 0") && receives(said, "queue 1"));
    drop(traffic);
    send_by(&testbed, "0:all");
    let _traffic = Traffic::from_cpus(&testbed, &[(0, 16)]);
    await_output(&tuner, "that they are one", |said| said.contains("tuned together"));
    await_output(&tuner, "packets of the group", |said| receives(said, "queues 0-1"));
    end(&testbed, tuner);
}

#[test]
fn what_user_sees_is_estimated_if_that_is_asked_for() {
    let Some(testbed) = TestBed::new(1) else { return };
    let _traffic = Traffic::start(&testbed);
    let device = testbed.device.name.as_str();
    let arguments = [device, "--goal", "p99=1ms", "--estimate", "--families", "defer", "--interval", "100ms"];
    let tuner = Running::start(testbed.abey("tune", &[&arguments[..], &["--all"]].concat()));
    await_that("an estimate", || tuner.out_so_far().contains("estimated"));
    tuner.signal(Signal::SIGTERM);
    tuner.end().assert_status(0);
    testbed.assert_as_before();
}
