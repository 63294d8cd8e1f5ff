//! NAPI settings: planned, applied, restored, and restored after a crash. Needs root.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use abey_delivery::{Mode, Nanos, NapiSettings, PollContext};
use abey_linux::device::{Device, device_named};
use abey_linux::kernel::NetnsHandle;
use abey_linux::napi::{NapiChange, napi, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_reconcile::{
    Applied, ApplyError, Plan, RUNTIME_UNITS, Restored, Step, Target, Transaction, restore_abandoned,
};
use abey_testbed::spawn::SpawnExt;
use common::pair;

struct TestBed {
    netns: NetNs,
    _far: NetNs,
    device: Device,
    capabilities: NapiCapabilities,
    journals: tempfile::TempDir,
}

impl TestBed {
    fn new(queues: u32) -> Option<Self> {
        let (netns, far) = pair(queues)?;
        let mut netlink = Netlink::open(&netns).expect("netlink");
        let capabilities = napi_capabilities(&mut netlink).expect("probe");
        if !capabilities.suspend {
            eprintln!("skipped: this kernel has no IRQ suspension");
            return None;
        }
        let device = device_named(&mut netlink, "near0", "here").expect("near0");
        Some(Self { netns, _far: far, device, capabilities, journals: tempfile::tempdir().expect("directory") })
    }

    fn open(&self) -> NetnsHandle {
        NetnsHandle::open(&self.netns).expect("namespace")
    }

    fn plan(&self, target: &Target, mode: &str) -> Result<Plan, ApplyError> {
        let settings = mode.parse::<Mode>().expect("mode").settings().napi;
        Plan::new(&mut self.open(), &self.device, target, &NapiChange::to(&settings), self.capabilities)
    }

    fn apply(&self, target: &Target, mode: &str) -> Result<Applied, ApplyError> {
        self.plan(target, mode)?.apply(self.open(), Some(self.journals.path()))
    }

    fn transaction(&self) -> Transaction {
        Transaction::begin(self.open(), Some(self.journals.path()))
    }

    fn settings(&self) -> Vec<NapiSettings> {
        let all = napis(self.open().netlink(), Some(self.device.ifindex)).expect("list");
        all.iter().map(|napi| napi.settings()).collect()
    }

    fn journal_count(&self) -> usize {
        fs::read_dir(self.journals.path()).expect("directory").count()
    }
}

#[test]
fn settings_are_applied_and_restored() {
    let Some(test_bed) = TestBed::new(2) else { return };
    let before = test_bed.settings();
    let wanted = "suspend20".parse::<Mode>().expect("mode").settings().napi;
    let applied = test_bed.apply(&Target::Device, "suspend20").expect("apply");
    assert_eq!(test_bed.settings(), [wanted, wanted]);
    assert_eq!(test_bed.journal_count(), 1);
    let restored = applied.restore().expect("restore");
    assert!(restored.iter().all(|step| matches!(step, Restored::Back(_))) && restored.len() == 2, "{restored:?}");
    assert_eq!(test_bed.settings(), before);
    assert_eq!(test_bed.journal_count(), 0);
}

#[test]
fn dropping_restores_the_settings() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let before = test_bed.settings();
    drop(test_bed.apply(&Target::Device, "threaded").expect("apply"));
    assert_eq!(test_bed.settings(), before);
}

#[test]
fn a_change_of_one_queue_leaves_the_others_alone() {
    let Some(test_bed) = TestBed::new(2) else { return };
    let applied = test_bed.apply(&Target::Queues(vec![1]), "defer50").expect("apply");
    let after = test_bed.settings();
    assert_eq!(after[0], NapiSettings::default());
    assert_eq!(after[1].gro_flush_timeout, Nanos::from_micros(50));
    drop(applied);
    let error = test_bed.plan(&Target::Queues(vec![7]), "defer50").expect_err("no such queue").to_string();
    assert!(error.contains("no receive queue 7") && error.contains("0, 1"), "{error}");
}

#[test]
fn a_plan_describes_the_changes_and_makes_none() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let before = test_bed.settings();
    let plan = test_bed.plan(&Target::Device, "suspend20").expect("plan");
    let lines: Vec<String> = plan.steps().iter().flat_map(Step::changes).map(|change| change.to_string()).collect();
    assert!(lines.iter().any(|line| line.ends_with("gro-flush-timeout 0 -> 20us")), "{lines:?}");
    assert_eq!(test_bed.settings(), before);
    assert!(test_bed.plan(&Target::Device, "base").expect("plan").steps().is_empty());
}

#[test]
fn a_second_holder_of_an_instance_is_refused() {
    let Some(test_bed) = TestBed::new(2) else { return };
    let first = test_bed.apply(&Target::Queues(vec![0]), "defer20").expect("apply");
    let error = test_bed.apply(&Target::Device, "defer50").expect_err("held");
    assert!(matches!(error, ApplyError::Held { pid, .. } if pid == std::process::id()), "{error}");
    let other = test_bed.apply(&Target::Queues(vec![1]), "defer50").expect("another instance is free");
    drop((first, other));
}

#[test]
fn a_holder_is_a_conflict_even_for_a_plan_without_changes() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let first = test_bed.apply(&Target::Device, "suspend20").expect("apply");
    // The first holder would restore the settings under the second one.
    assert!(matches!(test_bed.apply(&Target::Device, "suspend20"), Err(ApplyError::Held { .. })));
    drop(first);
    drop(test_bed.apply(&Target::Device, "suspend20").expect("free again"));
}

#[test]
fn one_of_two_simultaneous_holders_is_refused() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let (plan, start) = (test_bed.plan(&Target::Device, "defer50").expect("plan"), Barrier::new(2));
    let apply = || {
        let (plan, place) = (plan.clone(), test_bed.open());
        start.wait();
        plan.apply(place, Some(test_bed.journals.path()))
    };
    for _ in 0..20 {
        // Neither result is dropped before both are known.
        let both = thread::scope(|scope| {
            let (one, other) = (scope.spawn(apply), scope.spawn(apply));
            [one.join().expect("no panic"), other.join().expect("no panic")]
        });
        let held = both.iter().filter(|one| matches!(one, Err(ApplyError::Held { .. }))).count();
        assert_eq!((held, both.iter().filter(|one| one.is_ok()).count()), (1, 1), "{both:?}");
    }
    assert_eq!(test_bed.journal_count(), 0);
}

#[test]
fn a_timeout_beyond_32_bits_of_nanoseconds_is_refused() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let long = NapiChange { gro_flush_timeout: Some(Nanos::from_millis(5000)), ..NapiChange::default() };
    let error = Plan::new(&mut test_bed.open(), &test_bed.device, &Target::Device, &long, test_bed.capabilities)
        .expect_err("too long");
    assert!(matches!(error, ApplyError::TooLong { setting: "gro-flush-timeout", .. }), "{error}");
}

#[test]
fn a_setting_that_another_program_changed_is_not_restored() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let applied = test_bed.apply(&Target::Device, "defer50").expect("apply");
    let id = napis(test_bed.open().netlink(), None).expect("list")[0].id;
    let theirs = NapiChange { gro_flush_timeout: Some(Nanos::from_micros(77)), ..NapiChange::default() };
    set_napi(test_bed.open().netlink(), id, &theirs).expect("set");
    let restored = applied.restore().expect("restore");
    assert!(matches!(restored[..], [Restored::ChangedSince(_)]), "{restored:?}");
    let after = napi(test_bed.open().netlink(), id).expect("read").settings();
    assert_eq!((after.defer_hard_irqs, after.gro_flush_timeout), (0, Nanos::from_micros(77)));
}

#[test]
fn only_journals_of_ended_processes_are_restored() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let before = test_bed.settings();
    let applied = test_bed.apply(&Target::Device, "suspend50").expect("apply");
    assert_eq!(restore_abandoned(test_bed.journals.path(), Path::new(RUNTIME_UNITS)).expect("nothing to do"), []);

    // A killed process leaves its journal and its settings.
    std::mem::forget(applied);
    let path = fs::read_dir(test_bed.journals.path()).expect("directory").next().expect("one").expect("entry").path();
    let live = fs::read_to_string(&path).expect("journal");
    let dead = live.replace(&format!("\"pid\": {}", std::process::id()), "\"pid\": 4194304");
    assert_ne!(live, dead);
    fs::write(&path, dead).expect("write");

    // A namespace without a name is found through a process in it.
    let mut resident = Command::new("sleep").arg("60").in_netns(&test_bed.netns).spawn().expect("sleep");
    let restored = restore_abandoned(test_bed.journals.path(), Path::new(RUNTIME_UNITS));
    resident.kill().and_then(|()| resident.wait()).expect("end");
    let restored = restored.expect("restore");
    assert!(matches!(restored[..], [Restored::Back(_)]), "{restored:?}");
    assert_eq!(test_bed.settings(), before);
    assert_eq!(test_bed.journal_count(), 0);
}

#[test]
fn a_truncated_journal_is_removed_and_another_file_is_an_error() {
    let directory = tempfile::tempdir().expect("directory");
    fs::write(directory.path().join("1-0.json"), "{\"pid\": 1,").expect("write");
    assert_eq!(
        restore_abandoned(directory.path(), Path::new(RUNTIME_UNITS)).expect("cut off before anything changed"),
        []
    );
    fs::write(directory.path().join("1-1.json"), "[]").expect("write");
    let error = restore_abandoned(directory.path(), Path::new(RUNTIME_UNITS)).expect_err("not a journal").to_string();
    assert!(error.contains("1-1.json"), "{error}");
    assert_eq!(
        restore_abandoned(&directory.path().join("none"), Path::new(RUNTIME_UNITS)).expect("no journals at all"),
        []
    );
}

#[test]
fn a_kernel_without_settings_per_instance_gets_the_device_wide_files_with_a_warning() {
    let Some(mut test_bed) = TestBed::new(2) else { return };
    test_bed.capabilities = NapiCapabilities { list: true, ..NapiCapabilities::default() };
    let before = test_bed.settings();
    let plan = test_bed.plan(&Target::Device, "defer50").expect("plan");
    assert!(plan.warnings().iter().all(|line| line.contains("every NAPI")) && !plan.warnings().is_empty());
    let applied = plan.apply(test_bed.open(), Some(test_bed.journals.path())).expect("apply");
    // The instances have the value of the device's file, which proves that the `/sys` of the right namespace was opened.
    assert!(test_bed.settings().iter().all(|napi| napi.gro_flush_timeout == Nanos::from_micros(50)));
    drop(applied);
    assert_eq!(test_bed.settings(), before);
    let part = test_bed.plan(&Target::Queues(vec![0]), "defer50").expect_err("a part of the device");
    assert!(matches!(part, ApplyError::OnlyWholeDevice { instances: 2, .. }), "{part}");
    assert!(matches!(test_bed.plan(&Target::Device, "suspend20"), Err(ApplyError::Unsupported { .. })));
}

#[test]
fn contradictory_or_unsupported_settings_are_refused_by_the_plan() {
    let Some(test_bed) = TestBed::new(1) else { return };
    let lonely = NapiChange { irq_suspend_timeout: Some(Nanos::from_millis(20)), ..NapiChange::default() };
    let error = Plan::new(&mut test_bed.open(), &test_bed.device, &Target::Device, &lonely, test_bed.capabilities)
        .expect_err("no deferral");
    assert!(error.to_string().contains("without deferral"), "{error}");
    let busy = NapiChange { context: Some(PollContext::BusyThread), ..NapiChange::default() };
    if !test_bed.capabilities.threaded_busy {
        let error = Plan::new(&mut test_bed.open(), &test_bed.device, &Target::Device, &busy, test_bed.capabilities)
            .expect_err("too new");
        assert!(matches!(error, ApplyError::Unsupported { .. }), "{error}");
    }
    let mut netlink = Netlink::open(&test_bed.netns).expect("netlink");
    let loopback = device_named(&mut netlink, "lo", "here").expect("lo");
    let none =
        Plan::new(&mut test_bed.open(), &loopback, &Target::Device, &NapiChange::default(), test_bed.capabilities);
    assert!(matches!(none, Err(ApplyError::NoNapi { .. })), "{none:?}");
}

#[test]
fn settings_that_were_replaced_several_times_are_restored_in_one_step() {
    let Some(test_bed) = TestBed::new(2) else { return };
    let before = test_bed.settings();
    let mut transaction = test_bed.transaction();
    transaction.replace(test_bed.plan(&Target::Device, "base").expect("plan")).expect("nothing to do");
    assert_eq!(test_bed.journal_count(), 0);
    for mode in ["defer50", "suspend20", "suspend20", "defer20", "threaded"] {
        transaction.replace(test_bed.plan(&Target::Device, mode).expect("plan")).expect("replace");
        let wanted = mode.parse::<Mode>().expect("mode").settings().napi;
        assert_eq!((test_bed.settings(), test_bed.journal_count()), (vec![wanted, wanted], 1), "{mode}");
    }
    let error = test_bed.apply(&Target::Queues(vec![1]), "defer50").expect_err("held");
    assert!(matches!(error, ApplyError::Held { .. }), "{error}");
    assert_eq!(transaction.steps().len(), 2, "one for each instance");
    let restored = transaction.roll_back().expect("rolled back");
    assert!(restored.iter().all(|step| matches!(step, Restored::Back(_))), "{restored:?}");
    assert_eq!((test_bed.settings(), test_bed.journal_count()), (before, 0));
}

#[test]
fn a_replacement_of_settings_that_another_process_holds_is_refused() {
    let Some(test_bed) = TestBed::new(2) else { return };
    let mut transaction = test_bed.transaction();
    transaction.replace(test_bed.plan(&Target::Queues(vec![0]), "defer20").expect("plan")).expect("replace");
    let other = test_bed.apply(&Target::Queues(vec![1]), "defer50").expect("another instance");
    let both = test_bed.settings();
    let error = transaction.replace(test_bed.plan(&Target::Device, "suspend20").expect("plan")).expect_err("held");
    assert!(matches!(error, ApplyError::Held { .. }), "{error}");
    assert_eq!((test_bed.settings(), test_bed.journal_count()), (both, 2));
    drop((transaction, other));
    assert_eq!(test_bed.journal_count(), 0);
}
