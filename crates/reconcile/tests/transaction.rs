//! Transactions against a simulated kernel: the order of changes, no change where none is needed, and a complete rollback
//! after a failure of any change.

mod common {
    pub(crate) mod fake;
}

use abey_linux::cpu::{Scheduling, SchedulingPolicy};
use abey_linux::ethtool::{ChannelCounts, FlowProtocol, FlowRule, FlowTarget, PortFlow, spread};
use abey_linux::kernel::Kernel;
use abey_linux::napi::NapiChange;
use abey_policy::Change;
use abey_reconcile::setting::{Assignment, IrqAffinity};
use abey_reconcile::{Applied, Restored, Step, Transaction};
use common::fake::{FakeKernel, TABLE, nic};

const HTTP: PortFlow = PortFlow { protocol: FlowProtocol::Tcp4, port: 80 };

/// Four queues become eight; the upper four serve one port, with every setting.
fn changes() -> Vec<Change> {
    let device = nic();
    let counts = ChannelCounts { combined: Some(8), ..ChannelCounts::default() };
    let fifo = Scheduling::new(SchedulingPolicy::Fifo, 50, 0).expect("sound");
    let cpus = |text: &str| text.parse().expect("CPUs");
    let mut all = vec![
        Change::Channels { device: device.clone(), counts },
        Change::Spread { device: device.clone(), context: 0, queues: vec![0, 1, 2, 3, 7] },
        Change::Context { device: device.clone(), queues: vec![4, 5, 6, 7] },
    ];
    for protocol in [FlowProtocol::Tcp4, FlowProtocol::Tcp6] {
        let (flow, target) = (PortFlow { protocol, port: 80 }, FlowTarget::Context(1));
        all.push(Change::Rule { device: device.clone(), flow, target });
    }
    all.push(Change::Irq { device: device.clone(), irq: 44, cpus: cpus("4") });
    all.push(Change::Xps { device: device.clone(), queue: 4, cpus: cpus("4-5") });
    all.push(Change::Thread { device, napi: 204, cpus: Some(cpus("6")), scheduling: Some(fifo) });
    all
}

fn make_all(kernel: &FakeKernel) -> Result<Applied<FakeKernel>, String> {
    let mut transaction = Transaction::begin(kernel.clone(), None);
    for change in changes() {
        transaction.make(&change).map_err(|error| error.to_string())?;
    }
    Ok(transaction.finish())
}

/// A NIC with settings of other programs, which a rollback must restore.
fn used() -> FakeKernel {
    let mut kernel = FakeKernel::new(4);
    let change = NapiChange { defer_hard_irqs: Some(9), ..NapiChange::default() };
    kernel.set_napi("nic0", 103, &change).expect("set");
    kernel.faults().log.clear();
    let mut nic = kernel.nic();
    nic.xps.insert(1, "2".parse().expect("CPUs"));
    nic.irqs.insert(42, "3".parse().expect("CPUs"));
    nic.contexts.get_mut(&0).expect("default").table = spread(TABLE, &[0, 1]);
    nic.threads.get_mut(&501).expect("thread").cpus = "5".parse().expect("CPUs");
    drop(nic);
    kernel
}

#[test]
fn all_changes_are_made_and_a_second_time_none() {
    let kernel = used();
    make_all(&kernel).expect("possible").keep();
    let after = kernel.nic().clone();
    assert_eq!(after.contexts[&0].queues(), [0, 1, 2, 3, 7].into());
    assert_eq!(after.contexts[&1].queues(), [4, 5, 6, 7].into());
    let rules: Vec<String> = after.rules.values().map(|rule| format!("{rule}")).collect();
    assert_eq!(rules, ["tcp6/80 to RSS context 1", "tcp4/80 to RSS context 1"]);
    assert_eq!((after.irqs[&44].to_string(), after.xps[&4].to_string()), ("4".to_owned(), "4-5".to_owned()));
    assert_eq!(after.threads[&504].scheduling.to_string(), "fifo 50");

    kernel.faults().log.clear();
    make_all(&kernel).expect("possible").keep();
    assert_eq!(kernel.faults().log, Vec::<String>::new());
    assert_eq!(*kernel.nic(), after);
}

#[test]
fn a_failure_of_any_change_rolls_back_all() {
    let changes = {
        let kernel = used();
        make_all(&kernel).expect("possible").keep();
        kernel.faults().log.len()
    };
    assert!(changes >= 8, "{changes}");
    for failing in 0..changes {
        let kernel = used();
        let before = kernel.nic().clone().without_ids();
        kernel.faults().fails_after = Some(failing);
        let error = make_all(&kernel).expect_err("one fails");
        assert!(error.contains("injected failure"), "{error}");
        assert_eq!(kernel.nic().clone().without_ids(), before, "change {failing} failed: {:?}", kernel.faults().log);
    }
}

#[test]
fn restoring_undoes_the_changes_in_reverse_order() {
    let kernel = used();
    let before = kernel.nic().clone().without_ids();
    let applied = make_all(&kernel).expect("possible");
    kernel.faults().log.clear();
    let restored = applied.restore().expect("possible");
    assert!(restored.iter().all(|one| matches!(one, Restored::Back(_))), "{restored:?}");
    assert_eq!(kernel.nic().clone().without_ids(), before);
    let log = kernel.faults().log.clone();
    let place = |start: &str| log.iter().position(|line| line.starts_with(start)).expect(start);
    assert!(place("thread 504") < place("no rule") && place("no rule") < place("no context"), "{log:?}");
    assert!(place("no context") < place("channels"), "{log:?}");
}

#[test]
fn undoing_changes_of_a_removed_device_is_no_error() {
    let kernel = used();
    kernel.faults().removes_device = true;
    let mut transaction = Transaction::begin(kernel.clone(), None);
    for change in &changes()[..3] {
        transaction.make(change).expect("possible");
    }
    kernel.faults().fails_after = Some(0);
    let error = transaction.make(&changes()[3]).expect_err("the device is removed");
    assert!(error.to_string().contains("does not exist any more"), "{error}");
    let restored = transaction.roll_back().expect("nothing is left to put back");
    assert!(restored.iter().all(|one| matches!(one, Restored::Missing(_))) && restored.len() >= 3, "{restored:?}");
}

#[test]
fn a_rule_of_the_same_flow_is_replaced_and_restored() {
    let kernel = FakeKernel::new(4);
    kernel.nic().ntuple = true;
    kernel.nic().rules.insert(9, FlowRule::to_port(HTTP, FlowTarget::Queue(0)).at(9));
    let before = kernel.nic().clone();
    let mut transaction = Transaction::begin(kernel.clone(), None);
    let change = Change::Rule { device: nic(), flow: HTTP, target: FlowTarget::Queue(3) };
    let made = transaction.make(&change).expect("possible");
    let lines: Vec<String> = made.changes.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["nic0 flow rule: tcp4/80 queue 0 -> none", "nic0 flow rule: tcp4/80 none -> queue 3"]);
    assert_eq!(kernel.nic().rules.values().map(FlowRule::target).collect::<Vec<_>>(), [FlowTarget::Queue(3)]);
    transaction.roll_back().expect("possible");
    assert_eq!(*kernel.nic(), before);
}

#[test]
fn restored_rules_point_at_the_new_number_of_their_context() {
    let mut kernel = FakeKernel::new(4);
    kernel.nic().ntuple = true;
    for queues in [[0, 1], [2, 3]] {
        kernel.create_rss_context(&nic(), &spread(TABLE, &queues), &[]).expect("made");
    }
    let rule = FlowRule::to_port(HTTP, FlowTarget::Context(2));
    let location = kernel.insert_rule(&nic(), &rule).expect("inserted");
    let mut transaction = Transaction::begin(kernel.clone(), None);
    for change in [
        Change::NoRule { device: nic(), location },
        Change::NoContext { device: nic(), id: 2 },
        Change::NoContext { device: nic(), id: 1 },
    ] {
        transaction.make(&change).expect("possible");
    }
    // Another program takes the number meanwhile.
    kernel.create_rss_context(&nic(), &spread(TABLE, &[0]), &[]).expect("made");
    transaction.roll_back().expect("possible");
    let state = kernel.nic();
    let FlowTarget::Context(id) = state.rules[&location].target() else { panic!("{:?}", state.rules) };
    assert_eq!(state.contexts[&id].queues(), [2, 3].into(), "{:?}", state.contexts);
}

#[test]
fn a_setting_that_another_program_changed_is_not_restored() {
    let kernel = used();
    let applied = make_all(&kernel).expect("possible");
    kernel.nic().irqs.insert(44, "7".parse().expect("CPUs"));
    let mut seen = Vec::new();
    // Restoring the channels removes the new queues with their interrupts, which are undone before.
    for one in applied.restore().expect("possible") {
        if let Restored::ChangedSince(step) = one {
            seen.push(step);
        }
    }
    assert!(matches!(seen[..], [Step::Irq(Assignment { setting: IrqAffinity { irq: 44, .. }, .. })]), "{seen:?}");
}

#[test]
fn steps_of_an_earlier_transaction_are_undone_by_another_one() {
    let kernel = used();
    let before = kernel.nic().clone().without_ids();
    let mut transaction = Transaction::begin(kernel.clone(), None);
    for change in changes() {
        transaction.make(&change).expect("possible");
    }
    let steps = transaction.steps().to_vec();
    transaction.finish().keep();
    let kept = kernel.nic().clone().without_ids();
    // Steps of instances come last: a change of the channels renumbers the instances, in a rollback too.
    let of_instance = |step: &&Step| matches!(step, Step::Irq(_) | Step::Thread(_) | Step::Napi(_));
    let in_order =
        || steps.iter().rev().filter(|step| !of_instance(step)).chain(steps.iter().rev().filter(of_instance));
    // A rollback restores the state before the undo; a finished undo the one before the changes; a second undo nothing.
    for (keep, wanted) in [(false, &kept), (true, &before), (true, &before)] {
        kernel.faults().log.clear();
        let mut transaction = Transaction::begin(kernel.clone(), None);
        for step in in_order() {
            let since = steps.iter().find_map(|other| step.since_before(other));
            transaction.put_back(since.as_ref().unwrap_or(step)).expect("possible");
        }
        match keep {
            true => transaction.finish().keep(),
            false => drop(transaction.roll_back().expect("possible")),
        }
        let now = kernel.nic().clone().without_ids();
        assert_eq!((now.channels, &now.xps, &now.irqs), (wanted.channels, &wanted.xps, &wanted.irqs));
        assert_eq!((&now.napis, &now.threads), (&wanted.napis, &wanted.threads));
        assert_eq!((now.ntuple, now.rules.len(), &now.contexts), (wanted.ntuple, wanted.rules.len(), &wanted.contexts));
    }
    assert_eq!(kernel.faults().log, Vec::<String>::new());
}

#[test]
fn an_undo_leaves_settings_that_another_program_changed() {
    let kernel = used();
    let mut transaction = Transaction::begin(kernel.clone(), None);
    let cpus = |text: &str| text.parse().expect("CPUs");
    transaction.make(&Change::Irq { device: nic(), irq: 41, cpus: cpus("4") }).expect("possible");
    transaction.make(&Change::Xps { device: nic(), queue: 1, cpus: cpus("4") }).expect("possible");
    let steps = transaction.steps().to_vec();
    transaction.finish().keep();
    kernel.nic().irqs.insert(41, cpus("7"));
    let mut transaction = Transaction::begin(kernel.clone(), None);
    let left: Vec<bool> = steps.iter().map(|step| transaction.put_back(step).expect("possible").1).collect();
    transaction.finish().keep();
    assert_eq!(left, [true, false]);
    let nic = kernel.nic();
    assert_eq!((nic.irqs[&41].to_string(), nic.xps[&1].to_string()), ("7".to_owned(), "2".to_owned()));
}
