//! The kernel's notifications about devices. Needs root.

mod common;

use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use abey_linux::monitor::{Event, Monitor, What};
use abey_linux::netns::NetNs;
use abey_linux::spawn::CommandPlace;
use common::pair;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn run(netns: &NetNs, command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().expect("a program")).args(words).in_netns(netns).status();
    assert!(status.expect("it runs").success(), "{command}");
}

/// Waits until an event is told that `wanted` recognises; the descriptor tells when to look.
fn wait_for(monitor: &mut Monitor, wanted: impl Fn(&Event) -> bool) -> Event {
    let began = Instant::now();
    let mut seen = Vec::new();
    while began.elapsed() < Duration::from_secs(30) {
        let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(200_u16)).expect("poll") == 0 {
            continue;
        }
        seen.extend(monitor.events().expect("events"));
        if let Some(found) = seen.iter().position(&wanted) {
            return seen.swap_remove(found);
        }
    }
    panic!("not told; told was {seen:?}");
}

#[test]
fn what_happens_to_a_device_is_told() {
    let Some((near, _far)) = pair(4) else { return };
    let mut monitor = Monitor::open(&near).expect("monitor");
    // What the pair's own coming into being still tells.
    monitor.events().expect("events");
    let link = |wanted: &'static str, up_wanted: bool| move |event: &Event| matches!(event, Event::Changed { what: What::Link { name, up, .. }, .. } if name == wanted && *up == up_wanted);
    let is = |wanted: What| move |event: &Event| matches!(event, Event::Changed { what, .. } if *what == wanted);
    run(&near, "ip link set near0 down");
    let Event::Changed { ifindex, .. } = wait_for(&mut monitor, link("near0", false)) else { panic!("no overrun") };
    run(&near, "ip link set near0 name renamed0");
    wait_for(&mut monitor, link("renamed0", false));
    run(&near, "ip link set renamed0 up");
    wait_for(&mut monitor, link("renamed0", true));
    let mut transaction =
        abey_linux::apply::Transaction::begin(abey_linux::apply::Place::open(&near).expect("place"), None);
    let device = abey_linux::device::DeviceId { name: "renamed0".to_owned(), ifindex };
    let counts = abey_linux::ethtool::ChannelCounts { rx: Some(2), tx: Some(2), combined: None };
    let change = abey_linux::apply::Change::Channels { device, counts };
    transaction.make(&change).expect("fewer queues");
    let told = wait_for(&mut monitor, is(What::Channels));
    assert_eq!(told, Event::Changed { ifindex, what: What::Channels });
    transaction.finish().keep();
    let mut netlink = abey_linux::netlink::Netlink::open(&near).expect("netlink");
    let gro = [(abey_linux::features::RX_GRO, false)];
    abey_linux::features::set_features(&mut netlink, "renamed0", &gro).expect("GRO off");
    wait_for(&mut monitor, is(What::Features));
    run(&near, "ip link delete renamed0");
    wait_for(&mut monitor, is(What::LinkGone { name: "renamed0".to_owned() }));
}

#[test]
fn too_much_at_once_is_told_as_an_overrun() {
    let Some((near, _far)) = pair(1) else { return };
    let mut monitor = Monitor::open(&near).expect("monitor");
    let mut netlink = abey_linux::netlink::Netlink::open(&near).expect("netlink");
    // More than the socket's buffer holds, without anybody reading.
    for turn in 0..2000 {
        let gro = [(abey_linux::features::RX_GRO, turn % 2 == 0)];
        abey_linux::features::set_features(&mut netlink, "near0", &gro).expect("GRO");
    }
    wait_for(&mut monitor, |event| *event == Event::Overrun);
    // And it goes on.
    run(&near, "ip link set near0 down");
    let down = |event: &Event| matches!(event, Event::Changed { what: What::Link { up: false, .. }, .. });
    wait_for(&mut monitor, down);
}
