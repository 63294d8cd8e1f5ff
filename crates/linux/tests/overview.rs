//! The overview and the verdict with the real kernel: a small epoll server behind a veth pair. Needs root.

mod common;

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::features::{TX_TCP_SEGMENTATION, set_features};
use abey_linux::napi::{NapiChange, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::overview::{Measurement, NetnsDevices, Overview, own_device};
use abey_linux::process::inspect_tree;
use abey_linux::tracefs::Tracefs;
use abey_linux::verdict::{Reason, Verdict, judge};
use abey_testbed::echo::EchoServer;
use abey_testbed::spawn::SpawnExt;
use common::{NEAR, pair};

const INTERVAL: Duration = Duration::from_millis(300);

/// A server at one end of a pair.
struct TestBed {
    near: NetNs,
    far: NetNs,
    server: EchoServer,
}

impl TestBed {
    /// A pair with a server of these epoll parameters, or `None` with a printed reason.
    fn new(params: &str) -> Option<Self> {
        Self::waiting(params, "-1")
    }

    fn waiting(params: &str, timeout: &str) -> Option<Self> {
        let (near, far) = pair(1)?;
        if let Err(error) = Tracefs::open() {
            eprintln!("skipped: {error}");
            return None;
        }
        let server = EchoServer::start(&near, NEAR, params, timeout)?;
        Some(Self { near, far, server })
    }

    /// Sets every NAPI instance at the near end to a mode.
    fn set(&self, mode: &str) {
        let mut netlink = Netlink::open(&self.near).expect("netlink");
        let settings = mode.parse::<Mode>().expect(mode).settings().napi;
        for napi in napis(&mut netlink, None).expect("list") {
            set_napi(&mut netlink, napi.id, &NapiChange::between(&napi.settings(), &settings)).expect("set");
        }
    }

    /// Sets the TCP segmentation offload of the peer.
    fn set_tso(&self, on: bool) {
        let mut netlink = Netlink::open(&self.far).expect("netlink");
        set_features(&mut netlink, "far0", &[(TX_TCP_SEGMENTATION, on)]).expect("offload");
    }

    fn overview(&self) -> Overview {
        // Only the other end of this pair: other tests have namespaces with devices of the same names and indices.
        let resident = Command::new("sleep").arg("9").in_netns(&self.far).dies_with_parent().spawn();
        let mut resident = resident.expect("sleep");
        let far = NetNs::of_process(resident.id()).ok().and_then(NetnsDevices::read).expect("the far end");
        let overview = Overview::read(&self.near, &[far]).expect("overview");
        resident.kill().and_then(|()| resident.wait()).expect("end");
        overview
    }

    /// The verdict on the server while it is under load or idle.
    fn verdict(&self, load: bool) -> Verdict {
        if load { self.server.under_load(&self.far, || self.judged()) } else { self.judged() }
    }

    fn judged(&self) -> Verdict {
        let pid = self.server.pid();
        let overview = self.overview();
        let views = inspect_tree(pid).expect("inspect");
        let device = overview.device("near0").expect("near0");
        assert_eq!(own_device(&overview, &views).map(|own| &own.device.name), Some(&device.device.name));
        let measurement = Measurement::start(&[device], Some(("near0", &views)));
        sleep(INTERVAL);
        let views = inspect_tree(pid).expect("inspect");
        judge(&measurement.finish().facts(&overview, device, views))
    }
}

#[test]
fn a_pair_is_shown_with_its_instances_and_its_other_end() {
    let Some((near, far)) = pair(2) else { return };
    let others: Vec<NetnsDevices> = NetnsDevices::read(far).into_iter().collect();
    let overview = Overview::read(&near, &others).expect("overview");
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
fn a_device_with_the_name_and_index_of_the_peer_is_not_mistaken_for_it() {
    let (Some((near, far)), Some((_other_near, other_far))) = (pair(1), pair(1)) else { return };
    // The same names and indices as in the namespace of the peer.
    let other_pair: Vec<NetnsDevices> = NetnsDevices::read(other_far).into_iter().collect();
    let overview = Overview::read(&near, &other_pair).expect("overview");
    let peer = overview.device("near0").expect("near0").peer.clone().expect("a veth");
    assert!(peer.expect_err("not it").contains("near0"));
    let both: Vec<NetnsDevices> = other_pair.into_iter().chain(NetnsDevices::read(far)).collect();
    let overview = Overview::read(&near, &both).expect("overview");
    assert!(overview.device("near0").expect("near0").peer.clone().expect("a veth").is_ok());
}

#[test]
fn suspension_under_load_is_active() {
    let Some(test_bed) = TestBed::new("0,64,1") else { return };
    test_bed.set("suspend20");
    let verdict = test_bed.verdict(true);
    assert!(verdict.active, "{verdict}");
    let text = verdict.to_string();
    assert!(text.starts_with("suspend20 is active for python3 (pid ") && text.contains("% of its packets'"), "{text}");
    // The same server, once nothing is deferred.
    test_bed.set("base");
    let verdict = test_bed.verdict(true);
    assert!(!verdict.active && verdict.reasons.contains(&Reason::NoDeferral { device: "near0".into() }), "{verdict}");
}

#[test]
fn suspension_without_epoll_parameters_is_not_active() {
    let Some(test_bed) = TestBed::new("none") else { return };
    test_bed.set("suspend20");
    let verdict = test_bed.verdict(true);
    assert!(!verdict.active, "{verdict}");
    assert_eq!(verdict.reasons, [Reason::ParametersNotSet { unset: 1, of: 1 }], "{verdict}");
}

#[test]
fn tso_at_the_peer_keeps_packets_from_the_instance() {
    let Some(test_bed) = TestBed::new("0,64,1") else { return };
    test_bed.set("suspend20");
    test_bed.set_tso(true);
    let verdict = test_bed.verdict(true);
    assert!(!verdict.active, "{verdict}");
    assert!(matches!(&verdict.reasons[..], [Reason::TsoAtPeer { peer, .. }] if peer == "far0"), "{verdict}");
}

#[test]
fn without_traffic_no_mode_is_active() {
    let Some(test_bed) = TestBed::new("0,64,1") else { return };
    test_bed.set("suspend20");
    let verdict = test_bed.verdict(false);
    assert!(!verdict.active, "{verdict}");
    // Concurrent tests may have traffic on a device of the same name. Then the reason is that the process had none.
    let silent = |reason: &Reason| matches!(reason, Reason::NothingReceived { .. } | Reason::ProcessIdle);
    assert!(verdict.reasons.len() == 1 && verdict.reasons.iter().all(silent), "{verdict}");
}

#[test]
fn polling_threads_under_load_are_active() {
    let Some(test_bed) = TestBed::new("none") else { return };
    test_bed.set("threaded");
    let verdict = test_bed.verdict(true);
    assert!(verdict.active && verdict.sentence().contains("threaded is active"), "{verdict}");
}

#[test]
fn deferral_under_load_is_active() {
    let Some(test_bed) = TestBed::new("none") else { return };
    test_bed.set("defer50");
    let verdict = test_bed.verdict(true);
    assert!(verdict.active && verdict.sentence().contains("defer50 is active"), "{verdict}");
}

#[test]
fn a_loop_that_never_waits_is_distinguished_from_a_slow_one() {
    let Some(test_bed) = TestBed::waiting("0,64,1", "0") else { return };
    test_bed.set("suspend20");
    let verdict = test_bed.verdict(true);
    assert!(!verdict.active, "{verdict}");
    assert!(matches!(verdict.reasons[..], [Reason::ZeroTimeout { zero, of }] if zero > of / 2), "{verdict}");
}
