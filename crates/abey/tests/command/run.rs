//! `abey run`: settings are in force while the program runs and restored afterwards, however the program or `abey run` ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{
    ABEY, KillOnDrop, Running, TestBed, UnprivilegedUser, at, await_that, finish, has, is_root, napi_settings, runs,
    send, unique,
};
use abey_delivery::{Nanos, NapiSettings};
use abey_linux::device::device_named;
use abey_linux::napi::{NapiChange, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use nix::sys::signal::Signal;

/// A program that outlives the test, even on a slow machine, and ends by itself.
const SLEEP: [&str; 2] = ["sleep", "600"];

/// Starts `abey run` with `sleep`, and waits until the mode is in force.
fn running(testbed: &TestBed, mode: &str) -> (Running, u32) {
    let run = Running::start(testbed.run_mode(mode, &SLEEP));
    let program = run.await_program("sleep")[0];
    assert!(testbed.has_mode(mode), "the mode is in force before the program starts: {:?}", testbed.settings());
    (run, program)
}

#[test]
fn settings_are_in_force_while_the_program_runs_and_back_afterwards() {
    let Some(testbed) = TestBed::new(2) else { return };
    for mode in ["suspend20", "threaded", "napibusy"] {
        let (run, program) = running(&testbed, mode);
        assert_eq!(fs::read_dir(testbed.journals()).expect("directory").count(), 1);
        send(program, Signal::SIGINT);
        run.end().assert_status(128 + 2);
        testbed.assert_as_before();
    }
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    let Some(testbed) = TestBed::new(1) else { return };
    // The last is a real-time signal.
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -34 $$", 162)]
    {
        let done = finish(testbed.run_mode("suspend20", &["sh", "-c", script]));
        done.assert_status(code);
        assert_eq!((done.out.as_str(), done.errors.as_str()), ("", ""), "{script}");
        testbed.assert_as_before();
    }
}

#[test]
fn output_and_arguments_are_passed_through_unchanged() {
    let Some(testbed) = TestBed::new(1) else { return };
    let done =
        finish(testbed.run_mode("defer50", &["sh", "-c", "echo \"$@\"; echo err >&2", "x", "a b", "--mode", "c"]));
    assert_eq!((done.out.as_str(), done.errors.as_str()), ("a b --mode c\n", "err\n"));
}

#[test]
fn a_signal_to_abey_ends_the_program_and_restores() {
    let Some(testbed) = TestBed::new(1) else { return };
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let (run, program) = running(&testbed, "suspend20");
        run.signal(signal);
        run.end().assert_status(code);
        assert!(!runs(program));
        testbed.assert_as_before();
    }
}

#[test]
fn other_signals_reach_the_program() {
    let Some(testbed) = TestBed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let ready = here.path().join("ready");
    let script = format!("trap 'exit 42' USR1; touch {}; while :; do sleep 0.05; done", ready.display());
    let run = Running::start(testbed.run_mode("suspend20", &["sh", "-c", &script]));
    await_that("the program is not ready", || ready.exists());
    run.signal(Signal::SIGUSR1);
    run.end().assert_status(42);
    testbed.assert_as_before();
}

#[test]
fn a_killed_program_leaves_nothing_behind() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (run, program) = running(&testbed, "suspend20");
    send(program, Signal::SIGKILL);
    run.end().assert_status(137);
    testbed.assert_as_before();
}

#[test]
fn the_guard_restores_after_abey_is_killed() {
    let Some(testbed) = TestBed::new(1) else { return };
    // Several times, because the guard acts concurrently with the death of `abey run`.
    for _ in 0..3 {
        let (run, program) = running(&testbed, "suspend20");
        run.signal(Signal::SIGKILL);
        run.end();
        await_that("the guard has not restored", || testbed.is_as_before());
        assert!(!runs(program));
    }
}

#[test]
fn the_guard_restores_after_abey_is_killed_with_a_program_in_the_background() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (run, program) = in_background(&testbed);
    run.signal(Signal::SIGKILL);
    drop(run);
    await_that("the guard has not restored", || testbed.is_as_before());
    assert!(!runs(program), "it would run on without the mode");
}

#[test]
fn without_a_guard_the_journal_stays_and_restores() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (run, program) = running(&testbed, "suspend20");
    let program = KillOnDrop(program);
    send(run.await_guard(), Signal::SIGKILL);
    run.signal(Signal::SIGKILL);
    run.end();
    assert!(runs(program.0) && testbed.has_mode("suspend20"));
    assert_eq!(fs::read_dir(testbed.journals()).expect("directory").count(), 1);

    let done = finish(testbed.abey("set", &["--restore", "--json"]));
    let rows = done.assert_status(0).json();
    let rows = rows["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows.iter().all(|row| row["outcome"] == "put back" && row["device"] == testbed.device.name.as_str()));
    testbed.assert_as_before();
    let again = finish(testbed.abey("set", &["--restore"]));
    assert!(again.assert_status(0).out.contains("nothing to put back"), "{again:?}");
}

#[test]
fn the_next_run_restores_what_a_killed_run_left() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (run, program) = running(&testbed, "suspend20");
    let _program = KillOnDrop(program);
    send(run.await_guard(), Signal::SIGKILL);
    run.signal(Signal::SIGKILL);
    run.end();
    let done = finish(testbed.run_mode("defer50", &["true"]));
    assert!(done.assert_status(0).errors.contains("put back"), "{done:?}");
    testbed.assert_as_before();
}

/// Starts a program whose first process ends at once and leaves `sleep` behind.
fn in_background(testbed: &TestBed) -> (Running, u32) {
    let script = "setsid sleep 600 >/dev/null 2>&1 & exit 5";
    let run = Running::start(testbed.run_mode("suspend20", &["sh", "-c", script]));
    let program = run.await_program("sleep")[0];
    // abey has noticed the end of the first process once only the guard and `sleep` are its descendants.
    await_that("the program stays", || run.programs("sh").is_empty());
    (run, program)
}

#[test]
fn a_program_in_the_background_keeps_its_settings_until_it_ends() {
    let Some(testbed) = TestBed::new(1) else { return };
    for signal_abey in [true, false] {
        let (mut run, program) = in_background(&testbed);
        assert!(!run.has_ended() && testbed.has_mode("suspend20"));
        if signal_abey {
            run.signal(Signal::SIGTERM);
        } else {
            send(program, Signal::SIGTERM);
        }
        let done = run.end();
        assert!(done.assert_status(5).errors.contains("background"), "{done:?}");
        assert!(!runs(program));
        testbed.assert_as_before();
    }
}

/// Returns the command line of `abey serve kv` on an address.
fn kv(listen: &str) -> [&str; 5] {
    [ABEY, "serve", "kv", "--listen", listen]
}

#[test]
fn the_device_is_found_by_the_listening_address() {
    let Some(testbed) = TestBed::new(1) else { return };
    testbed.second_device();
    let listen = at(7001).to_string();
    let run = Running::start(testbed.run(&["--mode", "suspend20", "--strict"], &kv(&listen)));
    await_that("the mode is not in force", || testbed.has_mode("suspend20"));
    run.terminate().assert_status(0);
    testbed.assert_as_before();
}

#[test]
fn a_wildcard_address_is_enough_where_one_device_can_be_meant() {
    let Some(testbed) = TestBed::new(1) else { return };
    let run = Running::start(testbed.run(&["--mode", "defer50", "--strict"], &kv("0.0.0.0:7002")));
    await_that("the mode is not in force", || testbed.has_mode("defer50"));
    run.terminate().assert_status(0);
    testbed.assert_as_before();
}

#[test]
fn a_server_may_listen_on_loopback_first() {
    let Some(testbed) = TestBed::new(1) else { return };
    let serve = |listen: &str| format!("{ABEY} serve kv --listen {listen}");
    let script = format!("{} & sleep 0.2; exec {}", serve("127.0.0.1:7005"), serve(&at(7005).to_string()));
    let run = Running::start(testbed.run(&["--mode", "defer50", "--strict"], &["sh", "-c", &script]));
    await_that("the mode is not in force", || testbed.has_mode("defer50"));
    run.terminate().assert_status(0);
    testbed.assert_as_before();
}

#[test]
fn a_device_that_cannot_be_found_stops_a_strict_run() {
    let Some(testbed) = TestBed::new(1) else { return };
    let second = testbed.second_device();
    let strict = ["--mode", "suspend20", "--strict"];
    let program = |listen| finish(testbed.run(&strict, &kv(listen)));
    program("0.0.0.0:7003").assert_sentence(2, &[&testbed.device.name, &second, "--dev"]);
    program("127.0.0.1:7003").assert_sentence(1, &["loopback", "127.0.0.1:7003"]);
    testbed.assert_as_before();
}

#[test]
fn a_device_that_cannot_be_found_is_a_warning_without_strict() {
    let Some(testbed) = TestBed::new(1) else { return };
    let second = testbed.second_device();
    let run = Running::start(testbed.run(&["--mode", "suspend20"], &kv("0.0.0.0:7004")));
    await_that("nothing is said", || run.errors_so_far().contains("not active"));
    let connects = || std::net::TcpStream::connect("127.0.0.1:7004").is_ok();
    assert!(testbed.server.run(connects).expect("namespace"), "the program serves all the same");
    let done = run.terminate();
    done.assert_status(0);
    assert!(done.errors.contains("not active") && done.errors.contains(&second), "{done:?}");
    testbed.assert_as_before();
}

#[test]
fn one_device_has_one_run() {
    let Some(testbed) = TestBed::new(2) else { return };
    let (first, _) = running(&testbed, "suspend20");
    // A second run with the same mode is refused as well: the first run to end would restore the settings of both.
    for mode in ["defer50", "suspend20"] {
        let pid = first.pid().to_string();
        finish(testbed.run_mode(mode, &["true"])).assert_refused(1, &[&pid, &testbed.device.name]);
    }
    assert!(testbed.has_mode("suspend20"));
    first.terminate().assert_status(143);
    testbed.assert_as_before();
}

#[test]
fn each_queue_can_have_its_own_run() {
    let Some(testbed) = TestBed::new(2) else { return };
    let options = |queue| ["--mode", "defer50", "--dev", &testbed.device.name, "--queues", queue];
    let first = Running::start(testbed.run(&options("0"), &SLEEP));
    first.await_program("sleep");
    assert_eq!(testbed.settings(), [napi_settings("defer50"), NapiSettings::default()]);
    let second = Running::start(testbed.run(&options("1"), &SLEEP));
    second.await_program("sleep");
    assert!(testbed.has_mode("defer50"));
    finish(testbed.run(&options("0,1"), &["true"])).assert_refused(1, &[&testbed.device.name]);
    first.terminate().assert_status(143);
    assert_eq!(testbed.settings(), [NapiSettings::default(), napi_settings("defer50")]);
    second.terminate().assert_status(143);
    testbed.assert_as_before();
}

/// A named namespace, deleted when this value is dropped.
struct NamedNetns(String);

impl NamedNetns {
    fn new() -> Option<Self> {
        if !is_root() || !has("ip") {
            return None;
        }
        let name = unique("abey-test-");
        assert!(Command::new("ip").args(["netns", "add", &name]).status().expect("ip starts").success());
        Some(Self(name))
    }
}

impl Drop for NamedNetns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn a_program_runs_in_a_namespace_by_its_name() {
    let Some(named) = NamedNetns::new() else { return };
    crate::common::library();
    let server = NetNs::named(&named.0).expect("just made");
    let inode = server.inode();
    let testbed = TestBed::between(server, NetNs::create().expect("namespace"), 1);
    let mut command =
        crate::common::abey(&["run", "--netns", &named.0, "--mode", "defer50", "--dev", &testbed.device.name]);
    command.arg("--journals").arg(testbed.journals()).args(["--", "sh", "-c", "readlink /proc/self/ns/net; sleep 600"]);
    let run = Running::start(command);
    run.await_program("sleep");
    assert!(testbed.has_mode("defer50"));
    let done = run.terminate();
    assert_eq!(done.assert_status(143).out.trim(), format!("net:[{inode}]"));
    assert_eq!(processes_in(&testbed), [0; 0], "what the shell had started as well");
    testbed.assert_as_before();
}

/// Returns the processes in the server's namespace.
fn processes_in(testbed: &TestBed) -> Vec<u32> {
    let pids =
        fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| NetNs::of_process(*pid).is_ok_and(|netns| netns.inode() == testbed.server.inode())).collect()
}

#[test]
fn bad_input_is_refused_with_one_sentence_and_changes_nothing() {
    let Some(testbed) = TestBed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let text = here.path().join("text");
    fs::write(&text, "no program").expect("written");
    let (text, device) = (text.to_str().expect("UTF-8"), testbed.device.name.as_str());
    let cases: [(i32, &[&str], &str, &[&str]); 16] = [
        (2, &["--mode", "warp9", "--dev", device], "true", &["warp9"]),
        (2, &["--mode", "suspend", "--dev", device], "true", &["suspend"]),
        (2, &["--dev", device], "true", &["--mode"]),
        (2, &["--mode", "hold50", "--dev", device], "true", &["hold50", "datapath"]),
        (2, &["--mode", "workqueue", "--dev", device], "true", &["workqueue", "datapath"]),
        (2, &["--mode", "suspend20", "--dev", "nodev0"], "true", &["nodev0", device]),
        (2, &["--mode", "suspend20", "--dev", device, "--queues", "7"], "true", &["queue 7"]),
        (2, &["--mode", "suspend20", "--dev", device, "--queues", "x"], "true", &["x"]),
        (2, &["--mode", "suspend20", "--netns", "no-such-netns"], "true", &["no-such-netns", "ip netns"]),
        (2, &["--mode", "suspend20", "--netns", "../mnt"], "true", &["../mnt"]),
        (2, &["--mode", "suspend20", "--dev", device, "--budget", "0"], "true", &["budget"]),
        (2, &["--mode", "suspend20", "--dev", device, "--budget", "70000"], "true", &["70000"]),
        (2, &["--mode", "defer50", "--dev", device, "--budget", "32"], "true", &["budget", "defer50"]),
        (2, &["--mode", "suspend20", "--dev", device], "no-such-program", &["no-such-program"]),
        (2, &["--mode", "suspend20", "--dev", device], "/no/such/program", &["/no/such/program"]),
        (2, &["--mode", "suspend20", "--dev", device], text, &["not executable"]),
    ];
    for (code, options, program, words) in cases {
        finish(testbed.run(options, &[program])).assert_refused(code, words);
        testbed.assert_as_before();
    }
    finish(testbed.run_mode("suspend20", &["/"])).assert_refused(2, &["/"]);
    let lo = finish(testbed.run(&["--mode", "defer50", "--dev", "lo"], &["true"]));
    lo.assert_refused(3, &["lo has no NAPI instance"]);
}

#[test]
fn a_program_that_cannot_start_leaves_nothing_behind() {
    let Some(testbed) = TestBed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let broken = here.path().join("broken");
    fs::write(&broken, "#!/no/such/interpreter\n").expect("written");
    fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    finish(testbed.run_mode("suspend20", &[broken.to_str().expect("UTF-8")])).assert_refused(2, &["cannot start"]);
    testbed.assert_as_before();
}

/// Writes a statically linked program that exits with 9 (Linux on x86-64): a minimal ELF file with three instructions.
#[cfg(target_arch = "x86_64")]
fn static_program(directory: &Path) -> String {
    let code = [0xb8, 60, 0, 0, 0, 0xbf, 9, 0, 0, 0, 0x0f, 0x05];
    let (base, start, size) = (0x40_0000_u64, 64 + 56_u64, 64 + 56 + code.len() as u64);
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut put = |bytes: &[u8]| file.extend_from_slice(bytes);
    // Executable, x86-64, version 1; entry, program headers, no section headers, no flags; sizes and counts.
    [2_u16, 62, 1, 0].iter().for_each(|half| put(&half.to_le_bytes()));
    [base + start, 64, 0].iter().for_each(|word| put(&word.to_le_bytes()));
    [0_u16, 0, 64, 56, 1, 64, 0, 0].iter().for_each(|half| put(&half.to_le_bytes()));
    // One segment to load, to read and execute: offset, addresses, sizes, alignment.
    [1_u32, 5].iter().for_each(|word| put(&word.to_le_bytes()));
    [0, base, base, size, size, 0x1000].iter().for_each(|word| put(&word.to_le_bytes()));
    put(&code);
    let path = directory.join("static");
    fs::write(&path, file).expect("written");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    path.to_str().expect("UTF-8").to_owned()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_cannot_load_the_library_is_reported_or_refused() {
    let Some(testbed) = TestBed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let program = static_program(here.path());
    let strict = ["--mode", "suspend20", "--strict", "--dev", &testbed.device.name];
    finish(testbed.run(&strict, &[&program])).assert_refused(3, &[&program, "statically linked"]);
    finish(testbed.run_mode("suspend20", &[&program])).assert_refused(9, &[&program, "statically linked"]);
    // A mode that needs nothing of the program prints no warning.
    let plain = finish(testbed.run_mode("defer50", &[&program]));
    assert_eq!(plain.assert_status(9).errors, "");
    testbed.assert_as_before();
}

#[test]
fn a_mode_that_the_kernel_lacks_is_refused_with_status_3() {
    let Some(testbed) = TestBed::new(1) else { return };
    if testbed.capabilities.threaded_busy {
        eprintln!("skipped: this kernel has every mode");
        return;
    }
    finish(testbed.run_mode("threaded-busy", &["true"])).assert_refused(3, &["threaded"]);
    testbed.assert_as_before();
}

#[test]
fn without_privileges_it_is_refused_with_status_3() {
    let Some(testbed) = TestBed::new(1) else { return };
    let Some(unprivileged) = UnprivilegedUser::new() else { return };
    let device = testbed.device.name.as_str();
    let run = |options: &[&str]| {
        let options = [options, &["--dev", device, "--", "true"]].concat();
        finish(testbed.abey_unprivileged(&unprivileged, "run", &options))
    };
    run(&["--mode", "suspend20"]).assert_refused(3, &["root"]);
    run(&["--mode", "suspend20", "--budget", "65"]).assert_refused(3, &["65", "CAP_NET_ADMIN"]);
    testbed.assert_as_before();
    // A mode without changes needs no permission.
    run(&["--mode", "base"]).assert_status(0);
    assert_eq!(fs::read_dir(unprivileged.journals()).expect("directory").count(), 0);
    let mut unwritable = unprivileged.command();
    abey_testbed::spawn::SpawnExt::in_netns(&mut unwritable, &testbed.server);
    unwritable
        .args(["run", "--mode", "defer50", "--dev", device, "--journals"])
        .arg(testbed.journals())
        .args(["--", "true"]);
    finish(unwritable).assert_refused(3, &["journal", "root"]);
}

#[test]
fn root_may_set_a_budget_above_64() {
    let Some(testbed) = TestBed::new(1) else { return };
    finish(testbed.run(&["--mode", "suspend20", "--dev", &testbed.device.name, "--budget", "128"], &["true"]))
        .assert_status(0);
    testbed.assert_as_before();
}

#[test]
fn settings_changed_by_another_program_stay_and_are_reported() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (run, _) = running(&testbed, "defer50");
    let (id, theirs) = (testbed.napi_ids()[0], Nanos::from_micros(77));
    let mut netlink = Netlink::open(&testbed.server).expect("netlink");
    set_napi(&mut netlink, id, &NapiChange { gro_flush_timeout: Some(theirs), ..NapiChange::default() }).expect("set");
    run.terminate().assert_sentence(143, &["another program", &id.to_string(), &testbed.device.name]);
    assert_eq!(testbed.settings(), [NapiSettings { gro_flush_timeout: theirs, ..NapiSettings::default() }]);
    assert_eq!(fs::read_dir(testbed.journals()).expect("directory").count(), 0);
}

#[test]
fn another_device_is_not_touched() {
    let Some(testbed) = TestBed::new(1) else { return };
    let second = testbed.second_device();
    let (run, _) = running(&testbed, "suspend20");
    let mut netlink = Netlink::open(&testbed.server).expect("netlink");
    let second = device_named(&mut netlink, &second, "here").expect("just made");
    assert!(testbed.settings_of(second.ifindex).iter().all(|one| *one == NapiSettings::default()));
    drop(run);
    testbed.assert_as_before();
    assert!(Path::new(ABEY).is_file());
}
