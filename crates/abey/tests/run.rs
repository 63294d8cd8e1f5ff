//! `abey run` from outside: settings in force while the program runs and back afterwards, however either ends.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use abey_delivery::{Nanos, NapiSettings};
use abey_linux::device::device_named;
use abey_linux::napi::{NapiChange, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use common::{
    ABEY, Bed, Nobody, Running, Stray, at, await_that, finish, has, is_root, napi_settings, runs, send, unique,
};
use nix::sys::signal::Signal;

/// A program that outlives every test and ends by itself.
const SLEEP: [&str; 2] = ["sleep", "60"];

/// The command in force on the device, with `sleep` under it.
fn running(bed: &Bed, mode: &str) -> (Running, u32) {
    let run = Running::start(bed.run_mode(mode, &SLEEP));
    let program = run.await_program("sleep")[0];
    assert!(bed.has_mode(mode), "the mode is in force before the program starts: {:?}", bed.settings());
    (run, program)
}

#[test]
fn settings_are_in_force_while_the_program_runs_and_back_afterwards() {
    let Some(bed) = Bed::new(2) else { return };
    for mode in ["suspend20", "threaded", "napibusy"] {
        let (run, program) = running(&bed, mode);
        assert_eq!(fs::read_dir(bed.journals()).expect("directory").count(), 1);
        send(program, Signal::SIGINT);
        run.end().assert_status(128 + 2);
        bed.assert_as_before();
    }
}

#[test]
fn the_exit_status_is_the_programs() {
    let Some(bed) = Bed::new(1) else { return };
    // The last is a real-time signal, which few libraries know.
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -34 $$", 162)]
    {
        let done = finish(bed.run_mode("suspend20", &["sh", "-c", script]));
        done.assert_status(code);
        assert_eq!((done.out.as_str(), done.errors.as_str()), ("", ""), "{script}");
        bed.assert_as_before();
    }
}

#[test]
fn output_and_arguments_are_the_programs_own() {
    let Some(bed) = Bed::new(1) else { return };
    let done = finish(bed.run_mode("defer50", &["sh", "-c", "echo \"$@\"; echo err >&2", "x", "a b", "--mode", "c"]));
    assert_eq!((done.out.as_str(), done.errors.as_str()), ("a b --mode c\n", "err\n"));
}

#[test]
fn a_signal_to_abey_ends_the_program_and_restores() {
    let Some(bed) = Bed::new(1) else { return };
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let (run, program) = running(&bed, "suspend20");
        run.signal(signal);
        run.end().assert_status(code);
        assert!(!runs(program));
        bed.assert_as_before();
    }
}

#[test]
fn other_signals_reach_the_program() {
    let Some(bed) = Bed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let ready = here.path().join("ready");
    let script = format!("trap 'exit 42' USR1; touch {}; while :; do sleep 0.05; done", ready.display());
    let run = Running::start(bed.run_mode("suspend20", &["sh", "-c", &script]));
    await_that("the program is not ready", || ready.exists());
    run.signal(Signal::SIGUSR1);
    run.end().assert_status(42);
    bed.assert_as_before();
}

#[test]
fn a_killed_program_leaves_nothing() {
    let Some(bed) = Bed::new(1) else { return };
    let (run, program) = running(&bed, "suspend20");
    send(program, Signal::SIGKILL);
    run.end().assert_status(137);
    bed.assert_as_before();
}

#[test]
fn a_killed_abey_is_cleaned_up_after_by_its_guard() {
    let Some(bed) = Bed::new(1) else { return };
    // More than once: the guard looks the moment the other one dies.
    for _ in 0..3 {
        let (run, program) = running(&bed, "suspend20");
        run.signal(Signal::SIGKILL);
        run.end();
        await_that("the guard has not restored", || bed.is_as_before());
        assert!(!runs(program));
    }
}

#[test]
fn a_killed_abey_whose_program_is_in_the_background_is_cleaned_up_after_as_well() {
    let Some(bed) = Bed::new(1) else { return };
    let (run, program) = in_background(&bed);
    run.signal(Signal::SIGKILL);
    drop(run);
    await_that("the guard has not restored", || bed.is_as_before());
    assert!(!runs(program), "it would run on without the mode");
}

#[test]
fn without_a_guard_the_journal_stays_and_restores() {
    let Some(bed) = Bed::new(1) else { return };
    let (run, program) = running(&bed, "suspend20");
    let program = Stray(program);
    send(run.await_guard(), Signal::SIGKILL);
    run.signal(Signal::SIGKILL);
    run.end();
    assert!(runs(program.0) && bed.has_mode("suspend20"));
    assert_eq!(fs::read_dir(bed.journals()).expect("directory").count(), 1);

    let done = finish(bed.abey("set", &["--restore", "--json"]));
    let rows = done.assert_status(0).json();
    let rows = rows["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows.iter().all(|row| row["outcome"] == "put back" && row["device"] == bed.device.name.as_str()));
    bed.assert_as_before();
    let again = finish(bed.abey("set", &["--restore"]));
    assert!(again.assert_status(0).out.contains("nothing to put back"), "{again:?}");
}

#[test]
fn the_next_run_puts_back_what_a_killed_one_left() {
    let Some(bed) = Bed::new(1) else { return };
    let (run, program) = running(&bed, "suspend20");
    let _program = Stray(program);
    send(run.await_guard(), Signal::SIGKILL);
    run.signal(Signal::SIGKILL);
    run.end();
    let done = finish(bed.run_mode("defer50", &["true"]));
    assert!(done.assert_status(0).errors.contains("put back"), "{done:?}");
    bed.assert_as_before();
}

/// A program whose first process ends at once and leaves `sleep` behind.
fn in_background(bed: &Bed) -> (Running, u32) {
    let script = "setsid sleep 60 >/dev/null 2>&1 & exit 5";
    let run = Running::start(bed.run_mode("suspend20", &["sh", "-c", script]));
    let program = run.await_program("sleep")[0];
    // The first process has ended, and abey has taken note, once nothing but the guard and `sleep` is below it.
    await_that("the program stays", || run.programs("sh").is_empty());
    (run, program)
}

#[test]
fn a_program_in_the_background_keeps_its_settings_until_it_ends() {
    let Some(bed) = Bed::new(1) else { return };
    for signal_abey in [true, false] {
        let (mut run, program) = in_background(&bed);
        assert!(!run.has_ended() && bed.has_mode("suspend20"));
        if signal_abey {
            run.signal(Signal::SIGTERM);
        } else {
            send(program, Signal::SIGTERM);
        }
        let done = run.end();
        assert!(done.assert_status(5).errors.contains("background"), "{done:?}");
        assert!(!runs(program));
        bed.assert_as_before();
    }
}

/// `abey serve kv` on an address, as a program to run.
fn kv(listen: &str) -> [&str; 5] {
    [ABEY, "serve", "kv", "--listen", listen]
}

#[test]
fn the_device_is_found_by_the_listening_address() {
    let Some(bed) = Bed::new(1) else { return };
    bed.second_device();
    let listen = at(7001).to_string();
    let run = Running::start(bed.run(&["--mode", "suspend20", "--strict"], &kv(&listen)));
    await_that("the mode is not in force", || bed.has_mode("suspend20"));
    run.terminate().assert_status(0);
    bed.assert_as_before();
}

#[test]
fn a_wildcard_address_is_enough_where_one_device_can_be_meant() {
    let Some(bed) = Bed::new(1) else { return };
    let run = Running::start(bed.run(&["--mode", "defer50", "--strict"], &kv("0.0.0.0:7002")));
    await_that("the mode is not in force", || bed.has_mode("defer50"));
    run.terminate().assert_status(0);
    bed.assert_as_before();
}

#[test]
fn a_port_on_loopback_may_come_first() {
    let Some(bed) = Bed::new(1) else { return };
    let serve = |listen: &str| format!("{ABEY} serve kv --listen {listen}");
    let script = format!("{} & sleep 0.2; exec {}", serve("127.0.0.1:7005"), serve(&at(7005).to_string()));
    let run = Running::start(bed.run(&["--mode", "defer50", "--strict"], &["sh", "-c", &script]));
    await_that("the mode is not in force", || bed.has_mode("defer50"));
    run.terminate().assert_status(0);
    bed.assert_as_before();
}

#[test]
fn a_device_that_cannot_be_found_stops_a_strict_run() {
    let Some(bed) = Bed::new(1) else { return };
    let second = bed.second_device();
    let strict = ["--mode", "suspend20", "--strict"];
    let program = |listen| finish(bed.run(&strict, &kv(listen)));
    program("0.0.0.0:7003").assert_sentence(2, &[&bed.device.name, &second, "--dev"]);
    program("127.0.0.1:7003").assert_sentence(1, &["loopback", "127.0.0.1:7003"]);
    bed.assert_as_before();
}

#[test]
fn a_device_that_cannot_be_found_is_a_warning_without_strict() {
    let Some(bed) = Bed::new(1) else { return };
    let second = bed.second_device();
    let run = Running::start(bed.run(&["--mode", "suspend20"], &kv("0.0.0.0:7004")));
    await_that("nothing is said", || run.errors_so_far().contains("not active"));
    let connects = || std::net::TcpStream::connect("127.0.0.1:7004").is_ok();
    assert!(bed.server.run(connects).expect("namespace"), "the program serves all the same");
    let done = run.terminate();
    done.assert_status(0);
    assert!(done.errors.contains("not active") && done.errors.contains(&second), "{done:?}");
    bed.assert_as_before();
}

#[test]
fn one_device_has_one_run() {
    let Some(bed) = Bed::new(2) else { return };
    let (first, _) = running(&bed, "suspend20");
    // The same mode as well, though it has nothing to change: the first to end would take it away.
    for mode in ["defer50", "suspend20"] {
        let pid = first.pid().to_string();
        finish(bed.run_mode(mode, &["true"])).assert_refused(1, &[&pid, &bed.device.name]);
    }
    assert!(bed.has_mode("suspend20"));
    first.terminate().assert_status(143);
    bed.assert_as_before();
}

#[test]
fn queues_have_runs_of_their_own() {
    let Some(bed) = Bed::new(2) else { return };
    let options = |queue| ["--mode", "defer50", "--dev", &bed.device.name, "--queues", queue];
    let first = Running::start(bed.run(&options("0"), &SLEEP));
    first.await_program("sleep");
    assert_eq!(bed.settings(), [napi_settings("defer50"), NapiSettings::default()]);
    let second = Running::start(bed.run(&options("1"), &SLEEP));
    second.await_program("sleep");
    assert!(bed.has_mode("defer50"));
    finish(bed.run(&options("0,1"), &["true"])).assert_refused(1, &[&bed.device.name]);
    first.terminate().assert_status(143);
    assert_eq!(bed.settings(), [NapiSettings::default(), napi_settings("defer50")]);
    second.terminate().assert_status(143);
    bed.assert_as_before();
}

/// A namespace with a name, which `ip netns` shows until this value goes.
struct Named(String);

impl Named {
    fn new() -> Option<Self> {
        if !is_root() || !has("ip") {
            return None;
        }
        let name = unique("abey-test-");
        assert!(Command::new("ip").args(["netns", "add", &name]).status().expect("ip starts").success());
        Some(Self(name))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn a_program_runs_in_a_namespace_by_its_name() {
    let Some(named) = Named::new() else { return };
    common::library();
    let server = NetNs::named(&named.0).expect("just made");
    let inode = server.inode();
    let bed = Bed::between(server, NetNs::create().expect("namespace"), 1);
    let mut command = common::abey(&["run", "--netns", &named.0, "--mode", "defer50", "--dev", &bed.device.name]);
    command.arg("--journals").arg(bed.journals()).args(["--", "sh", "-c", "readlink /proc/self/ns/net; sleep 60"]);
    let run = Running::start(command);
    run.await_program("sleep");
    assert!(bed.has_mode("defer50"));
    let done = run.terminate();
    assert_eq!(done.assert_status(143).out.trim(), format!("net:[{inode}]"));
    assert_eq!(processes_in(&bed), [0; 0], "what the shell had started as well");
    bed.assert_as_before();
}

/// What is left in the bed's namespace.
fn processes_in(bed: &Bed) -> Vec<u32> {
    let pids =
        fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| NetNs::of_process(*pid).is_ok_and(|netns| netns.inode() == bed.server.inode())).collect()
}

#[test]
fn bad_input_is_one_sentence_and_changes_nothing() {
    let Some(bed) = Bed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let text = here.path().join("text");
    fs::write(&text, "no program").expect("written");
    let (text, device) = (text.to_str().expect("UTF-8"), bed.device.name.as_str());
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
        finish(bed.run(options, &[program])).assert_refused(code, words);
        bed.assert_as_before();
    }
    finish(bed.run_mode("suspend20", &["/"])).assert_refused(2, &["/"]);
    let lo = finish(bed.run(&["--mode", "defer50", "--dev", "lo"], &["true"]));
    lo.assert_refused(3, &["lo has no NAPI instance"]);
}

#[test]
fn a_program_the_kernel_cannot_start_leaves_nothing() {
    let Some(bed) = Bed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let broken = here.path().join("broken");
    fs::write(&broken, "#!/no/such/interpreter\n").expect("written");
    fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    finish(bed.run_mode("suspend20", &[broken.to_str().expect("UTF-8")])).assert_refused(2, &["cannot start"]);
    bed.assert_as_before();
}

/// A statically linked program that exits with 9 (Linux on x86-64): the least of ELF, and three instructions.
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
fn a_program_the_library_cannot_reach_is_said_or_refused() {
    let Some(bed) = Bed::new(1) else { return };
    let here = tempfile::tempdir().expect("directory");
    let program = static_program(here.path());
    let strict = ["--mode", "suspend20", "--strict", "--dev", &bed.device.name];
    finish(bed.run(&strict, &[&program])).assert_refused(3, &[&program, "statically linked"]);
    finish(bed.run_mode("suspend20", &[&program])).assert_refused(9, &[&program, "statically linked"]);
    // A mode that needs nothing of the program has nothing to say.
    let plain = finish(bed.run_mode("defer50", &[&program]));
    assert_eq!(plain.assert_status(9).errors, "");
    bed.assert_as_before();
}

#[test]
fn a_kernel_without_the_mode_is_status_3() {
    let Some(bed) = Bed::new(1) else { return };
    if bed.able.threaded_busy {
        eprintln!("skipped: this kernel has every mode");
        return;
    }
    finish(bed.run_mode("threaded-busy", &["true"])).assert_refused(3, &["threaded"]);
    bed.assert_as_before();
}

#[test]
fn without_permission_it_is_one_sentence_and_status_3() {
    let Some(bed) = Bed::new(1) else { return };
    let Some(nobody) = Nobody::new() else { return };
    let device = bed.device.name.as_str();
    let run = |options: &[&str]| {
        let options = [options, &["--dev", device, "--", "true"]].concat();
        finish(bed.abey_as_nobody(&nobody, "run", &options))
    };
    run(&["--mode", "suspend20"]).assert_refused(3, &["root"]);
    run(&["--mode", "suspend20", "--budget", "65"]).assert_refused(3, &["65", "CAP_NET_ADMIN"]);
    bed.assert_as_before();
    // What needs no permission needs none.
    run(&["--mode", "base"]).assert_status(0);
    assert_eq!(fs::read_dir(nobody.journals()).expect("directory").count(), 0);
    let mut unwritable = nobody.command();
    abey_linux::spawn::CommandPlace::in_netns(&mut unwritable, &bed.server);
    unwritable
        .args(["run", "--mode", "defer50", "--dev", device, "--journals"])
        .arg(bed.journals())
        .args(["--", "true"]);
    finish(unwritable).assert_refused(3, &["journal", "root"]);
}

#[test]
fn a_budget_above_64_is_for_those_who_may() {
    let Some(bed) = Bed::new(1) else { return };
    finish(bed.run(&["--mode", "suspend20", "--dev", &bed.device.name, "--budget", "128"], &["true"])).assert_status(0);
    bed.assert_as_before();
}

#[test]
fn what_somebody_else_set_meanwhile_stays_and_is_said() {
    let Some(bed) = Bed::new(1) else { return };
    let (run, _) = running(&bed, "defer50");
    let (id, theirs) = (bed.napi_ids()[0], Nanos::from_micros(77));
    let mut netlink = Netlink::open(&bed.server).expect("netlink");
    set_napi(&mut netlink, id, &NapiChange { gro_flush_timeout: Some(theirs), ..NapiChange::default() }).expect("set");
    run.terminate().assert_sentence(143, &["somebody else", &id.to_string(), &bed.device.name]);
    assert_eq!(bed.settings(), [NapiSettings { gro_flush_timeout: theirs, ..NapiSettings::default() }]);
    assert_eq!(fs::read_dir(bed.journals()).expect("directory").count(), 0);
}

#[test]
fn another_device_is_not_touched() {
    let Some(bed) = Bed::new(1) else { return };
    let second = bed.second_device();
    let (run, _) = running(&bed, "suspend20");
    let mut netlink = Netlink::open(&bed.server).expect("netlink");
    let second = device_named(&mut netlink, &second, "here").expect("just made");
    assert!(bed.settings_of(second.ifindex).iter().all(|one| *one == NapiSettings::default()));
    drop(run);
    bed.assert_as_before();
    assert!(Path::new(ABEY).is_file());
}
