//! Settings files: `abey run` and `abey set` apply them, and refuse settings that the kernel does not have.

use std::fs;
use std::path::PathBuf;

use crate::common::{Running, TestBed, abey, at, await_that, finish};
use abey_delivery::{EpollBusyPoll, Mode, ModeSettings, Nanos};
use abey_sim::SettingsFile;
use tempfile::TempDir;

/// Returns settings that no mode has.
fn odd() -> ModeSettings {
    let mut settings = Mode::Suspend(Nanos::from_micros(37)).settings();
    settings.napi.irq_suspend_timeout = Nanos::from_millis(5);
    settings.epoll = Some(EpollBusyPoll { usecs: 0, budget: 32, prefer: true });
    settings
}

/// A directory with a settings file of each kind.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("directory"));
        files.add("odd.toml", &SettingsFile::text(&odd(), "no mode has these"));
        for mode in ["defer50", "fullbusy", "sockbusy50", "hold50", "workqueue"] {
            let settings = mode.parse::<Mode>().expect(mode).settings();
            files.add(&format!("{mode}.toml"), &SettingsFile::text(&settings, mode));
        }
        files.add("wrong.toml", "[napi]\ngro-flush-timeout = \"20\"\n");
        files
    }

    fn add(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }
}

#[test]
fn a_run_has_the_settings_of_the_file_and_its_epoll_part_reaches_the_program() {
    let Some(testbed) = TestBed::new(2) else { return };
    let (files, device) = (Files::new(), testbed.device.name.as_str());
    let script = "echo \"$ABEY_EPOLL;$ABEY_MODE;$ABEY_MAX_WAIT;$ABEY_SOCKET_BUSY_POLL\"; exec sleep 60";
    for (file, environment, napi) in [
        ("odd.toml", "0,32,1;;;", odd().napi),
        // A file with the settings of a mode is that mode.
        ("fullbusy.toml", "1000,64,1;fullbusy;1ms;", Mode::FullBusy.settings().napi),
        ("sockbusy50.toml", ";sockbusy50;;50us", ModeSettings::default().napi),
    ] {
        let run = Running::start(testbed.run(&["--settings", &files.at(file), "--dev", device], &["sh", "-c", script]));
        run.await_program("sleep");
        assert_eq!(testbed.settings(), [napi, napi], "{file}");
        let done = run.terminate();
        assert_eq!(done.assert_status(143).out.trim(), environment, "{done:?}");
        testbed.assert_as_before();
    }
    let options = ["--settings", &files.at("odd.toml"), "--dev", device, "--budget", "16"];
    let done = finish(testbed.run(&options, &["sh", "-c", "echo $ABEY_EPOLL"]));
    assert_eq!(done.assert_status(0).out, "0,16,1\n");
}

#[test]
fn status_shows_the_settings_file_of_a_server() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (files, listen) = (Files::new(), at(7101).to_string());
    let options = ["--settings", &files.at("odd.toml"), "--dev", &testbed.device.name, "--strict"];
    let run = Running::start(testbed.run(&options, &[crate::common::ABEY, "serve", "kv", "--listen", &listen]));
    let up = || testbed.client.run(|| std::net::TcpStream::connect(at(7101)).is_ok()).expect("namespace");
    await_that("the server is not up", up);
    let mut status = testbed.command(crate::common::ABEY);
    status.args(["status", &testbed.device.name]);
    let done = finish(status);
    for words in ["suspend37", "irq-suspend-timeout 5ms"] {
        assert!(done.out.contains(words), "no `{words}` in {done:?}");
    }
    run.terminate().assert_status(0);
    testbed.assert_as_before();
}

#[test]
fn set_applies_the_napi_part_and_names_the_command_for_the_rest() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (files, device) = (Files::new(), testbed.device.name.as_str());
    let odd_file = files.at("odd.toml");
    let done = finish(testbed.abey("set", &[device, "--settings", &odd_file]));
    assert_eq!(done.assert_status(0).out.lines().count(), 3, "{done:?}");
    assert_eq!(done.errors.lines().count(), 1, "{done:?}");
    assert!(done.errors.contains(&format!("abey run --settings {odd_file}")), "{done:?}");
    assert_eq!(testbed.settings(), [odd().napi]);
    // Single settings override the file.
    let more = [device, "--settings", &odd_file, "--defer-hard-irqs", "7"];
    finish(testbed.abey("set", &more)).assert_status(0);
    assert_eq!(testbed.settings()[0].defer_hard_irqs, 7);
    let plain = finish(testbed.abey("set", &[device, "--settings", &files.at("defer50.toml")]));
    assert_eq!(plain.assert_status(0).errors, "", "nothing is left to the server");
    assert!(testbed.has_mode("defer50"));
    finish(testbed.abey("set", &[device, "--mode", "base"])).assert_status(0);
    testbed.assert_as_before();
}

#[test]
fn settings_that_the_kernel_lacks_are_refused_before_anything_changes() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (files, device) = (Files::new(), testbed.device.name.as_str());
    for (file, words) in [
        ("hold50.toml", &["hold50.toml", "hold", "datapath and sim"][..]),
        ("workqueue.toml", &["workqueue.toml", "threaded = \"workqueue\"", "datapath and sim"]),
        ("wrong.toml", &["wrong.toml, line 2", "gro-flush-timeout", "20us"]),
        ("missing.toml", &["missing.toml"]),
    ] {
        let path = files.at(file);
        finish(testbed.run(&["--settings", &path, "--dev", device], &["true"])).assert_refused(2, words);
        finish(testbed.abey("set", &[device, "--settings", &path])).assert_refused(2, words);
        testbed.assert_as_before();
    }
    let both = ["--settings", &files.at("odd.toml"), "--mode", "base", "--dev", device];
    finish(testbed.run(&both, &["true"])).assert_refused(2, &["--settings", "--mode"]);
    let budget = ["--settings", &files.at("defer50.toml"), "--dev", device, "--budget", "8"];
    finish(testbed.run(&budget, &["true"])).assert_refused(2, &["--budget", "defer50.toml"]);
    finish(testbed.abey("set", &[device, "--settings", &files.at("odd.toml"), "--mode", "base"]))
        .assert_refused(2, &["--settings", "--mode"]);
    testbed.assert_as_before();
}

#[test]
fn a_scenario_runs_a_settings_file_alone_or_with_modes() {
    let files = Files::new();
    let rows = |text: &str| {
        files.add("scenario.toml", text);
        let done = finish(abey(&["sim", &files.at("scenario.toml"), "--json"]));
        done.assert_status(0).json()["rows"].clone()
    };
    let load = "load = \"40k\"\nduration = \"20ms\"\nlinux = true\n";
    let beside = rows(&format!("modes = [\"suspend20\", \"defer50\"]\nsettings = \"odd.toml\"\n{load}"));
    let names: Vec<_> = beside.as_array().expect("rows").iter().map(|row| row["mode"].clone()).collect();
    assert_eq!(names, ["suspend20", "defer50", "odd.toml"]);
    assert_ne!(beside[2]["avg_us"], beside[0]["avg_us"]);
    // A file with the settings of a mode has the same figures and name as that mode.
    let alone = rows(&format!("settings = \"defer50.toml\"\n{load}"));
    assert_eq!(alone.as_array().map(Vec::len), Some(1));
    assert_eq!(alone[0], beside[1]);
    // The simulator also accepts settings that the kernel does not have.
    assert_eq!(rows(&format!("settings = \"hold50.toml\"\n{load}"))[0]["mode"], "hold50");
    for (text, words) in [
        (format!("settings = \"wrong.toml\"\n{load}"), &["wrong.toml, line 2", "20us"][..]),
        (format!("settings = \"missing.toml\"\n{load}"), &["missing.toml"]),
        (load.to_owned(), &["modes", "settings file"]),
    ] {
        files.add("scenario.toml", &text);
        finish(abey(&["sim", &files.at("scenario.toml")])).assert_refused(2, words);
    }
}
