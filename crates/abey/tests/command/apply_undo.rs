//! A setting that is removed from the policy is restored, and `abey apply --undo` restores all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Finished, Running, TestBed, await_that, finish, has, napi_settings};
use abey_delivery::NapiSettings;
use abey_linux::cpu::{CpuList, process_affinity};
use abey_linux::device::device_named;
use abey_linux::netlink::Netlink;
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A test network, and a policy file for its device.
struct PolicyFixture {
    testbed: TestBed,
    place: TempDir,
}

impl PolicyFixture {
    fn new(queues: u32) -> Option<Self> {
        Some(Self { testbed: TestBed::new(queues)?, place: tempfile::tempdir().expect("directory") })
    }

    fn write(&self, text: &str) -> String {
        let path = self.place.path().join("policy.toml");
        fs::write(&path, format!("version = 1\n{text}")).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Writes a policy with keys for the device.
    fn policy(&self, text: &str) -> String {
        self.write(&format!("[[device]]\nname = \"{}\"\n{text}\n", self.testbed.device.name))
    }

    fn apply(&self, arguments: &[&str]) -> Finished {
        finish(self.testbed.abey("apply", arguments))
    }

    /// Runs `abey set` on the device.
    fn set(&self, arguments: &[&str]) {
        let arguments = [&[self.testbed.device.name.as_str()], arguments].concat();
        finish(self.testbed.abey("set", &arguments)).assert_status(0);
    }

    fn dump(&self) -> String {
        let mut command = self.testbed.command(crate::common::ABEY);
        command.args(["dump", &self.testbed.device.name]);
        finish(command).assert_status(0).out.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.testbed.journals()).expect("directory").flatten().map(|file| file.path()).collect()
    }

    fn ip(&self, arguments: &[&str]) {
        let mut command = self.testbed.command("ip");
        command.args(arguments);
        finish(command).assert_status(0);
    }

    fn settings_of(&self, device: &str) -> Vec<NapiSettings> {
        let mut netlink = Netlink::open(&self.testbed.server).expect("netlink");
        let device = device_named(&mut netlink, device, "the test").expect("the device");
        self.testbed.settings_of(device.ifindex)
    }
}

/// Asserts that the output has this many lines and each of them reports a restored setting.
fn assert_put_back(done: &Finished, lines: usize) {
    let out = &done.assert_status(0).out;
    assert_eq!(out.lines().filter(|line| line.contains("(put back)")).count(), lines, "{done:?}");
    assert_eq!(out.lines().count(), lines, "{done:?}");
}

#[test]
fn settings_removed_from_the_policy_are_restored_and_the_others_stay() {
    let Some(fixture) = PolicyFixture::new(3) else { return };
    fixture.set(&["--queues", "1", "--defer-hard-irqs", "7", "--gro-flush-timeout", "33us"]);
    let (before, dumped) = (fixture.testbed.settings(), fixture.dump());
    let queues = |more: &str| format!("[[device.queues]]\nqueues = \"0\"\nmode = \"suspend20\"\n{more}");
    let both = queues("[[device.queues]]\nqueues = \"1\"\nmode = \"defer50\"\nxps-cpus = \"0\"\n");
    fixture.apply(&[&fixture.policy(&both)]).assert_status(0);
    // A second policy with other values: the values from before the first one are restored.
    fixture.apply(&[&fixture.policy(&both.replace("defer50", "suspend50"))]).assert_status(0);
    let all = fixture.testbed.settings();
    let file = fixture.policy(&queues(""));
    let dry = fixture.apply(&[&file, "--dry-run"]);
    assert_put_back(&dry, 4);
    assert_eq!(fixture.testbed.settings(), all);
    let json = fixture.apply(&[&file, "--dry-run", "--json"]).assert_status(0).json();
    assert!(json["rows"].as_array().expect("rows").iter().all(|row| row["put_back"] == true), "{json}");
    let done = fixture.apply(&[&file]);
    assert_eq!(dry.out.replace(" (not changed: dry run)", ""), done.assert_status(0).out);
    assert_eq!(fixture.testbed.settings(), [napi_settings("suspend20"), before[1], before[2]]);
    assert_eq!(fixture.apply(&[&file]).assert_status(0).out, "nothing to change\n");
    let undone = fixture.apply(&["--undo"]);
    assert_put_back(&undone, 3);
    assert_eq!((fixture.testbed.settings(), fixture.dump()), (before, dumped));
    assert_eq!(fixture.apply(&["--undo"]).assert_status(0).out, "nothing to change\n");
    assert_eq!(fixture.files(), Vec::<PathBuf>::new(), "what keeps nothing needs no file");
}

#[test]
fn recreated_queues_get_their_earlier_settings() {
    let Some(fixture) = PolicyFixture::new(4) else { return };
    fixture.set(&["--queues", "0", "--defer-hard-irqs", "7"]);
    fixture.set(&["--queues", "3", "--defer-hard-irqs", "9"]);
    let before = fixture.testbed.settings();
    fixture.apply(&[&fixture.policy("channels = 2\nmode = \"defer50\"")]).assert_status(0);
    assert_eq!(fixture.testbed.settings(), vec![napi_settings("defer50"); 2]);
    // The mode is removed: the first queue has its settings from before the instances were recreated.
    fixture.apply(&[&fixture.policy("channels = 2")]).assert_status(0);
    assert_eq!(fixture.testbed.settings(), [before[0], before[1]]);
    fixture.apply(&[&fixture.policy("channels = 1\nmode = \"suspend20\"")]).assert_status(0);
    fixture.apply(&["--undo"]).assert_status(0);
    assert_eq!(fixture.testbed.settings(), before);
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
}

#[test]
fn settings_changed_by_another_program_stay_and_are_reported() {
    let Some(fixture) = PolicyFixture::new(2) else { return };
    fixture.apply(&[&fixture.policy("mode = \"suspend20\"")]).assert_status(0);
    fixture.set(&["--queues", "1", "--gro-flush-timeout", "77us"]);
    let theirs = fixture.testbed.settings()[1];
    let undone = fixture.apply(&["--undo"]);
    assert!(undone.assert_status(0).errors.contains("another program"), "{undone:?}");
    let wanted = NapiSettings { gro_flush_timeout: theirs.gro_flush_timeout, ..NapiSettings::default() };
    assert_eq!(fixture.testbed.settings(), [NapiSettings::default(), wanted]);
    assert_eq!(fixture.apply(&["--undo"]).assert_status(0).out, "nothing to change\n");
}

#[test]
fn a_removed_device_is_forgotten_and_a_device_that_is_down_is_restored_later() {
    let Some(fixture) = PolicyFixture::new(2) else { return };
    if !has("ip") {
        return;
    }
    let second = fixture.testbed.second_device();
    let all = fixture.write("[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    fixture.apply(&[&all]).assert_status(0);
    fixture.ip(&["link", "delete", &second]);
    fixture.ip(&["link", "set", &fixture.testbed.device.name, "down"]);
    let down = fixture.apply(&[&fixture.write("")]);
    assert!(down.assert_status(0).errors.contains("is down"), "{down:?}");
    assert_eq!(fixture.files().len(), 1, "what waits is kept");
    fixture.ip(&["link", "set", &fixture.testbed.device.name, "up"]);
    await_that("no instances", || fixture.testbed.settings().len() == 2);
    fixture.apply(&["--undo"]).assert_status(0);
    assert_eq!(fixture.testbed.settings(), vec![NapiSettings::default(); 2]);
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_failed_undo_leaves_everything_applied() {
    let Some(fixture) = PolicyFixture::new(2) else { return };
    let second = fixture.testbed.second_device();
    let all = fixture.write("[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    fixture.apply(&[&all]).assert_status(0);
    // The second device is restored first. The first is held by another run.
    let run = Running::start(
        fixture.testbed.run(&["--mode", "suspend50", "--dev", &fixture.testbed.device.name], &["sleep", "60"]),
    );
    run.await_program("sleep");
    let undone = fixture.apply(&["--undo"]);
    undone.assert_sentence(1, &[&run.pid().to_string(), "was restored"]);
    assert_eq!(fixture.settings_of(&second), [napi_settings("suspend20")]);
    run.signal(Signal::SIGTERM);
    run.end().assert_status(143);
    fixture.apply(&["--undo"]).assert_status(0);
    assert_eq!(fixture.settings_of(&second), [NapiSettings::default()]);
    fixture.testbed.assert_as_before();
}

/// Starts and kills `abey apply` until one leaves its journal, which is to say was killed between two changes.
fn kill_in_the_middle(fixture: &PolicyFixture, arguments: &[&str], begun: impl Fn() -> bool, again: impl Fn()) {
    for _ in 0..60 {
        let mut running = Running::start(fixture.testbed.abey("apply", arguments));
        await_that("nothing is changed", || begun() || running.has_ended());
        running.signal(Signal::SIGKILL);
        running.end();
        let journals =
            fixture.files().iter().filter(|file| file.extension().is_some_and(|name| name == "json")).count();
        if journals > 0 {
            return;
        }
        again();
    }
    panic!("no kill came in the middle");
}

#[test]
fn a_killed_apply_is_restored_by_the_next() {
    let Some(fixture) = PolicyFixture::new(4) else { return };
    let devices: Vec<String> = (0..6).map(|_| fixture.testbed.second_device()).collect();
    fixture.set(&["--queues", "1", "--defer-hard-irqs", "7"]);
    let before = fixture.testbed.settings();
    let all = fixture.write("[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    let begun = || fixture.testbed.settings() != before;
    kill_in_the_middle(&fixture, &[&all], begun, || drop(fixture.apply(&["--undo"])));
    let done = fixture.apply(&[&all]);
    assert!(done.assert_status(0).errors.contains("was killed"), "{done:?}");
    assert!(fixture.testbed.has_mode("suspend20"));
    // The same between two changes of an undo.
    let begun = || fixture.settings_of(devices.last().expect("one")) != [napi_settings("suspend20")];
    kill_in_the_middle(&fixture, &["--undo"], begun, || drop(fixture.apply(&[&all])));
    fixture.apply(&["--undo"]).assert_status(0);
    assert_eq!(fixture.testbed.settings(), before);
    for device in &devices {
        assert_eq!(fixture.settings_of(device), [NapiSettings::default()]);
    }
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
}

/// Processes of one executable that no other test starts, and a unit.
struct Programs {
    sleepers: Vec<Running>,
    units: String,
    drop_in: PathBuf,
    text: String,
}

impl Programs {
    fn new(place: &Path, count: usize) -> Self {
        let program = place.join("sleeper");
        crate::common::copy_program(Path::new("/bin/sleep"), &program);
        let start = |_| {
            let mut command = Command::new(&program);
            command.arg("120");
            Running::start(command)
        };
        let sleepers: Vec<Running> = (0..count).map(start).collect();
        for sleeper in &sleepers {
            let exe = format!("/proc/{}/exe", sleeper.pid());
            await_that("the program does not run", || fs::read_link(&exe).is_ok_and(|exe| exe == program));
        }
        let units = place.join("units");
        fs::create_dir(&units).expect("directory");
        let last = CpuList::online().expect("CPUs").iter().last().expect("a CPU");
        let text = format!(
            "[[program]]\nunit = \"abey-test.service\"\nmode = \"suspend20\"\n\
             [[program]]\nexecutable = \"{}\"\ncpus = \"{last}\"\n",
            program.display()
        );
        let drop_in = units.join("abey-test.service.d/50-abey.conf");
        Self { sleepers, units: units.to_str().expect("UTF-8").to_owned(), drop_in, text }
    }

    fn cpus(&self) -> Vec<CpuList> {
        self.sleepers.iter().map(|sleeper| process_affinity(sleeper.pid()).expect("it runs")).collect()
    }
}

#[test]
fn programs_get_their_cpus_back_and_units_lose_their_drop_ins() {
    let Some(fixture) = PolicyFixture::new(1) else { return };
    let programs = Programs::new(fixture.place.path(), 2);
    let before = programs.cpus();
    fs::create_dir(programs.drop_in.parent().expect("a directory")).expect("made");
    fs::write(&programs.drop_in, "# of an earlier policy\n[Service]\nEnvironment=ABEY_EPOLL=0,8,0\n").expect("written");
    fixture.apply(&[&fixture.write(&programs.text), "--units", &programs.units]).assert_status(0);
    assert_ne!(programs.cpus(), before);
    let first = fixture.apply(&[&fixture.write(""), "--units", &programs.units]);
    assert_put_back(&first, 3);
    assert_eq!(programs.cpus(), before);
    assert_eq!(
        fs::read_to_string(&programs.drop_in).expect("there"),
        "# of an earlier policy\n[Service]\nEnvironment=ABEY_EPOLL=0,8,0\n"
    );
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_apply_of_programs_is_restored_from_the_journal() {
    let Some(fixture) = PolicyFixture::new(1) else { return };
    let programs = Programs::new(fixture.place.path(), 24);
    let before = programs.cpus();
    let policy = fixture.write(&programs.text);
    let arguments = [policy.as_str(), "--units", &programs.units];
    let begun = || programs.cpus()[1] != before[1];
    kill_in_the_middle(&fixture, &arguments, begun, || {
        fixture.apply(&["--undo", "--units", &programs.units]).assert_status(0);
    });
    assert!(programs.drop_in.exists());
    let restored = finish(fixture.testbed.abey("set", &["--restore", "--units", &programs.units]));
    assert!(restored.assert_status(0).out.contains("drop-in"), "{restored:?}");
    assert_eq!(programs.cpus(), before);
    assert!(!programs.drop_in.parent().expect("a directory").exists());
}

#[test]
fn a_watch_restores_settings_removed_from_its_policy_and_refuses_an_undo() {
    let Some(fixture) = PolicyFixture::new(2) else { return };
    let both = "mode = \"suspend20\"\n[[device.queues]]\nqueues = \"0\"\nxps-cpus = \"0\"";
    let file = fixture.policy(both);
    let before = fixture.dump();
    let watch = Running::start(fixture.testbed.abey("apply", &[&file, "--watch"]));
    await_that("the policy does not hold", || {
        fixture.testbed.has_mode("suspend20") && fixture.apply(&[&file, "--dry-run"]).out == "nothing to change\n"
    });
    let refused = fixture.apply(&["--undo"]);
    refused.assert_sentence(1, &[&watch.pid().to_string(), "--watch", "end it first"]);
    fixture.write("");
    watch.signal(Signal::SIGHUP);
    await_that("nothing goes back", || fixture.dump() == before);
    await_that("it does not say so", || watch.out_so_far().contains("(put back)"));
    // SIGTERM ends it, and its state file stays.
    fixture.policy(both);
    watch.signal(Signal::SIGHUP);
    await_that("the policy does not hold again", || fixture.testbed.has_mode("suspend20"));
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
    fixture.apply(&["--undo"]).assert_status(0);
    assert_eq!(fixture.dump(), before);
    fixture.testbed.assert_as_before();
}
