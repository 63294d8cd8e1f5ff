//! `abey tune` instance by instance: each NAPI instance is steered by itself where that can be, and together where not.

mod common;
mod tuning;

use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, devices};
use abey_linux::netlink::Netlink;
use abey_linux::spawn::CommandPlace;
use common::{ABEY, Bed, Finished, Running, await_that, finish};
use nix::sys::signal::Signal;
use serde_json::Value;
use tuning::Traffic;

const CPU_GOAL: [&str; 4] = ["--goal", "cpu=90%", "--families", "defer"];

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

fn tune(bed: &Bed, more: &[&str]) -> Finished {
    let device = bed.device.name.as_str();
    let arguments = [&[device, "--interval", "100ms", "--for", "2s", "--json"], &CPU_GOAL[..], more].concat();
    let done = finish(bed.abey("tune", &arguments));
    done.assert_status(0);
    bed.assert_as_before();
    done
}

/// The rows of these queues.
fn rows_of<'a>(document: &'a Value, queues: &str) -> Vec<&'a Value> {
    let rows = document["rows"].as_array().expect("rows");
    rows.iter().filter(|row| row["queues"] == queues).collect()
}

#[test]
fn instances_that_different_cpus_poll_are_steered_one_by_one() {
    let Some(bed) = bed() else { return };
    let _traffic = Traffic::from_cpus(&bed, &[(0, 1), (1, 32)]);
    let document = tune(&bed, &[]).json();
    let (ids, device) = (bed.napi_ids(), bed.device.name.as_str());
    let rate = |queues: &str| {
        let rows = rows_of(&document, queues);
        let napi = queues.parse::<usize>().expect("a queue");
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        assert!(
            rows.iter().all(|row| row["device"] == device && row["napis"] == serde_json::json!([sorted[napi]])),
            "{rows:?}"
        );
        assert!(rows.iter().any(|row| row["changed"] == true), "each begins to defer: {rows:?}");
        rows.iter().filter_map(|row| row["packets_per_s"].as_f64()).fold(0.0, f64::max)
    };
    let (few, many) = (rate("0"), rate("1"));
    assert!(few > 0.0 && many > 2.0 * few, "each sees its own packets: {few}, {many}");
    // Together if that is asked for: then the device's figures are one.
    let document = tune(&bed, &["--group"]).json();
    let all = rows_of(&document, "all");
    assert_eq!(all.len(), document["rows"].as_array().expect("rows").len());
    assert!(all.iter().all(|row| row["napis"].as_array().map(Vec::len) == Some(2)), "{all:?}");
}

#[test]
fn instances_that_one_cpu_polls_become_one_group() {
    let Some(bed) = bed() else { return };
    let traffic = Traffic::from_cpus(&bed, &[(0, 1), (1, 1)]);
    let device = bed.device.name.as_str();
    let arguments = [&[device, "--interval", "100ms"], &CPU_GOAL[..]].concat();
    let tuner = Running::start(bed.abey("tune", &arguments));
    await_that("both defer", || bed.settings().iter().all(|napi| napi.defers()));
    drop(traffic);
    send_by(&bed, "0:all");
    let _traffic = Traffic::from_cpus(&bed, &[(0, 16)]);
    await_that("they are steered together", || tuner.out_so_far().contains("steered together"));
    let said = tuner.out_so_far();
    assert!(said.contains(&format!("{device} queues 0-1 (NAPI")), "{said}");
    tuner.signal(Signal::SIGTERM);
    tuner.end().assert_status(0);
    bed.assert_as_before();
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
