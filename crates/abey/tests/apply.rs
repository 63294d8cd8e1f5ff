//! `abey apply` and `abey dump` on test networks of their own.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use abey_delivery::NapiSettings;
use abey_linux::cpu::CpuList;
use common::{Bed, Finished, Nobody, Running, await_that, finish, has, napi_settings};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A directory with policies.
struct Policies(TempDir);

impl Policies {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("directory"))
    }

    /// Writes one, after the line with the version.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, format!("version = 1\n{text}")).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }
}

fn apply(bed: &Bed, arguments: &[&str]) -> Finished {
    finish(bed.abey("apply", arguments))
}

fn dump(bed: &Bed, arguments: &[&str]) -> Finished {
    let mut command = bed.command(common::ABEY);
    command.arg("dump").args(arguments);
    finish(command)
}

/// The first queue defers, the others suspend.
fn mixed(device: &str) -> String {
    format!(
        "[[device]]\nname = \"{device}\"\nmode = \"suspend20\"\n[[device.queues]]\nqueues = \"0\"\nmode = \"defer50\"\n"
    )
}

fn assert_mixed(bed: &Bed) {
    let mut wanted = vec![napi_settings("suspend20"); bed.settings().len()];
    wanted[0] = napi_settings("defer50");
    assert_eq!(bed.settings(), wanted);
}

#[test]
fn a_policy_holds_and_a_second_time_changes_nothing() {
    let Some(bed) = Bed::new(4) else { return };
    let policies = Policies::new();
    let file = policies.write("policy.toml", &mixed(&bed.device.name));
    let shown = apply(&bed, &[&file, "--dry-run"]);
    assert_eq!(shown.assert_status(0).out.lines().count(), 2 + 3 * 3, "{shown:?}");
    assert!(shown.out.lines().all(|line| line.ends_with("(not changed: dry run)")), "{shown:?}");
    bed.assert_as_before();
    let done = apply(&bed, &[&file]);
    assert_eq!(done.assert_status(0).out.replace('\n', " (not changed: dry run)\n"), shown.out);
    assert_eq!(done.errors, "");
    assert_mixed(&bed);
    for arguments in [&[file.as_str()][..], &[&file, "--dry-run"]] {
        assert_eq!(apply(&bed, arguments).assert_status(0).out, "nothing to change\n");
    }
    let json = apply(&bed, &[&file, "--json"]).assert_status(0).json();
    assert_eq!(json["rows"], serde_json::json!([]));
    assert_eq!(bed.journals_under_way(), 0, "what is applied for good is not put back by `abey set --restore`");
}

#[test]
fn a_directory_is_its_fragments() {
    let Some(bed) = Bed::new(2) else { return };
    let policies = Policies::new();
    let device = format!("[[device]]\nname = \"{}\"\n", bed.device.name);
    policies.write("10.toml", &format!("{device}[[device.queues]]\nqueues = \"0\"\nmode = \"defer50\"\n"));
    policies.write("20.toml", &format!("{device}[[device.queues]]\nqueues = \"1\"\nmode = \"base\"\n"));
    policies.write("30.toml.off", "no TOML at all");
    let directory = policies.0.path().to_str().expect("UTF-8").to_owned();
    apply(&bed, &[&directory]).assert_status(0);
    assert_eq!(bed.settings(), [napi_settings("defer50"), NapiSettings::default()]);
    // One more that speaks of the same queue: nothing is changed, and both places are named.
    policies.write("40.toml", &format!("{device}[[device.queues]]\nqueues = \"0\"\nmode = \"base\"\n"));
    apply(&bed, &[&directory]).assert_refused(2, &["queue 0", "10.toml, line 5", "40.toml, line 5"]);
    assert_eq!(bed.settings()[0], napi_settings("defer50"));
}

#[test]
fn new_queues_are_made_and_get_their_settings() {
    let Some(bed) = Bed::new(4) else { return };
    let policies = Policies::new();
    let with = |queues: u32| {
        policies.write(
            &format!("{queues}.toml"),
            &format!("[[device]]\nname = \"{}\"\nchannels = {queues}\nmode = \"defer50\"\n", bed.device.name),
        )
    };
    for queues in [2, 4, 1] {
        let file = with(queues);
        apply(&bed, &[&file]).assert_status(0);
        assert_eq!(bed.settings(), vec![napi_settings("defer50"); queues as usize]);
        assert_eq!(apply(&bed, &[&file]).assert_status(0).out, "nothing to change\n");
    }
    let refused = apply(&bed, &[&with(9)]);
    refused.assert_refused(3, &["9 receive queues", "9.toml, line 4", "device.channels"]);
    assert_eq!(bed.settings().len(), 1);
}

#[test]
fn transmit_queues_and_threads_get_their_cpus() {
    let Some(bed) = Bed::new(2) else { return };
    let policies = Policies::new();
    let last = CpuList::online().expect("CPUs").iter().last().expect("a CPU");
    let text = format!(
        "[[device]]\nname = \"{}\"\n[[device.queues]]\nqueues = \"0-1\"\nmode = \"threaded\"\nxps-cpus = \"{last}\"\n\
         thread = {{ cpus = \"{last}\", policy = \"batch\", nice = 3 }}\n",
        bed.device.name
    );
    let file = policies.write("policy.toml", &text);
    let done = apply(&bed, &[&file]);
    done.assert_status(0);
    assert_eq!(bed.settings(), vec![napi_settings("threaded"); 2], "{done:?}");
    assert_eq!(apply(&bed, &[&file]).assert_status(0).out, "nothing to change\n");
    let dumped = dump(&bed, &[&bed.device.name]);
    for part in [&format!("xps-cpus = \"{last}:all\""), &format!("cpus = \"{last}:all\", policy = \"batch\", nice = 3")]
    {
        assert!(dumped.assert_status(0).out.contains(part), "no `{part}` in {dumped:?}");
    }
}

#[test]
fn what_is_dumped_changes_nothing_and_brings_the_state_back() {
    let Some(bed) = Bed::new(3) else { return };
    let policies = Policies::new();
    apply(&bed, &[&policies.write("policy.toml", &mixed(&bed.device.name))]).assert_status(0);
    let dumped = dump(&bed, &[]);
    let path = policies.0.path().join("dumped.toml");
    fs::write(&path, &dumped.assert_status(0).out).expect("written");
    let file = path.to_str().expect("UTF-8");
    assert_eq!(apply(&bed, &[file]).assert_status(0).out, "nothing to change\n", "{dumped:?}");
    finish(bed.abey("set", &[&bed.device.name, "--mode", "base"])).assert_status(0);
    apply(&bed, &[file]).assert_status(0);
    assert_mixed(&bed);
    let json = dump(&bed, &["--json"]).assert_status(0).json();
    assert_eq!(json["policy"].as_str(), Some(dumped.out.as_str()));
    dump(&bed, &["nodev0"]).assert_refused(2, &["nodev0", &bed.device.name]);
}

#[test]
fn what_a_driver_cannot_do_is_fatal_or_left_out_as_the_policy_says() {
    let Some(bed) = Bed::new(2) else { return };
    let policies = Policies::new();
    // A veth has no interrupts.
    let text = format!("{}irq-cpus = \"0\"\n", mixed(&bed.device.name));
    let fatal = policies.write("fatal.toml", &text);
    for arguments in [&[fatal.as_str()][..], &[&fatal, "--dry-run"]] {
        apply(&bed, arguments).assert_refused(
            3,
            &[&bed.device.name, "interrupt", "fatal.toml, line 8", "device.queues.irq-cpus", "skip"],
        );
        bed.assert_as_before();
    }
    let skipped = apply(&bed, &[&policies.write("skip.toml", &format!("on-unsupported = \"skip\"\n{text}"))]);
    assert!(skipped.assert_status(0).errors.contains("left out:"), "{skipped:?}");
    assert_mixed(&bed);
    let again = apply(&bed, &[&policies.write("skip.toml", &format!("on-unsupported = \"skip\"\n{text}")), "--json"]);
    let json = again.assert_status(0).json();
    assert_eq!((json["rows"].as_array().map(Vec::len), json["skipped"][0]["line"].as_u64()), (Some(0), Some(9)));
}

#[test]
fn bad_input_is_one_sentence_and_changes_nothing() {
    let Some(bed) = Bed::new(2) else { return };
    let policies = Policies::new();
    let device = bed.device.name.as_str();
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
        apply(&bed, &[&file]).assert_refused(code, words);
        apply(&bed, &[&file, "--dry-run"]).assert_refused(code, words);
        bed.assert_as_before();
    }
    apply(&bed, &["/nowhere/policy.toml"]).assert_refused(2, &["/nowhere/policy.toml"]);
    let empty = policies.0.path().join("empty");
    fs::create_dir(&empty).expect("directory");
    apply(&bed, &[empty.to_str().expect("UTF-8")]).assert_refused(2, &["there is no policy", "empty"]);
    let optional = format!("{}[[device]]\nname = \"nodev0\"\noptional = true\nmode = \"base\"\n", mixed(device));
    let done = apply(&bed, &[&policies.write("optional.toml", &optional)]);
    assert!(done.assert_status(0).errors.contains("nodev0"), "{done:?}");
    assert_mixed(&bed);
}

#[test]
fn a_refusal_in_the_middle_puts_everything_back() {
    let Some(bed) = Bed::new(2) else { return };
    let policies = Policies::new();
    let second = bed.second_device();
    // Another Abey holds the second device, which is found out when the first one has its settings already.
    let run = Running::start(bed.run(&["--mode", "defer50", "--dev", &second], &["sleep", "60"]));
    run.await_program("sleep");
    let all = policies.write("all.toml", "[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    let done = apply(&bed, &[&all]);
    done.assert_sentence(1, &[&run.pid().to_string(), "was put back"]);
    assert_eq!(bed.settings(), vec![NapiSettings::default(); 2]);
    run.signal(Signal::SIGTERM);
    run.end().assert_status(143);
    apply(&bed, &[&all]).assert_status(0);
    assert!(bed.has_mode("suspend20"));
}

#[test]
fn an_apply_that_is_ended_or_loses_a_device_in_the_middle_puts_everything_back() {
    let Some(bed) = Bed::new(4) else { return };
    if !has("ip") {
        return;
    }
    let policies = Policies::new();
    let base = policies.write("base.toml", "[[device]]\nname = \"a*\"\nmode = \"base\"\n");
    let all = policies.write("all.toml", "[[device]]\nname = \"a*\"\nmode = \"suspend20\"\n");
    let (whole, none) = (vec![napi_settings("suspend20"); 4], vec![NapiSettings::default(); 4]);
    // More devices, behind the first, so that there is a middle.
    let mut others: Vec<String> = (0..8).map(|_| bed.second_device()).collect();
    let mut middle = [0; 2];
    // A disturbance may come too late: then everything holds, and it is tried again.
    for round in 0..60 {
        let ends = round % 2 == 0;
        if middle[usize::from(ends)] > 0 {
            continue;
        }
        let mut running = Running::start(bed.abey("apply", &[&all]));
        await_that("nothing is changed", || bed.settings() != none || running.has_ended());
        if ends {
            running.signal(Signal::SIGTERM);
        } else {
            let last = others.pop().expect("a device");
            ip(&bed, &["link", "delete", &last]);
            others.push(bed.second_device());
        }
        let done = running.end();
        if done.status.success() {
            assert_eq!(bed.settings(), whole, "{done:?}");
        } else {
            done.assert_sentence(1, &["was put back"]);
            assert_eq!(bed.settings(), none, "{done:?}");
            middle[usize::from(ends)] += 1;
        }
        assert_eq!(bed.journals_under_way(), 0, "{done:?}");
        apply(&bed, &[&base]).assert_status(0);
    }
    assert_eq!(middle, [1, 1], "no disturbance came in the middle");
}

fn ip(bed: &Bed, arguments: &[&str]) {
    let mut command = bed.command("ip");
    command.args(arguments);
    finish(command).assert_status(0);
}

#[test]
fn without_capability_it_says_which_one_before_anything_changes() {
    let Some(bed) = Bed::new(1) else { return };
    let Some(nobody) = Nobody::new() else { return };
    let policies = Policies::new();
    let file = policies.write("policy.toml", &mixed(&bed.device.name));
    std::os::unix::fs::chown(&file, Some(65534), None).expect("owner");
    fs::set_permissions(policies.0.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    for more in [&[][..], &["--watch"]] {
        let done = finish(bed.abey_as_nobody(&nobody, "apply", &[&[file.as_str()], more].concat()));
        done.assert_refused(3, &["CAP_NET_ADMIN", "AmbientCapabilities", "setcap"]);
        bed.assert_as_before();
    }
    // Looking is allowed.
    let dry = finish(bed.abey_as_nobody(&nobody, "apply", &[&file, "--dry-run"]));
    assert_eq!(dry.assert_status(0).out.lines().count(), 2, "{dry:?}");
}

#[test]
fn a_program_gets_its_cpus_and_a_unit_its_drop_in() {
    let Some(bed) = Bed::new(1) else { return };
    let policies = Policies::new();
    let last = CpuList::online().expect("CPUs").iter().last().expect("a CPU");
    // A file of its own, so that no other process is meant.
    let program = policies.0.path().join("sleeper");
    common::copy_program(Path::new("/bin/sleep"), &program);
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
        mixed(&bed.device.name),
        program.display()
    );
    let file = policies.write("policy.toml", &text);
    let units = units.to_str().expect("UTF-8");
    let drop_in = PathBuf::from(units).join("abey-test.service.d/50-abey.conf");
    let dry = apply(&bed, &[&file, "--units", units, "--dry-run"]);
    assert!(dry.assert_status(0).out.contains("abey-test.service: drop-in none"), "{dry:?}");
    assert!(!drop_in.exists());
    let done = apply(&bed, &[&file, "--units", units]);
    let said = format!("(pid {}) runs without libabey.so", sleeper.pid());
    assert!(done.assert_status(0).errors.contains(&said), "{done:?}");
    let cpus = abey_linux::cpu::process_affinity(sleeper.pid()).expect("it runs");
    assert_eq!(cpus, CpuList::from(last));
    let text = fs::read_to_string(&drop_in).expect("written");
    for line in ["ABEY_EPOLL=0,64,1".to_owned(), format!("CPUAffinity={last}"), "LD_PRELOAD=/".to_owned()] {
        assert!(text.contains(&line), "no `{line}` in {text}");
    }
    assert_eq!(apply(&bed, &[&file, "--units", units]).assert_status(0).out, "nothing to change\n");
    let nowhere = apply(&bed, &[&file, "--units", "/nowhere"]);
    nowhere.assert_refused(3, &["abey-test.service", "systemd"]);
    sleeper.signal(Signal::SIGTERM);
}
