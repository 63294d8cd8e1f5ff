//! `abey bench --world both`: small runs to the end, other programs, an interrupted run, bad input.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Running, abey, await_some, finish, has, is_root, runs};
use abey_linux::device::devices;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::process::descendants;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Returns whether both worlds can be measured here. Prints a line if not.
fn can_bench(program: &str) -> bool {
    let two = std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !two {
        eprintln!("skipped: needs two CPUs");
    }
    two && is_root() && has(program)
}

/// Returns a short bench that writes its files to `directory`.
fn bench(directory: &Path, more: &[&str]) -> Command {
    // On a busy machine a run is repeated with a longer duration until it has responses.
    let short = ["--duration", "250ms", "--warmup", "100ms", "--connections", "4", "--min-responses", "100", "--json"];
    let mut command = abey(&["bench", "--world", "both"]);
    command.args(short).args(more).arg("--out").arg(directory.join("b.json"));
    command
}

/// Asserts that the bench left no device and no shared-memory NIC.
fn assert_nothing_left(pid: u32) {
    let here = NetNs::current().expect("namespace");
    let all = devices(&mut Netlink::open(&here).expect("netlink")).expect("list");
    let ours = |name: &str| [format!("abs{pid}"), format!("abc{pid}")].contains(&name.to_owned());
    assert!(!all.iter().any(|device| ours(&device.name)), "{all:?}");
    let sockets = fs::read_to_string("/proc/net/unix").expect("/proc");
    assert!(!sockets.contains(&format!("abey-bench-both-{pid}-")));
}

#[test]
fn one_program_is_measured_in_both_worlds_and_over_shared_memory() {
    if !can_bench("memcached") {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    // A load high enough that requests are waiting when the server has finished a batch, even on a busy machine.
    let more = ["--modes", "suspend20", "--loads", "10k", "--with-memory", "--seed", "7"];
    let run = Running::start(bench(place.path(), &more));
    let pid = run.pid();
    let document = run.end().assert_status(0).json();
    let rows = document["rows"].as_array().expect("rows");
    let worlds: Vec<&str> = rows.iter().filter_map(|row| row["world"].as_str()).collect();
    assert_eq!(worlds, ["linux", "datapath", "memory"]);
    for row in rows {
        assert_eq!((&row["mode"], &row["load"], &row["active"]), (&"suspend20".into(), &"10k".into(), &true.into()));
        for figure in ["qps", "avg_us", "p50_us", "p95_us", "p99_us", "cpu_us_per_query", "wakeups_per_s"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row}");
        }
        // The server has one CPU.
        assert!(row["cpu_percent"].as_f64().is_some_and(|percent| percent > 0.0 && percent <= 100.0), "{row}");
        let proof = if row["world"] == "linux" { "busy polls with packets by the server" } else { "suspensions" };
        assert!(row["proof"].as_str().is_some_and(|said| said.contains(proof)), "{row}");
    }
    assert_eq!(document["setup"]["side_by_side"], true);
    let servers: Vec<&Value> =
        document["setup"]["beds"].as_array().expect("beds").iter().map(|testbed| &testbed["server"]).collect();
    assert!(
        servers.iter().all(|server| *server == servers[0] && server.to_string().contains("memcached")),
        "{servers:?}"
    );
    let pairs = document["pairs"].as_array().expect("pairs");
    assert_eq!(pairs.len(), 2);
    for pair in pairs {
        assert!(pair["to_same_mode"]["avg"].as_f64().is_some_and(|ratio| ratio > 0.0), "{pair}");
        assert_eq!(pair["best_mode"]["avg"], "suspend20");
    }
    let html = fs::read_to_string(place.path().join("b.html")).expect("written");
    assert!(["w-linux", "w-datapath", "w-memory", "worlds-percentiles-10k"].iter().all(|part| html.contains(part)));
    assert_nothing_left(pid);
}

#[test]
fn a_datapath_client_drives_redis_in_both_worlds() {
    if !can_bench("redis-server") {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let more = ["--app", "redis", "--client", "datapath", "--modes", "base", "--loads", "2k"];
    let document = finish(bench(place.path(), &more)).assert_status(0).json();
    assert_eq!(document["rows"].as_array().map(Vec::len), Some(2));
    for testbed in document["setup"]["beds"].as_array().expect("beds") {
        assert!(testbed["server"].as_str().is_some_and(|server| server.starts_with("redis-server ")), "{testbed}");
        assert!(testbed["client"].as_str().is_some_and(|client| client.contains("datapath")), "{testbed}");
    }
}

#[test]
fn any_server_with_a_known_protocol_is_measured() {
    if !can_bench("memcached") {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let line = "memcached -u root -l '{address}' -p {port} -t 1 -U 0";
    let more = ["--app", line, "--port", "7777", "--protocol", "memcached", "--modes", "base", "--loads", "2k"];
    let document = finish(bench(place.path(), &more)).assert_status(0).json();
    assert_eq!(document["rows"].as_array().map(Vec::len), Some(2));
    assert!(document["setup"]["beds"][0]["server"].to_string().contains("-p {port}"), "{document}");
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing() {
    if !can_bench("memcached") {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let mut run = Running::start(bench(place.path(), &["--modes", "base,suspend20", "--loads", "2k", "--reps", "50"]));
    let pid = run.pid();
    let server = await_some("no server", || {
        let named = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "memcached\n");
        descendants(pid).expect("/proc").into_iter().find(named)
    });
    run.signal(Signal::SIGINT);
    run.wait();
    let done = run.end();
    done.assert_status(130);
    assert!(done.errors.contains("stopped") && done.out.is_empty(), "{done:?}");
    assert!(!runs(server));
    assert_nothing_left(pid);
    assert!(!place.path().join("b.json").exists());
}

#[test]
fn contradictory_options_are_refused_before_anything_runs() {
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--world", "linux", "--client", "datapath"], 2, "add --world both"),
        (&["--with-memory"], 2, "add --world both"),
        (&["--world", "both", "--app", "redis", "--port", "1"], 2, "--port is for a CMD"),
        (&["--world", "both", "--app", "true"], 2, "needs --port"),
        (&["--world", "both", "--app", "true", "--port", "80"], 2, "needs --protocol memcached, redis or http"),
        (&["--world", "both", "--app", "'open"], 2, "check its quotes"),
        (&["--world", "both", "--app", "no-such-program-at-all x"], 2, "there is no program"),
        (&["--world", "both", "--modes", "hold20"], 2, "the Linux kernel has no mode"),
        (&["--world", "datapath", "--app", "true", "--port", "1", "--protocol", "http"], 2, "--world both"),
    ];
    for (arguments, status, said) in cases {
        let place = tempfile::tempdir().expect("directory");
        let mut command = abey(&["bench"]);
        command.args(arguments).arg("--out").arg(place.path().join("b.json"));
        let done = finish(command);
        done.assert_refused(status, &[said]);
        assert_eq!(fs::read_dir(place.path()).expect("directory").count(), 0);
    }
}

#[test]
fn a_missing_cpu_is_named() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let done = finish(bench(place.path(), &["--app", "kv", "--server-cpu", "4000"]));
    done.assert_status(3);
    assert!(done.errors.contains("may not use CPU 4000"), "{done:?}");
}
