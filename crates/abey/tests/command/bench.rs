//! `abey bench` of one world and of both: small runs to the end, interrupted runs, killed runs, bad input.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Running, UnprivilegedUser, abey, await_some, await_that, finish, is_root, runs};
use abey_linux::device::devices;
use abey_linux::netlink::Netlink;
use abey_linux::netns::{self, NetNs};
use abey_linux::probe::napi_capabilities;
use abey_linux::process::descendants;
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// The keys of a row, without the spreads.
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

/// The keys that have a figure and a spread on every Linux machine.
const MEASURED: [&str; 8] =
    ["qps", "avg_us", "p50_us", "p95_us", "p99_us", "p999_us", "cpu_percent", "cpu_us_per_query"];

/// Returns whether the linux world can be measured here. Prints a line if not.
fn can_bench_linux() -> bool {
    if !is_root() || !has_two_cpus() {
        return false;
    }
    crate::common::library();
    let here = NetNs::current().expect("namespace");
    let able = napi_capabilities(&mut Netlink::open(&here).expect("netlink")).expect("probe");
    if !able.suspend {
        eprintln!("skipped: needs a kernel with IRQ suspension");
    }
    able.suspend
}

fn has_two_cpus() -> bool {
    let two = std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !two {
        eprintln!("skipped: needs two CPUs");
    }
    two
}

/// A directory for the files of a bench and its temporary files.
struct OutputDir(tempfile::TempDir);

impl OutputDir {
    /// Makes a directory that every user may write to.
    fn new() -> Self {
        let place = tempfile::tempdir().expect("directory");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("permissions");
        open(place.path());
        for name in ["out", "tmp"] {
            fs::create_dir(place.path().join(name)).expect("directory");
            open(&place.path().join(name));
        }
        Self(place)
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn html(&self) -> String {
        fs::read_to_string(self.out().join("b.html")).expect("written")
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out().join("b.json")).expect("written")).expect("JSON")
    }

    /// Makes a bench write to this directory.
    fn with_output(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments).arg("--out").arg(self.out().join("b.json"));
        command.env("TMPDIR", self.0.path().join("tmp"));
        command
    }

    fn count(&self, name: &str) -> usize {
        fs::read_dir(self.0.path().join(name)).expect("directory").count()
    }
}

/// On a busy machine a run is repeated with a longer duration until it has responses.
const MIN_RESPONSES: [&str; 2] = ["--min-responses", "100"];

/// Returns a bench of two modes at one load.
fn bench(world: &str, place: &OutputDir, more: &[&str]) -> Command {
    let mut command = abey(&["bench", "--world", world, "--modes", "base,suspend20", "--loads", "5k", "--app", "kv"]);
    command.args(MIN_RESPONSES);
    place.with_output(command, more)
}

/// Returns `abey` as a user without privileges, also if root runs the tests.
fn unprivileged() -> Option<(Command, Option<UnprivilegedUser>)> {
    if !nix::unistd::geteuid().is_root() {
        return Some((abey(&[]), None));
    }
    let user = UnprivilegedUser::new()?;
    Some((user.command(), Some(user)))
}

#[test]
fn a_small_bench_proves_every_row_and_writes_its_files() {
    for (world, possible) in [("linux", can_bench_linux()), ("datapath", has_two_cpus())] {
        if !possible {
            continue;
        }
        let here = OutputDir::new();
        let done = finish(bench(world, &here, &["--duration", "100ms", "--reps", "3", "--json", "--seed", "7"]));
        let document = done.assert_status(0).json();
        let rows = document["rows"].as_array().expect("rows");
        let modes: Vec<&str> = rows.iter().filter_map(|row| row["mode"].as_str()).collect();
        assert_eq!(modes, ["base", "suspend20"]);
        for row in rows {
            check_row(row, world);
        }
        assert_eq!(here.json(), document);
        assert_eq!(document["seed"], 7);
        assert_eq!(document["setup"]["beds"][0]["world"], world);
        assert!(here.html().contains("<svg") && here.html().contains("suspend20"));
        // Standard error is no terminal, so the seed is the only line.
        assert_eq!(done.errors, "abey: seed 7\n");
        assert_eq!((here.count("out"), here.count("tmp")), (2, 0));
    }
}

#[test]
fn without_root_every_mode_of_the_datapath_is_measured() {
    if !has_two_cpus() {
        return;
    }
    let Some((mut command, _user)) = unprivileged() else { return };
    let here = OutputDir::new();
    let modes = "base,defer50,napibusy,fullbusy,suspend20,threaded,threaded-busy,workqueue,hold20,hold20-timer";
    let short = ["bench", "--modes", modes, "--loads", "5k", "--duration", "150ms", "--warmup", "50ms", "--json"];
    command.args(short);
    let done = finish(here.with_output(command, &MIN_RESPONSES));
    let document = done.assert_status(0).json();
    let rows = document["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["mode"].as_str()).collect();
    assert_eq!(names.join(","), modes);
    for row in rows {
        check_row(row, "datapath");
        for counted in ["wakeups_per_s", "context_switches_per_query", "system_calls_per_query"] {
            assert!(row[counted].as_f64().is_some_and(|figure| figure >= 0.0), "{counted}: {row}");
        }
        assert!(
            row["proof"].as_str().is_some_and(|proof| proof.contains("polls") || proof.contains("packets")),
            "{row}"
        );
    }
    let notes = document["notes"].to_string();
    assert!(["linux", "root", "sudo"].iter().all(|word| notes.contains(word)), "{notes}");
    assert_eq!(here.json(), document);
    assert_eq!(here.count("tmp"), 0);
}

#[test]
fn as_root_both_worlds_are_measured() {
    if !can_bench_linux() {
        return;
    }
    let here = OutputDir::new();
    let small = ["bench", "--modes", "suspend20,hold20", "--loads", "5k", "--app", "kv", "--duration", "100ms"];
    let done = finish(here.with_output(abey(&small), &MIN_RESPONSES));
    let text = &done.assert_status(0).out;
    let (linux, datapath) = text.split_once("\ndatapath: abey serve kv").expect("two tables");
    assert!(linux.starts_with("linux: abey serve kv") && linux.contains("veth pair"), "{text}");
    assert!(datapath.contains("shared-memory NIC") && datapath.contains("compare modes within a world"), "{text}");
    // A mode of one world only is measured there, and a line reports it for the other.
    assert!(linux.contains("suspend20") && !linux.contains("hold20"), "{text}");
    assert!(datapath.contains("suspend20") && datapath.contains("hold20 is left out"), "{text}");
    let worlds: Vec<Value> =
        here.json()["rows"].as_array().expect("rows").iter().map(|row| row["world"].clone()).collect();
    assert_eq!(worlds, ["linux", "datapath", "datapath"]);
    assert!(here.html().contains("World: linux") && here.html().contains("World: datapath"));
}

fn check_row(row: &Value, world: &str) {
    let keys = row.as_object().expect("an object");
    for key in KEYS {
        assert!(keys.contains_key(key), "no {key}: {row}");
    }
    for key in MEASURED {
        assert!(row[key].as_f64().is_some_and(|figure| figure >= 0.0), "{key}: {row}");
        assert!(keys.contains_key(&format!("{key}_spread")), "no spread of {key}: {row}");
    }
    assert_eq!((&row["world"], &row["load"], &row["active"]), (&world.into(), &"5k".into(), &true.into()), "{row}");
}

#[test]
fn the_default_output_is_a_table() {
    if !has_two_cpus() {
        return;
    }
    let here = OutputDir::new();
    let done = finish(bench("datapath", &here, &["--duration", "100ms", "--warmup", "100ms"]));
    let lines: Vec<&str> = done.assert_status(0).out.lines().collect();
    for words in [["mode", "p99"], ["base", "5k"], ["suspend20", "5k"], ["written:", "b.html"]] {
        assert!(lines.iter().any(|line| words.iter().all(|word| line.contains(word))), "{words:?}: {done:?}");
    }
}

/// A bench while it measures, and its server.
struct MeasuringBench {
    run: Running,
    server: u32,
    /// The inode of the server's namespace, if it is not that of the test.
    inode: Option<u64>,
    place: OutputDir,
}

impl MeasuringBench {
    fn of(world: &str) -> Self {
        let place = OutputDir::new();
        let mut command = bench(world, &place, &["--reps", "50"]);
        // A process group of its own, as an interactive shell makes it, so that a signal can be sent to the whole group.
        command.process_group(0);
        let run = Running::start(command);
        let own = NetNs::current().expect("namespace").inode();
        // Other children of the bench run before the server, in the namespace of the bench. So does the server at first.
        let elsewhere = |pid: u32| {
            let inode = NetNs::of_process(pid).ok()?.inode();
            (inode != own).then_some((pid, Some(inode)))
        };
        let serves = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            line.split(|byte| *byte == 0).any(|word| word == b"serve").then_some((pid, None))
        };
        let (server, inode) = await_some("the bench starts no server", || {
            let below = descendants(run.pid()).expect("/proc");
            below.into_iter().find_map(|pid| if world == "linux" { elsewhere(pid) } else { serves(pid) })
        });
        Self { run, server, inode, place }
    }

    /// Asserts that it left no process, no namespace with a process or a name, no device, no socket of a shared-memory NIC, and
    /// no file.
    fn assert_nothing_left(&self) {
        await_that("the server runs on", || !runs(self.server));
        if let Some(inode) = self.inode {
            let empty = || netns::all().iter().all(|netns| netns.inode() != inode);
            await_that("a process is in the namespace", empty);
        }
        let here = NetNs::current().expect("namespace");
        let all = devices(&mut Netlink::open(&here).expect("netlink")).expect("list");
        let pid = self.run.pid().to_string();
        let ours = |name: &str| name.strip_prefix("abs").or(name.strip_prefix("abc")) == Some(&pid);
        assert!(!all.iter().any(|device| ours(&device.name)), "{all:?}");
        let sockets = || fs::read_to_string("/proc/net/unix").expect("/proc");
        await_that("the NIC still has its socket", || !sockets().contains(&format!("abey-bench-{pid}-")));
        assert_eq!(self.place.count("out"), 0);
    }

    /// Waits for the end, and returns the lines on standard error except the seed.
    fn messages(self) -> (crate::common::Finished, Vec<String>) {
        let done = self.run.end();
        let lines = done.errors.lines().filter(|line| !line.starts_with("abey: seed")).map(str::to_owned).collect();
        (done, lines)
    }
}

/// Returns the worlds that can be measured here.
fn worlds() -> impl Iterator<Item = &'static str> {
    let linux = can_bench_linux().then_some("linux");
    linux.into_iter().chain(has_two_cpus().then_some("datapath"))
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing() {
    for world in worlds() {
        // As Ctrl-C at a terminal does, and as `kill` does.
        for (whole_group, signal, code) in
            [(true, Signal::SIGINT, 130), (false, Signal::SIGINT, 130), (false, Signal::SIGTERM, 143)]
        {
            let mut bench = MeasuringBench::of(world);
            if whole_group {
                killpg(Pid::from_raw(bench.run.pid().cast_signed()), signal).expect("sent");
            } else {
                bench.run.signal(signal);
            }
            bench.run.wait();
            bench.assert_nothing_left();
            assert_eq!(bench.place.count("tmp"), 0);
            let (done, messages) = bench.messages();
            done.assert_status(code);
            assert_eq!(messages.len(), 1, "{done:?}");
            assert!(messages[0].contains("stopped") && done.out.is_empty(), "{done:?}");
        }
    }
}

#[test]
fn the_server_ends_when_the_bench_is_killed() {
    for world in worlds() {
        let mut bench = MeasuringBench::of(world);
        bench.run.signal(Signal::SIGKILL);
        bench.run.wait();
        bench.assert_nothing_left();
    }
}

#[test]
fn a_killed_server_ends_the_bench_with_one_sentence() {
    for world in worlds() {
        let mut bench = MeasuringBench::of(world);
        crate::common::send(bench.server, Signal::SIGKILL);
        bench.run.wait();
        bench.assert_nothing_left();
        assert_eq!(bench.place.count("tmp"), 0);
        let (done, messages) = bench.messages();
        done.assert_status(1);
        assert!(messages.len() == 1 && done.out.is_empty(), "{done:?}");
    }
}

#[test]
fn with_one_cpu_the_bench_is_refused_with_status_3() {
    if !has_two_cpus() {
        return;
    }
    let here = OutputDir::new();
    let mut command = bench("datapath", &here, &[]);
    command.on_cpus(&[0]);
    finish(command).assert_refused(3, &["one CPU", "two"]);
    assert_eq!(here.count("out"), 0);
}

#[test]
fn bad_input_is_refused_with_one_sentence() {
    let here = tempfile::tempdir().expect("directory");
    let out = here.path().join("b.json");
    let out = out.to_str().expect("UTF-8");
    let html = here.path().join("b.html");
    let directory = here.path().to_str().expect("UTF-8");
    let cases: [(i32, &[&str], &[&str]); 19] = [
        (2, &["--modes", "warp9"], &["warp9"]),
        (2, &["--modes", "base,base"], &["base", "twice"]),
        (2, &["--modes", "hold50", "--world", "linux"], &["hold50", "datapath"]),
        (2, &["--modes", "base,workqueue", "--world", "all"], &["workqueue", "datapath"]),
        (2, &["--modes", "sockbusy50"], &["sockbusy50", "epoll"]),
        (2, &["--modes", "sockbusy50", "--world", "datapath"], &["sockbusy50", "epoll"]),
        (2, &["--loads", "0"], &["0"]),
        (2, &["--loads", "fast"], &["fast"]),
        (2, &["--world", "datapath", "--app", "memcached"], &["built-in", "--app", "--world both"]),
        (2, &["--world", "moon"], &["moon", "datapath"]),
        (2, &["--reps", "2"], &["2"]),
        (2, &["--duration", "1ms"], &["1ms", "100ms"]),
        (2, &["--warmup", "0"], &["--warmup"]),
        (2, &["--connections", "0"], &["--connections"]),
        (2, &["--app", "postgres"], &["postgres"]),
        (2, &["--out", "/no/such/directory/b.json"], &["/no/such/directory/b.json", "--out"]),
        (2, &["--out", directory], &["--out"]),
        (2, &["--out", html.to_str().expect("UTF-8")], &["b.html", ".html"]),
        (2, &["--out", html.to_str().expect("UTF-8"), "--world", "datapath"], &["b.html", ".html"]),
    ];
    for (code, arguments, words) in cases {
        // Every case is refused before anything is measured.
        let rest: &[&str] = if arguments[0] == "--out" { &[] } else { &["--out", out] };
        finish(abey(&[&["bench"], arguments, rest].concat())).assert_refused(code, words);
    }
    assert_eq!(fs::read_dir(here.path()).expect("directory").count(), 0);
}

#[test]
fn a_mode_that_the_kernel_lacks_is_refused_with_status_3() {
    if !can_bench_linux() {
        return;
    }
    let here = NetNs::current().expect("namespace");
    if napi_capabilities(&mut Netlink::open(&here).expect("netlink")).expect("probe").threaded_busy {
        eprintln!("skipped: this kernel has every mode");
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let out = directory.path().join("b.json");
    let arguments =
        ["bench", "--world", "linux", "--modes", "base,threaded-busy", "--app", "kv", "--seed", "1", "--out"];
    let mut command = abey(&arguments);
    command.arg(&out);
    let done = finish(command);
    done.assert_status(3);
    let last = done.errors.lines().last().unwrap_or_default();
    assert!(last.contains("threaded-busy") && done.errors.lines().count() <= 2, "{done:?}");
    assert!(!out.exists());
}

#[test]
fn without_root_the_linux_world_is_refused_with_status_3() {
    let Some((mut command, _user)) = unprivileged() else { return };
    let here = OutputDir::new();
    command.args(["bench", "--world", "linux"]);
    finish(here.with_output(command, &[])).assert_refused(3, &["root", "sudo"]);
    assert_eq!(here.count("out"), 0);
}
