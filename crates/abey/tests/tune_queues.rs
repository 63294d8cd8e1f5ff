//! `abey tune` instance by instance: each NAPI instance is steered by itself where that can be, and together where not.

mod common;
mod tuning;

use std::time::{Duration, Instant};

use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, devices};
use abey_linux::netlink::Netlink;
use abey_linux::spawn::CommandPlace;
use common::{ABEY, Bed, DEADLINE, Finished, Running, await_that, finish};
use nix::sys::signal::Signal;
use serde_json::Value;
use tuning::Traffic;

/// A bed of two queues, the client's queue `n` for what CPU `n` sends, or `None` with a printed reason.
fn bed() -> Option<Bed> {
    if CpuList::online().expect("CPUs").iter().take(2).ne([0, 1]) {
        eprintln!("skipped: needs CPUs 0 and 1");
        return None;
    }
    let bed = Bed::new(2)?;
    send_by(&bed, "0-1");
    Some(bed)
}

/// Which CPUs send on the client's queues 0 and 1, in the words of a policy. The receiver's NAPI instance of the same number
/// is then polled where the sender runs, as is veth's way.
fn send_by(bed: &Bed, cpus: &str) {
    let mut netlink = Netlink::open(&bed.client).expect("netlink");
    let far = devices(&mut netlink).expect("devices").into_iter().find(Device::is_veth).expect("the far end");
    let place = tempfile::tempdir().expect("directory");
    let policy = place.path().join("policy.toml");
    let text = format!(
        "version = 1\n[[device]]\nname = \"{}\"\n[[device.queues]]\nqueues = \"0-1\"\nxps-cpus = \"{cpus}\"\n",
        far.name
    );
    std::fs::write(&policy, text).expect("written");
    let mut command = std::process::Command::new(ABEY);
    command.arg("apply").arg(&policy).arg("--journals").arg(place.path()).in_netns(&bed.client);
    finish(command).assert_status(0);
}

/// `abey tune` of all the queues, every interval said.
fn tuner(bed: &Bed, more: &[&str]) -> Running {
    let arguments = ["--interval", "100ms", "--all", "--goal", "cpu=90%", "--families", "defer"];
    Running::start(bed.abey("tune", &[&[&*bed.device.name], &arguments[..], more].concat()))
}

/// Waits until it has said something.
fn await_said(tuner: &Running, what: &str, holds: impl Fn(&str) -> bool) -> String {
    let since = Instant::now();
    loop {
        let said = tuner.out_so_far();
        if holds(&said) {
            return said;
        }
        assert!(since.elapsed() < DEADLINE, "{what}: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether packets came in an interval of these queues; a few are no traffic of ours.
fn receives(said: &str, queues: &str) -> bool {
    let mut lines = said.lines().filter(|line| line.contains(&format!(" {queues} (NAPI ")));
    lines.any(|line| line.contains("k packets/s") && !line.contains("(0.0k packets/s"))
}

fn end(bed: &Bed, tuner: Running) -> Finished {
    tuner.signal(Signal::SIGTERM);
    let done = tuner.end();
    done.assert_status(0);
    bed.assert_as_before();
    done
}

#[test]
fn instances_that_different_cpus_poll_are_steered_one_by_one() {
    let Some(bed) = bed() else { return };
    let _traffic = Traffic::from_cpus(&bed, &[(1, 4)]);
    let one_by_one = tuner(&bed, &[]);
    let said = await_said(&one_by_one, "traffic of queue 1", |said| receives(said, "queue 1"));
    assert!(!receives(&said, "queue 0"), "each sees its own packets: {said}");
    let _more = Traffic::from_cpus(&bed, &[(0, 4)]);
    await_said(&one_by_one, "traffic of queue 0", |said| receives(said, "queue 0"));
    let done = end(&bed, one_by_one);
    for queue in ["queue 0", "queue 1"] {
        let begins = done.out.lines().any(|line| line.contains(queue) && line.contains("base -> defer"));
        assert!(begins && done.errors.contains(&format!("{queue} (NAPI")), "{done:?}");
    }
    assert!(!done.out.contains("together"), "{done:?}");
}

#[test]
fn all_are_steered_together_if_that_is_asked_for() {
    let Some(bed) = Bed::new(2) else { return };
    let _traffic = Traffic::start(&bed);
    let done = finish(bed.abey("tune", &[&bed.device.name, "--group", "--goal", "cpu=90%", "--for", "1s", "--json"]));
    let document = done.assert_status(0).json();
    let (rows, mut ids) = (document["rows"].as_array().expect("rows"), bed.napi_ids());
    ids.sort_unstable();
    let is_whole = |row: &Value| {
        row["device"] == *bed.device.name && row["queues"] == "all" && row["napis"] == serde_json::json!(ids)
    };
    assert!(!rows.is_empty() && rows.iter().all(is_whole), "{rows:?}");
    bed.assert_as_before();
}

#[test]
fn instances_that_one_cpu_polls_become_one_group() {
    let Some(bed) = bed() else { return };
    let traffic = Traffic::from_cpus(&bed, &[(0, 1), (1, 1)]);
    let tuner = tuner(&bed, &[]);
    await_said(&tuner, "traffic of both", |said| receives(said, "queue 0") && receives(said, "queue 1"));
    drop(traffic);
    send_by(&bed, "0:all");
    let _traffic = Traffic::from_cpus(&bed, &[(0, 16)]);
    await_said(&tuner, "that they are one", |said| said.contains("steered together"));
    await_said(&tuner, "packets of the group", |said| receives(said, "queues 0-1"));
    end(&bed, tuner);
}

#[test]
fn what_nobody_sees_is_estimated_if_that_is_asked_for() {
    let Some(bed) = Bed::new(1) else { return };
    let _traffic = Traffic::start(&bed);
    let device = bed.device.name.as_str();
    let arguments = [device, "--goal", "p99=1ms", "--estimate", "--families", "defer", "--interval", "100ms"];
    let tuner = Running::start(bed.abey("tune", &[&arguments[..], &["--all"]].concat()));
    await_that("an estimate", || tuner.out_so_far().contains("estimated"));
    tuner.signal(Signal::SIGTERM);
    tuner.end().assert_status(0);
    bed.assert_as_before();
}
