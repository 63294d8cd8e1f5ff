//! `abey bench` from outside: a small one to the end, one that is interrupted, one that is killed, bad input.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use abey_linux::device::devices;
use abey_linux::netlink::Netlink;
use abey_linux::netns::{self, NetNs};
use abey_linux::probe::napi_capabilities;
use common::{Nobody, Running, abey, await_some, await_that, finish, is_root, runs};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// A row's keys in the project's design, without the spreads.
const KEYS: [&str; 19] = [
    "world",
    "mode",
    "load",
    "qps",
    "avg_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "p999_us",
    "cpu_percent",
    "cpu_us_per_query",
    "cycles_per_query",
    "instructions_per_query",
    "wakeups_per_s",
    "context_switches_per_query",
    "system_calls_per_query",
    "active",
    "client_bound",
    "runs",
];

/// What every Linux machine can measure, and has a spread.
const MEASURED: [&str; 8] =
    ["qps", "avg_us", "p50_us", "p95_us", "p99_us", "p999_us", "cpu_percent", "cpu_us_per_query"];

/// Whether a bench can run here; says why not.
fn can_bench() -> bool {
    if !is_root() {
        return false;
    }
    common::library();
    let here = NetNs::current().expect("namespace");
    let able = napi_capabilities(&mut Netlink::open(&here).expect("netlink")).expect("probe");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if !able.suspend || cpus < 2 {
        eprintln!("skipped: needs a kernel with IRQ suspension and two CPUs");
    }
    able.suspend && cpus >= 2
}

/// A bench of two modes at one load, written to this directory.
fn bench(directory: &Path, more: &[&str]) -> Command {
    let mut command = abey(&["bench", "--modes", "base,suspend20", "--loads", "5k", "--app", "kv"]);
    command.args(more).arg("--out").arg(directory.join("b.json"));
    command
}

#[test]
fn a_small_bench_proves_every_row_and_writes_its_files() {
    if !can_bench() {
        return;
    }
    let here = tempfile::tempdir().expect("directory");
    let done = finish(bench(here.path(), &["--duration", "100ms", "--reps", "3", "--json", "--seed", "7"]));
    let document = done.assert_status(0).json();
    let rows = document["rows"].as_array().expect("rows");
    let modes: Vec<&str> = rows.iter().filter_map(|row| row["mode"].as_str()).collect();
    assert_eq!(modes, ["base", "suspend20"]);
    for row in rows {
        check_row(row);
    }
    let written: Value = serde_json::from_slice(&fs::read(here.path().join("b.json")).expect("written")).expect("JSON");
    assert_eq!(written, document);
    assert_eq!(document["seed"], 7);
    let html = fs::read_to_string(here.path().join("b.html")).expect("written");
    assert!(html.contains("<svg") && html.contains("suspend20"), "{} bytes", html.len());
    // Nobody watches, so the only line is the seed.
    assert_eq!(done.errors, "abey: seed 7\n");
}

fn check_row(row: &Value) {
    let keys = row.as_object().expect("an object");
    for key in KEYS {
        assert!(keys.contains_key(key), "no {key}: {row}");
    }
    for key in MEASURED {
        assert!(row[key].as_f64().is_some_and(|figure| figure >= 0.0), "{key}: {row}");
        assert!(keys.contains_key(&format!("{key}_spread")), "no spread of {key}: {row}");
    }
    assert_eq!((&row["world"], &row["load"], &row["active"]), (&"linux".into(), &"5k".into(), &true.into()), "{row}");
}

#[test]
fn a_table_is_for_people() {
    if !can_bench() {
        return;
    }
    let here = tempfile::tempdir().expect("directory");
    let done = finish(bench(here.path(), &["--duration", "100ms", "--warmup", "100ms"]));
    let lines: Vec<&str> = done.assert_status(0).out.lines().collect();
    for words in [["mode", "p99"], ["base", "5k"], ["suspend20", "5k"], ["written:", "b.html"]] {
        assert!(lines.iter().any(|line| words.iter().all(|word| line.contains(word))), "{words:?}: {done:?}");
    }
}

/// A bench that is in the middle of its matrix, its server, and the namespaces they work in.
struct Middle {
    run: Running,
    server: u32,
    inode: u64,
}

impl Middle {
    fn of(directory: &Path) -> Self {
        let mut command = bench(directory, &["--reps", "50"]);
        // As a shell at a terminal does, so that a signal can be sent to all that belongs to it.
        command.process_group(0);
        let run = Running::start(command);
        let own = NetNs::current().expect("namespace").inode();
        // Other children come and go before the server, and are where the bench is; so is the server at first.
        let elsewhere = |pid: u32| {
            let inode = NetNs::of_process(pid).ok()?.inode();
            (inode != own).then_some((pid, inode))
        };
        let (server, inode) = await_some("the bench starts no server", || {
            abey_linux::process::descendants(run.pid()).expect("/proc").into_iter().find_map(elsewhere)
        });
        Self { run, server, inode }
    }

    /// No process, no namespace with a process or a name, and no device is left of it.
    fn assert_gone(&self) {
        await_that("the server runs on", || !runs(self.server));
        await_that("somebody lives in the namespace", || netns::all().iter().all(|netns| netns.inode() != self.inode));
        let here = NetNs::current().expect("namespace");
        let all = devices(&mut Netlink::open(&here).expect("netlink")).expect("list");
        let pid = self.run.pid().to_string();
        let ours = |name: &str| name.strip_prefix("abs").or(name.strip_prefix("abc")) == Some(&pid);
        assert!(!all.iter().any(|device| ours(&device.name)), "{all:?}");
    }
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing() {
    if !can_bench() {
        return;
    }
    // What a terminal does, and what somebody with `kill` does.
    for (whole_group, signal, code) in
        [(true, Signal::SIGINT, 130), (false, Signal::SIGINT, 130), (false, Signal::SIGTERM, 143)]
    {
        let here = tempfile::tempdir().expect("directory");
        let mut middle = Middle::of(here.path());
        if whole_group {
            killpg(Pid::from_raw(middle.run.pid().cast_signed()), signal).expect("sent");
        } else {
            middle.run.signal(signal);
        }
        middle.run.wait();
        middle.assert_gone();
        let done = middle.run.end();
        done.assert_status(code);
        let said: Vec<&str> = done.errors.lines().filter(|line| !line.starts_with("abey: seed")).collect();
        assert_eq!(said.len(), 1, "{done:?}");
        assert!(said[0].contains("stopped") && done.out.is_empty(), "{done:?}");
        assert_eq!(fs::read_dir(here.path()).expect("directory").count(), 0);
    }
}

#[test]
fn a_killed_bench_takes_its_server_along() {
    if !can_bench() {
        return;
    }
    let here = tempfile::tempdir().expect("directory");
    let mut middle = Middle::of(here.path());
    middle.run.signal(Signal::SIGKILL);
    middle.run.wait();
    middle.assert_gone();
}

#[test]
fn a_killed_server_ends_the_bench_with_one_sentence() {
    if !can_bench() {
        return;
    }
    let here = tempfile::tempdir().expect("directory");
    let mut middle = Middle::of(here.path());
    common::send(middle.server, Signal::SIGKILL);
    middle.run.wait();
    middle.assert_gone();
    let done = middle.run.end();
    done.assert_status(1);
    let said: Vec<&str> = done.errors.lines().filter(|line| !line.starts_with("abey: seed")).collect();
    assert!(said.len() == 1 && done.out.is_empty(), "{done:?}");
    assert_eq!(fs::read_dir(here.path()).expect("directory").count(), 0);
}

#[test]
fn bad_input_is_one_sentence() {
    if !can_bench() {
        return;
    }
    let here = tempfile::tempdir().expect("directory");
    let out = here.path().join("b.json");
    let out = out.to_str().expect("UTF-8");
    let html = here.path().join("b.html");
    let directory = here.path().to_str().expect("UTF-8");
    let cases: [(i32, &[&str], &[&str]); 16] = [
        (2, &["--modes", "warp9"], &["warp9"]),
        (2, &["--modes", "base,base"], &["base", "twice"]),
        (2, &["--modes", "hold50"], &["hold50", "datapath"]),
        (2, &["--modes", "sockbusy50"], &["sockbusy50", "epoll"]),
        (2, &["--loads", "0"], &["0"]),
        (2, &["--loads", "fast"], &["fast"]),
        (2, &["--world", "datapath"], &["linux"]),
        (2, &["--world", "moon"], &["moon"]),
        (2, &["--reps", "2"], &["2"]),
        (2, &["--duration", "1ms"], &["1ms", "100ms"]),
        (2, &["--warmup", "0"], &["--warmup"]),
        (2, &["--connections", "0"], &["--connections"]),
        (2, &["--app", "postgres"], &["postgres"]),
        (2, &["--out", "/no/such/directory/b.json"], &["/no/such/directory/b.json", "--out"]),
        (2, &["--out", directory], &["--out"]),
        (2, &["--out", html.to_str().expect("UTF-8")], &["b.html", ".html"]),
    ];
    for (code, arguments, words) in cases {
        // Every case is refused before anything is measured, so the time it would take does not matter.
        let rest: &[&str] = if arguments[0] == "--out" { &[] } else { &["--out", out] };
        finish(abey(&[&["bench"], arguments, rest].concat())).assert_refused(code, words);
    }
    assert_eq!(fs::read_dir(here.path()).expect("directory").count(), 0);
}

#[test]
fn a_mode_that_was_asked_for_and_the_kernel_lacks_is_status_3() {
    if !can_bench() {
        return;
    }
    let here = NetNs::current().expect("namespace");
    if napi_capabilities(&mut Netlink::open(&here).expect("netlink")).expect("probe").threaded_busy {
        eprintln!("skipped: this kernel has every mode");
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let out = directory.path().join("b.json");
    let arguments = ["bench", "--modes", "base,threaded-busy", "--app", "kv", "--seed", "1", "--out"];
    let mut command = abey(&arguments);
    command.arg(&out);
    let done = finish(command);
    done.assert_status(3);
    let last = done.errors.lines().last().unwrap_or_default();
    assert!(last.contains("threaded-busy") && done.errors.lines().count() <= 2, "{done:?}");
    assert!(!out.exists());
}

#[test]
fn without_root_it_is_one_sentence_and_status_3() {
    if !is_root() {
        return;
    }
    let Some(nobody) = Nobody::new() else { return };
    let mut command = nobody.command();
    command.args(["bench", "--out", "/tmp/never-written.json"]);
    finish(command).assert_refused(3, &["root", "sudo"]);
    assert!(!Path::new("/tmp/never-written.json").exists());
}
