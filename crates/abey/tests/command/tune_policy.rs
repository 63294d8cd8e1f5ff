//! `abey tune --policy`: queues, goals, bounds and programs of a policy, alone and together with `abey apply --watch`.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::common::{Running, TestBed, await_that, finish, has, napi_settings};
use crate::tuning::{LatencyFifo, Traffic, text};
use abey_delivery::NapiSettings;
use abey_testbed::spawn::SpawnExt;
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A policy file for the device of a test network.
struct PolicyFile {
    place: TempDir,
}

impl PolicyFile {
    fn new(testbed: &TestBed, rules: &str) -> Self {
        let place = tempfile::tempdir().expect("directory");
        let text = format!("version = 1\n[[device]]\nname = \"{}\"\n{rules}\n", testbed.device.name);
        fs::write(place.path().join("policy.toml"), text).expect("written");
        Self { place }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("policy.toml")
    }
}

/// Returns a rule for one queue, whose latencies are read from `fifo`.
fn rule(queue: u32, mode: &str, goal: &str, modes: &str, fifo: &LatencyFifo) -> String {
    format!(
        "[[device.queues]]\nqueues = \"{queue}\"\nmode = \"{mode}\"\ntune = {{ goal = \"{goal}\", modes = [{modes}], \
         latencies = \"{}\" }}\n",
        fifo.path().display()
    )
}

fn tuner(testbed: &TestBed, policy: &PolicyFile, more: &[&str]) -> Running {
    let path = policy.path();
    let arguments = ["--policy", text(&path), "--interval", "100ms"];
    Running::start(testbed.abey("tune", &[&arguments[..], more].concat()))
}

fn flush_us(settings: &NapiSettings) -> u64 {
    settings.gro_flush_timeout.as_nanos() / 1_000
}

/// Reports latencies that grow with the deferral of the queue, as those of a real server do, until `holds` returns true.
fn answer_until(
    testbed: &TestBed,
    fifos: &[(&LatencyFifo, usize)],
    what: &str,
    mut holds: impl FnMut(&[NapiSettings]) -> bool,
) {
    await_that(what, || {
        let mut settings = by_queue(testbed);
        settings.resize(2, NapiSettings::default());
        fifos.iter().for_each(|(fifo, queue)| fifo.report(20 + flush_us(&settings[*queue])));
        std::thread::sleep(std::time::Duration::from_millis(25));
        holds(&settings)
    });
}

/// Returns the settings of the instances in the order of their queues.
fn by_queue(testbed: &TestBed) -> Vec<NapiSettings> {
    let mut netlink = abey_linux::netlink::Netlink::open(&testbed.server).expect("netlink");
    let mut found = abey_linux::napi::napis(&mut netlink, Some(testbed.device.ifindex)).expect("list");
    let queues = abey_linux::napi::rx_queues(&mut netlink, testbed.device.ifindex).unwrap_or_default();
    found.sort_by_key(|napi| queues.iter().find(|(_, id)| **id == napi.id).map(|(queue, _)| *queue));
    found.iter().map(|napi| napi.settings()).collect()
}

#[test]
fn it_tunes_its_queue_and_apply_watch_keeps_the_others() {
    let Some(testbed) = TestBed::new(2) else { return };
    if !has("ip") {
        return;
    }
    let fifo = LatencyFifo::new();
    let rest = "[[device.queues]]\nqueues = \"1\"\nmode = \"suspend20\"\n";
    let policy = PolicyFile::new(&testbed, &(rule(0, "defer20", "p99=200us", "\"defer\"", &fifo) + rest));
    let path = policy.path();
    let watch = Running::start(testbed.abey("apply", &["--watch", text(&path)]));
    let as_applied = |settings: &[NapiSettings]| settings == [napi_settings("defer20"), napi_settings("suspend20")];
    await_that("the policy is applied", || as_applied(&by_queue(&testbed)));
    let _traffic = Traffic::start_flows(&testbed, 16);

    let first = tuner(&testbed, &policy, &[]);
    answer_until(&testbed, &[(&fifo, 0)], "it defers longer, with room below the goal", |all| flush_us(&all[0]) >= 50);
    assert_eq!(by_queue(&testbed)[1], napi_settings("suspend20"), "what is not to be tuned is left alone");
    first.signal(Signal::SIGTERM);
    let done = first.end();
    assert!(done.assert_status(0).errors.contains("queue 0 (NAPI"), "{done:?}");
    assert!(as_applied(&by_queue(&testbed)), "put back");

    // Setting the link down and up recreates the instances with default settings.
    let second = tuner(&testbed, &policy, &[&testbed.device.name]);
    answer_until(&testbed, &[(&fifo, 0)], "it defers longer again", |all| flush_us(&all[0]) >= 50);
    for state in ["down", "up"] {
        let mut command = testbed.command("ip");
        command.args(["link", "set", &testbed.device.name, state]).in_netns(&testbed.server);
        finish(command).assert_status(0);
    }
    answer_until(&testbed, &[(&fifo, 0)], "the watch repairs the one, the tuner the other", |all| {
        all[1] == napi_settings("suspend20") && flush_us(&all[0]) >= 50
    });
    await_that("it says so", || second.out_so_far().contains("made anew"));
    second.signal(Signal::SIGINT);
    second.end().assert_status(0);
    let repairs = watch.out_so_far();
    assert!(!repairs.contains("queue 0") || repairs.contains("20us"), "nothing but what the policy says: {repairs}");
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
    assert_eq!(testbed.journals_under_way(), 0);
}

#[test]
fn programs_of_the_policy_busy_poll_and_the_guard_restores_all_groups() {
    let Some(testbed) = TestBed::new(2) else { return };
    let (one, other) = (LatencyFifo::new(), LatencyFifo::new());
    // The server inherits this epoll instance, so the test can read its parameters.
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll instance");
    let parameters = || abey_linux::epoll::get(epoll.0.as_fd()).expect("get");
    let before = parameters();
    let place = tempfile::tempdir().expect("directory");
    let server = place.path().join("server");
    crate::common::copy_program(&crate::common::which("sleep").expect("coreutils"), &server);
    let program = format!(
        "[[program]]\nexecutable = \"{}\"\ndevice = \"{}\"\nqueues = \"0\"\n",
        server.display(),
        testbed.device.name
    );
    let rules =
        rule(0, "suspend20", "p99=200us", "\"suspend\"", &one) + &rule(1, "defer20", "cpu=50%", "\"defer\"", &other);
    let policy = PolicyFile::new(&testbed, &(rules + &program));
    let mut command = testbed.command(&server);
    command.arg("60");
    let _server = Running::start(command);
    let tuner = tuner(&testbed, &policy, &[]);
    let guard = tuner.await_guard();
    let works = || {
        let settings = by_queue(&testbed);
        !settings[0].irq_suspend_timeout.is_zero() && settings[1].defers() && settings[1].irq_suspend_timeout.is_zero()
    };
    await_that("one suspends and the other defers", || works() && parameters().prefer);
    // The guard gets the message about a change after the change is made.
    await_that("their lines", || tuner.out_so_far().lines().count() >= 2);
    let said = tuner.out_so_far();
    assert!(said.contains("queue 0 (NAPI") && said.contains("queue 1 (NAPI"), "{said}");
    tuner.signal(Signal::SIGKILL);
    await_that("the guard puts back", || testbed.is_as_before() && parameters() == before);
    await_that("the guard ends", || !crate::common::runs(guard));
}

#[test]
fn a_policy_that_cannot_be_tuned_is_refused_with_file_line_and_key() {
    let Some(testbed) = TestBed::new(2) else { return };
    let tune = |keys: &str| format!("[[device.queues]]\nqueues = \"0\"\nmode = \"base\"\ntune = {{ {keys} }}\n");
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("mode = \"base\"", &[], &["does not say how to tune"]),
        (&tune("goal = \"p99=1ms\""), &[], &["policy.toml, line 7 (device.queues.tune)", "--probe", "--estimate"]),
        (
            &tune("goal = \"cpu=50%\", modes = [\"base\", \"suspend\"]"),
            &[],
            &["line 7 (device.queues.tune)", "[[program]]"],
        ),
        (&tune("goal = \"cpu=50%\", speed = 3"), &[], &["policy.toml, line 7", "speed"]),
        (&tune("goal = \"cpu=50%\""), &["nosuch0"], &["nosuch0"]),
        (&tune("goal = \"cpu=50%\""), &["lo"], &["does not say how to tune lo", &testbed.device.name]),
        (
            &tune("goal = \"p99=1ms\", latencies = \"/nosuch/file\""),
            &[],
            &["line 7 (device.queues.tune)", "/nosuch/file"],
        ),
        (
            &tune("goal = \"cpu=50%\"").replace("\"0\"", "\"7\""),
            &[],
            &["line 5 (device.queues.queues)", "no receive queue 7"],
        ),
    ];
    for (rules, more, words) in cases {
        let policy = PolicyFile::new(&testbed, rules);
        finish(testbed.abey("tune", &[&["--policy", text(&policy.path())], more].concat())).assert_refused(2, words);
    }
    let policy = PolicyFile::new(&testbed, &tune("goal = \"cpu=50%\""));
    let goal = testbed.abey("tune", &["--policy", text(&policy.path()), "--goal", "cpu=50%"]);
    assert!(finish(goal).assert_status(2).errors.contains("--goal"));
    let fifo = LatencyFifo::new();
    let path = fifo.path();
    let one_figure = testbed.abey("tune", &["--policy", text(&policy.path()), "--latencies", text(&path)]);
    finish(one_figure).assert_refused(2, &["one figure"]);
    testbed.assert_as_before();
}
