//! What leaves the policy goes back to what it was before, and `abey apply --undo` puts all of it back.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use abey_delivery::NapiSettings;
use abey_linux::cpu::{CpuList, process_affinity};
use abey_linux::device::device_named;
use abey_linux::netlink::Netlink;
use common::{Bed, Finished, Running, await_that, finish, has, napi_settings};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A test network, and policies for its device.
struct Fleet {
    bed: Bed,
    place: TempDir,
}

impl Fleet {
    fn new(queues: u32) -> Option<Self> {
        Some(Self { bed: Bed::new(queues)?, place: tempfile::tempdir().expect("directory") })
    }

    fn write(&self, text: &str) -> String {
        let path = self.place.path().join("policy.toml");
        fs::write(&path, format!("version = 1\n{text}")).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// A policy of the device.
    fn policy(&self, text: &str) -> String {
        self.write(&format!("[[device]]\nname = \"{}\"\n{text}\n", self.bed.device.name))
    }

    fn apply(&self, arguments: &[&str]) -> Finished {
        finish(self.bed.abey("apply", arguments))
    }

    /// Something that was set by hand.
    fn set(&self, arguments: &[&str]) {
        let arguments = [&[self.bed.device.name.as_str()], arguments].concat();
        finish(self.bed.abey("set", &arguments)).assert_status(0);
    }

    fn dump(&self) -> String {
        let mut command = self.bed.command(common::ABEY);
        command.args(["dump", &self.bed.device.name]);
        finish(command).assert_status(0).out.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.bed.journals()).expect("directory").flatten().map(|file| file.path()).collect()
    }

    fn ip(&self, arguments: &[&str]) {
        let mut command = self.bed.command("ip");
        command.args(arguments);
        finish(command).assert_status(0);
    }

    fn settings_of(&self, device: &str) -> Vec<NapiSettings> {
        let mut netlink = Netlink::open(&self.bed.server).expect("netlink");
        let device = device_named(&mut netlink, device, "the test").expect("the device");
        self.bed.settings_of(device.ifindex)
    }
}

/// Every line of it says that something is put back.
fn assert_put_back(done: &Finished, lines: usize) {
    let out = &done.assert_status(0).out;
    assert_eq!(out.lines().filter(|line| line.contains("(put back)")).count(), lines, "{done:?}");
    assert_eq!(out.lines().count(), lines, "{done:?}");
}

#[test]
fn what_leaves_the_policy_goes_back_and_the_rest_stays() {
    let Some(fleet) = Fleet::new(3) else { return };
    fleet.set(&["--queues", "1", "--defer-hard-irqs", "7", "--gro-flush-timeout", "33us"]);
    let (before, dumped) = (fleet.bed.settings(), fleet.dump());
    let queues = |more: &str| format!("[[device.queues]]\nqueues = \"0\"\nmode = \"suspend20\"\n{more}");
    let both = queues("[[device.queues]]\nqueues = \"1\"\nmode = \"defer50\"\nxps-cpus = \"0\"\n");
    fleet.apply(&[&fleet.policy(&both)]).assert_status(0);
    // Other values of what stays named: what was there first is what counts.
    fleet.apply(&[&fleet.policy(&both.replace("defer50", "suspend50"))]).assert_status(0);
    let all = fleet.bed.settings();
    let file = fleet.policy(&queues(""));
    let dry = fleet.apply(&[&file, "--dry-run"]);
    assert_put_back(&dry, 4);
    assert_eq!(fleet.bed.settings(), all);
    let json = fleet.apply(&[&file, "--dry-run", "--json"]).assert_status(0).json();
    assert!(json["rows"].as_array().expect("rows").iter().all(|row| row["put_back"] == true), "{json}");
    let done = fleet.apply(&[&file]);
    assert_eq!(dry.out.replace(" (not changed: dry run)", ""), done.assert_status(0).out);
    assert_eq!(fleet.bed.settings(), [napi_settings("suspend20"), before[1], before[2]]);
    assert_eq!(fleet.apply(&[&file]).assert_status(0).out, "nothing to change\n");
    let undone = fleet.apply(&["--undo"]);
    assert_put_back(&undone, 3);
    assert_eq!((fleet.bed.settings(), fleet.dump()), (before, dumped));
    assert_eq!(fleet.apply(&["--undo"]).assert_status(0).out, "nothing to change\n");
    assert_eq!(fleet.files(), Vec::<PathBuf>::new(), "what keeps nothing needs no file");
}

#[test]
fn queues_come_back_with_what_they_had() {
    let Some(fleet) = Fleet::new(4) else { return };
    fleet.set(&["--queues", "0", "--defer-hard-irqs", "7"]);
    fleet.set(&["--queues", "3", "--defer-hard-irqs", "9"]);
    let before = fleet.bed.settings();
    fleet.apply(&[&fleet.policy("channels = 2\nmode = \"defer50\"")]).assert_status(0);
    assert_eq!(fleet.bed.settings(), vec![napi_settings("defer50"); 2]);
    // The mode goes: the first queue has what it had before its like was made anew.
    fleet.apply(&[&fleet.policy("channels = 2")]).assert_status(0);
    assert_eq!(fleet.bed.settings(), [before[0], before[1]]);
    fleet.apply(&[&fleet.policy("channels = 1\nmode = \"suspend20\"")]).assert_status(0);
    fleet.apply(&["--undo"]).assert_status(0);
    assert_eq!(fleet.bed.settings(), before);
    assert_eq!(fleet.files(), Vec::<PathBuf>::new());
}

#[test]
fn what_somebody_else_changed_since_stays_and_is_said() {
    let Some(fleet) = Fleet::new(2) else { return };
    fleet.apply(&[&fleet.policy("mode = \"suspend20\"")]).assert_status(0);
    fleet.set(&["--queues", "1", "--gro-flush-timeout", "77us"]);
    let theirs = fleet.bed.settings()[1];
    let undone = fleet.apply(&["--undo"]);
    assert!(undone.assert_status(0).errors.contains("somebody else"), "{undone:?}");
    let wanted = NapiSettings { gro_flush_timeout: theirs.gro_flush_timeout, ..NapiSettings::default() };
    assert_eq!(fleet.bed.settings(), [NapiSettings::default(), wanted]);
    assert_eq!(fleet.apply(&["--undo"]).assert_status(0).out, "nothing to change\n");
}

#[test]
fn a_device_that_went_is_forgotten_and_one_that_is_down_is_waited_for() {
    let Some(fleet) = Fleet::new(2) else { return };
    if !has("ip") {
        return;
    }
    let second = fleet.bed.second_device();
    let all = fleet.write("[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    fleet.apply(&[&all]).assert_status(0);
    fleet.ip(&["link", "delete", &second]);
    fleet.ip(&["link", "set", &fleet.bed.device.name, "down"]);
    let down = fleet.apply(&[&fleet.write("")]);
    assert!(down.assert_status(0).errors.contains("is down"), "{down:?}");
    assert_eq!(fleet.files().len(), 1, "what waits is kept");
    fleet.ip(&["link", "set", &fleet.bed.device.name, "up"]);
    await_that("no instances", || fleet.bed.settings().len() == 2);
    fleet.apply(&["--undo"]).assert_status(0);
    assert_eq!(fleet.bed.settings(), vec![NapiSettings::default(); 2]);
    assert_eq!(fleet.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_refusal_in_the_middle_leaves_everything_applied() {
    let Some(fleet) = Fleet::new(2) else { return };
    let second = fleet.bed.second_device();
    let all = fleet.write("[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    fleet.apply(&[&all]).assert_status(0);
    // The second device goes back first; the first is in somebody's hands.
    let run =
        Running::start(fleet.bed.run(&["--mode", "suspend50", "--dev", &fleet.bed.device.name], &["sleep", "60"]));
    run.await_program("sleep");
    let undone = fleet.apply(&["--undo"]);
    undone.assert_sentence(1, &[&run.pid().to_string(), "was put back"]);
    assert_eq!(fleet.settings_of(&second), [napi_settings("suspend20")]);
    run.signal(Signal::SIGTERM);
    run.end().assert_status(143);
    fleet.apply(&["--undo"]).assert_status(0);
    assert_eq!(fleet.settings_of(&second), [NapiSettings::default()]);
    fleet.bed.assert_as_before();
}

/// Kills applies until one is caught in the middle, with its journal.
fn kill_in_the_middle(fleet: &Fleet, arguments: &[&str], begun: impl Fn() -> bool, again: impl Fn()) {
    for _ in 0..60 {
        let mut running = Running::start(fleet.bed.abey("apply", arguments));
        await_that("nothing is changed", || begun() || running.has_ended());
        running.signal(Signal::SIGKILL);
        running.end();
        let journals = fleet.files().iter().filter(|file| file.extension().is_some_and(|name| name == "json")).count();
        if journals > 0 {
            return;
        }
        again();
    }
    panic!("no kill came in the middle");
}

#[test]
fn an_apply_that_is_killed_is_put_back_by_the_next() {
    let Some(fleet) = Fleet::new(4) else { return };
    let devices: Vec<String> = (0..6).map(|_| fleet.bed.second_device()).collect();
    fleet.set(&["--queues", "1", "--defer-hard-irqs", "7"]);
    let before = fleet.bed.settings();
    let all = fleet.write("[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    let begun = || fleet.bed.settings() != before;
    kill_in_the_middle(&fleet, &[&all], begun, || drop(fleet.apply(&["--undo"])));
    let done = fleet.apply(&[&all]);
    assert!(done.assert_status(0).errors.contains("was killed"), "{done:?}");
    assert!(fleet.bed.has_mode("suspend20"));
    // And in the middle of going back.
    let begun = || fleet.settings_of(devices.last().expect("one")) != [napi_settings("suspend20")];
    kill_in_the_middle(&fleet, &["--undo"], begun, || drop(fleet.apply(&[&all])));
    fleet.apply(&["--undo"]).assert_status(0);
    assert_eq!(fleet.bed.settings(), before);
    for device in &devices {
        assert_eq!(fleet.settings_of(device), [NapiSettings::default()]);
    }
    assert_eq!(fleet.files(), Vec::<PathBuf>::new());
}

/// Processes of a file of their own, and a unit.
struct Programs {
    sleepers: Vec<Running>,
    units: String,
    drop_in: PathBuf,
    text: String,
}

impl Programs {
    fn new(place: &Path, count: usize) -> Self {
        let program = place.join("sleeper");
        common::copy_program(Path::new("/bin/sleep"), &program);
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
    let Some(fleet) = Fleet::new(1) else { return };
    let programs = Programs::new(fleet.place.path(), 2);
    let before = programs.cpus();
    fs::create_dir(programs.drop_in.parent().expect("a directory")).expect("made");
    fs::write(&programs.drop_in, "[Service]\nNice=1\n").expect("written");
    fleet.apply(&[&fleet.write(&programs.text), "--units", &programs.units]).assert_status(0);
    assert_ne!(programs.cpus(), before);
    let first = fleet.apply(&[&fleet.write(""), "--units", &programs.units]);
    assert_put_back(&first, 3);
    assert_eq!(programs.cpus(), before);
    assert_eq!(fs::read_to_string(&programs.drop_in).expect("there"), "[Service]\nNice=1\n");
    assert_eq!(fleet.files(), Vec::<PathBuf>::new());
}

#[test]
fn an_apply_that_is_killed_over_programs_is_put_back_from_the_journal() {
    let Some(fleet) = Fleet::new(1) else { return };
    let programs = Programs::new(fleet.place.path(), 24);
    let before = programs.cpus();
    let policy = fleet.write(&programs.text);
    let arguments = [policy.as_str(), "--units", &programs.units];
    let begun = || programs.cpus()[1] != before[1];
    kill_in_the_middle(&fleet, &arguments, begun, || {
        fleet.apply(&["--undo", "--units", &programs.units]).assert_status(0);
    });
    assert!(programs.drop_in.exists());
    let restored = finish(fleet.bed.abey("set", &["--restore"]));
    assert!(restored.assert_status(0).out.contains("drop-in"), "{restored:?}");
    assert_eq!(programs.cpus(), before);
    assert!(!programs.drop_in.parent().expect("a directory").exists());
}

#[test]
fn a_watch_puts_back_what_leaves_its_policy_and_is_not_undone_meanwhile() {
    let Some(fleet) = Fleet::new(2) else { return };
    let both = "mode = \"suspend20\"\n[[device.queues]]\nqueues = \"0\"\nxps-cpus = \"0\"";
    let file = fleet.policy(both);
    let before = fleet.dump();
    let watch = Running::start(fleet.bed.abey("apply", &[&file, "--watch"]));
    await_that("the policy does not hold", || {
        fleet.bed.has_mode("suspend20") && fleet.apply(&[&file, "--dry-run"]).out == "nothing to change\n"
    });
    let refused = fleet.apply(&["--undo"]);
    refused.assert_sentence(1, &[&watch.pid().to_string(), "--watch", "end it first"]);
    fleet.write("");
    watch.signal(Signal::SIGHUP);
    await_that("nothing goes back", || fleet.dump() == before);
    await_that("it does not say so", || watch.out_so_far().contains("(put back)"));
    // Somebody who ends it leaves nothing behind but what it keeps.
    fleet.policy(both);
    watch.signal(Signal::SIGHUP);
    await_that("the policy does not hold again", || fleet.bed.has_mode("suspend20"));
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
    fleet.apply(&["--undo"]).assert_status(0);
    assert_eq!(fleet.dump(), before);
    fleet.bed.assert_as_before();
}
