//! The kernel: the snapshot, and every change that a veth supports, made and undone. Needs root.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use abey_delivery::Mode;
use abey_linux::counters::Interrupts;
use abey_linux::cpu::{CpuList, Scheduling, SchedulingPolicy, irq_affinity};
use abey_linux::device::{DeviceId, device_named};
use abey_linux::ethtool::{ChannelCounts, FlowProtocol, FlowTarget, PortFlow};
use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::{Cause, DeviceState, Feature, Link, MachineError, Snapshot};
use abey_linux::napi::NapiChange;
use abey_linux::netns::NetNs;
use abey_policy::Change;
use abey_reconcile::{Plan, RUNTIME_UNITS, Restored, Step, Target, Transaction, restore_abandoned, steps_for};
use abey_testbed::spawn::SpawnExt;
use common::pair;

struct TestBed {
    netns: NetNs,
    _far: NetNs,
    handle: NetnsHandle,
}

impl TestBed {
    fn new(queues: u32) -> Option<Self> {
        let (netns, far) = pair(queues)?;
        let handle = NetnsHandle::open(&netns).expect("namespace");
        Some(Self { netns, _far: far, handle })
    }

    fn state(&mut self) -> DeviceState {
        let mut state = Snapshot::read_at(&mut self.handle).expect("snapshot").device("near0").expect("near0").clone();
        // The kernel gives it an address of its own when the link is ready, which may be between two readings.
        state.device.addresses.clear();
        state
    }

    fn id(&mut self) -> DeviceId {
        device_named(self.handle.netlink(), "near0", "here").expect("near0").id()
    }

    fn begin(&self, journals: &tempfile::TempDir) -> Transaction {
        Transaction::begin(NetnsHandle::open(&self.netns).expect("namespace"), Some(journals.path()))
    }
}

fn cpus(text: &str) -> CpuList {
    text.parse().expect("CPUs")
}

fn queues(count: u32) -> ChannelCounts {
    ChannelCounts { rx: Some(count), tx: Some(count), combined: None }
}

/// A plan of one mode for the whole device.
fn plan(handle: &mut NetnsHandle, mode: &str) -> Plan {
    let device = device_named(handle.netlink(), "near0", "here").expect("near0");
    let capabilities = abey_linux::probe::napi_capabilities(handle.netlink()).expect("probe");
    let settings = mode.parse::<Mode>().expect("mode").settings().napi;
    Plan::new(handle, &device, &Target::Device, &NapiChange::to(&settings), capabilities).expect("plan")
}

#[test]
fn the_snapshot_of_a_veth_has_a_reason_for_each_unsupported_feature() {
    let Some(mut test_bed) = TestBed::new(4) else { return };
    let state = test_bed.state();
    assert_eq!(state.driver.as_ref().expect("driver").name, "veth");
    assert_eq!((&state.pci, state.address.as_ref().map(String::len)), (&None, Some(17)));
    let channels = state.channels.as_ref().expect("channels");
    assert_eq!((channels.rx_queues(), channels.most_rx_queues()), (4, 4));
    assert_eq!(
        state.queues.iter().map(|queue| (queue.queue, queue.link)).collect::<Vec<_>>(),
        [(0, Link::Order), (1, Link::Order), (2, Link::Order), (3, Link::Order)]
    );
    assert_eq!(state.napis.len(), 4);
    assert_eq!(state.napi_of_queue(2).expect("its NAPI").rx_queues, [2]);
    let xps = state.xps.as_ref().expect("several transmit queues");
    assert!(xps.len() == 4 && xps.values().all(CpuList::is_empty), "{xps:?}");
    let lacks = state.unavailable();
    for feature in [Feature::Rss, Feature::RssContexts, Feature::FlowRules, Feature::Irq] {
        let lack = lacks.iter().find(|lack| lack.feature == feature).unwrap_or_else(|| panic!("{feature}: {lacks:?}"));
        assert!(matches!(&lack.why, Cause::Unsupported { reason } if !reason.is_empty()), "{lack:?}");
    }
    let loopback = Snapshot::read(&test_bed.netns).expect("snapshot").device("lo").expect("lo").clone();
    assert!(loopback.xps.is_err() && loopback.channels.is_err() && loopback.napis.is_empty());
}

#[test]
fn unsupported_changes_of_a_veth_fail_with_its_name_and_change_nothing() {
    let Some(mut test_bed) = TestBed::new(2) else { return };
    let (device, before) = (test_bed.id(), test_bed.state());
    let flow = PortFlow { protocol: FlowProtocol::Udp6, port: 53 };
    let journals = tempfile::tempdir().expect("directory");
    let mut transaction = test_bed.begin(&journals);
    for change in [
        Change::Spread { device: device.clone(), context: 0, queues: vec![0] },
        Change::Context { device: device.clone(), queues: vec![1] },
        Change::Rule { device: device.clone(), flow, target: FlowTarget::Queue(1) },
    ] {
        let error = transaction.make(&change).expect_err("a veth has none of it");
        assert!(error.is_unsupported() && error.to_string().contains("near0"), "{error}");
    }
    let combined = ChannelCounts { combined: Some(2), ..ChannelCounts::default() };
    let error =
        transaction.make(&Change::Channels { device: device.clone(), counts: combined }).expect_err("rx and tx");
    assert!(error.to_string().contains("near0"), "{error}");
    let error =
        transaction.make(&Change::Xps { device: device.clone(), queue: 7, cpus: cpus("0") }).expect_err("no queue");
    assert!(error.to_string().contains("transmit queue 7"), "{error}");
    let napi = before.napis[0].napi.id;
    let pinned = Change::Thread { device: device.clone(), napi, cpus: Some(cpus("0")), scheduling: None };
    let error = transaction.make(&pinned).expect_err("not threaded").to_string();
    assert!(error.contains("not threaded"), "{error}");
    let other = DeviceId { ifindex: device.ifindex + 1000, ..device };
    for change in [
        Change::Channels { device: other.clone(), counts: queues(1) },
        Change::Xps { device: other.clone(), queue: 0, cpus: cpus("0") },
        Change::Context { device: other, queues: vec![0] },
    ] {
        let error = steps_for(&change, transaction.host()).expect_err("another device of the name");
        assert!(error.is_gone(), "{error}");
    }
    drop(transaction);
    assert_eq!(test_bed.state(), before);
}

#[test]
fn channels_threads_and_maps_are_changed_and_restored() {
    let Some(mut test_bed) = TestBed::new(4) else { return };
    let device = test_bed.id();
    let journals = tempfile::tempdir().expect("directory");
    // Settings of a queue and a map of another one, both of which are lost with fewer queues.
    plan(&mut test_bed.handle, "defer50")
        .apply(NetnsHandle::open(&test_bed.netns).expect("namespace"), None)
        .expect("apply")
        .keep();
    let map = Change::Xps { device: device.clone(), queue: 3, cpus: cpus("0") };
    let mut past = test_bed.begin(&journals);
    assert_eq!(past.make(&map).expect("XPS").changes.len(), 1);
    past.finish().keep();
    let before = test_bed.state();
    let settings_before: Vec<_> = before.napis.iter().map(|napi| napi.napi.settings()).collect();

    let mut transaction = test_bed.begin(&journals);
    let fewer = Change::Channels { device: device.clone(), counts: queues(2) };
    let lines: Vec<String> = transaction.make(&fewer).expect("fewer").changes.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["near0 channels: rx 4 -> 2", "near0 channels: tx 4 -> 2"]);
    assert_eq!(transaction.make(&fewer).expect("again").changes, []);
    let threaded = plan(transaction.host(), "threaded");
    assert!(!transaction.make_plan(threaded).expect("threaded").changes.is_empty());
    let now = Snapshot::read_at(transaction.host()).expect("snapshot").device("near0").expect("near0").clone();
    assert_eq!(now.queues.len(), 2);
    let napi = now.napi_of_queue(1).expect("its NAPI");
    let thread = napi.thread.as_ref().expect("threaded").as_ref().expect("readable");
    let fifo = Scheduling::new(SchedulingPolicy::Fifo, 7, 0).expect("sound");
    let pin = Change::Thread { device, napi: napi.napi.id, cpus: Some(cpus("0")), scheduling: Some(fifo) };
    assert_eq!(transaction.make(&pin).expect("pinned").changes.len(), 2);
    assert_eq!(transaction.make(&pin).expect("again").changes, []);
    assert_eq!(Scheduling::of_thread(thread.tid).expect("read"), fifo);
    assert_eq!(fs::read_dir(journals.path()).expect("directory").count(), 1);

    let restored = transaction.roll_back().expect("back");
    assert!(restored.iter().all(|one| matches!(one, Restored::Back(_))), "{restored:?}");
    let after = test_bed.state();
    assert_eq!(after.channels, before.channels);
    assert_eq!(after.xps, before.xps);
    assert_eq!(after.napis.iter().map(|napi| napi.napi.settings()).collect::<Vec<_>>(), settings_before);
    assert_eq!(fs::read_dir(journals.path()).expect("directory").count(), 0);
}

#[test]
fn the_changes_of_a_killed_process_are_undone_from_its_journal() {
    let Some(mut test_bed) = TestBed::new(4) else { return };
    let (device, before) = (test_bed.id(), test_bed.state());
    let journals = tempfile::tempdir().expect("directory");
    let mut transaction = test_bed.begin(&journals);
    transaction.make(&Change::Channels { device: device.clone(), counts: queues(3) }).expect("fewer");
    transaction.make(&Change::Xps { device, queue: 1, cpus: cpus("0") }).expect("XPS");
    // A killed process leaves its journal and its settings.
    std::mem::forget(transaction);
    let path = fs::read_dir(journals.path()).expect("directory").next().expect("one").expect("entry").path();
    let live = fs::read_to_string(&path).expect("journal");
    let dead = live.replace(&format!("\"pid\": {}", std::process::id()), "\"pid\": 4194304");
    fs::write(&path, dead).expect("write");
    let mut resident = Command::new("sleep").arg("60").in_netns(&test_bed.netns).spawn().expect("sleep");
    let restored = restore_abandoned(journals.path(), Path::new(RUNTIME_UNITS));
    resident.kill().and_then(|()| resident.wait()).expect("end");
    let restored = restored.expect("restore");
    assert!(matches!(restored[..], [Restored::Back(Step::Xps(_)), Restored::Back(Step::Channels(_))]), "{restored:?}");
    let after = test_bed.state();
    assert_eq!((after.channels, after.xps), (before.channels, before.xps));
}

#[test]
fn undoing_changes_of_a_removed_device_is_no_error() {
    let Some(mut test_bed) = TestBed::new(2) else { return };
    let device = test_bed.id();
    let journals = tempfile::tempdir().expect("directory");
    let mut transaction = test_bed.begin(&journals);
    transaction.make(&Change::Channels { device: device.clone(), counts: queues(1) }).expect("fewer");
    let mut delete = Command::new("ip");
    delete.args(["link", "delete", "near0"]).in_netns(&test_bed.netns).stdout(Stdio::null());
    assert!(delete.status().expect("ip runs").success());
    let error =
        transaction.make(&Change::Xps { device, queue: 0, cpus: cpus("0") }).expect_err("the device was removed");
    assert!(matches!(&error, abey_reconcile::ApplyError::Machine(MachineError::Gone { .. })), "{error}");
    let restored = transaction.roll_back().expect("nothing to put back");
    assert!(matches!(restored[..], [Restored::Missing(Step::Channels(_))]), "{restored:?}");
    assert_eq!(fs::read_dir(journals.path()).expect("directory").count(), 0);
}

#[test]
fn a_process_is_pinned_with_all_threads_and_restored() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root to pin another process");
        return;
    }
    let netns = NetNs::current().expect("namespace");
    let mut resident = Command::new("sleep").arg("60").dies_with_parent().spawn().expect("sleep");
    let pid = resident.id();
    let before = abey_linux::cpu::process_affinity(pid).expect("read");
    let mut transaction = Transaction::begin(NetnsHandle::open(&netns).expect("namespace"), None);
    let pin = Change::Process { pid, cpus: cpus("0") };
    transaction.make(&pin).expect("pinned");
    assert_eq!(abey_linux::cpu::process_affinity(pid).expect("read"), cpus("0"));
    assert_eq!(transaction.make(&pin).expect("again").changes, []);
    transaction.roll_back().expect("back");
    assert_eq!(abey_linux::cpu::process_affinity(pid).expect("read"), before);
    resident.kill().and_then(|()| resident.wait()).expect("end");
}

#[test]
fn a_nic_on_a_bus_is_read_with_its_interrupts() {
    let netns = NetNs::current().expect("namespace");
    let Ok(mut handle) = NetnsHandle::open(&netns) else {
        eprintln!("skipped: needs a kernel that lists its devices");
        return;
    };
    let all = Snapshot::read_at(&mut handle).expect("snapshot");
    let Some(state) = all.devices.iter().find(|state| state.pci.is_some() && !state.napis.is_empty()) else {
        eprintln!("skipped: no NIC on a PCI bus here");
        return;
    };
    let pci = state.pci.as_deref().expect("found by it");
    assert_eq!(pci.len(), 12, "{pci}");
    assert!(state.address.is_some() && state.driver.is_ok(), "{state:?}");
    for irq in state.napis.iter().filter_map(|napi| napi.irq.as_ref().ok()) {
        let cpus = irq.cpus.as_ref().expect("an interrupt has CPUs").clone();
        let stay = Change::Irq { device: state.id(), irq: irq.irq, cpus };
        assert_eq!(steps_for(&stay, &mut handle).expect("readable"), []);
    }
    println!("{}: {pci}, {:?}", state.device.name, state.napis.iter().map(|napi| &napi.irq).collect::<Vec<_>>());
}

#[test]
fn without_capabilities_the_one_that_lacks_is_named() {
    let Some(mut test_bed) = TestBed::new(2) else { return };
    let device = test_bed.id();
    plan(&mut test_bed.handle, "threaded")
        .apply(NetnsHandle::open(&test_bed.netns).expect("namespace"), None)
        .expect("apply")
        .keep();
    let napi = test_bed.state().napis[0].napi.id;
    let netns = &test_bed.netns;
    // Capabilities are a thread's own: this one gives its up, and no other test sees it.
    let errors = std::thread::scope(|scope| {
        let without = scope.spawn(|| {
            let mut transaction = Transaction::begin(NetnsHandle::open(netns).expect("namespace"), None);
            let mut sets = rustix::thread::capabilities(None).expect("read");
            sets.effective = rustix::thread::CapabilitySet::empty();
            rustix::thread::set_capabilities(None, sets).expect("given up");
            let idle = Scheduling::new(SchedulingPolicy::Fifo, 1, 0).expect("sound");
            [
                Change::Channels { device: device.clone(), counts: queues(1) },
                Change::Xps { device: device.clone(), queue: 0, cpus: cpus("0") },
                Change::Thread { device, napi, cpus: None, scheduling: Some(idle) },
            ]
            .map(|change| transaction.make(&change).expect_err("not allowed").to_string())
        });
        without.join().expect("no panic")
    });
    for (error, capability) in errors.iter().zip(["CAP_NET_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_NICE"]) {
        assert!(error.contains(capability) && error.contains("near0"), "{error}");
    }
}

/// Returns an unused interrupt: that of a virtio queue which has had none since boot.
fn idle_irq() -> Option<u32> {
    let all = Interrupts::read().expect("/proc/interrupts");
    let unused = all.lines.iter().filter(|line| line.total() == 0 && line.description.contains("MSI"));
    let mut unused =
        unused.filter(|line| ["-config", "-inflate", "-deflate"].iter().any(|end| line.description.ends_with(end)));
    let found = unused.find_map(|line| line.irq.parse().ok().filter(|irq| irq_affinity(*irq).is_ok()));
    if found.is_none() {
        eprintln!("skipped: every interrupt is used, or cannot be moved");
    }
    found
}

#[test]
fn an_interrupt_goes_to_its_cpus_and_back() {
    let Some(mut test_bed) = TestBed::new(1) else { return };
    let (Some(irq), online) = (idle_irq(), CpuList::online().expect("CPUs")) else { return };
    let before = irq_affinity(irq).expect("readable");
    let Some(target) = online.iter().map(CpuList::from).find(|one| *one != before) else {
        eprintln!("skipped: this machine has one CPU");
        return;
    };
    let journals = tempfile::tempdir().expect("directory");
    let change = Change::Irq { device: test_bed.id(), irq, cpus: target.clone() };
    let mut transaction = test_bed.begin(&journals);
    assert_eq!(transaction.make(&change).expect("possible").changes.len(), 1);
    assert_eq!(irq_affinity(irq).expect("readable"), target);
    assert_eq!(transaction.make(&change).expect("possible").changes, []);
    let kept = transaction.steps().to_vec();
    assert!(matches!(transaction.roll_back().expect("possible")[..], [Restored::Back(Step::Irq(_))]));
    assert_eq!(irq_affinity(irq).expect("readable"), before);
    // Kept, and put back as a change of its own.
    let mut transaction = test_bed.begin(&journals);
    transaction.make(&change).expect("possible");
    let (made, left) = transaction.put_back(&kept[0]).expect("possible");
    assert_eq!((made.changes.len(), left), (1, false));
    transaction.finish().keep();
    assert_eq!(irq_affinity(irq).expect("readable"), before);
}
