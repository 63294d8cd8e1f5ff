//! `abey apply --watch`: what is lost when queues, links and devices are made anew comes back.
//!
//! By hand, with the time that each repair takes: `ABEY_DISTURBANCES=1000 cargo test -p abey --test apply_watch -- --nocapture`.

mod common;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use abey_delivery::NapiSettings;
use abey_linux::device::device_named;
use abey_linux::ethtool::channels::{channels, set_channels};
use abey_linux::napi::napis;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::spawn::CommandPlace;
use abey_linux::veth::{End, create};
use common::{ABEY, Running, await_some, await_that, finish, has, is_root, napi_settings, unique};
use nix::sys::signal::Signal;
use tempfile::TempDir;

const QUEUES: u32 = 4;

/// A veth pair that can be made again, a policy for it, and where the watch tells that it is ready.
struct Bed {
    server: NetNs,
    client: NetNs,
    name: String,
    place: TempDir,
    notify: UnixDatagram,
}

impl Bed {
    fn new() -> Option<Self> {
        if !is_root() || !has("ip") {
            return None;
        }
        common::library();
        let place = tempfile::tempdir().expect("directory");
        let notify = UnixDatagram::bind(place.path().join("notify")).expect("a socket");
        notify.set_nonblocking(true).expect("a socket");
        let (server, client) = (NetNs::create().expect("namespace"), NetNs::create().expect("namespace"));
        let bed = Self { server, client, name: unique("aw"), place, notify };
        bed.make();
        Some(bed)
    }

    /// Makes the pair.
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

    /// Waits until the watch tells systemd this.
    fn await_told(&self, what: &str) {
        let mut text = [0; 256];
        let length = await_some(&format!("no {what}"), || self.notify.recv(&mut text).ok());
        assert_eq!(String::from_utf8_lossy(&text[..length]).trim(), what);
    }

    /// The settings of the NAPI instances; none while the device is away or down.
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

    /// Something that loses the settings, of a kind that goes round.
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
fn settings_are_back_after_queues_links_and_devices_are_made_anew() {
    let Some(bed) = Bed::new() else { return };
    let policy = bed.policy(&format!("channels = {QUEUES}\nmode = \"suspend20\""));
    let watch = bed.watch(&policy);
    bed.await_told("READY=1");
    let mut netlink = bed.netlink();
    let wanted = vec![napi_settings("suspend20"); QUEUES as usize];
    assert_eq!(bed.settings(&mut netlink), wanted, "it is ready when the policy holds");
    let rounds = std::env::var("ABEY_DISTURBANCES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut times = Vec::new();
    for round in 0..rounds {
        bed.disturb(round);
        let since = Instant::now();
        await_that(&format!("round {round}: the settings are not back"), || bed.settings(&mut netlink) == wanted);
        times.push(since.elapsed());
    }
    times.sort_unstable();
    let within = times.iter().filter(|time| **time < Duration::from_secs(1)).count();
    println!("{within} of {rounds} within 1 s; median {:?}, at most {:?}", times[rounds / 2], times[rounds - 1]);
    // One line for each repair, of this device.
    let said = watch.out_so_far();
    assert!(said.lines().all(|line| line.starts_with(&format!("{}: ", bed.name))), "{said}");
    assert!(said.lines().count() > rounds / 2, "{said}");
    watch.signal(Signal::SIGTERM);
    bed.await_told("STOPPING=1");
    watch.end().assert_status(0);
    assert_eq!(bed.settings(&mut netlink), wanted, "a watch that ends leaves the settings in place");
    let journals = fs::read_dir(bed.place.path().join("journals")).expect("directory").flatten();
    let left: Vec<_> = journals.map(|file| file.path()).collect();
    assert!(matches!(&left[..], [kept] if kept.extension().is_some_and(|extension| extension == "state")), "{left:?}");
}

#[test]
fn a_device_that_comes_later_is_waited_for() {
    let Some(bed) = Bed::new() else { return };
    bed.ip(&["link", "delete", &bed.name]);
    let watch = bed.watch(&bed.policy("mode = \"defer50\""));
    await_that("it does not say that it waits", || watch.errors_so_far().contains("waits for a device"));
    bed.make();
    bed.await_told("READY=1");
    let wanted = vec![napi_settings("defer50"); QUEUES as usize];
    assert_eq!(bed.settings(&mut bed.netlink()), wanted);
    watch.signal(Signal::SIGINT);
    watch.end().assert_status(0);
}

#[test]
fn a_policy_is_read_again_and_a_bad_one_is_not_taken() {
    let Some(bed) = Bed::new() else { return };
    let policy = bed.policy("mode = \"defer50\"");
    let watch = bed.watch(&policy);
    bed.await_told("READY=1");
    bed.policy("mode = \"turbo\"");
    watch.signal(Signal::SIGHUP);
    await_that("it does not say what is wrong", || watch.errors_so_far().contains("turbo"));
    bed.policy("mode = \"base\"");
    watch.signal(Signal::SIGHUP);
    let mut netlink = bed.netlink();
    await_that("the new policy does not hold", || {
        bed.settings(&mut netlink) == vec![NapiSettings::default(); QUEUES as usize]
    });
    watch.signal(Signal::SIGTERM);
    let done = watch.end();
    assert_eq!(done.assert_status(0).errors.lines().count(), 1, "{done:?}");
}

#[test]
fn what_is_set_by_hand_is_seen_without_an_event() {
    let Some(bed) = Bed::new() else { return };
    let policy = bed.policy("mode = \"defer50\"");
    // Only a glance can see it.
    let watch = bed.watch_with(&policy, &["--every", "86400s"]);
    bed.await_told("READY=1");
    let (mut netlink, wanted) = (bed.netlink(), vec![napi_settings("defer50"); QUEUES as usize]);
    for by_hand in ["suspend20", "base"] {
        let set = || {
            let mut set = std::process::Command::new(ABEY);
            set.args(["set", &bed.name, "--queues", "1", "--mode", by_hand, "--journals"]);
            set.arg(bed.place.path().join("journals")).in_netns(&bed.server);
            finish(set).status.success()
        };
        // The watch may not have ended its last repair, and holds the instance for so long.
        await_that("it cannot be set", set);
        await_that("the policy does not hold again", || bed.settings(&mut netlink) == wanted);
    }
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
}

#[test]
fn a_failure_is_said_once_and_tried_again() {
    let Some(bed) = Bed::new() else { return };
    let watch = bed.watch(&bed.policy("mode = \"defer50\""));
    bed.await_told("READY=1");
    // Somebody else holds the device, and lets it go again.
    let mut run = std::process::Command::new(ABEY);
    run.args(["run", "--journals"]).arg(bed.place.path().join("journals"));
    run.args(["--mode", "suspend20", "--dev", &bed.name, "--", "sleep", "60"]).in_netns(&bed.server);
    let run = Running::start(run);
    run.await_program("sleep");
    bed.change_channels(2);
    await_that("it does not say who is in the way", || {
        watch.errors_so_far().contains(&format!("process {}", run.pid()))
    });
    run.signal(Signal::SIGTERM);
    run.end().assert_status(143);
    let mut netlink = bed.netlink();
    await_that("it does not try again", || bed.settings(&mut netlink) == vec![napi_settings("defer50"); 2]);
    assert_eq!(watch.errors_so_far().matches("process").count(), 1, "{}", watch.errors_so_far());
    watch.signal(Signal::SIGTERM);
    watch.end().assert_status(0);
}
