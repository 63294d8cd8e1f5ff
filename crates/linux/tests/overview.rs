//! The overview and the verdict against the real kernel: a small epoll server behind a veth pair. Needs root.

#[path = "common/bed.rs"]
mod bed;
mod common;

use std::ops::Deref;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use abey_linux::features::{TX_TCP_SEGMENTATION, set_features};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::overview::{Neighbour, Overview, Watch, own_device};
use abey_linux::process::inspect_tree;
use abey_linux::spawn::CommandPlace;
use abey_linux::verdict::{Reason, Verdict, judge};
use common::{NEAR, pair};
use nix::sys::signal::Signal;

const INTERVAL: Duration = Duration::from_millis(300);

struct Bed(bed::Bed);

impl Deref for Bed {
    type Target = bed::Bed;

    fn deref(&self) -> &bed::Bed {
        &self.0
    }
}

impl Bed {
    /// A pair with a server whose epoll parameters are `params`, or `None` with a printed reason.
    fn new(params: &str) -> Option<Self> {
        Self::waiting(params, "-1")
    }

    fn waiting(params: &str, timeout: &str) -> Option<Self> {
        bed::Bed::start(pair(1)?, NEAR, params, timeout).map(Self)
    }

    /// The peer's TCP segmentation offload.
    fn set_tso(&self, on: bool) {
        let mut netlink = Netlink::open(&self.far).expect("netlink");
        set_features(&mut netlink, "far0", &[(TX_TCP_SEGMENTATION, on)]).expect("offload");
    }

    fn overview(&self) -> Overview {
        // Only the other end of this pair: other tests have namespaces with devices of the same names and numbers.
        let far = Command::new("sleep").arg("9").in_netns(&self.far).dies_with_parent(Signal::SIGKILL).spawn();
        let mut resident = far.expect("sleep");
        let neighbour = NetNs::of_process(resident.id()).ok().and_then(Neighbour::read).expect("the far end");
        let overview = Overview::read(&self.near, &[neighbour]).expect("overview");
        resident.kill().and_then(|()| resident.wait()).expect("end");
        overview
    }

    /// The verdict on the server while it is under load, or while nobody talks to it.
    fn verdict(&self, load: bool) -> Verdict {
        if load { self.under_load(|| self.judged()) } else { self.judged() }
    }

    fn judged(&self) -> Verdict {
        let pid = self.server.id();
        let overview = self.overview();
        let views = inspect_tree(pid).expect("look");
        let device = overview.device("near0").expect("near0");
        assert_eq!(own_device(&overview, &views).map(|own| &own.device.name), Some(&device.device.name));
        let watch = Watch::start(&[device], Some(("near0", &views)));
        sleep(INTERVAL);
        let views = inspect_tree(pid).expect("look");
        judge(&watch.finish().facts(&overview, device, views))
    }
}

#[test]
fn a_pair_is_shown_with_its_instances_and_its_other_end() {
    let Some((near, far)) = pair(2) else { return };
    let neighbours: Vec<Neighbour> = Neighbour::read(far).into_iter().collect();
    let overview = Overview::read(&near, &neighbours).expect("overview");
    let names: Vec<&str> = overview.with_napi().map(|one| one.device.name.as_str()).collect();
    assert_eq!(names, ["near0"], "loopback has no NAPI");
    let device = overview.device("near0").expect("near0");
    assert_eq!(device.gro, Ok(true));
    let queues: Vec<&[u32]> = device.napis.iter().map(|one| one.rx_queues.as_slice()).collect();
    assert_eq!(queues, [&[0], &[1]]);
    let peer = device.peer.as_ref().expect("a veth").as_ref().expect("found");
    assert_eq!((peer.name.as_str(), &peer.tso), ("far0", &Ok(false)));
    assert!(overview.device("far0").is_err(), "it is in another namespace");
}

#[test]
fn a_device_that_only_looks_like_the_peer_is_not_taken_for_it() {
    let (Some((near, far)), Some((_other_near, other_far))) = (pair(1), pair(1)) else { return };
    // The same names and the same numbers as in the true namespace.
    let stranger: Vec<Neighbour> = Neighbour::read(other_far).into_iter().collect();
    let overview = Overview::read(&near, &stranger).expect("overview");
    let peer = overview.device("near0").expect("near0").peer.clone().expect("a veth");
    assert!(peer.expect_err("not it").contains("near0"));
    let both: Vec<Neighbour> = stranger.into_iter().chain(Neighbour::read(far)).collect();
    let overview = Overview::read(&near, &both).expect("overview");
    assert!(overview.device("near0").expect("near0").peer.clone().expect("a veth").is_ok());
}

#[test]
fn suspension_under_load_is_active() {
    let Some(bed) = Bed::new("0,64,1") else { return };
    bed.set("suspend20");
    let verdict = bed.verdict(true);
    assert!(verdict.active, "{verdict}");
    let said = verdict.to_string();
    assert!(said.starts_with("suspend20 is active for python3 (pid ") && said.contains("% of its packets'"), "{said}");
    // The same server, once nothing is deferred.
    bed.set("base");
    let verdict = bed.verdict(true);
    assert!(!verdict.active && verdict.reasons.contains(&Reason::NoDeferral { device: "near0".into() }), "{verdict}");
}

#[test]
fn suspension_without_epoll_parameters_is_not_active() {
    let Some(bed) = Bed::new("none") else { return };
    bed.set("suspend20");
    let verdict = bed.verdict(true);
    assert!(!verdict.active, "{verdict}");
    assert_eq!(verdict.reasons, [Reason::ParametersNotSet { unset: 1, of: 1 }], "{verdict}");
}

#[test]
fn tso_at_the_peer_keeps_packets_from_the_instance() {
    let Some(bed) = Bed::new("0,64,1") else { return };
    bed.set("suspend20");
    bed.set_tso(true);
    let verdict = bed.verdict(true);
    assert!(!verdict.active, "{verdict}");
    assert!(matches!(&verdict.reasons[..], [Reason::TsoAtPeer { peer, .. }] if peer == "far0"), "{verdict}");
}

#[test]
fn without_traffic_nothing_is_claimed() {
    let Some(bed) = Bed::new("0,64,1") else { return };
    bed.set("suspend20");
    let verdict = bed.verdict(false);
    assert!(!verdict.active, "{verdict}");
    // Tests beside this one may have traffic on a device of the same name: then it is the process that had none.
    let silent = |reason: &Reason| matches!(reason, Reason::NothingReceived { .. } | Reason::ProcessIdle);
    assert!(verdict.reasons.len() == 1 && verdict.reasons.iter().all(silent), "{verdict}");
}

#[test]
fn polling_threads_under_load_are_active() {
    let Some(bed) = Bed::new("none") else { return };
    bed.set("threaded");
    let verdict = bed.verdict(true);
    assert!(verdict.active && verdict.sentence().contains("threaded is active"), "{verdict}");
}

#[test]
fn deferral_under_load_is_active() {
    let Some(bed) = Bed::new("none") else { return };
    bed.set("defer50");
    let verdict = bed.verdict(true);
    assert!(verdict.active && verdict.sentence().contains("defer50 is active"), "{verdict}");
}

#[test]
fn a_loop_that_never_waits_is_told_from_one_that_is_slow() {
    let Some(bed) = Bed::waiting("0,64,1", "0") else { return };
    bed.set("suspend20");
    let verdict = bed.verdict(true);
    assert!(!verdict.active, "{verdict}");
    assert!(matches!(verdict.reasons[..], [Reason::ZeroTimeout { zero, of }] if zero > of / 2), "{verdict}");
}
