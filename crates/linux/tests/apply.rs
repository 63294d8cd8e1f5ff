//! Settings as a whole: planned, applied, put back, and found again after a crash. Needs root.

mod common;

use std::fs;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use abey_delivery::{Mode, Nanos, NapiSettings, PollContext};
use abey_linux::apply::{Applied, ApplyError, Place, Plan, Restored, Step, Target, Transaction, restore_abandoned};
use abey_linux::device::{Device, device_named};
use abey_linux::napi::{NapiChange, napi, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_linux::spawn::CommandPlace;
use common::pair;

struct Bed {
    netns: NetNs,
    _far: NetNs,
    device: Device,
    able: NapiCapabilities,
    journals: tempfile::TempDir,
}

impl Bed {
    fn new(queues: u32) -> Option<Self> {
        let (netns, far) = pair(queues)?;
        let mut netlink = Netlink::open(&netns).expect("netlink");
        let able = napi_capabilities(&mut netlink).expect("probe");
        if !able.suspend {
            eprintln!("skipped: this kernel has no IRQ suspension");
            return None;
        }
        let device = device_named(&mut netlink, "near0", "here").expect("near0");
        Some(Self { netns, _far: far, device, able, journals: tempfile::tempdir().expect("directory") })
    }

    fn place(&self) -> Place {
        Place::open(&self.netns).expect("place")
    }

    fn plan(&self, target: &Target, mode: &str) -> Result<Plan, ApplyError> {
        let settings = mode.parse::<Mode>().expect("mode").settings().napi;
        Plan::new(&mut self.place(), &self.device, target, &NapiChange::to(&settings), self.able)
    }

    fn apply(&self, target: &Target, mode: &str) -> Result<Applied, ApplyError> {
        self.plan(target, mode)?.apply(self.place(), Some(self.journals.path()))
    }

    fn transaction(&self) -> Transaction {
        Transaction::begin(self.place(), Some(self.journals.path()))
    }

    fn settings(&self) -> Vec<NapiSettings> {
        let all = napis(self.place().netlink(), Some(self.device.ifindex)).expect("list");
        all.iter().map(|napi| napi.settings()).collect()
    }

    fn journal_count(&self) -> usize {
        fs::read_dir(self.journals.path()).expect("directory").count()
    }
}

#[test]
fn settings_are_in_force_then_back() {
    let Some(bed) = Bed::new(2) else { return };
    let before = bed.settings();
    let wanted = "suspend20".parse::<Mode>().expect("mode").settings().napi;
    let applied = bed.apply(&Target::Device, "suspend20").expect("apply");
    assert_eq!(bed.settings(), [wanted, wanted]);
    assert_eq!(bed.journal_count(), 1);
    let restored = applied.restore().expect("restore");
    assert!(restored.iter().all(|step| matches!(step, Restored::Back(_))) && restored.len() == 2, "{restored:?}");
    assert_eq!(bed.settings(), before);
    assert_eq!(bed.journal_count(), 0);
}

#[test]
fn leaving_the_scope_puts_back_as_well() {
    let Some(bed) = Bed::new(1) else { return };
    let before = bed.settings();
    drop(bed.apply(&Target::Device, "threaded").expect("apply"));
    assert_eq!(bed.settings(), before);
}

#[test]
fn one_queue_is_changed_and_its_neighbour_is_not() {
    let Some(bed) = Bed::new(2) else { return };
    let applied = bed.apply(&Target::Queues(vec![1]), "defer50").expect("apply");
    let after = bed.settings();
    assert_eq!(after[0], NapiSettings::default());
    assert_eq!(after[1].gro_flush_timeout, Nanos::from_micros(50));
    drop(applied);
    let error = bed.plan(&Target::Queues(vec![7]), "defer50").expect_err("no such queue").to_string();
    assert!(error.contains("no receive queue 7") && error.contains("0, 1"), "{error}");
}

#[test]
fn a_plan_changes_nothing_and_says_what_it_would() {
    let Some(bed) = Bed::new(1) else { return };
    let before = bed.settings();
    let plan = bed.plan(&Target::Device, "suspend20").expect("plan");
    let lines: Vec<String> = plan.steps().iter().flat_map(Step::changes).map(|change| change.to_string()).collect();
    assert!(lines.iter().any(|line| line.ends_with("gro-flush-timeout 0 -> 20us")), "{lines:?}");
    assert_eq!(bed.settings(), before);
    assert!(bed.plan(&Target::Device, "base").expect("plan").steps().is_empty());
}

#[test]
fn two_holders_of_one_instance_are_refused() {
    let Some(bed) = Bed::new(2) else { return };
    let first = bed.apply(&Target::Queues(vec![0]), "defer20").expect("apply");
    let error = bed.apply(&Target::Device, "defer50").expect_err("held");
    assert!(matches!(error, ApplyError::Held { pid, .. } if pid == std::process::id()), "{error}");
    let other = bed.apply(&Target::Queues(vec![1]), "defer50").expect("another instance is free");
    drop((first, other));
}

#[test]
fn a_holder_is_respected_also_by_those_who_have_nothing_to_change() {
    let Some(bed) = Bed::new(1) else { return };
    let first = bed.apply(&Target::Device, "suspend20").expect("apply");
    // It would go when the first holder does.
    assert!(matches!(bed.apply(&Target::Device, "suspend20"), Err(ApplyError::Held { .. })));
    drop(first);
    drop(bed.apply(&Target::Device, "suspend20").expect("free again"));
}

#[test]
fn of_two_at_the_same_moment_one_is_refused() {
    let Some(bed) = Bed::new(1) else { return };
    let (plan, start) = (bed.plan(&Target::Device, "defer50").expect("plan"), Barrier::new(2));
    let apply = || {
        let (plan, place) = (plan.clone(), bed.place());
        start.wait();
        plan.apply(place, Some(bed.journals.path()))
    };
    for _ in 0..20 {
        // Both are kept until both are known.
        let both = thread::scope(|scope| {
            let (one, other) = (scope.spawn(apply), scope.spawn(apply));
            [one.join().expect("no panic"), other.join().expect("no panic")]
        });
        let held = both.iter().filter(|one| matches!(one, Err(ApplyError::Held { .. }))).count();
        assert_eq!((held, both.iter().filter(|one| one.is_ok()).count()), (1, 1), "{both:?}");
    }
    assert_eq!(bed.journal_count(), 0);
}

#[test]
fn a_timeout_that_does_not_fit_is_refused_before_anything_is_touched() {
    let Some(bed) = Bed::new(1) else { return };
    let long = NapiChange { gro_flush_timeout: Some(Nanos::from_millis(5000)), ..NapiChange::default() };
    let error = Plan::new(&mut bed.place(), &bed.device, &Target::Device, &long, bed.able).expect_err("too long");
    assert!(matches!(error, ApplyError::TooLong { setting: "gro-flush-timeout", .. }), "{error}");
}

#[test]
fn what_somebody_else_changed_meanwhile_is_left_to_them() {
    let Some(bed) = Bed::new(1) else { return };
    let applied = bed.apply(&Target::Device, "defer50").expect("apply");
    let id = napis(bed.place().netlink(), None).expect("list")[0].id;
    let theirs = NapiChange { gro_flush_timeout: Some(Nanos::from_micros(77)), ..NapiChange::default() };
    set_napi(bed.place().netlink(), id, &theirs).expect("set");
    let restored = applied.restore().expect("restore");
    assert!(matches!(restored[..], [Restored::LeftToOthers(_)]), "{restored:?}");
    let after = napi(bed.place().netlink(), id).expect("read").settings();
    assert_eq!((after.defer_hard_irqs, after.gro_flush_timeout), (0, Nanos::from_micros(77)));
}

#[test]
fn a_journal_whose_process_is_gone_is_put_back_and_a_live_one_is_not() {
    let Some(bed) = Bed::new(1) else { return };
    let before = bed.settings();
    let applied = bed.apply(&Target::Device, "suspend50").expect("apply");
    assert_eq!(restore_abandoned(bed.journals.path()).expect("nothing to do"), []);

    // A process that was killed leaves its journal behind and changes nothing back.
    std::mem::forget(applied);
    let path = fs::read_dir(bed.journals.path()).expect("directory").next().expect("one").expect("entry").path();
    let live = fs::read_to_string(&path).expect("journal");
    let dead = live.replace(&format!("\"pid\": {}", std::process::id()), "\"pid\": 4194304");
    assert_ne!(live, dead);
    fs::write(&path, dead).expect("write");

    // A namespace without a name is found through a process that lives in it.
    let mut resident = Command::new("sleep").arg("60").in_netns(&bed.netns).spawn().expect("sleep");
    let restored = restore_abandoned(bed.journals.path());
    resident.kill().and_then(|()| resident.wait()).expect("end");
    let restored = restored.expect("restore");
    assert!(matches!(restored[..], [Restored::Back(_)]), "{restored:?}");
    assert_eq!(bed.settings(), before);
    assert_eq!(bed.journal_count(), 0);
}

#[test]
fn a_journal_that_was_cut_off_or_is_not_ours_is_told_apart() {
    let directory = tempfile::tempdir().expect("directory");
    fs::write(directory.path().join("1-0.json"), "{\"pid\": 1,").expect("write");
    assert_eq!(restore_abandoned(directory.path()).expect("cut off before anything changed"), []);
    fs::write(directory.path().join("1-1.json"), "[]").expect("write");
    let error = restore_abandoned(directory.path()).expect_err("not a journal").to_string();
    assert!(error.contains("1-1.json"), "{error}");
    assert_eq!(restore_abandoned(&directory.path().join("none")).expect("no journals at all"), []);
}

#[test]
fn a_kernel_without_settings_per_instance_gets_the_device_wide_files_with_a_warning() {
    let Some(mut bed) = Bed::new(2) else { return };
    bed.able = NapiCapabilities { list: true, ..NapiCapabilities::default() };
    let before = bed.settings();
    let plan = bed.plan(&Target::Device, "defer50").expect("plan");
    assert!(plan.warnings().iter().all(|line| line.contains("every NAPI")) && !plan.warnings().is_empty());
    let applied = plan.apply(bed.place(), Some(bed.journals.path())).expect("apply");
    // Writing the device's file reaches the instances: the proof that the right namespace's /sys was opened.
    assert!(bed.settings().iter().all(|napi| napi.gro_flush_timeout == Nanos::from_micros(50)));
    drop(applied);
    assert_eq!(bed.settings(), before);
    let part = bed.plan(&Target::Queues(vec![0]), "defer50").expect_err("a part of the device");
    assert!(matches!(part, ApplyError::OnlyWholeDevice { instances: 2, .. }), "{part}");
    assert!(matches!(bed.plan(&Target::Device, "suspend20"), Err(ApplyError::Unsupported { .. })));
}

#[test]
fn impossible_settings_are_refused_before_anything_is_touched() {
    let Some(bed) = Bed::new(1) else { return };
    let lonely = NapiChange { irq_suspend_timeout: Some(Nanos::from_millis(20)), ..NapiChange::default() };
    let error = Plan::new(&mut bed.place(), &bed.device, &Target::Device, &lonely, bed.able).expect_err("no deferral");
    assert!(error.to_string().contains("without deferral"), "{error}");
    let busy = NapiChange { context: Some(PollContext::BusyThread), ..NapiChange::default() };
    if !bed.able.threaded_busy {
        let error = Plan::new(&mut bed.place(), &bed.device, &Target::Device, &busy, bed.able).expect_err("too new");
        assert!(matches!(error, ApplyError::Unsupported { .. }), "{error}");
    }
    let mut netlink = Netlink::open(&bed.netns).expect("netlink");
    let loopback = device_named(&mut netlink, "lo", "here").expect("lo");
    let none = Plan::new(&mut bed.place(), &loopback, &Target::Device, &NapiChange::default(), bed.able);
    assert!(matches!(none, Err(ApplyError::NoNapi { .. })), "{none:?}");
}

#[test]
fn settings_that_were_replaced_again_and_again_are_put_back_at_once() {
    let Some(bed) = Bed::new(2) else { return };
    let before = bed.settings();
    let mut transaction = bed.transaction();
    transaction.replace(bed.plan(&Target::Device, "base").expect("plan")).expect("nothing to do");
    assert_eq!(bed.journal_count(), 0);
    for mode in ["defer50", "suspend20", "suspend20", "defer20", "threaded"] {
        transaction.replace(bed.plan(&Target::Device, mode).expect("plan")).expect("replace");
        let wanted = mode.parse::<Mode>().expect("mode").settings().napi;
        assert_eq!((bed.settings(), bed.journal_count()), (vec![wanted, wanted], 1), "{mode}");
    }
    let error = bed.apply(&Target::Queues(vec![1]), "defer50").expect_err("held");
    assert!(matches!(error, ApplyError::Held { .. }), "{error}");
    assert_eq!(transaction.steps().len(), 2, "one for each instance");
    let restored = transaction.roll_back().expect("rolled back");
    assert!(restored.iter().all(|step| matches!(step, Restored::Back(_))), "{restored:?}");
    assert_eq!((bed.settings(), bed.journal_count()), (before, 0));
}

#[test]
fn what_somebody_else_holds_is_not_taken_over_by_a_replacement() {
    let Some(bed) = Bed::new(2) else { return };
    let mut transaction = bed.transaction();
    transaction.replace(bed.plan(&Target::Queues(vec![0]), "defer20").expect("plan")).expect("replace");
    let other = bed.apply(&Target::Queues(vec![1]), "defer50").expect("another instance");
    let both = bed.settings();
    let error = transaction.replace(bed.plan(&Target::Device, "suspend20").expect("plan")).expect_err("held");
    assert!(matches!(error, ApplyError::Held { .. }), "{error}");
    assert_eq!((bed.settings(), bed.journal_count()), (both, 2));
    drop((transaction, other));
    assert_eq!(bed.journal_count(), 0);
}
