//! The netlink half of the crate against the real kernel, in namespaces of the test's own. Needs root.

use std::net::{TcpListener, TcpStream};

use abey_delivery::{Nanos, PollContext};
use abey_linux::device::{DeviceError, device_named, devices};
use abey_linux::features::{RX_GRO, TX_TCP_SEGMENTATION, features};
use abey_linux::napi::{NapiChange, napi, napis, rx_queues, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::probe::napi_capabilities;

mod common;

use common::{NEAR, pair};

#[test]
fn a_pair_is_ready_for_napi() {
    let Some((near, far)) = pair(2) else { return };
    let mut netlink = Netlink::open(&near).expect("netlink");
    let device = device_named(&mut netlink, "near0", "here").expect("near0");
    assert!(device.up && device.is_veth() && device.link_elsewhere && !device.loopback, "{device:?}");
    assert!(device.addresses.contains(&NEAR), "{device:?}");
    assert_eq!(device.rx_queues, 2);
    let active = features(&mut netlink, "near0").expect("features");
    assert_eq!((active.get(RX_GRO), active.get(TX_TCP_SEGMENTATION)), (Some(&true), Some(&false)));

    let instances = napis(&mut netlink, Some(device.ifindex)).expect("NAPI instances");
    assert_eq!(instances.len(), 2, "one per queue");
    let queues = rx_queues(&mut netlink, device.ifindex).expect("queues");
    assert_eq!(queues.into_values().collect::<Vec<_>>(), instances.iter().map(|napi| napi.id).collect::<Vec<_>>());

    let listener = near.run(|| TcpListener::bind((NEAR, 0)).expect("listen")).expect("enter");
    let port = listener.local_addr().expect("address").port();
    far.run(|| TcpStream::connect((NEAR, port)).expect("the ends reach each other")).expect("enter");
}

#[test]
fn the_devices_of_one_namespace_are_not_those_of_another() {
    let Some((near, far)) = pair(1) else { return };
    for (netns, here, elsewhere) in [(&near, "near0", "far0"), (&far, "far0", "near0")] {
        let mut netlink = Netlink::open(netns).expect("netlink");
        let names: Vec<String> =
            devices(&mut netlink).expect("devices").into_iter().map(|device| device.name).collect();
        assert!(names.contains(&here.to_owned()) && !names.contains(&elsewhere.to_owned()), "{names:?}");
        let error = device_named(&mut netlink, elsewhere, "the test").expect_err("not there");
        assert!(matches!(error, DeviceError::Unknown { .. }) && error.to_string().contains(here), "{error}");
    }
}

#[test]
fn settings_are_set_read_back_and_only_where_asked() {
    let Some((near, _far)) = pair(2) else { return };
    let mut netlink = Netlink::open(&near).expect("netlink");
    let able = napi_capabilities(&mut netlink).expect("probe");
    if !(able.deferral && able.suspend) {
        eprintln!("skipped: this kernel keeps no settings per NAPI instance");
        return;
    }
    let [first, second]: [_; 2] = napis(&mut netlink, None).expect("list").try_into().expect("two queues");
    let change = NapiChange {
        defer_hard_irqs: Some(100),
        gro_flush_timeout: Some(Nanos::from_micros(20)),
        irq_suspend_timeout: Some(Nanos::from_millis(20)),
        context: None,
    };
    set_napi(&mut netlink, first.id, &change).expect("set");
    let after = napi(&mut netlink, first.id).expect("read").settings();
    assert_eq!(after, change.applied_to(&first.settings()));
    assert_eq!(napi(&mut netlink, second.id).expect("read"), second, "the other instance is untouched");
    assert!(NapiChange::between(&after, &after).is_empty());
    set_napi(&mut netlink, first.id, &NapiChange::between(&after, &first.settings())).expect("put back");
    assert_eq!(napi(&mut netlink, first.id).expect("read"), first);
}

#[test]
fn a_threaded_instance_names_its_thread() {
    let Some((near, _far)) = pair(1) else { return };
    let mut netlink = Netlink::open(&near).expect("netlink");
    if !napi_capabilities(&mut netlink).expect("probe").threaded {
        eprintln!("skipped: this kernel cannot set threaded polling per NAPI instance");
        return;
    }
    let id = napis(&mut netlink, None).expect("list")[0].id;
    let to = |context| NapiChange { context: Some(context), ..NapiChange::default() };
    set_napi(&mut netlink, id, &to(PollContext::Thread)).expect("set");
    let threaded = napi(&mut netlink, id).expect("read");
    assert_eq!(threaded.context, Some(PollContext::Thread));
    let thread = threaded.thread.expect("a thread that polls");
    let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).expect("it is alive");
    assert!(name.starts_with("napi/near0"), "{name}");
    set_napi(&mut netlink, id, &to(PollContext::Softirq)).expect("put back");
    assert_eq!(napi(&mut netlink, id).expect("read").context, Some(PollContext::Softirq));
}

#[test]
fn missing_objects_and_invalid_values_are_errors_with_a_reason() {
    let Some((near, _far)) = pair(1) else { return };
    let mut netlink = Netlink::open(&near).expect("netlink");
    let missing = napi(&mut netlink, u32::MAX).expect_err("no such instance");
    assert!(missing.is_not_found(), "{missing}");
    let id = napis(&mut netlink, None).expect("list")[0].id;
    let long = NapiChange { gro_flush_timeout: Some(Nanos::from_millis(5_000)), ..NapiChange::default() };
    let error = set_napi(&mut netlink, id, &long).expect_err("does not fit").to_string();
    assert!(error.contains("5s") && error.contains("longest"), "{error}");
    let pool = NapiChange { context: Some(PollContext::Workqueue), ..NapiChange::default() };
    assert!(set_napi(&mut netlink, id, &pool).expect_err("not in Linux").to_string().contains("datapath"));
}

#[test]
fn the_error_for_an_unknown_namespace_has_its_path() {
    for name in ["abey-no-such", "..", "a/b", ""] {
        let error = NetNs::named(name).expect_err("unknown").to_string();
        assert!(error.contains("ip netns"), "{error}");
    }
    assert!(NetNs::of_process(u32::MAX).is_err());
}
