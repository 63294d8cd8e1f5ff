//! Replays of every mode with several seeds, and of recordings that were changed on purpose.

use std::collections::{HashSet, VecDeque};
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abey_delivery::record::{Call, Transition, first_divergence};
use abey_delivery::{Mode, ModeSettings, Nanos, PollContext};
use abey_nic::QueuePair;
use abey_sim::{External, Load, Profile, Recording, Responder, Scenario, What, run_recorded};

use super::ring::{MAC, Ring};
use super::{NOW, Over, STAGE, Stage, until_step};
use crate::{Error, Interest, Runtime, UdpSocket};

/// A machine with round costs.
const PROFILE: &str = include_str!("../../../sim/tests/round.toml");

const MILLIS: u64 = 5;

fn scenario(mode: Mode, load: Load, seed: u64) -> Scenario {
    let responder = match mode {
        Mode::SockBusy(_) => Responder::Receive,
        _ => Responder::EventLoop,
    };
    Scenario {
        warmup: Nanos::ZERO,
        duration: Nanos::from_millis(MILLIS),
        connections: 40,
        responder,
        seed,
        ..Scenario::new(mode, load)
    }
}

fn record(scenario: &Scenario) -> Recording {
    let profile = Profile::parse("round.toml", PROFILE).expect("a valid profile");
    run_recorded(&profile, scenario).expect("a valid scenario")
}

/// Returns the calls of a datapath with these settings to the core when it receives the same events.
fn play(recording: &Recording, settings: ModeSettings, responder: Responder) -> Vec<Transition> {
    // In a new thread, because waits store state for each thread.
    let events = recording.events.iter().copied().collect();
    std::thread::spawn(move || perform(events, settings, responder, Interest::IN)).join().expect("the replay ended").0
}

/// Returns the transitions, and the number of waits of the event loop that ended with events.
fn perform(
    events: VecDeque<External>,
    settings: ModeSettings,
    responder: Responder,
    interest: Interest,
) -> (Vec<Transition>, usize) {
    NOW.set(Some(Nanos::ZERO));
    let ring = Ring::default();
    let trace = Arc::new(Mutex::new(Vec::new()));
    let recorder = {
        let trace = trace.clone();
        Box::new(move |one| trace.lock().expect("not poisoned").push(one))
    };
    let queues = vec![Box::new(ring.queue()) as Box<dyn QueuePair>];
    let builder = Runtime::builder().queues("ring", MAC, queues, None).address([10, 0, 0, 2].into(), 24);
    let runtime = builder.settings(settings).recorders(vec![recorder]).build().expect("a runtime");
    let socket = UdpSocket::bind(&runtime, ([10, 0, 0, 2], 7).into()).expect("a socket");
    let epoll = runtime.epoll();
    if responder == Responder::EventLoop {
        socket.set_nonblocking(true);
        epoll.add(&socket, 0, interest).expect("added");
    }
    let stage = Stage {
        events,
        ring,
        shard: runtime.all_shards()[0].clone(),
        queue: runtime.work_queue.clone(),
        context: settings.napi.context,
    };
    STAGE.set(Some(stage));
    let timeout = settings.max_wait.map(Duration::from);
    let mut waits = 0;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut reported = Vec::new();
        loop {
            until_step();
            if responder == Responder::Receive {
                socket.recv_from(&mut [0; 8]).expect("a datagram");
                continue;
            }
            if epoll.wait(&mut reported, 64, timeout).expect("a wait") > 0 {
                waits += 1;
                // A server receives all datagrams, and only then serves.
                while match socket.recv_from(&mut [0; 8]) {
                    Ok(_) => true,
                    Err(error) => nothing_more(&error),
                } {}
            }
        }
    }));
    STAGE.set(None);
    let Err(ended) = ended;
    assert!(ended.is::<Over>(), "the application failed");
    let trace = std::mem::take(&mut *trace.lock().expect("not poisoned"));
    drop((epoll, socket, runtime));
    (trace, waits)
}

fn nothing_more(error: &Error) -> bool {
    assert!(error.is_would_block(), "{error}");
    false
}

/// Asserts that both worlds have the same transitions, and returns them.
fn assert_same(scenario: &Scenario) -> Vec<Transition> {
    let recording = record(scenario);
    let played = play(&recording, scenario.settings, scenario.responder);
    let Some((at, simulated, datapath)) = first_divergence(&recording.transitions, &played) else { return played };
    let before = &recording.transitions[at.saturating_sub(6)..at];
    let since = before.iter().rev().find_map(time_of);
    let around = recording.events.iter().filter(|event| since.is_none_or(|since| event.at >= since)).take(6);
    panic!(
        "{} {:?} seed {}: transition {at} of {}\nboth before: {before:#?}\nsimulated: {simulated:#?}\ndatapath: {datapath:#?}\nevents: {:#?}",
        scenario.mode,
        scenario.load,
        scenario.seed,
        recording.transitions.len(),
        around.collect::<Vec<_>>()
    );
}

fn time_of(transition: &Transition) -> Option<Nanos> {
    match transition.call {
        Call::Interrupt(now) | Call::Timer(now) | Call::Suspend(now) | Call::Resume(now) => Some(now),
        Call::PollDone(now, _) | Call::Unmasked(now, _) | Call::EndBusyPoll(now, _) => Some(now),
        _ => None,
    }
}

fn every_mode() -> impl Iterator<Item = Mode> {
    Mode::EXAMPLES.into_iter().map(|name| name.parse().expect("a mode"))
}

#[test]
fn the_same_events_make_the_same_transitions_in_every_mode() {
    let mut kinds = HashSet::new();
    for mode in every_mode() {
        for (rate, seed) in [(5e3, 1), (40e3, 2), (40e3, 3), (110e3, 4)] {
            let same = assert_same(&scenario(mode, Load::Open(rate), seed));
            assert!(same.len() > 50, "{mode}: {}", same.len());
            kinds.extend(same.iter().map(|one| discriminant(&one.call)));
        }
    }
    assert_eq!(kinds.len(), 10, "everything but the end and a change of settings");
}

#[test]
fn the_same_with_all_clients_at_once_and_with_several_softirq_runs() {
    for mode in every_mode() {
        assert_same(&Scenario { connections: 700, ..scenario(mode, Load::Closed, 5) });
    }
    // More packets arrive in 5 ms than the 300 of a softirq run, so its thread polls the rest.
    let defer5ms = scenario("defer5ms".parse().expect("a mode"), Load::Open(100e3), 6);
    let deferred = Scenario { connections: 2000, duration: Nanos::from_millis(40), ..defer5ms };
    let same = assert_same(&deferred);
    let is_full = |one: &Transition| matches!(one.call, Call::BeginPoll(PollContext::Softirq) | Call::PollDone(_, 64));
    // Five full polls, each with its beginning.
    assert!(same.windows(10).any(|polls| polls.iter().all(is_full)), "no run exceeded its limit");
}

/// An edge is reported once, so a wait that has consumed it must not sleep.
#[test]
fn an_edge_that_comes_when_the_wait_is_about_to_sleep_is_reported() {
    let arrival = What::Arrival { others: 0, requests: 1 };
    let first = [arrival, What::Interrupt, What::Step];
    // The next wait begins, polls and releases the instance. The packet comes before the instance is resumed.
    let second = [What::Step, What::Step, arrival, What::Step];
    let events =
        first.into_iter().chain(second).zip(1..).map(|(what, at)| External { at: Nanos::from_micros(at), what });
    let settings = scenario("suspend20".parse().expect("a mode"), Load::Closed, 1).settings;
    for interest in [Interest::IN, Interest::IN | Interest::EDGE] {
        let (_, waits) = perform(events.clone().collect(), settings, Responder::EventLoop, interest);
        assert_eq!(waits, 2, "{interest:?}");
    }
}

/// Returns the index of the `nth` event of this kind.
fn find(recording: &Recording, nth: usize, is_wanted: impl Fn(What) -> bool) -> usize {
    let wanted = recording.events.iter().enumerate().filter(|(_, event)| is_wanted(event.what));
    wanted.map(|(at, _)| at).nth(nth).expect("the recording has that many")
}

#[test]
fn a_changed_recording_is_detected() {
    let scenario = scenario("suspend20".parse().expect("a mode"), Load::Open(40e3), 1);
    let recording = record(&scenario);
    let lose = |at: usize| {
        let mut changed = recording.clone();
        changed.events.remove(at);
        changed
    };
    let is_request = |what| matches!(what, What::Arrival { requests: 1, .. });
    let arrival = find(&recording, 20, is_request);
    let poll = arrival + recording.events[arrival..].iter().position(|event| event.what == What::Step).expect("one");
    let mut late = recording.clone();
    // It comes just after the poll that would have found it.
    late.events[arrival].at = recording.events[poll].at;
    late.events[arrival..=poll].rotate_left(1);
    let mut early = recording.clone();
    let timer = find(&recording, 5, |what| what == What::Timer);
    early.events[timer].at = early.events[timer].at - Nanos::from_nanos(1);
    let changes = [
        ("an interrupt is lost", lose(find(&recording, 0, |what| what == What::Interrupt))),
        ("a timer is lost", lose(timer)),
        ("a packet is lost", lose(arrival)),
        ("a packet is late", late),
        ("a timer is early", early),
    ];
    for (what, changed) in changes {
        let played = play(&changed, scenario.settings, scenario.responder);
        let (at, ..) = first_divergence(&recording.transitions, &played).expect(what);
        // Nothing before the change differs.
        let changed_at = recording.events.iter().zip(&changed.events).find(|(a, b)| a != b).expect("changed").0.at;
        let before = recording.transitions[..at].iter().rev().find_map(time_of);
        let sooner =
            recording.transitions[at..].iter().find_map(time_of).is_some_and(|time| time < early_limit(changed_at));
        assert!(!sooner && before.is_some(), "{what}: found at {at}, changed at {changed_at}");
    }
    let mut settings = scenario.settings;
    settings.napi.gro_flush_timeout = Nanos::from_nanos(20_001);
    let played = play(&recording, settings, scenario.responder);
    assert!(first_divergence(&recording.transitions, &played).is_some(), "another setting");
    let same = play(&recording, scenario.settings, scenario.responder);
    assert_eq!(first_divergence(&recording.transitions, &same), None, "without a change");
}

/// Returns how much earlier than the change the difference may be.
fn early_limit(changed: Nanos) -> Nanos {
    changed.saturating_sub(Nanos::from_nanos(1))
}
