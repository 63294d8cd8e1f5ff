//! `abey bench --world both` from outside: a small one to the end, other programs, one that is interrupted, bad input.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use abey_linux::device::devices;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::process::descendants;
use common::{Running, abey, await_some, finish, has, is_root, runs};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Whether both worlds can be measured here; says why not.
fn can_bench(program: &str) -> bool {
    let two = std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !two {
        eprintln!("skipped: needs two CPUs");
    }
    two && is_root() && has(program)
}

/// As short as it can be, with its files in a directory.
fn bench(directory: &Path, more: &[&str]) -> Command {
    let short = ["--duration", "250ms", "--warmup", "100ms", "--connections", "4", "--json"];
    let mut command = abey(&["bench", "--world", "both"]);
    command.args(short).args(more).arg("--out").arg(directory.join("b.json"));
    command
}

/// No device of a bench is left, and no shared-memory NIC.
fn assert_nothing_left(pid: u32) {
    let here = NetNs::current().expect("namespace");
    let all = devices(&mut Netlink::open(&here).expect("netlink")).expect("list");
    let ours = |name: &str| [format!("abs{pid}"), format!("abc{pid}")].contains(&name.to_owned());
    assert!(!all.iter().any(|device| ours(&device.name)), "{all:?}");
    let sockets = fs::read_to_string("/proc/net/unix").expect("/proc");
    assert!(!sockets.contains(&format!("abey-bench-both-{pid}-")));
}

#[test]
fn one_program_is_proved_in_either_world_and_over_shared_memory() {
    if !can_bench("memcached") {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    // At a load of which some is still waiting when the server is done, however little of the CPUs this test gets.
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
        // Whole CPU or not, it is no more than there is.
        assert!(row["cpu_percent"].as_f64().is_some_and(|percent| percent > 0.0 && percent <= 100.0), "{row}");
        let proof = if row["world"] == "linux" { "busy polls with packets by the server" } else { "suspensions" };
        assert!(row["proof"].as_str().is_some_and(|said| said.contains(proof)), "{row}");
    }
    assert_eq!(document["setup"]["side_by_side"], true);
    let servers: Vec<&Value> =
        document["setup"]["beds"].as_array().expect("beds").iter().map(|bed| &bed["server"]).collect();
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
    for bed in document["setup"]["beds"].as_array().expect("beds") {
        assert!(bed["server"].as_str().is_some_and(|server| server.starts_with("redis-server ")), "{bed}");
        assert!(bed["client"].as_str().is_some_and(|client| client.contains("datapath")), "{bed}");
    }
}

#[test]
fn any_command_line_that_speaks_a_known_protocol_is_measured() {
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
fn what_makes_no_sense_is_refused_before_anything_runs() {
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
fn a_cpu_that_is_not_there_is_named() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let done = finish(bench(place.path(), &["--app", "kv", "--server-cpu", "4000"]));
    done.assert_status(3);
    assert!(done.errors.contains("there is no CPU 4000"), "{done:?}");
}
