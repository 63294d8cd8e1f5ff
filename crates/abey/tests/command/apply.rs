//! `abey apply` and `abey dump` on test networks of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Finished, Running, TestBed, UnprivilegedUser, await_that, finish, has, napi_settings};
use abey_delivery::NapiSettings;
use abey_linux::cpu::CpuList;
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A directory with policy files.
struct Policies(TempDir);

impl Policies {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("directory"))
    }

    /// Writes a policy file, with the version line before `text`.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, format!("version = 1\n{text}")).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }
}

fn apply(testbed: &TestBed, arguments: &[&str]) -> Finished {
    finish(testbed.abey("apply", arguments))
}

fn dump(testbed: &TestBed, arguments: &[&str]) -> Finished {
    let mut command = testbed.command(crate::common::ABEY);
    command.arg("dump").args(arguments);
    finish(command)
}

/// Returns a policy in which the first queue defers and the others suspend.
fn mixed(device: &str) -> String {
    format!(
        "[[device]]\nname = \"{device}\"\nmode = \"suspend20\"\n[[device.queues]]\nqueues = \"0\"\nmode = \"defer50\"\n"
    )
}

fn assert_mixed(testbed: &TestBed) {
    let mut wanted = vec![napi_settings("suspend20"); testbed.settings().len()];
    wanted[0] = napi_settings("defer50");
    assert_eq!(testbed.settings(), wanted);
}

#[test]
fn a_policy_is_applied_and_a_second_apply_changes_nothing() {
    let Some(testbed) = TestBed::new(4) else { return };
    let policies = Policies::new();
    let file = policies.write("policy.toml", &mixed(&testbed.device.name));
    let shown = apply(&testbed, &[&file, "--dry-run"]);
    assert_eq!(shown.assert_status(0).out.lines().count(), 2 + 3 * 3, "{shown:?}");
    assert!(shown.out.lines().all(|line| line.ends_with("(not changed: dry run)")), "{shown:?}");
    testbed.assert_as_before();
    let done = apply(&testbed, &[&file]);
    assert_eq!(done.assert_status(0).out.replace('\n', " (not changed: dry run)\n"), shown.out);
    assert_eq!(done.errors, "");
    assert_mixed(&testbed);
    for arguments in [&[file.as_str()][..], &[&file, "--dry-run"]] {
        assert_eq!(apply(&testbed, arguments).assert_status(0).out, "nothing to change\n");
    }
    let json = apply(&testbed, &[&file, "--json"]).assert_status(0).json();
    assert_eq!(json["rows"], serde_json::json!([]));
    assert_eq!(testbed.journals_under_way(), 0, "what is applied for good is not put back by `abey set --restore`");
}

#[test]
fn the_files_of_a_directory_are_one_policy() {
    let Some(testbed) = TestBed::new(2) else { return };
    let policies = Policies::new();
    let device = format!("[[device]]\nname = \"{}\"\n", testbed.device.name);
    policies.write("10.toml", &format!("{device}[[device.queues]]\nqueues = \"0\"\nmode = \"defer50\"\n"));
    policies.write("20.toml", &format!("{device}[[device.queues]]\nqueues = \"1\"\nmode = \"base\"\n"));
    policies.write("30.toml.off", "no TOML at all");
    let directory = policies.0.path().to_str().expect("UTF-8").to_owned();
    apply(&testbed, &[&directory]).assert_status(0);
    assert_eq!(testbed.settings(), [napi_settings("defer50"), NapiSettings::default()]);
    // A fourth file with a rule for the same queue: nothing is changed, and the message names both lines.
    policies.write("40.toml", &format!("{device}[[device.queues]]\nqueues = \"0\"\nmode = \"base\"\n"));
    apply(&testbed, &[&directory]).assert_refused(2, &["queue 0", "10.toml, line 5", "40.toml, line 5"]);
    assert_eq!(testbed.settings()[0], napi_settings("defer50"));
}

#[test]
fn queues_are_created_and_get_their_settings() {
    let Some(testbed) = TestBed::new(4) else { return };
    let policies = Policies::new();
    let with = |queues: u32| {
        policies.write(
            &format!("{queues}.toml"),
            &format!("[[device]]\nname = \"{}\"\nchannels = {queues}\nmode = \"defer50\"\n", testbed.device.name),
        )
    };
    for queues in [2, 4, 1] {
        let file = with(queues);
        apply(&testbed, &[&file]).assert_status(0);
        assert_eq!(testbed.settings(), vec![napi_settings("defer50"); queues as usize]);
        assert_eq!(apply(&testbed, &[&file]).assert_status(0).out, "nothing to change\n");
    }
    let refused = apply(&testbed, &[&with(9)]);
    refused.assert_refused(3, &["9 receive queues", "9.toml, line 4", "device.channels"]);
    assert_eq!(testbed.settings().len(), 1);
}

#[test]
fn transmit_queues_and_threads_get_their_cpus() {
    let Some(testbed) = TestBed::new(2) else { return };
    let policies = Policies::new();
    let last = CpuList::online().expect("CPUs").iter().last().expect("a CPU");
    let text = format!(
        "[[device]]\nname = \"{}\"\n[[device.queues]]\nqueues = \"0-1\"\nmode = \"threaded\"\nxps-cpus = \"{last}\"\n\
         thread = {{ cpus = \"{last}\", policy = \"batch\", nice = 3 }}\n",
        testbed.device.name
    );
    let file = policies.write("policy.toml", &text);
    let done = apply(&testbed, &[&file]);
    done.assert_status(0);
    assert_eq!(testbed.settings(), vec![napi_settings("threaded"); 2], "{done:?}");
    assert_eq!(apply(&testbed, &[&file]).assert_status(0).out, "nothing to change\n");
    let dumped = dump(&testbed, &[&testbed.device.name]);
    for part in [&format!("xps-cpus = \"{last}:all\""), &format!("cpus = \"{last}:all\", policy = \"batch\", nice = 3")]
    {
        assert!(dumped.assert_status(0).out.contains(part), "no `{part}` in {dumped:?}");
    }
}

#[test]
fn an_applied_dump_changes_nothing_and_later_restores_the_state() {
    let Some(testbed) = TestBed::new(3) else { return };
    let policies = Policies::new();
    apply(&testbed, &[&policies.write("policy.toml", &mixed(&testbed.device.name))]).assert_status(0);
    let dumped = dump(&testbed, &[]);
    let path = policies.0.path().join("dumped.toml");
    fs::write(&path, &dumped.assert_status(0).out).expect("written");
    let file = path.to_str().expect("UTF-8");
    assert_eq!(apply(&testbed, &[file]).assert_status(0).out, "nothing to change\n", "{dumped:?}");
    finish(testbed.abey("set", &[&testbed.device.name, "--mode", "base"])).assert_status(0);
    apply(&testbed, &[file]).assert_status(0);
    assert_mixed(&testbed);
    let json = dump(&testbed, &["--json"]).assert_status(0).json();
    assert_eq!(json["policy"].as_str(), Some(dumped.out.as_str()));
    dump(&testbed, &["nodev0"]).assert_refused(2, &["nodev0", &testbed.device.name]);
}

#[test]
fn unsupported_settings_are_fatal_or_skipped_as_the_policy_says() {
    let Some(testbed) = TestBed::new(2) else { return };
    let policies = Policies::new();
    // A veth has no interrupts.
    let text = format!("{}irq-cpus = \"0\"\n", mixed(&testbed.device.name));
    let fatal = policies.write("fatal.toml", &text);
    for arguments in [&[fatal.as_str()][..], &[&fatal, "--dry-run"]] {
        apply(&testbed, arguments).assert_refused(
            3,
            &[&testbed.device.name, "interrupt", "fatal.toml, line 8", "device.queues.irq-cpus", "skip"],
        );
        testbed.assert_as_before();
    }
    let skipped = apply(&testbed, &[&policies.write("skip.toml", &format!("on-unsupported = \"skip\"\n{text}"))]);
    assert!(skipped.assert_status(0).errors.contains("left out:"), "{skipped:?}");
    assert_mixed(&testbed);
    let again =
        apply(&testbed, &[&policies.write("skip.toml", &format!("on-unsupported = \"skip\"\n{text}")), "--json"]);
    let json = again.assert_status(0).json();
    assert_eq!((json["rows"].as_array().map(Vec::len), json["skipped"][0]["line"].as_u64()), (Some(0), Some(9)));
}

#[test]
fn bad_input_is_refused_with_one_sentence_and_changes_nothing() {
    let Some(testbed) = TestBed::new(2) else { return };
    let policies = Policies::new();
    let device = testbed.device.name.as_str();
    let rule = |keys: &str| format!("{}[[device.queues]]\nqueues = \"1\"\n{keys}\n", mixed(device));
    let cases: [(i32, String, &[&str]); 7] = [
        (2, rule("mode = \"turbo\""), &["bad.toml, line 10", "device.queues.mode", "turbo"]),
        (2, rule("mod = \"base\""), &["bad.toml, line 10", "unknown field `mod`"]),
        (2, rule("irq-cpus = \"9999\""), &["bad.toml, line 10", "device.queues.irq-cpus", "9999"]),
        (
            2,
            format!("{}[[device.queues]]\nqueues = \"7\"\nmode = \"base\"\n", mixed(device)),
            &["bad.toml, line 9", "queue 7", device],
        ),
        (
            2,
            format!("{}[[device.queues]]\nqueues = \"0-1\"\nmode = \"base\"\n", mixed(device)),
            &["queue 0", "bad.toml, line 6", "bad.toml, line 9"],
        ),
        (
            2,
            format!("{}[[device]]\nname = \"nodev0\"\nmode = \"base\"\n", mixed(device)),
            &["bad.toml, line 8", "nodev0", device, "optional"],
        ),
        (
            2,
            format!("{}[[device]]\ndriver = \"veth\"\nmode = \"base\"\n", mixed(device)),
            &["every queue", "bad.toml, line 4", "bad.toml, line 10"],
        ),
    ];
    for (code, text, words) in cases {
        let file = policies.write("bad.toml", &text);
        apply(&testbed, &[&file]).assert_refused(code, words);
        apply(&testbed, &[&file, "--dry-run"]).assert_refused(code, words);
        testbed.assert_as_before();
    }
    apply(&testbed, &["/nowhere/policy.toml"]).assert_refused(2, &["/nowhere/policy.toml"]);
    let empty = policies.0.path().join("empty");
    fs::create_dir(&empty).expect("directory");
    apply(&testbed, &[empty.to_str().expect("UTF-8")]).assert_refused(2, &["there is no policy", "empty"]);
    let optional = format!("{}[[device]]\nname = \"nodev0\"\noptional = true\nmode = \"base\"\n", mixed(device));
    let done = apply(&testbed, &[&policies.write("optional.toml", &optional)]);
    assert!(done.assert_status(0).errors.contains("nodev0"), "{done:?}");
    assert_mixed(&testbed);
}

#[test]
fn a_failure_after_some_changes_restores_everything() {
    let Some(testbed) = TestBed::new(2) else { return };
    let policies = Policies::new();
    let second = testbed.second_device();
    // Another run holds the second device, which is detected after the first device has been changed.
    let run = Running::start(testbed.run(&["--mode", "defer50", "--dev", &second], &["sleep", "60"]));
    run.await_program("sleep");
    let all = policies.write("all.toml", "[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    let done = apply(&testbed, &[&all]);
    done.assert_sentence(1, &[&run.pid().to_string(), "was restored"]);
    assert_eq!(testbed.settings(), vec![NapiSettings::default(); 2]);
    run.signal(Signal::SIGTERM);
    run.end().assert_status(143);
    apply(&testbed, &[&all]).assert_status(0);
    assert!(testbed.has_mode("suspend20"));
}

#[test]
fn an_interrupted_apply_or_a_removed_device_restores_everything() {
    let Some(testbed) = TestBed::new(4) else { return };
    if !has("ip") {
        return;
    }
    let policies = Policies::new();
    let base = policies.write("base.toml", "[[device]]\nname = \"a*\"\nmode = \"base\"\n");
    let all = policies.write("all.toml", "[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    let (whole, none) = (vec![napi_settings("suspend20"); 4], vec![NapiSettings::default(); 4]);
    // More devices after the first, so that there is time between the first change and the last.
    let mut others: Vec<String> = (0..8).map(|_| testbed.second_device()).collect();
    let mut middle = [0; 2];
    // A disturbance can come too late: then the policy is in force, and the test tries again.
    for round in 0..60 {
        let ends = round % 2 == 0;
        if middle[usize::from(ends)] > 0 {
            continue;
        }
        let mut running = Running::start(testbed.abey("apply", &[&all]));
        await_that("nothing is changed", || testbed.settings() != none || running.has_ended());
        if ends {
            running.signal(Signal::SIGTERM);
        } else {
            let last = others.pop().expect("a device");
            ip(&testbed, &["link", "delete", &last]);
            others.push(testbed.second_device());
        }
        let done = running.end();
        if done.status.success() {
            assert_eq!(testbed.settings(), whole, "{done:?}");
        } else {
            done.assert_sentence(1, &["was restored"]);
            assert_eq!(testbed.settings(), none, "{done:?}");
            middle[usize::from(ends)] += 1;
        }
        assert_eq!(testbed.journals_under_way(), 0, "{done:?}");
        apply(&testbed, &[&base]).assert_status(0);
    }
    assert_eq!(middle, [1, 1], "no disturbance came in the middle");
}

fn ip(testbed: &TestBed, arguments: &[&str]) {
    let mut command = testbed.command("ip");
    command.args(arguments);
    finish(command).assert_status(0);
}

#[test]
fn a_missing_capability_is_named_before_anything_changes() {
    let Some(testbed) = TestBed::new(1) else { return };
    let Some(unprivileged) = UnprivilegedUser::new() else { return };
    let policies = Policies::new();
    let file = policies.write("policy.toml", &mixed(&testbed.device.name));
    std::os::unix::fs::chown(&file, Some(65534), None).expect("owner");
    fs::set_permissions(policies.0.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    for more in [&[][..], &["--watch"]] {
        let done = finish(testbed.abey_unprivileged(&unprivileged, "apply", &[&[file.as_str()], more].concat()));
        done.assert_refused(3, &["CAP_NET_ADMIN", "AmbientCapabilities", "setcap"]);
        testbed.assert_as_before();
    }
    // A dry run needs no privileges.
    let dry = finish(testbed.abey_unprivileged(&unprivileged, "apply", &[&file, "--dry-run"]));
    assert_eq!(dry.assert_status(0).out.lines().count(), 2, "{dry:?}");
}

#[test]
fn a_program_gets_its_cpus_and_a_unit_its_drop_in() {
    let Some(testbed) = TestBed::new(1) else { return };
    let policies = Policies::new();
    let last = CpuList::online().expect("CPUs").iter().last().expect("a CPU");
    // A copy, so that the rule matches no other process.
    let program = policies.0.path().join("sleeper");
    crate::common::copy_program(Path::new("/bin/sleep"), &program);
    let sleeper = Running::start({
        let mut command = Command::new(&program);
        command.arg("60");
        command
    });
    await_that("the program does not run", || {
        fs::read_link(format!("/proc/{}/exe", sleeper.pid())).is_ok_and(|exe| exe == program)
    });
    let units = policies.0.path().join("units");
    fs::create_dir(&units).expect("directory");
    let text = format!(
        "{}[[program]]\nexecutable = \"{}\"\ncpus = \"{last}\"\n\
         [[program]]\nunit = \"abey-test.service\"\nmode = \"suspend20\"\ncpus = \"{last}\"\n",
        mixed(&testbed.device.name),
        program.display()
    );
    let file = policies.write("policy.toml", &text);
    let units = units.to_str().expect("UTF-8");
    let drop_in = PathBuf::from(units).join("abey-test.service.d/50-abey.conf");
    let dry = apply(&testbed, &[&file, "--units", units, "--dry-run"]);
    assert!(dry.assert_status(0).out.contains("abey-test.service: drop-in none"), "{dry:?}");
    assert!(!drop_in.exists());
    let nowhere = apply(&testbed, &[&file, "--units", "/nowhere"]);
    nowhere.assert_refused(3, &["abey-test.service", "systemd"]);
    let done = apply(&testbed, &[&file, "--units", units]);
    let said = format!("(pid {}) runs without libabey.so", sleeper.pid());
    assert!(done.assert_status(0).errors.contains(&said), "{done:?}");
    let cpus = abey_linux::cpu::process_affinity(sleeper.pid()).expect("it runs");
    assert_eq!(cpus, CpuList::from(last));
    let text = fs::read_to_string(&drop_in).expect("written");
    for line in ["ABEY_EPOLL=0,64,1".to_owned(), format!("CPUAffinity={last}"), "LD_PRELOAD=/".to_owned()] {
        assert!(text.contains(&line), "no `{line}` in {text}");
    }
    assert_eq!(apply(&testbed, &[&file, "--units", units]).assert_status(0).out, "nothing to change\n");
    sleeper.signal(Signal::SIGTERM);
}
