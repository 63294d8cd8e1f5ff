//! What becomes of what was applied before, when the policy names it and when it does not any more.

mod common;

use abey_delivery::PollContext;
use abey_linux::apply::{Keeping, Kept, Step};
use abey_linux::device::DeviceId;
use abey_linux::ethtool::{ChannelCounts, FlowProtocol, FlowRule, FlowTarget, PortFlow, RssContext};
use abey_linux::machine::{DeviceState, ThreadState};
use abey_policy::{Fate, Wishes};
use common::{list, machine, nic, wishes};

const HTTP: PortFlow = PortFlow { protocol: FlowProtocol::Tcp4, port: 80 };

fn device() -> DeviceId {
    DeviceId { name: "eth0".to_owned(), ifindex: 7 }
}

fn kept(queue: Option<u32>, step: Step) -> Kept {
    Kept { ifindex: Some(7), queue, step }
}

/// Settings of queue 1, of an instance that has another number by now.
fn settings() -> Kept {
    let json = r#"{"napi": {"id": 5, "device": "eth0", "change": {"defer_hard_irqs": 100}, "before":
        {"defer_hard_irqs": 9, "gro_flush_timeout_ns": 0, "irq_suspend_timeout_ns": 0, "threaded": "softirq"}}}"#;
    kept(Some(1), serde_json::from_str(json).expect("a step"))
}

fn irq() -> Kept {
    let (device, before, after) = ("eth0".to_owned(), list("0-7"), list("2"));
    kept(Some(1), Step::Irq { device, irq: 41, before, after })
}

fn xps() -> Kept {
    kept(None, Step::Xps { device: device(), queue: 1, before: list(""), after: list("2") })
}

fn channels() -> Kept {
    let counts = |combined| ChannelCounts { combined: Some(combined), ..ChannelCounts::default() };
    let (before, after, held) = (counts(2), counts(4), Default::default());
    kept(None, Step::Channels { device: device(), before, after, held })
}

fn rss() -> Kept {
    let (before, after) = (vec![0, 1, 2, 3], vec![0, 1, 0, 1]);
    kept(None, Step::RssTable { device: device(), context: 0, before, after })
}

/// A context over queues 2 and 3, the switch that rules need, and a rule that points at it.
fn steering() -> [Kept; 3] {
    let rule = FlowRule::to_port(HTTP, FlowTarget::Context(1));
    [
        kept(None, Step::RssContextMade { device: device(), table: vec![2, 3], others: Vec::new() }),
        kept(None, Step::Ntuple { device: device(), on: true }),
        kept(None, Step::RuleInserted { device: device(), rule, others: Vec::new() }),
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

fn fates(text: &str, state: &DeviceState, kept: &[Kept]) -> Vec<Fate> {
    let wishes: Wishes = wishes(text, vec![state.clone()]);
    assert!(wishes.wrong.is_empty(), "{:?}", wishes.wrong);
    wishes.fates(kept, &machine(vec![state.clone()]))
}

fn goes_back(fate: &Fate) -> bool {
    matches!(fate, Fate::Back(_))
}

const DEVICE: &str = "[[device]]\nname = \"eth0\"\n";
const QUEUE: &str = "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"1\"\n";

#[test]
fn what_the_policy_names_stays_and_the_rest_goes_back() {
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
        let found = fates(&text, &state, &all);
        assert_eq!(found.iter().map(|fate| *fate == Fate::Stays).collect::<Vec<_>>(), stay, "{text}: {found:?}");
        assert!(found.iter().all(|fate| *fate == Fate::Stays || goes_back(fate)), "{text}: {found:?}");
    }
}

#[test]
fn numbers_are_those_of_now() {
    let found = fates("", &nic("eth0", 4), &[settings()]);
    let [Fate::Back(step)] = &found[..] else { panic!("{found:?}") };
    assert!(matches!(**step, Step::Napi { id: 101, .. }), "{step:?}");
    // The interrupt is somebody else's by now: not to be touched.
    let mut state = nic("eth0", 4);
    state.napis[1].irq.as_mut().expect("it has one").irq = 99;
    assert_eq!(fates("", &state, &[irq()]), [Fate::Gone]);
}

#[test]
fn a_device_that_went_is_gone_and_one_that_is_down_waits() {
    let all = [settings(), irq(), channels()];
    let mut other = nic("eth0", 4);
    other.device.ifindex = 8;
    for state in [nic("eth1", 4), other] {
        assert_eq!(fates("", &state, &all), [Fate::Gone, Fate::Gone, Fate::Gone]);
    }
    let mut down = nic("eth0", 4);
    (down.device.up, down.napis, down.queues) = (false, Vec::new(), Vec::new());
    let found = fates("", &down, &all);
    assert!(found[..2] == [Fate::Waits, Fate::Waits] && goes_back(&found[2]), "{found:?}");
    // It is up, and has fewer queues.
    assert_eq!(fates("", &nic("eth0", 1), &all[..2]), [Fate::Gone, Fate::Gone]);
}

#[test]
fn cpus_and_class_of_a_thread_are_kept_by_themselves() {
    let mut state = nic("eth0", 4);
    let class = |json: &str| serde_json::from_str::<ThreadState>(json).expect("a thread");
    let other = class(r#"{"tid": 500, "cpus": "0-7", "scheduling": {"policy": "other", "priority": 0, "nice": 0}}"#);
    let pinned = ThreadState { cpus: list("5"), ..other.clone() };
    let fifo = class(r#"{"tid": 500, "cpus": "0-7", "scheduling": {"policy": "fifo", "priority": 50, "nice": 0}}"#);
    (state.napis[1].napi.thread, state.napis[1].napi.context) = (Some(500), Some(PollContext::Thread));
    let step = |after| kept(Some(1), Step::Thread { device: "eth0".to_owned(), napi: 5, before: other.clone(), after });
    let both = [step(pinned), step(fifo)];
    let found = fates(&format!("{QUEUE}mode = \"threaded\"\nthread = {{ cpus = \"4\" }}\n"), &state, &both);
    assert!(found[0] == Fate::Stays && goes_back(&found[1]), "{found:?}");
    let found = fates("", &state, &both);
    assert!(found.iter().all(goes_back), "{found:?}");
    // Another thread polls by now, as the system made it.
    state.napis[1].napi.thread = Some(501);
    assert_eq!(fates("", &state, &both), [Fate::Gone, Fate::Gone]);
}

#[test]
fn a_context_and_the_switch_stay_as_long_as_rules_need_them() {
    let all = steering();
    let policy = format!("{DEVICE}[[device.flows]]\nports = [\"tcp/80\"]\nqueues = \"2-3\"\n");
    assert_eq!(fates(&policy, &steered(), &all), [Fate::Stays, Fate::Stays, Fate::Stays]);
    let found = fates("", &steered(), &all);
    assert!(found.iter().all(goes_back), "{found:?}");
    // Another port to other queues: the switch is needed.
    let other = policy.replace("80", "81").replace("2-3", "0-1");
    let found = fates(&other, &steered(), &all);
    assert!(goes_back(&found[0]) && found[1] == Fate::Stays && goes_back(&found[2]), "{found:?}");
    // Somebody else's rule points at the context.
    let mut shared = steered();
    let theirs = FlowRule::to_port(PortFlow { port: 443, ..HTTP }, FlowTarget::Context(1)).at(8);
    shared.rules.as_mut().expect("rules").push(theirs);
    let found = fates("", &shared, &all);
    assert!(found[..2] == [Fate::Stays, Fate::Stays] && goes_back(&found[2]), "{found:?}");
}

#[test]
fn what_was_there_first_is_what_counts() {
    let place = tempfile::tempdir().expect("directory");
    let rule = |target| FlowRule::to_port(HTTP, target);
    let deleted = |rule| Step::RuleDeleted { device: device(), rule };
    let inserted = |rule, others| Step::RuleInserted { device: device(), rule, others };
    let theirs = rule(FlowTarget::Queue(0)).at(3);
    let (ours, next) = (rule(FlowTarget::Queue(2)), rule(FlowTarget::Queue(3)));
    let machine = machine(vec![nic("eth0", 4)]);
    let with = |after: &str| Step::Xps { device: device(), queue: 1, before: list("2"), after: list(after) };
    let record = |steps: &[Step]| {
        let mut keeping = Keeping::open(place.path(), 1).expect("opened");
        keeping.record(steps, &machine);
        keeping.save().expect("written");
        Keeping::look(place.path(), 1).expect("readable").into_iter().map(|kept| kept.step).collect::<Vec<_>>()
    };
    let first = [deleted(theirs.clone()), inserted(ours.clone(), vec![3]), xps().step];
    assert_eq!(record(&first), first);
    // Another queue: our own rule goes for it, and theirs is still what was there first.
    let second = record(&[deleted(ours.at(9)), inserted(next.clone(), vec![]), with("3")]);
    let xps = |after| Step::Xps { device: device(), queue: 1, before: list(""), after: list(after) };
    assert_eq!(second, [deleted(theirs.clone()), xps("3"), inserted(next.clone(), vec![])]);
    // As it was at first: nothing is kept, and nothing left of it.
    assert_eq!(record(&[deleted(next.at(9)), inserted(theirs, vec![]), with("")]), []);
    drop(Keeping::open(place.path(), 1).expect("opened"));
    assert_eq!(std::fs::read_dir(place.path()).expect("directory").count(), 0);
}

#[test]
fn what_is_kept_of_a_queue_follows_it_to_its_new_instance() {
    let place = tempfile::tempdir().expect("directory");
    let mut keeping = Keeping::open(place.path(), 1).expect("opened");
    let step = |id: u32, before: u32, after: u32| {
        let json = format!(
            r#"{{"napi": {{"id": {id}, "device": "eth0", "change": {{"defer_hard_irqs": {after}}}, "before": {{
            "defer_hard_irqs": {before}, "gro_flush_timeout_ns": 0, "irq_suspend_timeout_ns": 0, "threaded": "softirq"}}}}}}"#
        );
        serde_json::from_str::<Step>(&json).expect("a step")
    };
    let mut state = nic("eth0", 2);
    keeping.record(&[step(101, 9, 100)], &machine(vec![state.clone()]));
    // The driver made the queue anew, with its defaults, and the policy was applied again.
    state.napis[1].napi.id = 201;
    state.queues[1].napi = Some(201);
    keeping.record(&[step(201, 0, 100)], &machine(vec![state.clone()]));
    assert_eq!(keeping.entries(), [kept(Some(1), step(201, 9, 100))]);
    // Steps of instances that went in the course of it are nothing to keep.
    keeping.record(&[step(77, 0, 5)], &machine(vec![state.clone()]));
    keeping.record(&[step(201, 100, 9)], &machine(vec![state]));
    assert_eq!(keeping.entries(), []);
}
