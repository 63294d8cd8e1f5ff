//! `abey apply --watch`: settings that are lost when queues, links or devices are recreated are applied again.
//!
//! To run by hand, with the time that each repair takes: `ABEY_DISTURBANCES=1000 cargo test -p abey --test command apply_watch:: -- --nocapture`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use crate::common::{ABEY, Running, await_some, await_that, finish, has, is_root, napi_settings, unique};
use abey_delivery::NapiSettings;
use abey_linux::device::device_named;
use abey_linux::ethtool::channels::{channels, set_channels};
use abey_linux::napi::napis;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_testbed::spawn::SpawnExt;
use abey_testbed::veth::{End, create};
use nix::sys::signal::Signal;
use tempfile::TempDir;

const QUEUES: u32 = 4;

/// A veth pair that can be recreated, a policy for it, and the socket on which the watch notifies systemd.
struct WatchedPair {
    server: NetNs,
    client: NetNs,
    name: String,
    place: TempDir,
    notify: UnixDatagram,
}

impl WatchedPair {
    fn new() -> Option<Self> {
        if !is_root() || !has("ip") {
            return None;
        }
        crate::common::library();
        let place = tempfile::tempdir().expect("directory");
        let notify = UnixDatagram::bind(place.path().join("notify")).expect("a socket");
        notify.set_nonblocking(true).expect("a socket");
        let (server, client) = (NetNs::create().expect("namespace"), NetNs::create().expect("namespace"));
        let pair = Self { server, client, name: unique("aw"), place, notify };
        pair.make();
        Some(pair)
    }

    /// Creates the pair.
    fn make(&self) {
        let ip = |last| (IpAddr::V4(Ipv4Addr::new(198, 18, 12, last)), 24);
        let far = format!("{}f", self.name);
        let near = End { netns: &self.server, name: &self.name, address: ip(1) };
        create(&near, &End { netns: &self.client, name: &far, address: ip(2) }, QUEUES).expect("veth pair");
    }

    fn ip(&self, arguments: &[&str]) {
        let mut command = std::process::Command::new("ip");
        command.args(arguments).in_netns(&self.server);
        finish(command).assert_status(0);
    }

    fn policy(&self, text: &str) -> String {
        let path = self.place.path().join("policy.toml");
        fs::write(&path, format!("version = 1\n[[device]]\nname = \"{}\"\n{text}\n", self.name)).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    fn watch(&self, policy: &str) -> Running {
        self.watch_with(policy, &[])
    }

    fn watch_with(&self, policy: &str, more: &[&str]) -> Running {
        let mut command = std::process::Command::new(ABEY);
        let journals = self.place.path().join("journals");
        command.args(["apply", "--watch", policy]).args(more).arg("--journals").arg(journals);
        command.env("NOTIFY_SOCKET", self.place.path().join("notify")).in_netns(&self.server);
        Running::start(command)
    }

    /// Waits until the watch sends this notification to systemd.
    fn await_notification(&self, what: &str) {
        let mut text = [0; 256];
        let length = await_some(&format!("no {what}"), || self.notify.recv(&mut text).ok());
        assert_eq!(String::from_utf8_lossy(&text[..length]).trim(), what);
    }

    /// Returns the settings of the NAPI instances: none while the device is missing or down.
    fn settings(&self, netlink: &mut Netlink) -> Vec<NapiSettings> {
        let Ok(device) = device_named(netlink, &self.name, "the test") else { return Vec::new() };
        let found = napis(netlink, Some(device.ifindex)).unwrap_or_default();
        found.iter().map(|napi| napi.settings()).collect()
    }

    fn netlink(&self) -> Netlink {
        Netlink::open(&self.server).expect("netlink")
    }

    fn change_channels(&self, queues: u32) {
        let mut netlink = self.netlink();
        let device = device_named(&mut netlink, &self.name, "the test").expect("the device").id();
        let counts = channels(&mut netlink, &device).expect("channels").to_rx_queues(queues).expect("possible");
        set_channels(&mut netlink, &device, &counts).expect("changed");
    }

    /// Recreates queues, link or device, in turn, so that the settings are lost.
    fn disturb(&self, round: usize) {
        match round % 4 {
            0 => self.change_channels(2),
            1 => {
                self.ip(&["link", "set", &self.name, "down"]);
                self.ip(&["link", "set", &self.name, "up"]);
            }
            2 => self.change_channels(1),
            _ => {
                self.ip(&["link", "delete", &self.name]);
                self.make();
            }
        }
    }
}

#[test]
fn settings_are_applied_again_after_queues_links_and_devices_are_recreated() {
    let Some(pair) = WatchedPair::new() else { return };
    let policy = pair.policy(&format!("channels = {QUEUES}\nmode = \"suspend20\""));
    let watch = pair.watch(&policy);
    pair.await_notification("READY=1");
    let mut netlink = pair.netlink();
    let wanted = vec![napi_settings("suspend20"); QUEUES as usize];
    assert_eq!(pair.settings(&mut netlink), wanted, "it is ready when the policy holds");
    let rounds = std::env::var("ABEY_DISTURBANCES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut times = Vec::new();
    for round in 0..rounds {
        pair.disturb(round);
        let since = Instant::now();
        await_that(&format!("round {round}: the settings are not back"), || pair.settings(&mut netlink) == wanted);
        times.push(since.elapsed());
    }
    times.sort_unstable();
    let within = times.iter().filter(|time| **time < Duration::from_secs(1)).count();
    println!("{within} of {rounds} within 1 s; median {:?}, at most {:?}", times[rounds / 2], times[rounds - 1]);
    // Each repair prints a line about this device.
    let said = watch.out_so_far();
    assert!(said.lines().all(|line| line.starts_with(&format!("{}: ", pair.name))), "{said}");
    assert!(said.lines().count() > rounds / 2, "{said}");
    watch.signal(Signal::SIGTERM);
    pair.await_notification("STOPPING=1");
    watch.end().assert_status(0);
    assert_eq!(pair.settings(&mut netlink), wanted, "a watch that ends leaves the settings in place");
    let journals = fs::read_dir(pair.place.path().join("journals")).expect("directory").flatten();
    let left: Vec<_> = journals.map(|file| file.path()).collect();
    assert!(matches!(&left[..], [kept] if kept.extension().is_some_and(|extension| extension == "state")), "{left:?}");
}

#[test]
fn a_watch_waits_for_a_missing_device() {
    let Some(pair) = WatchedPair::new() else { return };
    pair.ip(&["link", "delete", &pair.name]);
    let watch = pair.watch(&pair.policy("mode = \"defer50\""));
    await_that("it does not say that it waits", || watch.errors_so_far().contains("waits for a device"));
    pair.make();
    pair.await_notification("READY=1");
    let wanted = vec![napi_settings("defer50"); QUEUES as usize];
    assert_eq!(pair.settings(&mut pair.netlink()), wanted);
    watch.signal(Signal::SIGINT);
    watch.end().assert_status(0);
}

#[test]
fn a_policy_is_reloaded_and_an_invalid_one_is_ignored() {
    let Some(pair) = WatchedPair::new() else { return };
    let policy = pair.policy("mode = \"defer50\"");
    let watch = pair.watch(&policy);
    pair.await_notification("READY=1");
    pair.policy("mode = \"turbo\"");
    watch.signal(Signal::SIGHUP);
    await_that("it does not say what is wrong", || watch.errors_so_far().contains("turbo"));
    pair.policy("mode = \"base\"");
    watch.signal(Signal::SIGHUP);
    let mut netlink = pair.netlink();
    await_that("the new policy does not hold", || {
        pair.settings(&mut netlink) == vec![NapiSettings::default(); QUEUES as usize]
    });
    watch.signal(Signal::SIGTERM);
    let done = watch.end();
    assert_eq!(done.assert_status(0).errors.lines().count(), 1, "{done:?}");
}

#[test]
fn settings_changed_by_hand_are_detected_without_an_event() {
    let Some(pair) = WatchedPair::new() else { return };
    let policy = pair.policy("mode = \"defer50\"");
    // No event reports this change; only the periodic check detects it.
    let watch = pair.watch_with(&policy, &["--every", "86400s"]);
    pair.await_notification("READY=1");
    let (mut netlink, wanted) = (pair.netlink(), vec![napi_settings("defer50"); QUEUES as usize]);
    for by_hand in ["suspend20", "base"] {
        let set = || {
            let mut set = std::process::Command::new(ABEY);
            set.args(["set", &pair.name, "--queues", "1", "--mode", by_hand, "--journals"]);
            set.arg(pair.place.path().join("journals")).in_netns(&pair.server);
            finish(set).status.success()
        };
        // The watch holds the instance until its last repair is finished.
        await_that("it cannot be set", set);
        await_that("the policy does not hold again", || pair.settings(&mut netlink) == wanted);
    }
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
}

#[test]
fn a_failure_is_reported_once_and_retried() {
    let Some(pair) = WatchedPair::new() else { return };
    let watch = pair.watch(&pair.policy("mode = \"defer50\""));
    pair.await_notification("READY=1");
    // Another run holds the device and releases it.
    let mut run = std::process::Command::new(ABEY);
    run.args(["run", "--journals"]).arg(pair.place.path().join("journals"));
    run.args(["--mode", "suspend20", "--dev", &pair.name, "--", "sleep", "60"]).in_netns(&pair.server);
    let run = Running::start(run);
    run.await_program("sleep");
    pair.change_channels(2);
    await_that("it does not say who is in the way", || {
        watch.errors_so_far().contains(&format!("process {}", run.pid()))
    });
    run.signal(Signal::SIGTERM);
    run.end().assert_status(143);
    let mut netlink = pair.netlink();
    await_that("it does not try again", || pair.settings(&mut netlink) == vec![napi_settings("defer50"); 2]);
    assert_eq!(watch.errors_so_far().matches("(process").count(), 1, "{}", watch.errors_so_far());
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
}
