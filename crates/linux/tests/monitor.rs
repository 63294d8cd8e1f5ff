//! The kernel's notifications about devices. Needs root.

mod common;

use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use abey_linux::monitor::{Event, Monitor, What};
use abey_linux::netns::NetNs;
use abey_testbed::spawn::SpawnExt;
use common::pair;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn run(netns: &NetNs, command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().expect("a program")).args(words).in_netns(netns).status();
    assert!(status.expect("it runs").success(), "{command}");
}

/// Waits for an event that `wanted` accepts. The descriptor is readable when events are pending.
fn wait_for(monitor: &mut Monitor, wanted: impl Fn(&Event) -> bool) -> Event {
    let began = Instant::now();
    let mut seen = Vec::new();
    while began.elapsed() < Duration::from_secs(120) {
        let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(200_u16)).expect("poll") == 0 {
            continue;
        }
        seen.extend(monitor.events().expect("events"));
        if let Some(found) = seen.iter().position(&wanted) {
            return seen.swap_remove(found);
        }
    }
    panic!("no such event; events: {seen:?}");
}

#[test]
fn changes_of_a_device_are_reported() {
    let Some((near, _far)) = pair(4) else { return };
    let mut monitor = Monitor::open(&near).expect("monitor");
    // Skips the events from the creation of the pair.
    monitor.events().expect("events");
    let link = |wanted: &'static str, up_wanted: bool| move |event: &Event| matches!(event, Event::Changed { what: What::Link { name, up, .. }, .. } if name == wanted && *up == up_wanted);
    let is = |wanted: What| move |event: &Event| matches!(event, Event::Changed { what, .. } if *what == wanted);
    run(&near, "ip link set near0 down");
    let Event::Changed { ifindex, .. } = wait_for(&mut monitor, link("near0", false)) else { panic!("no overrun") };
    run(&near, "ip link set near0 name renamed0");
    wait_for(&mut monitor, link("renamed0", false));
    run(&near, "ip link set renamed0 up");
    wait_for(&mut monitor, link("renamed0", true));
    let mut handle = abey_linux::kernel::NetnsHandle::open(&near).expect("namespace");
    let device = abey_linux::device::DeviceId { name: "renamed0".to_owned(), ifindex };
    let counts = abey_linux::ethtool::ChannelCounts { rx: Some(2), tx: Some(2), combined: None };
    abey_linux::kernel::Kernel::set_channels(&mut handle, &device, &counts).expect("fewer queues");
    let event = wait_for(&mut monitor, is(What::Channels));
    assert_eq!(event, Event::Changed { ifindex, what: What::Channels });
    let mut netlink = abey_linux::netlink::Netlink::open(&near).expect("netlink");
    let gro = [(abey_linux::features::RX_GRO, false)];
    abey_linux::features::set_features(&mut netlink, "renamed0", &gro).expect("GRO off");
    wait_for(&mut monitor, is(What::Features));
    run(&near, "ip link delete renamed0");
    wait_for(&mut monitor, is(What::LinkGone { name: "renamed0".to_owned() }));
}

#[test]
fn a_full_socket_buffer_is_reported_as_an_overrun() {
    let Some((near, _far)) = pair(1) else { return };
    let mut monitor = Monitor::open(&near).expect("monitor");
    let mut netlink = abey_linux::netlink::Netlink::open(&near).expect("netlink");
    // More events than the socket's buffer holds, without a read.
    for turn in 0..2000 {
        let gro = [(abey_linux::features::RX_GRO, turn % 2 == 0)];
        abey_linux::features::set_features(&mut netlink, "near0", &gro).expect("GRO");
    }
    wait_for(&mut monitor, |event| *event == Event::Overrun);
    // The monitor continues after the overrun.
    run(&near, "ip link set near0 down");
    let down = |event: &Event| matches!(event, Event::Changed { what: What::Link { up: false, .. }, .. });
    wait_for(&mut monitor, down);
}
