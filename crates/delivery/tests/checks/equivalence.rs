//! Invariant 5: with all settings 0 every mode is `base`, and suspension without deferral is `base` too.
//!
//! Two instances receive the same events, and must return the same results.

use abey_delivery::{
    Actions, EpollBusyPoll, EpollConfig, EpollContext, EpollWait, Hold, Nanos, Napi, NapiConfig, NapiSettings, Outcome,
    Poller, QueueKey, Store, WaitStep,
};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Interrupt,
    Unmasked { pending: bool },
    Timer,
    BeginPoll,
    PollDone { work: u16 },
    BeginBusyPoll { poller: u32, prefer: bool },
    EndBusyPoll { poller: u32 },
    Suspend,
    Resume,
    Disable,
    Enable,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Interrupt),
        3 => any::<bool>().prop_map(|pending| Event::Unmasked { pending }),
        1 => Just(Event::Timer),
        4 => Just(Event::BeginPoll),
        6 => (0..=4u16).prop_map(|work| Event::PollDone { work }),
        3 => (0..2u32, any::<bool>()).prop_map(|(poller, prefer)| Event::BeginBusyPoll { poller, prefer }),
        3 => (0..2u32).prop_map(|poller| Event::EndBusyPoll { poller }),
        1 => Just(Event::Suspend),
        1 => Just(Event::Resume),
        1 => Just(Event::Disable),
        2 => Just(Event::Enable),
    ]
}

/// The result of any event.
type Answer = (Option<u16>, Option<Outcome>, Actions);

fn handle(napi: &mut Napi, now: Nanos, event: Event) -> Answer {
    let actions = match event {
        Event::Interrupt => napi.handle_interrupt(now),
        Event::Unmasked { pending } => napi.handle_unmasked(now, pending),
        Event::Timer => napi.handle_timer(now),
        Event::BeginPoll => return (napi.begin_poll(napi.context().unwrap_or_default()), None, Actions::NONE),
        Event::PollDone { work } => {
            let done = napi.handle_poll_done(now, work);
            return (None, Some(done.outcome), done.actions);
        }
        Event::BeginBusyPoll { poller, prefer } => {
            return (napi.begin_busy_poll(Poller(poller), 4, prefer), None, Actions::NONE);
        }
        Event::EndBusyPoll { poller } => {
            let (budget, actions) = napi.end_busy_poll(now, Poller(poller));
            return (budget, None, actions);
        }
        Event::Suspend => napi.suspend(now),
        Event::Resume => napi.resume(now),
        Event::Disable => napi.disable(),
        Event::Enable => napi.enable(),
    };
    (None, None, actions)
}

/// Generates settings without effect: one of the two settings of deferral, suspension without deferral, hold for zero time.
fn without_effect() -> impl Strategy<Value = NapiSettings> {
    let suspend = (0..2u64).prop_map(|n| Nanos::from_millis(20 * n));
    let deferral = prop_oneof![
        Just((0, Nanos::ZERO)),
        (1..100u32).prop_map(|count| (count, Nanos::ZERO)),
        (1..100u64).prop_map(|us| (0, Nanos::from_micros(us))),
    ];
    let hold = prop_oneof![Just(None), Just(Some(Hold::Spin(Nanos::ZERO))), Just(Some(Hold::Timer(Nanos::ZERO)))];
    (suspend, deferral, hold).prop_map(|(irq_suspend_timeout, (defer_hard_irqs, gro_flush_timeout), hold)| {
        NapiSettings { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, hold, ..NapiSettings::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn settings_without_effect_are_base(
        settings in without_effect(),
        events in prop::collection::vec((events(), 0..3_000u64), 0..200),
    ) {
        let config = NapiConfig { weight: 4, ..NapiConfig::default() };
        let mut base = Napi::new(config, NapiSettings::default());
        let mut other = Napi::new(config, settings);
        let mut now = Nanos::from_micros(1);
        for (nth, (event, passed)) in events.into_iter().enumerate() {
            now = now + Nanos::from_nanos(passed);
            let expected = handle(&mut base, now, event);
            prop_assert_eq!(handle(&mut other, now, event), expected, "event {}: {:?}", nth, event);
            prop_assert_eq!(other.flags(), base.flags());
        }
    }
}

/// Busy polling for zero time without preference does not poll.
#[test]
fn an_epoll_context_with_everything_zero_only_sleeps() {
    let napi = Store::new().id(QueueKey { device: 1, queue: 0 });
    let mut epoll =
        EpollContext::new(EpollConfig::default(), Some(EpollBusyPoll { usecs: 0, budget: 64, prefer: false }));
    epoll.handle_add(napi);
    let mut wait = EpollWait::new(Poller(0));
    wait.begin(Nanos::ZERO, None);
    assert_eq!(wait.next(&mut epoll, Nanos::ZERO, false), WaitStep::Sleep { until: None });
    assert_eq!(wait.next(&mut epoll, Nanos::ZERO, true), WaitStep::Deliver);
    assert!(epoll.close().is_empty());
}
