//! `abey tune --policy`: the queues, goals and bounds that a policy names, its programs, beside `abey apply --watch`.

mod common;
mod tuning;

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use abey_delivery::NapiSettings;
use abey_linux::spawn::CommandPlace;
use common::{Bed, Running, await_that, finish, has, napi_settings};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tuning::{Feed, Traffic, text};

/// A policy for a bed's device.
struct Written {
    place: TempDir,
}

impl Written {
    fn new(bed: &Bed, rules: &str) -> Self {
        let place = tempfile::tempdir().expect("directory");
        let text = format!("version = 1\n[[device]]\nname = \"{}\"\n{rules}\n", bed.device.name);
        fs::write(place.path().join("policy.toml"), text).expect("written");
        Self { place }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("policy.toml")
    }
}

/// A rule for one queue, whose client writes to a feed.
fn rule(queue: u32, mode: &str, goal: &str, modes: &str, feed: &Feed) -> String {
    format!(
        "[[device.queues]]\nqueues = \"{queue}\"\nmode = \"{mode}\"\ntune = {{ goal = \"{goal}\", modes = [{modes}], \
         latencies = \"{}\" }}\n",
        feed.path().display()
    )
}

fn tuner(bed: &Bed, policy: &Written, more: &[&str]) -> Running {
    let path = policy.path();
    let arguments = ["--policy", text(&path), "--interval", "100ms"];
    Running::start(bed.abey("tune", &[&arguments[..], more].concat()))
}

fn flush_us(settings: &NapiSettings) -> u64 {
    settings.gro_flush_timeout.as_nanos() / 1_000
}

/// Tells a feed what a server would be seen to do whose latency grows with its queue's deferral, until something holds.
fn answer_until(bed: &Bed, feeds: &[(&Feed, usize)], what: &str, mut holds: impl FnMut(&[NapiSettings]) -> bool) {
    await_that(what, || {
        let mut settings = by_queue(bed);
        settings.resize(2, NapiSettings::default());
        feeds.iter().for_each(|(feed, queue)| feed.tell(20 + flush_us(&settings[*queue])));
        std::thread::sleep(std::time::Duration::from_millis(25));
        holds(&settings)
    });
}

/// The settings of the instances in the order of the queues they serve.
fn by_queue(bed: &Bed) -> Vec<NapiSettings> {
    let mut netlink = abey_linux::netlink::Netlink::open(&bed.server).expect("netlink");
    let mut found = abey_linux::napi::napis(&mut netlink, Some(bed.device.ifindex)).expect("list");
    let queues = abey_linux::napi::rx_queues(&mut netlink, bed.device.ifindex).unwrap_or_default();
    found.sort_by_key(|napi| queues.iter().find(|(_, id)| **id == napi.id).map(|(queue, _)| *queue));
    found.iter().map(|napi| napi.settings()).collect()
}

#[test]
fn it_tunes_beside_apply_watch_which_keeps_the_rest() {
    let Some(bed) = Bed::new(2) else { return };
    if !has("ip") {
        return;
    }
    let feed = Feed::new();
    let rest = "[[device.queues]]\nqueues = \"1\"\nmode = \"suspend20\"\n";
    let policy = Written::new(&bed, &(rule(0, "defer20", "p99=200us", "\"defer\"", &feed) + rest));
    let path = policy.path();
    let watch = Running::start(bed.abey("apply", &["--watch", text(&path)]));
    let as_applied = |settings: &[NapiSettings]| settings == [napi_settings("defer20"), napi_settings("suspend20")];
    await_that("the policy is applied", || as_applied(&by_queue(&bed)));
    let _traffic = Traffic::start_flows(&bed, 16);

    let first = tuner(&bed, &policy, &[]);
    answer_until(&bed, &[(&feed, 0)], "it defers longer, with room below the goal", |all| flush_us(&all[0]) >= 50);
    assert_eq!(by_queue(&bed)[1], napi_settings("suspend20"), "what is not to be tuned is left alone");
    first.signal(Signal::SIGTERM);
    let done = first.end();
    assert!(done.assert_status(0).errors.contains("queue 0 (NAPI"), "{done:?}");
    assert!(as_applied(&by_queue(&bed)), "put back");

    // The link goes down and comes up: the instances are new, and have lost everything.
    let second = tuner(&bed, &policy, &[&bed.device.name]);
    answer_until(&bed, &[(&feed, 0)], "it defers longer again", |all| flush_us(&all[0]) >= 50);
    for state in ["down", "up"] {
        let mut command = bed.command("ip");
        command.args(["link", "set", &bed.device.name, state]).in_netns(&bed.server);
        finish(command).assert_status(0);
    }
    answer_until(&bed, &[(&feed, 0)], "the watch repairs the one, the tuner the other", |all| {
        all[1] == napi_settings("suspend20") && flush_us(&all[0]) >= 50
    });
    await_that("it says so", || second.out_so_far().contains("made anew"));
    second.signal(Signal::SIGINT);
    second.end().assert_status(0);
    let repairs = watch.out_so_far();
    assert!(!repairs.contains("queue 0") || repairs.contains("20us"), "nothing but what the policy says: {repairs}");
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
    assert_eq!(bed.journals_under_way(), 0);
}

#[test]
fn programs_of_the_policy_busy_poll_and_a_kill_puts_back_all_groups() {
    let Some(bed) = Bed::new(2) else { return };
    let (one, other) = (Feed::new(), Feed::new());
    // An epoll instance that the "server" has inherited, and so can be seen from here.
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll instance");
    let parameters = || abey_linux::epoll::get(epoll.0.as_fd()).expect("get");
    let before = parameters();
    let place = tempfile::tempdir().expect("directory");
    let server = place.path().join("server");
    common::copy_program(&common::which("sleep").expect("coreutils"), &server);
    let program = format!(
        "[[program]]\nexecutable = \"{}\"\ndevice = \"{}\"\nqueues = \"0\"\n",
        server.display(),
        bed.device.name
    );
    let rules =
        rule(0, "suspend20", "p99=200us", "\"suspend\"", &one) + &rule(1, "defer20", "cpu=50%", "\"defer\"", &other);
    let policy = Written::new(&bed, &(rules + &program));
    let mut command = bed.command(&server);
    command.arg("60");
    let _server = Running::start(command);
    let tuner = tuner(&bed, &policy, &[]);
    let guard = tuner.await_guard();
    let works = || {
        let settings = by_queue(&bed);
        !settings[0].irq_suspend_timeout.is_zero() && settings[1].defers() && settings[1].irq_suspend_timeout.is_zero()
    };
    await_that("one suspends and the other defers", || works() && parameters().prefer);
    // The guard is told of a change a moment after it.
    await_that("their lines", || tuner.out_so_far().lines().count() >= 2);
    let said = tuner.out_so_far();
    assert!(said.contains("queue 0 (NAPI") && said.contains("queue 1 (NAPI"), "{said}");
    tuner.signal(Signal::SIGKILL);
    await_that("the guard puts back", || bed.is_as_before() && parameters() == before);
    await_that("the guard ends", || !common::runs(guard));
}

#[test]
fn a_policy_that_cannot_be_tuned_by_is_refused_by_file_line_and_key() {
    let Some(bed) = Bed::new(2) else { return };
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
        (&tune("goal = \"cpu=50%\""), &["lo"], &["does not say how to tune lo", &bed.device.name]),
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
        let policy = Written::new(&bed, rules);
        finish(bed.abey("tune", &[&["--policy", text(&policy.path())], more].concat())).assert_refused(2, words);
    }
    let policy = Written::new(&bed, &tune("goal = \"cpu=50%\""));
    let goal = bed.abey("tune", &["--policy", text(&policy.path()), "--goal", "cpu=50%"]);
    assert!(finish(goal).assert_status(2).errors.contains("--goal"));
    let feed = Feed::new();
    let path = feed.path();
    let one_figure = bed.abey("tune", &["--policy", text(&policy.path()), "--latencies", text(&path)]);
    finish(one_figure).assert_refused(2, &["one figure"]);
    bed.assert_as_before();
}
