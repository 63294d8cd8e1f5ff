//! Verdicts on constructed facts: every reason, and the sentences.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use abey_delivery::{EpollBusyPoll, Mode, Nanos, NapiSettings};

use super::*;
use crate::process::{EpollParams, EpollView, Protocol, SocketState, SocketView};

const NAPI: u32 = 900;
const HERE: u64 = 4_026_531_840;

fn mode(name: &str) -> abey_delivery::ModeSettings {
    name.parse::<Mode>().expect(name).settings()
}

fn socket(state: SocketState, napi_id: Option<u32>) -> SocketView {
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let remote = (state == SocketState::Connected).then_some(address);
    SocketView { fd: 9, inode: 1, protocol: Protocol::Tcp, state, local: address, remote, napi_id }
}

fn epoll(params: Option<EpollBusyPoll>, napis: &[(u32, usize)]) -> EpollView {
    EpollView {
        fd: 4,
        params: params.map_or(EpollParams::Unset, EpollParams::Set),
        watched: 3,
        napi_ids: napis.iter().copied().collect(),
        without_napi: 0,
        listeners: 1,
        shared_with: Vec::new(),
    }
}

fn process(pid: u32, params: Option<EpollBusyPoll>) -> ProcessFacts {
    let sockets = vec![socket(SocketState::Listening, None), socket(SocketState::Connected, Some(NAPI))];
    ProcessFacts {
        view: ProcessView {
            pid,
            parent: 1,
            comm: "memcached".to_owned(),
            network_namespace: HERE,
            threads: Vec::new(),
            children: Vec::new(),
            sockets,
            epolls: vec![epoll(params, &[(NAPI, 1)])],
        },
        own_polls: Some(OwnPolls { all: 150, with_work: 98 }),
        cpu: Some(Duration::from_millis(200)),
        by_other_device: BTreeMap::new(),
        waits: Some(Waits { all: 100, zero: 1 }),
    }
}

/// A server in mode `name` under load, for which the mode is active.
fn facts(name: &str) -> Facts {
    let settings = mode(name);
    let polls = match name {
        "threaded" => {
            PollCounts { kthread: 100, kthread_with_work: 99, softirq: 1, softirq_with_work: 1, ..Default::default() }
        }
        "base" | "defer50" => PollCounts { softirq: 200, softirq_with_work: 100, ..PollCounts::default() },
        _ => PollCounts { softirq: 5, softirq_with_work: 2, busy: 150, busy_with_work: 98, ..PollCounts::default() },
    };
    Facts {
        device: DeviceFacts {
            name: "eth0".to_owned(),
            network_namespace: HERE,
            gro: Some(true),
            napis: vec![(NAPI, settings.napi)],
            ..DeviceFacts::default()
        },
        interval: Duration::from_millis(500),
        polls: Ok(polls),
        timer_expiries: Some(40),
        processes: vec![process(123, settings.epoll)],
    }
}

/// The verdict on `suspend20` with one change, which must not be active.
fn refused(change: impl FnOnce(&mut Facts)) -> Verdict {
    let mut facts = facts("suspend20");
    change(&mut facts);
    let verdict = judge(&facts);
    assert!(!verdict.active && verdict.to_string().contains("not active"), "{verdict}");
    verdict
}

fn of(facts: &mut Facts) -> &mut ProcessFacts {
    &mut facts.processes[0]
}

fn silent(facts: &mut Facts) {
    facts.polls = Ok(PollCounts::default());
    of(facts).own_polls = Some(OwnPolls::default());
}

fn in_softirq(facts: &mut Facts, all: u64) {
    facts.polls = Ok(PollCounts { softirq: 60, softirq_with_work: 50, busy: all, ..PollCounts::default() });
    of(facts).own_polls = Some(OwnPolls { all, with_work: 0 });
}

#[test]
fn every_mode_is_active_if_its_poller_polls() {
    let text = |name: &str| judge(&facts(name)).to_string();
    assert_eq!(
        text("suspend20"),
        "suspend20 is active for memcached (pid 123): 98% of its packets' polls on eth0 were its own"
    );
    assert_eq!(
        text("threaded"),
        "threaded is active for memcached (pid 123): 99% of the polls with packets on eth0 were by NAPI threads"
    );
    assert_eq!(
        text("defer50"),
        "defer50 is active for memcached (pid 123): 100 polls with packets on eth0, and deferral timers fired 40 times"
    );
    assert_eq!(
        text("base"),
        "base is active for memcached (pid 123): 100% of the polls with packets on eth0 were in softirq"
    );
    for name in ["napibusy", "fullbusy"] {
        assert!(text(name).starts_with(&format!("{name} is active")), "{name}");
    }
}

#[test]
fn a_share_below_one_percent_is_given_as_counts() {
    let mut rare = facts("suspend20");
    rare.polls = Ok(PollCounts { softirq_with_work: 5000, busy_with_work: 3, ..PollCounts::default() });
    of(&mut rare).own_polls = Some(OwnPolls { all: 9, with_work: 3 });
    let text = judge(&rare).to_string();
    assert!(text.starts_with("suspend20 is active for memcached (pid 123): it polled 3 times with packets"), "{text}");
    assert!(text.contains("softirq 5000 times") && !text.contains('%'), "{text}");
}

#[test]
fn the_namespace_option_is_named_only_where_it_was_given() {
    let given = refused(|facts| of(facts).view.network_namespace += 1);
    assert!(given.to_string().contains("leave --netns out"), "{given}");
    let mut facts = facts("suspend20");
    let mut child = facts.processes[0].clone();
    child.view.pid += 1;
    child.view.network_namespace += 1;
    facts.processes.push(child);
    let verdict = judge(&facts);
    let child = verdict.processes[1].reasons[0].to_string();
    assert!(child.contains("with --pid") && !child.contains("--netns"), "{child}");
}

#[test]
fn settings_alone_never_make_a_mode_active() {
    for name in ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"] {
        let mut facts = facts(name);
        silent(&mut facts);
        let verdict = judge(&facts);
        assert!(!verdict.active, "{name}");
        assert_eq!(verdict.reasons, [Reason::NothingReceived { device: "eth0".to_owned() }], "{name}");
        facts.polls = Err("no tracefs".to_owned());
        let verdict = judge(&facts);
        assert!(!verdict.active && verdict.is_unknown() && verdict.to_string().contains("no tracefs"), "{name}");
    }
}

#[test]
fn no_napi_on_the_path() {
    let without = |change: fn(&mut DeviceFacts)| {
        let verdict = refused(|facts| {
            facts.device.napis.clear();
            change(&mut facts.device);
        });
        verdict.reasons[0].clone()
    };
    let reason = |why| Reason::NoNapi { device: "eth0".to_owned(), why };
    assert_eq!(without(|device| device.loopback = true), reason(NoNapi::Loopback));
    let off = |device: &mut DeviceFacts| (device.veth, device.gro) = (true, Some(false));
    assert_eq!(without(off), reason(NoNapi::GroOff));
    assert_eq!(without(|_| ()), reason(NoNapi::NoInstance));
}

#[test]
fn tso_at_the_peer_comes_first_and_only_while_nothing_arrives() {
    let peer = Some(("veth1".to_owned(), "the other side".to_owned()));
    let tso = Reason::TsoAtPeer { device: "eth0".into(), peer: "veth1".into(), netns: "the other side".into() };
    let verdict = refused(|facts| {
        silent(facts);
        facts.device.tso_peer = peer.clone();
        facts.device.napis[0].1 = NapiSettings::default();
        of(facts).view.sockets[1].napi_id = None;
    });
    assert_eq!(verdict.reasons, [tso, Reason::NoDeferral { device: "eth0".to_owned() }]);
    // Polls of another device of the same name do not matter: the sockets show it.
    let verdict = refused(|facts| {
        facts.device.tso_peer = peer.clone();
        of(facts).view.sockets[1].napi_id = None;
    });
    assert!(matches!(verdict.reasons[..], [Reason::TsoAtPeer { .. }]), "{verdict}");
    let verdict = refused(|facts| of(facts).view.sockets[1].napi_id = None);
    assert_eq!(verdict.reasons, [Reason::NoNapiId { device: "eth0".to_owned(), sockets: 1, tso: None }]);
    // The advice to turn it off is not given where it is off.
    for (is_off, advises) in [(false, true), (true, false)] {
        let verdict = refused(|facts| {
            (facts.device.veth, facts.device.tso_peer_off) = (true, is_off);
            of(facts).view.sockets[1].napi_id = None;
        });
        assert_eq!(verdict.to_string().contains("tso off"), advises, "{verdict}");
    }
    // An XDP program at this end makes all packets pass through NAPI nevertheless.
    let mut arriving = facts("suspend20");
    arriving.device.tso_peer = peer;
    assert!(judge(&arriving).active);
}

#[test]
fn connections_through_other_devices() {
    let others = BTreeMap::from([("lo".to_owned(), 3)]);
    let other = |some_here| Reason::OtherDevice { device: "eth0".to_owned(), others: others.clone(), some_here };
    let verdict = refused(|facts| {
        of(facts).view.sockets[1].napi_id = None;
        of(facts).by_other_device = others.clone();
    });
    assert_eq!(verdict.reasons, [other(false)]);
    let mut some = facts("suspend20");
    of(&mut some).by_other_device = others.clone();
    let verdict = judge(&some);
    assert!(verdict.active);
    assert_eq!(verdict.reasons, [other(true)]);
    let moved = refused(|facts| of(facts).view.network_namespace += 1);
    assert_eq!(moved.reasons, [Reason::OtherNamespace { device: "eth0".to_owned(), is_netns_given: true }]);
}

#[test]
fn deferral_that_is_missing_or_too_long() {
    let none = Reason::NoDeferral { device: "eth0".to_owned() };
    for (defer, flush) in [(0, 20), (100, 0), (0, 0)] {
        let verdict = refused(|facts| {
            let napi = &mut facts.device.napis[0].1;
            (napi.defer_hard_irqs, napi.gro_flush_timeout) = (defer, Nanos::from_micros(flush));
        });
        assert_eq!(verdict.reasons, std::slice::from_ref(&none), "{defer} {flush}");
    }
    let (suspend, flush) = (Nanos::from_micros(20), Nanos::from_micros(20));
    let verdict = refused(|facts| facts.device.napis[0].1.irq_suspend_timeout = suspend);
    assert_eq!(verdict.reasons, [Reason::SuspendNotAboveFlush { suspend, flush }]);
}

#[test]
fn epoll_instances_that_are_not_set_up() {
    let unset = refused(|facts| of(facts).view.epolls[0].params = EpollParams::Unset);
    assert_eq!(unset.reasons, [Reason::ParametersNotSet { unset: 1, of: 1 }]);
    assert!(unset.to_string().contains("like suspend20, but without epoll parameters"), "{unset}");
    let old = refused(|facts| of(facts).view.epolls[0].params = EpollParams::Unsupported);
    assert_eq!(old.reasons, [Reason::ParametersUnsupported]);
    let without_prefer = EpollBusyPoll { usecs: 0, budget: 64, prefer: false };
    let without_prefer = refused(|facts| of(facts).view.epolls[0].params = EpollParams::Set(without_prefer));
    assert_eq!(without_prefer.reasons, [Reason::PreferNotSet]);
    let none = refused(|facts| of(facts).view.epolls.clear());
    assert_eq!(none.reasons, [Reason::NoEpoll]);
    // An instance without connected sockets does not matter.
    let mut extra = facts("suspend20");
    of(&mut extra).view.epolls.push(epoll(None, &[]));
    assert!(judge(&extra).active);
}

#[test]
fn polls_that_the_process_does_not_do() {
    let softirq = refused(|facts| in_softirq(facts, 0));
    assert_eq!(softirq.reasons, [Reason::AllInSoftirq { softirq: 50 }]);
    let empty = refused(|facts| in_softirq(facts, 7));
    assert_eq!(empty.reasons, [Reason::OwnPollsEmpty { own: 7, softirq: 50 }]);
    let zero = refused(|facts| {
        in_softirq(facts, 0);
        of(facts).waits = Some(Waits { all: 100, zero: 99 });
    });
    assert_eq!(zero.reasons, [Reason::ZeroTimeout { zero: 99, of: 100 }]);
    assert!(zero.to_string().contains("`abey run --poll-on-zero-timeout`"), "{zero}");
    let unknown = refused(|facts| of(facts).own_polls = None);
    assert!(unknown.is_unknown(), "{unknown}");
}

#[test]
fn two_napi_instances_in_one_epoll() {
    let napis = [(NAPI, 7), (NAPI + 1, 1)];
    let split = Reason::SeveralNapis { epoll: 4, napis: napis.into() };
    let spread = |facts: &mut Facts| {
        of(facts).view.epolls[0].napi_ids = napis.into();
        of(facts).view.sockets.push(socket(SocketState::Connected, Some(NAPI + 1)));
        let settings = facts.device.napis[0].1;
        facts.device.napis.push((NAPI + 1, settings));
    };
    let mut active = facts("suspend20");
    spread(&mut active);
    let verdict = judge(&active);
    assert!(verdict.active, "one polled instance of two is enough: {verdict}");
    assert_eq!(verdict.reasons, std::slice::from_ref(&split));
    assert!(verdict.to_string().contains("`abey run --steer`"), "{verdict}");
    let verdict = refused(|facts| {
        spread(facts);
        in_softirq(facts, 7);
    });
    assert_eq!(verdict.reasons, std::slice::from_ref(&split));
    active.device.napis[1].1 = NapiSettings::default();
    assert!(matches!(&judge(&active).reasons[1], Reason::SettingsDiffer { configured } if configured.len() == 2));
}

#[test]
fn the_other_modes_are_not_active_when_another_context_polls() {
    let mut threaded = facts("threaded");
    threaded.polls = facts("base").polls;
    assert_eq!(judge(&threaded).reasons, [Reason::ThreadsDidNotPoll { softirq: 100 }]);
    let mut deferred = facts("defer50");
    deferred.timer_expiries = Some(0);
    assert_eq!(judge(&deferred).reasons, [Reason::TimerNeverFired]);
    deferred.timer_expiries = None;
    assert!(judge(&deferred).active, "the polls are evidence enough where timers cannot be counted");
    let mut base = facts("base");
    base.polls = Ok(PollCounts { busy: 9, busy_with_work: 8, ..PollCounts::default() });
    assert_eq!(judge(&base).reasons, [Reason::NotInSoftirq { busy: 8 }]);
}

#[test]
fn a_tree_is_active_if_all_processes_with_traffic_are() {
    let mut tree = facts("suspend20");
    let params = mode("suspend20").epoll;
    // A master that only listens, a wrapper without sockets, a worker without connections.
    let mut master = process(100, params);
    (master.view.sockets, master.view.epolls) = (vec![socket(SocketState::Listening, None)], Vec::new());
    let mut wrapper = process(99, None);
    (wrapper.view.sockets, wrapper.view.epolls, wrapper.view.comm) = (Vec::new(), Vec::new(), "abey".to_owned());
    let mut spare = process(124, params);
    (spare.view.sockets, spare.view.epolls) = (vec![socket(SocketState::Listening, None)], vec![epoll(params, &[])]);
    for idle in [&mut master, &mut wrapper, &mut spare] {
        idle.own_polls = Some(OwnPolls::default());
    }
    let worker = tree.processes.remove(0);
    tree.processes = vec![wrapper, master, worker, spare];
    let verdict = judge(&tree);
    assert!(verdict.active, "{verdict}");
    assert_eq!((verdict.pid, verdict.reasons.len()), (123, 0), "the only one with traffic is named");
    let states: Vec<State> = verdict.processes.iter().map(|process| process.state).collect();
    assert_eq!(states, [State::Idle, State::Idle, State::Active, State::Idle]);

    let mut plain = process(125, None);
    plain.own_polls = Some(OwnPolls::default());
    tree.processes.push(plain);
    let verdict = judge(&tree);
    assert!(!verdict.active, "{verdict}");
    assert_eq!((verdict.pid, verdict.name.as_str()), (99, "abey"), "several: the requested one");
    assert_eq!(verdict.reasons, [Reason::ParametersNotSet { unset: 1, of: 1 }]);
}

#[test]
fn an_idle_process_is_distinguished_from_one_without_sockets() {
    let asleep = refused(|facts| {
        in_softirq(facts, 0);
        of(facts).cpu = Some(Duration::from_micros(100));
    });
    assert_eq!(asleep.reasons, [Reason::ProcessIdle]);
    let none = refused(|facts| {
        of(facts).view.sockets.clear();
        of(facts).view.epolls.clear();
    });
    assert_eq!(none.reasons, [Reason::NoSocket]);
}

#[test]
fn a_device_is_described_without_a_process() {
    let suspended = facts("suspend20");
    let text = describe_device(&suspended.device, &suspended.polls);
    assert!(text.starts_with("eth0: suspend20 is configured") && text.contains("--pid"), "{text}");
    assert!(text.contains("150 by processes"), "{text}");
    let mut mixed = suspended.device.clone();
    mixed.napis.push((NAPI + 1, NapiSettings::default()));
    let text = describe_device(&mixed, &Err("no tracefs".to_owned()));
    assert!(text.contains("base (NAPI 901), suspend20 (NAPI 900) is configured"), "{text}");
    mixed.napis.clear();
    assert!(describe_device(&mixed, &suspended.polls).contains("no NAPI instance"));
}

#[test]
fn no_reason_names_an_environment_variable() {
    let device = || "eth0".to_owned();
    let reasons = [
        Reason::NoNapi { device: device(), why: NoNapi::Loopback },
        Reason::NoNapi { device: device(), why: NoNapi::GroOff },
        Reason::NoNapi { device: device(), why: NoNapi::NoInstance },
        Reason::OtherNamespace { device: device(), is_netns_given: true },
        Reason::OtherNamespace { device: device(), is_netns_given: false },
        Reason::TsoAtPeer { device: device(), peer: "veth1".to_owned(), netns: "network namespace b".to_owned() },
        Reason::NoNapiId { device: device(), sockets: 1, tso: Some(true) },
        Reason::NoNapiId { device: device(), sockets: 1, tso: Some(false) },
        Reason::OtherDevice { device: device(), others: [("lo".to_owned(), 3)].into(), some_here: true },
        Reason::NoDeferral { device: device() },
        Reason::SuspendNotAboveFlush { suspend: Nanos::from_micros(20), flush: Nanos::from_micros(20) },
        Reason::NoEpoll,
        Reason::ParametersNotSet { unset: 1, of: 2 },
        Reason::ParametersUnsupported,
        Reason::PreferNotSet,
        Reason::ZeroTimeout { zero: 99, of: 100 },
        Reason::CannotCount { why: "no tracefs".to_owned() },
        Reason::NoSocket,
        Reason::NothingReceived { device: device() },
        Reason::ProcessIdle,
        Reason::OwnPollsEmpty { own: 7, softirq: 50 },
        Reason::AllInSoftirq { softirq: 50 },
        Reason::ThreadsDidNotPoll { softirq: 50 },
        Reason::TimerNeverFired,
        Reason::NotInSoftirq { busy: 8 },
        Reason::SeveralNapis { epoll: 4, napis: [(NAPI, 7), (NAPI + 1, 1)].into() },
        Reason::SettingsDiffer { configured: [(NAPI, "base".to_owned())].into() },
    ];
    for reason in reasons {
        let text = reason.to_string();
        assert!(!text.contains("ABEY_"), "{text}");
    }
}
