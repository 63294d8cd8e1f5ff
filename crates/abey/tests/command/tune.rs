//! `abey tune` and `abey run --mode auto`: they change settings, follow a load, restore everything, and refuse bad input. The
//! tests of `crates/tune` judge in virtual time how good their choices are.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::{Running, TestBed, abey, at, await_some, await_that, finish, has, send};
use crate::tuning::{LatencyFifo, Traffic, answer_until, idle_server, text};
use abey_delivery::EpollBusyPoll;
use abey_linux::process::{EpollParams, inspect_tree};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::signal::Signal;

#[test]
fn it_changes_settings_follows_the_latencies_and_restores_everything() {
    let Some(testbed) = TestBed::new(1) else { return };
    let (fifo, _traffic) = (LatencyFifo::new(), Traffic::start(&testbed));
    let path = fifo.path();
    let device = testbed.device.name.clone();
    // The server inherits this epoll instance, so the test can read its parameters.
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll instance");
    let parameters = || abey_linux::epoll::get(epoll.0.as_fd()).expect("get");
    let before = parameters();
    let server = idle_server(&testbed);
    let pid = server.pid().to_string();
    // Without base: whether deferral costs less than base depends on the load of the machine.
    let mut arguments =
        vec![&*device, "--goal", "p99=200us", "--latencies", text(&path), "--families", "defer,suspend"];
    arguments.extend(["--interval", "100ms", "--json", "--pid", &pid]);
    let tuner = Running::start(testbed.abey("tune", &arguments));
    answer_until(&testbed, &fifo, 20, "it defers, with room below the goal", |flush_us| flush_us >= 30);
    assert_eq!(std::fs::read_dir(testbed.journals()).expect("directory").count(), 1);
    let busy = |wanted: EpollBusyPoll| wanted == EpollBusyPoll { usecs: 0, budget: 64, prefer: true };
    await_that("the server's epoll instances go with the mode", || {
        let suspends = !testbed.settings()[0].irq_suspend_timeout.is_zero();
        suspends == busy(parameters()) && (suspends || parameters() == before)
    });
    let long = testbed.settings()[0].gro_flush_timeout;
    answer_until(&testbed, &fifo, 190, "it backs off when the goal is missed", |flush_us| {
        flush_us < long.as_nanos() / 1_000
    });
    tuner.signal(Signal::SIGINT);
    let done = tuner.end();
    assert!(done.assert_status(0).errors.contains("p99=200us held in"), "{done:?}");
    testbed.assert_as_before();
    assert_eq!(parameters(), before);
    let document = done.json();
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.iter().filter(|row| row["changed"] == true).count() >= 2, "{rows:?}");
    assert!(rows.iter().all(|row| row["reason"].as_str().is_some_and(|reason| !reason.is_empty())), "{rows:?}");
    let seen = |row: &serde_json::Value| row["p99_us"].as_f64().is_some() && row["cpu_percent"].as_f64().is_some();
    assert!(rows.iter().any(seen), "{rows:?}");
}

#[test]
fn a_tuner_that_is_killed_leaves_nothing_behind() {
    let Some(testbed) = TestBed::new(1) else { return };
    let fifo = LatencyFifo::new();
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll instance");
    let parameters = || abey_linux::epoll::get(epoll.0.as_fd()).expect("get");
    let before = parameters();
    let server = idle_server(&testbed);
    let (path, pid) = (fifo.path(), server.pid().to_string());
    let arguments = [
        &*testbed.device.name,
        "--goal",
        "p99=200us",
        "--latencies",
        text(&path),
        "--families",
        "suspend",
        "--pid",
        &pid,
        "--interval",
        "100ms",
    ];
    let tuner = Running::start(testbed.abey("tune", &arguments));
    let guard = tuner.await_guard();
    await_that("it suspends", || !testbed.settings()[0].irq_suspend_timeout.is_zero() && parameters().prefer);
    // The guard gets the message about a change after the change is made.
    await_that("its line", || tuner.out_so_far().contains("suspend"));
    tuner.signal(Signal::SIGKILL);
    await_that("the guard puts back", || testbed.is_as_before() && parameters() == before);
    await_that("the guard ends", || !crate::common::runs(guard));
}

#[test]
fn it_ends_after_the_given_time_and_a_dry_run_changes_nothing() {
    let Some(testbed) = TestBed::new(1) else { return };
    let device = testbed.device.name.as_str();
    let short = ["--goal", "cpu=50%", "--interval", "100ms", "--for", "1s", "--families", "defer"];
    let dry = finish(testbed.abey("tune", &[&[device, "--dry-run"], &short[..]].concat()));
    assert!(dry.assert_status(0).out.contains("would be") && dry.out.contains("gro-flush-timeout 0 ->"), "{dry:?}");
    testbed.assert_as_before();
    let done = finish(testbed.abey("tune", &[&[device, "--all"], &short[..]].concat()));
    assert!(done.assert_status(0).out.lines().count() >= 3 && done.out.contains("defer"), "{done:?}");
    testbed.assert_as_before();
    let kept = finish(testbed.abey("tune", &[&[device, "--keep"], &short[..]].concat()));
    assert!(kept.assert_status(0).errors.contains("which stay"), "{kept:?}");
    assert!(testbed.settings()[0].defers() && std::fs::read_dir(testbed.journals()).expect("directory").count() == 0);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let Some(testbed) = TestBed::new(1) else { return };
    let device = testbed.device.name.as_str();
    let own = at(11211).to_string();
    let goal = ["--goal", "cpu=50%"];
    let cases: [(&[&str], i32, &[&str]); 15] = [
        (&["nosuch0", "--goal", "cpu=50%"], 2, &["nosuch0", device]),
        (&[device], 2, &["--goal p99=250us"]),
        (&[device, "--goal", "p99"], 2, &["p99"]),
        (&[device, "--goal", "p99=fast"], 2, &["fast"]),
        (&[device, "--goal", "cpu=150%"], 2, &["150%"]),
        (&[device, "--goal", "p99=250us"], 2, &["--probe", "--latencies", "--estimate"]),
        (&["memory:nosuch", "--goal", "p99=1ms", "--estimate"], 2, &["leave --estimate out"]),
        (&[device, goal[0], goal[1], "--gro-flush-timeout", "50us..10us"], 2, &["gro-flush-timeout", "50us"]),
        (&[device, goal[0], goal[1], "--gro-flush-timeout", "50us"], 2, &["two dots"]),
        (&[device, goal[0], goal[1], "--families", "threaded"], 2, &["threaded"]),
        (&[device, goal[0], goal[1], "--families", "suspend"], 2, &["--pid"]),
        (&[device, goal[0], goal[1], "--queues", "7"], 2, &["no receive queue 7"]),
        (&[device, goal[0], goal[1], "--interval", "1ms"], 2, &["100ms"]),
        (&[device, "--goal", "p99=1ms", "--probe", &own], 2, &["loopback"]),
        (&["memory:nosuch", "--goal", "p99=1ms"], 2, &["memory:nosuch"]),
    ];
    for (arguments, code, words) in cases {
        finish(testbed.abey("tune", arguments)).assert_refused(code, words);
    }
    let missing = ["--goal", "p99=1ms", "--latencies", "/nosuch/file"];
    finish(testbed.abey("tune", &[&[device], &missing[..]].concat())).assert_refused(2, &["/nosuch/file"]);
    testbed.assert_as_before();
    let lines = ["--goal", "p99=1ms", "--latencies", "/proc/version", "--interval", "100ms"];
    finish(testbed.abey("tune", &[&[device], &lines[..]].concat())).assert_sentence_at_the_end(1, "no latency");
    testbed.assert_as_before();
}

impl crate::common::Finished {
    /// Asserts the exit status, and that the last line on standard error has these words.
    #[track_caller]
    fn assert_sentence_at_the_end(&self, code: i32, words: &str) {
        self.assert_status(code);
        assert!(self.errors.lines().last().is_some_and(|line| line.contains(words)), "{self:?}");
    }
}

#[test]
fn a_running_datapath_is_tuned_by_its_own_latencies() {
    let nic = format!("memory:abey-tune-{}", std::process::id());
    let server = Running::start(abey(&["serve", "kv", "--nic", &nic, "--mode", "base"]));
    await_that("the server listens", || server.out_so_far().contains("listening"));
    let load = Running::start(abey(&[
        "load",
        "memcached",
        "10.0.0.1:11211",
        "--nic",
        &nic,
        "--keys",
        "100",
        "--rate",
        "2k",
        "--duration",
        "600s",
        "--timeout",
        "60s",
    ]));
    let arguments = ["tune", &nic, "--goal", "p99=100ms", "--interval", "100ms", "--families", "defer", "--json"];
    let pid = server.pid().to_string();
    let tuner = Running::start(abey(&[&arguments[..], &["--pid", &pid]].concat()));
    let mode = || {
        let shown = finish(abey(&["status", "--json", "--interval", "10ms", "--pid", &pid, &nic])).json();
        shown["datapaths"][0]["shards"][0]["settings"]["gro_flush_timeout_ns"].as_u64()
    };
    await_that("it defers", || mode().is_some_and(|flush| flush > 0));
    // So that an interval with requests in it has been seen.
    std::thread::sleep(Duration::from_secs(3));
    tuner.signal(Signal::SIGTERM);
    let done = tuner.end();
    let document = done.assert_status(0).json();
    let rows = document["rows"].as_array().expect("rows");
    let seen = rows.iter().filter(|row| row["requests"].as_u64() > Some(0) && row["p99_us"].as_f64() > Some(0.0));
    assert!(seen.count() > 0, "{rows:?}");
    assert_eq!(mode(), Some(0), "put back");
    load.signal(Signal::SIGINT);
    load.end();
    server.signal(Signal::SIGTERM);
    server.end();
}

#[test]
fn a_program_under_auto_is_tuned_from_when_it_listens_until_it_ends() {
    if !has("memcached") {
        return;
    }
    let Some(testbed) = TestBed::new(1) else { return };
    let program = ["memcached", "-u", "root", "-l", &at(11211).ip().to_string(), "-p", "11211", "-t", "1", "-U", "0"];
    let options = ["--mode", "auto", "--goal", "cpu=90%", "--families", "suspend"];
    let running = Running::start(testbed.run(&options, &program));
    let server = running.await_program("memcached")[0];
    await_that("the device suspends", || !testbed.settings()[0].irq_suspend_timeout.is_zero());
    let busy_polls = || {
        let views = inspect_tree(server).ok()?;
        let all: Vec<EpollParams> = views.iter().flat_map(|view| &view.epolls).map(|epoll| epoll.params).collect();
        all.iter().any(|params| params.get().is_some_and(|params| params.prefer)).then_some(())
    };
    await_some("no epoll instance busy polls", busy_polls);
    send(server, Signal::SIGTERM);
    let done = running.end();
    assert!(done.errors.contains("cpu=90%"), "{done:?}");
    testbed.assert_as_before();
}

#[test]
fn auto_needs_a_goal_and_a_goal_needs_auto() {
    let Some(testbed) = TestBed::new(1) else { return };
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--mode", "auto"], &["--goal"]),
        (&["--mode", "defer50", "--goal", "cpu=50%"], &["--mode auto"]),
        (&["--mode", "auto", "--goal", "p99=250us"], &["--probe"]),
        (&["--mode", "auto", "--goal", "cpu=50%", "--budget", "8"], &["--budget"]),
    ];
    for (options, words) in cases {
        finish(testbed.run(options, &["true"])).assert_refused(2, words);
    }
    testbed.assert_as_before();
}
