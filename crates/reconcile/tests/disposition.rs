//! The disposition of settings of earlier applies, depending on whether the policy names them.

#[path = "../../policy/tests/common/mod.rs"]
mod common;

use std::path::Path;

use abey_delivery::PollContext;
use abey_linux::device::DeviceId;
use abey_linux::ethtool::{ChannelCounts, FlowProtocol, FlowRule, FlowTarget, PortFlow, RssContext};
use abey_linux::machine::{DeviceState, ThreadState};
use abey_policy::DesiredState;
use abey_reconcile::setting::{
    Assignment, ChannelsEdit, ContextCreated, IrqAffinity, NapiEdit, NapiThread, Ntuple, RssTable, RuleDeleted,
    RuleInserted, Xps,
};
use abey_reconcile::{AppliedState, AppliedStep, Disposition, RUNTIME_UNITS, Step, dispositions};
use common::{desired, list, machine, nic};

const HTTP: PortFlow = PortFlow { protocol: FlowProtocol::Tcp4, port: 80 };

fn device() -> DeviceId {
    DeviceId { name: "eth0".to_owned(), ifindex: 7 }
}

fn applied(queue: Option<u32>, step: impl Into<Step>) -> AppliedStep {
    AppliedStep { ifindex: Some(7), queue, step: step.into() }
}

/// Settings of queue 1, whose instance has another ID now.
fn settings() -> AppliedStep {
    let json = r#"{"napi": {"id": 5, "device": "eth0", "change": {"defer_hard_irqs": 100}, "before":
        {"defer_hard_irqs": 9, "gro_flush_timeout_ns": 0, "irq_suspend_timeout_ns": 0, "threaded": "softirq"}}}"#;
    applied(Some(1), serde_json::from_str::<Step>(json).expect("a step"))
}

fn irq() -> AppliedStep {
    let (device, before, after) = ("eth0".to_owned(), list("0-7"), list("2"));
    applied(Some(1), Assignment { setting: IrqAffinity { device, irq: 41 }, before, after })
}

fn xps() -> AppliedStep {
    applied(None, Assignment { setting: Xps { device: device(), queue: 1 }, before: list(""), after: list("2") })
}

fn channels() -> AppliedStep {
    let counts = |combined| ChannelCounts { combined: Some(combined), ..ChannelCounts::default() };
    let (before, after, saved) = (counts(2), counts(4), Default::default());
    applied(None, ChannelsEdit { device: device(), before, after, saved })
}

fn rss() -> AppliedStep {
    let (before, after) = (vec![0, 1, 2, 3], vec![0, 1, 0, 1]);
    applied(None, Assignment { setting: RssTable { device: device(), context: 0 }, before, after })
}

/// A context over queues 2 and 3, the feature that rules need, and a rule that points at the context.
fn steering() -> [AppliedStep; 3] {
    let rule = FlowRule::to_port(HTTP, FlowTarget::Context(1));
    [
        applied(None, ContextCreated { device: device(), table: vec![2, 3], others: Vec::new(), key: Vec::new() }),
        applied(None, Assignment { setting: Ntuple { device: device() }, before: false, after: true }),
        applied(None, RuleInserted { device: device(), rule, others: Vec::new() }),
    ]
}

/// The NIC after [`steering`].
fn steered() -> DeviceState {
    let mut state = nic("eth0", 4);
    let context = RssContext { id: 1, table: vec![2, 3], key: Vec::new(), function: 1, transformation: 0 };
    state.contexts = Ok(vec![context]);
    state.rules = Ok(vec![FlowRule::to_port(HTTP, FlowTarget::Context(1)).at(9)]);
    state
}

fn dispositions_under(text: &str, state: &DeviceState, all: &[AppliedStep]) -> Vec<Disposition> {
    let desired: DesiredState = desired(text, vec![state.clone()]);
    assert!(desired.wrong.is_empty(), "{:?}", desired.wrong);
    dispositions(&desired, all, &machine(vec![state.clone()]))
}

fn is_restored(disposition: &Disposition) -> bool {
    matches!(disposition, Disposition::Restore(_))
}

const DEVICE: &str = "[[device]]\nname = \"eth0\"\n";
const QUEUE: &str = "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"1\"\n";

#[test]
fn settings_that_the_policy_names_are_kept_and_others_restored() {
    let state = nic("eth0", 4);
    let all = [settings(), irq(), xps(), channels(), rss()];
    let cases = [
        (String::new(), [false; 5]),
        (DEVICE.to_owned(), [false; 5]),
        (format!("{DEVICE}mode = \"base\"\n"), [true, false, false, false, false]),
        (format!("{QUEUE}mode = \"defer50\"\n"), [true, false, false, false, false]),
        (format!("{QUEUE}irq-cpus = \"3\"\n"), [false, true, false, false, false]),
        (format!("{QUEUE}xps-cpus = \"3\"\n"), [false, false, true, false, false]),
        (format!("{DEVICE}channels = 4\n"), [false, false, false, true, false]),
        (format!("{DEVICE}rss = \"0-1\"\n"), [false, false, false, false, true]),
        (QUEUE.replace('1', "2") + "mode = \"base\"\nirq-cpus = \"3\"\nxps-cpus = \"3\"\n", [false; 5]),
    ];
    for (text, stay) in cases {
        let found = dispositions_under(&text, &state, &all);
        assert_eq!(
            found.iter().map(|disposition| *disposition == Disposition::Keep).collect::<Vec<_>>(),
            stay,
            "{text}: {found:?}"
        );
        assert!(
            found.iter().all(|disposition| *disposition == Disposition::Keep || is_restored(disposition)),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn steps_to_restore_have_the_present_numbers() {
    let found = dispositions_under("", &nic("eth0", 4), &[settings()]);
    let [Disposition::Restore(step)] = &found[..] else { panic!("{found:?}") };
    assert!(matches!(**step, Step::Napi(NapiEdit { id: 101, .. })), "{step:?}");
    // The interrupt belongs to another device now.
    let mut state = nic("eth0", 4);
    state.napis[1].irq.as_mut().expect("it has one").irq = 99;
    assert_eq!(dispositions_under("", &state, &[irq()]), [Disposition::Forget]);
}

#[test]
fn settings_of_a_missing_device_are_forgotten_and_of_a_down_device_wait() {
    let all = [settings(), irq(), channels()];
    let mut other = nic("eth0", 4);
    other.device.ifindex = 8;
    for state in [nic("eth1", 4), other] {
        assert_eq!(
            dispositions_under("", &state, &all),
            [Disposition::Forget, Disposition::Forget, Disposition::Forget]
        );
    }
    let mut down = nic("eth0", 4);
    (down.device.up, down.napis, down.queues) = (false, Vec::new(), Vec::new());
    let found = dispositions_under("", &down, &all);
    assert!(found[..2] == [Disposition::Wait, Disposition::Wait] && is_restored(&found[2]), "{found:?}");
    // The device is up and has fewer queues.
    assert_eq!(dispositions_under("", &nic("eth0", 1), &all[..2]), [Disposition::Forget, Disposition::Forget]);
}

#[test]
fn cpus_and_scheduling_of_a_thread_are_kept_separately() {
    let mut state = nic("eth0", 4);
    let class = |json: &str| serde_json::from_str::<ThreadState>(json).expect("a thread");
    let other = class(r#"{"tid": 500, "cpus": "0-7", "scheduling": {"policy": "other", "priority": 0, "nice": 0}}"#);
    let pinned = ThreadState { cpus: list("5"), ..other.clone() };
    let fifo = class(r#"{"tid": 500, "cpus": "0-7", "scheduling": {"policy": "fifo", "priority": 50, "nice": 0}}"#);
    (state.napis[1].napi.thread, state.napis[1].napi.context) = (Some(500), Some(PollContext::Thread));
    let step = |after| {
        applied(
            Some(1),
            Assignment { setting: NapiThread { device: "eth0".to_owned(), napi: 5 }, before: other.clone(), after },
        )
    };
    let both = [step(pinned), step(fifo)];
    let found =
        dispositions_under(&format!("{QUEUE}mode = \"threaded\"\nthread = {{ cpus = \"4\" }}\n"), &state, &both);
    assert!(found[0] == Disposition::Keep && is_restored(&found[1]), "{found:?}");
    let found = dispositions_under("", &state, &both);
    assert!(found.iter().all(is_restored), "{found:?}");
    // The instance has a new thread with default settings.
    state.napis[1].napi.thread = Some(501);
    assert_eq!(dispositions_under("", &state, &both), [Disposition::Forget, Disposition::Forget]);
}

#[test]
fn a_context_and_ntuple_are_kept_while_rules_need_them() {
    let all = steering();
    let policy = format!("{DEVICE}[[device.flows]]\nports = [\"tcp/80\"]\nqueues = \"2-3\"\n");
    assert_eq!(
        dispositions_under(&policy, &steered(), &all),
        [Disposition::Keep, Disposition::Keep, Disposition::Keep]
    );
    let found = dispositions_under("", &steered(), &all);
    assert!(found.iter().all(is_restored), "{found:?}");
    // Another port to other queues needs the feature.
    let other = policy.replace("80", "81").replace("2-3", "0-1");
    let found = dispositions_under(&other, &steered(), &all);
    assert!(is_restored(&found[0]) && found[1] == Disposition::Keep && is_restored(&found[2]), "{found:?}");
    // A rule of another program points at the context.
    let mut shared = steered();
    let theirs = FlowRule::to_port(PortFlow { port: 443, ..HTTP }, FlowTarget::Context(1)).at(8);
    shared.rules.as_mut().expect("rules").push(theirs);
    let found = dispositions_under("", &shared, &all);
    assert!(found[..2] == [Disposition::Keep, Disposition::Keep] && is_restored(&found[2]), "{found:?}");
}

#[test]
fn repeated_changes_keep_the_value_before_the_first() {
    let place = tempfile::tempdir().expect("directory");
    let rule = |target| FlowRule::to_port(HTTP, target);
    let deleted = |rule| Step::from(RuleDeleted { device: device(), rule });
    let inserted = |rule, others| Step::from(RuleInserted { device: device(), rule, others });
    let theirs = rule(FlowTarget::Queue(0)).at(3);
    let (ours, next) = (rule(FlowTarget::Queue(2)), rule(FlowTarget::Queue(3)));
    let machine = machine(vec![nic("eth0", 4)]);
    let with = |after: &str| {
        Step::from(Assignment { setting: Xps { device: device(), queue: 1 }, before: list("2"), after: list(after) })
    };
    let record = |steps: &[Step]| {
        let mut applied_state = AppliedState::open(place.path(), Path::new(RUNTIME_UNITS), 1).expect("opened");
        applied_state.record(steps, &machine);
        applied_state.save().expect("written");
        AppliedState::read(place.path(), Path::new(RUNTIME_UNITS), 1)
            .expect("readable")
            .into_iter()
            .map(|applied| applied.step)
            .collect::<Vec<_>>()
    };
    let first = [deleted(theirs.clone()), inserted(ours.clone(), vec![3]), xps().step];
    assert_eq!(record(&first), first);
    // A change to another queue deletes the rule of the first apply; the value before is still the foreign rule.
    let second = record(&[deleted(ours.at(9)), inserted(next.clone(), vec![]), with("3")]);
    let xps = |after| {
        Step::from(Assignment { setting: Xps { device: device(), queue: 1 }, before: list(""), after: list(after) })
    };
    assert_eq!(second, [deleted(theirs.clone()), xps("3"), inserted(next.clone(), vec![])]);
    // Back at the first values nothing is kept, and the file is removed.
    assert_eq!(record(&[deleted(next.at(9)), inserted(theirs, vec![]), with("")]), []);
    drop(AppliedState::open(place.path(), Path::new(RUNTIME_UNITS), 1).expect("opened"));
    assert_eq!(std::fs::read_dir(place.path()).expect("directory").count(), 0);
}

#[test]
fn settings_of_a_queue_move_to_its_new_instance() {
    let place = tempfile::tempdir().expect("directory");
    let mut applied_state = AppliedState::open(place.path(), Path::new(RUNTIME_UNITS), 1).expect("opened");
    let step = |id: u32, before: u32, after: u32| {
        let json = format!(
            r#"{{"napi": {{"id": {id}, "device": "eth0", "change": {{"defer_hard_irqs": {after}}}, "before": {{
            "defer_hard_irqs": {before}, "gro_flush_timeout_ns": 0, "irq_suspend_timeout_ns": 0, "threaded": "softirq"}}}}}}"#
        );
        serde_json::from_str::<Step>(&json).expect("a step")
    };
    let mut state = nic("eth0", 2);
    applied_state.record(&[step(101, 9, 100)], &machine(vec![state.clone()]));
    // The driver recreated the queue with its defaults, and the policy was applied again.
    state.napis[1].napi.id = 201;
    state.queues[1].napi = Some(201);
    applied_state.record(&[step(201, 0, 100)], &machine(vec![state.clone()]));
    assert_eq!(applied_state.entries(), [applied(Some(1), step(201, 9, 100))]);
    // Steps of instances that no longer exist are not kept.
    applied_state.record(&[step(77, 0, 5)], &machine(vec![state.clone()]));
    applied_state.record(&[step(201, 100, 9)], &machine(vec![state]));
    assert_eq!(applied_state.entries(), []);
}
