//! Which devices a policy means, what it wants of them, and what has to be done: with machines made by hand.

mod common;

use std::collections::BTreeMap;

use abey_delivery::{Mode, NapiSettings};
use abey_linux::cpu::CpuList;
use abey_linux::ethtool::{FlowRule, FlowTarget, RssContext};
use abey_linux::machine::{DeviceState, Feature};
use abey_linux::probe::NapiCapabilities;
use abey_policy::{Action, DesiredDevice, Difference, OnUnsupported, Policy, PolicyError, dump};
use common::{ABLE, desired, lack, list, machine, nic, online, policy};

/// What has to be done on the one device.
fn difference(text: &str, state: &DeviceState) -> Difference {
    let mut found = desired(text, vec![state.clone()]);
    assert!(found.wrong.is_empty(), "{:?}", found.wrong);
    let desired: DesiredDevice = found.devices.pop().expect("a device");
    desired.difference(state, ABLE, &online()).expect("sound")
}

fn wrong(text: &str, devices: Vec<DeviceState>) -> String {
    let mut found = desired(text, devices);
    found.wrong.pop().expect("something wrong").1.to_string()
}

/// The settings of queues 0, 1, ...
fn settings(desired: &DesiredDevice) -> Vec<NapiSettings> {
    desired.queues.values().map(|queue| queue.settings.as_ref().expect("settings").value.napi()).collect()
}

fn mode(name: &str) -> NapiSettings {
    name.parse::<Mode>().expect("a mode").settings().napi
}

#[test]
fn the_example_holds_on_a_nic_that_can_do_everything() {
    let example = Policy::parse("example.toml", include_str!("../example.toml")).expect("a policy");
    let found = example.resolve(&machine(vec![nic("eth0", 4)]), &online()).expect("resolved");
    assert!(found.wrong.is_empty() && found.absent.is_empty(), "{:?} {:?}", found.wrong, found.absent);
    assert_eq!((found.devices[0].queues.len(), found.devices[0].flows.len(), found.programs.len()), (8, 2, 2));
    let wanted = found.devices[0].difference(&nic("eth0", 4), ABLE, &online()).expect("sound");
    assert!(wanted.unsupported.is_empty() && wanted.planned[0].action.recreates_queues(), "{wanted:?}");
}

#[test]
fn a_device_is_meant_by_everything_that_is_given() {
    for (keys, meant) in [
        ("name = \"eth0\"", true),
        ("name = \"eth*\"", true),
        ("name = \"eth?\"", true),
        ("name = \"eth1\"", false),
        ("driver = \"ice\"", true),
        ("driver = \"mlx*\"", false),
        ("pci = \"*\"", true),
        ("pci = \"0000:3b:*\"", true),
        ("address = \"02:00:00:00:00:01\"", true),
        ("address = \"02:00:00:00:00:02\"", false),
        ("name = \"eth0\"\ndriver = \"ice\"\npci = \"0000:3b:00.0\"", true),
        ("name = \"eth0\"\ndriver = \"veth\"", false),
    ] {
        let found = desired(&format!("[[device]]\n{keys}\nmode = \"base\"\n"), vec![nic("eth0", 2)]);
        assert_eq!((found.devices.len(), found.absent.len()), (usize::from(meant), usize::from(!meant)), "{keys}");
    }
    let mut loopback = nic("lo", 1);
    loopback.device.loopback = true;
    assert!(desired("[[device]]\nname = \"*\"\nmode = \"base\"\n", vec![loopback]).devices.is_empty());
}

#[test]
fn a_queue_has_its_own_rule_the_rest_rule_or_the_devices_mode() {
    let text = "[[device]]\nname = \"eth0\"\nmode = \"suspend20\"\n\
                [[device.queues]]\nqueues = \"0\"\nmode = \"base\"\n\
                [[device.queues]]\nqueues = \"1\"\nirq-cpus = \"3\"\n\
                [[device.queues]]\nqueues = \"rest\"\nmode = \"defer50\"\n";
    let found = desired(text, vec![nic("eth0", 4)]);
    let modes = ["base", "suspend20", "defer50", "defer50"].map(mode);
    assert_eq!(settings(&found.devices[0]), modes);
    // The rest are those that no rule names in any table.
    let two = "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"rest\"\nmode = \"defer50\"\n\
               [[device]]\ndriver = \"ice\"\n[[device.queues]]\nqueues = \"0,2\"\nmode = \"base\"\n";
    let found = desired(two, vec![nic("eth0", 3)]);
    assert_eq!(settings(&found.devices[0]), ["base", "defer50", "base"].map(mode));
}

#[test]
fn rules_of_different_tables_that_meet_on_a_device_name_both_lines() {
    for (first, second, what) in [
        ("channels = 4", "channels = 4", "the channels of eth0"),
        ("mode = \"base\"", "mode = \"base\"", "every queue of eth0"),
        (
            "[[device.queues]]\nqueues = \"1-3\"\nmode = \"base\"",
            "[[device.queues]]\nqueues = \"3\"\nmode = \"base\"",
            "queue 3 of eth0",
        ),
        (
            "[[device.flows]]\nports = [\"tcp/80\"]\nqueues = \"1\"",
            "[[device.queues]]\nqueues = \"3\"\nports = [\"tcp/80\"]",
            "port tcp/80 of eth0",
        ),
    ] {
        let text = format!("[[device]]\nname = \"eth0\"\n{first}\n[[device]]\ndriver = \"ice\"\n{second}\n");
        let message = wrong(&text, vec![nic("eth0", 4)]);
        let lines = message.matches("p.toml, line").count();
        assert!(message.contains(what) && lines == 2, "{message}");
    }
}

#[test]
fn queues_and_cpus_that_are_not_there_are_named() {
    let text = |keys: &str| format!("[[device]]\nname = \"eth0\"\n{keys}\n");
    let rule = "[[device.queues]]\nqueues = \"2-4\"\nmode = \"base\"";
    let message = wrong(&text(rule), vec![nic("eth0", 4)]);
    assert!(
        message.contains("p.toml, line 5") && message.contains("no receive queue 4") && message.contains("0 to 3"),
        "{message}"
    );
    let message = wrong(&text(&format!("channels = 3\n{rule}")), vec![nic("eth0", 8)]);
    assert!(message.contains("no receive queue 3") && message.contains("will have"), "{message}");
    // More of them are asked for: then it is there.
    assert!(desired(&text(&format!("channels = 5\n{rule}")), vec![nic("eth0", 4)]).wrong.is_empty());
    let offline = policy(&text("[[device.queues]]\nqueues = \"0\"\nirq-cpus = \"6-9\""));
    let error = offline.resolve(&machine(vec![nic("eth0", 4)]), &online()).expect_err("offline");
    let message = error.to_string();
    assert!(message.contains("p.toml, line 6") && message.contains("CPU 8") && message.contains("0-7"), "{message}");
    let message = wrong(&text("[[device.queues]]\nqueues = \"0\"\nthread = { cpus = \"1\" }"), vec![nic("eth0", 1)]);
    assert!(message.contains("p.toml, line 6") && message.contains("threaded"), "{message}");
}

#[test]
fn cpus_go_round_and_what_is_so_already_is_left_alone() {
    let text = "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"rest\"\nirq-cpus = \"2-3\"\nxps-cpus = \"4,5:all\"\n";
    let mut state = nic("eth0", 3);
    let found = desired(text, vec![state.clone()]);
    let of = |queue: u32| found.devices[0].queues[&queue].clone();
    assert_eq!([0, 1, 2].map(|queue| of(queue).irq.expect("CPUs").value), ["2", "3", "2"].map(list));
    assert_eq!(of(1).xps.expect("CPUs").value, list("4-5"));
    assert_eq!(difference(text, &state).planned.len(), 6);
    // A CPU that is not online makes no difference in a mask.
    state.napis[1].irq.as_mut().expect("an IRQ").cpus = Ok(list("3,64"));
    state.xps = Ok(BTreeMap::from([(0, list("4-5")), (1, list("4-5")), (2, list("4"))]));
    assert_eq!(difference(text, &state).planned.len(), 3);
}

#[test]
fn new_queues_come_first_and_settings_once_they_are_there() {
    let text = "[[device]]\nname = \"eth0\"\nchannels = 4\nmode = \"defer50\"\n";
    let mut state = nic("eth0", 2);
    let found = difference(text, &state);
    let renews: Vec<bool> = found.planned.iter().map(|planned| planned.action.recreates_queues()).collect();
    assert_eq!(renews, [true, false, false]);
    assert_eq!(found.later.len(), 2, "{:?}", found.later);
    assert!(!found.is_empty());
    state = nic("eth0", 4);
    for napi in &mut state.napis {
        let wanted = mode("defer50");
        napi.napi.defer_hard_irqs = Some(wanted.defer_hard_irqs);
        napi.napi.gro_flush_timeout = Some(wanted.gro_flush_timeout);
    }
    assert!(difference(text, &state).is_empty());
}

#[test]
fn ports_get_a_context_of_their_own_or_one_that_is_there() {
    let text = "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"1-2\"\nports = [\"tcp/80\", \"udp/53\"]\n";
    let mut state = nic("eth0", 4);
    let found = difference(text, &state);
    let [planned] = &found.planned[..] else { panic!("{found:?}") };
    let Action::Steer { queues, flows, .. } = &planned.action else { panic!("{planned:?}") };
    assert_eq!((queues.len(), flows.len()), (2, 4));
    // The context is there, and one of the rules.
    let flows = flows.clone();
    state.contexts =
        Ok(vec![RssContext { id: 3, table: vec![1, 2, 1, 2], key: Vec::new(), function: 1, transformation: 0 }]);
    state.rules = Ok(vec![FlowRule::to_port(flows[0], FlowTarget::Context(3))]);
    assert_eq!(difference(text, &state).planned.len(), 3);
    state.rules = Ok(flows.iter().map(|flow| FlowRule::to_port(*flow, FlowTarget::Context(3))).collect());
    assert!(difference(text, &state).is_empty());
    // One queue needs no context.
    let one = "[[device]]\nname = \"eth0\"\n[[device.flows]]\nports = [\"tcp/80\"]\nqueues = \"1\"\n";
    assert_eq!(difference(one, &nic("eth0", 4)).planned.len(), 2);
}

#[test]
fn what_cannot_be_is_listed_with_its_reason_and_what_becomes_of_it() {
    let text = "[[device]]\nname = \"eth0\"\nchannels = 4\nrss = \"0\"\non-unsupported = \"skip\"\n\
                [[device.queues]]\nqueues = \"0\"\nirq-cpus = \"1\"\nxps-cpus = \"1\"\nports = [\"tcp/80\"]\nmode = \"suspend20\"\n";
    let mut state = nic("eth0", 2);
    state.channels = lack(Feature::Channels);
    state.rss = lack(Feature::Rss);
    state.rules = lack(Feature::FlowRules);
    state.xps = lack(Feature::Xps);
    state.napis[0].irq = lack(Feature::Irq);
    let found = difference(text, &state);
    assert_eq!(found.unsupported.len(), 5, "{:?}", found.unsupported);
    for unsupported in &found.unsupported {
        assert_eq!(unsupported.on_unsupported, OnUnsupported::Skip);
        assert!(unsupported.to_string().contains("its driver has none; asked for in p.toml, line"), "{unsupported}");
    }
    // What can be is planned all the same.
    assert_eq!(found.planned.len(), 1);
    // More than there can be is no matter of a lack.
    let many = difference("[[device]]\nname = \"eth0\"\nchannels = 17\n", &nic("eth0", 2));
    assert_eq!((many.planned.len(), many.unsupported.len()), (0, 1));
    assert_eq!(many.unsupported[0].on_unsupported, OnUnsupported::Fail);
}

#[test]
fn queues_with_one_napi_instance_cannot_differ() {
    let text = |second: &str| {
        format!(
            "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"0\"\nmode = \"base\"\n[[device.queues]]\nqueues = \"1\"\nmode = \"{second}\"\n"
        )
    };
    let mut state = nic("eth0", 2);
    state.queues[1].napi = Some(100);
    let desired = desired(&text("defer50"), vec![state.clone()]).devices.pop().expect("a device");
    let error = desired.difference(&state, ABLE, &online()).expect_err("they differ");
    assert!(matches!(error, PolicyError::Shared { .. }));
    let message = error.to_string();
    assert!(
        message.contains("line 6") && message.contains("line 9") && message.contains("queues 0 and 1"),
        "{message}"
    );
    assert!(difference(&text("base"), &state).is_empty());
}

#[test]
fn a_device_that_is_down_is_waited_for() {
    let mut state = nic("eth0", 2);
    (state.device.up, state.napis) = (false, Vec::new());
    let found = difference("[[device]]\nname = \"eth0\"\nmode = \"base\"\n", &state);
    assert!(found.waiting.is_some() && !found.is_empty() && found.unsupported.is_empty(), "{found:?}");
}

#[test]
fn an_old_kernel_lacks_suspension() {
    let state = nic("eth0", 1);
    let desired =
        desired("[[device]]\nname = \"eth0\"\nmode = \"suspend20\"\n", vec![state.clone()]).devices.pop().expect("one");
    let found = desired.difference(&state, NapiCapabilities { suspend: false, ..ABLE }, &online()).expect("sound");
    assert_eq!((found.planned.len(), found.unsupported.len()), (0, 1));
    assert!(found.unsupported[0].to_string().contains("6.13"), "{}", found.unsupported[0]);
}

#[test]
fn settings_that_are_tuned_within_their_bounds_are_left_alone() {
    let text = "[[device]]\nname = \"eth0\"\n[[device.queues]]\nqueues = \"0\"\nmode = \"suspend20\"\n\
                tune = { goal = \"p99=250us\", gro-flush-timeout = [\"10us\", \"50us\"] }\n";
    let mut state = nic("eth0", 1);
    let mut planned = |name: &str| {
        let now = mode(name);
        let napi = &mut state.napis[0].napi;
        napi.defer_hard_irqs = Some(now.defer_hard_irqs);
        napi.gro_flush_timeout = Some(now.gro_flush_timeout);
        napi.irq_suspend_timeout = Some(now.irq_suspend_timeout);
        difference(text, &state).planned.len()
    };
    assert_eq!(["suspend10", "suspend50", "defer30", "base"].map(&mut planned), [0; 4]);
    assert_eq!(["suspend9", "defer60", "defer5"].map(&mut planned), [1; 3]);
}

#[test]
fn each_rule_that_tunes_is_a_group_with_its_programs() {
    let rule = |queues: &str, more: &str| {
        format!("[[device.queues]]\nqueues = \"{queues}\"\nmode = \"base\"\ntune = {{ goal = \"cpu=50%\"{more} }}\n")
    };
    let program =
        |queues: &str| format!("[[program]]\nexecutable = \"/bin/a\"\ndevice = \"eth0\"\nqueues = \"{queues}\"\n");
    let groups = |text: &str| {
        let policy = policy(&format!("[[device]]\nname = \"eth*\"\n{text}"));
        let desired = policy.resolve(&machine(vec![nic("eth0", 4), nic("eth1", 3)]), &online()).expect("sound");
        policy.tune_groups(&desired).map_err(|error| error.to_string())
    };
    let two = rule("0,2", "") + &rule("1", ", modes = [\"base\", \"defer\"]") + &program("2");
    let found = groups(&two).expect("sound");
    let shown: Vec<_> = found.iter().map(|group| (&*group.device, &group.queues, group.programs.len())).collect();
    let (both, one) = ([0, 2].into(), [1].into());
    assert_eq!(shown, [("eth0", &both, 1), ("eth0", &one, 0), ("eth1", &both, 0), ("eth1", &one, 0)]);
    assert_eq!((found[0].tune.origin.line, found[0].tune.value.names_modes), (7, false));
    let error = groups(&(rule("0", "") + &rule("1", "") + &program("0-1"))).expect_err("two groups");
    assert!(
        error.contains("line 12 (program)") && error.contains("line 7") && error.contains("fewer `queues`"),
        "{error}"
    );
    let error = groups(&rule("0", ", modes = [\"base\", \"suspend\"]")).expect_err("no program busy polls");
    assert!(error.contains("line 7 (device.queues.tune)") && error.contains("[[program]]"), "{error}");
}

#[test]
fn a_program_has_the_mode_of_its_queues() {
    let devices =
        "[[device]]\nname = \"eth0\"\nmode = \"suspend20\"\n[[device.queues]]\nqueues = \"1\"\nmode = \"base\"\n";
    let with = |keys: &str| policy(&format!("{devices}[[program]]\nunit = \"a.service\"\n{keys}\n"));
    let resolve = |keys: &str| with(keys).resolve(&machine(vec![nic("eth0", 2)]), &online());
    let desired = resolve("device = \"eth0\"\nqueues = \"0\"\ncpus = \"2-3\"").expect("sound").programs.remove(0);
    let text = desired.drop_in(std::path::Path::new("/usr/lib/libabey.so")).expect("something");
    for line in [
        "[Service]",
        "Environment=LD_PRELOAD=/usr/lib/libabey.so",
        "Environment=ABEY_MODE=suspend20",
        "Environment=ABEY_EPOLL=0,64,1",
        "CPUAffinity=2-3",
    ] {
        assert!(text.lines().any(|there| there == line), "no `{line}` in {text}");
    }
    // `base` is a matter of the NAPI instances alone.
    let base = resolve("device = \"eth0\"\nqueues = \"1\"").expect("sound").programs.remove(0);
    assert_eq!(base.drop_in(std::path::Path::new("/x")), None);
    let mixed = resolve("device = \"eth0\"").expect_err("two modes").to_string();
    assert!(mixed.contains("different settings") && mixed.contains("p.toml, line 8"), "{mixed}");
    let named = resolve("device = \"eth0\"\nmode = \"fullbusy\"").expect("sound").programs.remove(0);
    assert!(named.drop_in(std::path::Path::new("/x")).expect("something").contains("ABEY_MAX_WAIT=1ms"));
    assert_eq!(resolve("device = \"eth9\"").expect("absent").absent.len(), 1);
}

#[test]
fn what_is_dumped_and_applied_changes_nothing() {
    let mut state = nic("eth0", 4);
    state.napis[1].napi.defer_hard_irqs = Some(100);
    state.napis[1].napi.gro_flush_timeout = Some(abey_delivery::Nanos::from_micros(37));
    state.napis[2].irq.as_mut().expect("an IRQ").cpus = Ok(list("3"));
    state.xps = Ok(BTreeMap::from([(0, list("1")), (1, CpuList::default()), (2, list("0-2,64")), (3, list("1"))]));
    state.contexts = Ok(vec![RssContext { id: 1, table: vec![2, 3], key: Vec::new(), function: 1, transformation: 0 }]);
    let flows = "[[device]]\nname = \"eth0\"\n[[device.flows]]\nports = [\"tcp/80\", \"udp/53\"]\nqueues = \"2-3\"\n";
    let there = difference(flows, &state);
    let rules = there.planned.iter().map(|planned| match &planned.action {
        Action::Change(abey_policy::Change::Rule { flow, target, .. }) => FlowRule::to_port(*flow, *target),
        other => panic!("{other:?}"),
    });
    state.rules = Ok(rules.collect());
    let text = dump(&machine(vec![state.clone()]), &online(), |_| true);
    assert!(difference(text.strip_prefix("version = 1\n").expect("the version"), &state).is_empty(), "{text}");
    for part in [
        "channels = 4",
        "gro-flush-timeout = \"37us\"",
        "irq-cpus = \"3:all\"",
        "xps-cpus = \"0-2:all\"",
        "ports = [\"tcp/80\", \"udp/53\"]",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}
