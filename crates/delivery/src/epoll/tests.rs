//! The rows of the design's table that concern an epoll context.

use super::*;
use crate::{NapiIndex, Poller, QueueKey, Store};

fn us(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// Returns the IDs of `N` queues.
fn ids<const N: usize>() -> [NapiId; N] {
    let mut store = Store::new();
    std::array::from_fn(|n| {
        let index = NapiIndex(n as u32);
        store.attach(QueueKey { device: 1, queue: n as u32 }, index).expect("every queue is new").0
    })
}

fn context(config: EpollConfig, usecs: u32, members: &[NapiId]) -> EpollContext {
    let mut epoll = EpollContext::new(config, Some(EpollBusyPoll { usecs, budget: 64, prefer: true }));
    members.iter().for_each(|napi| epoll.handle_add(*napi));
    epoll
}

fn poll(napi: NapiId, budget: u16) -> WaitStep {
    WaitStep::Poll { napi, budget, prefer: true }
}

/// Returns a wait that began at 0, with this deadline.
fn wait(deadline: Option<Nanos>) -> EpollWait {
    let mut wait = EpollWait::new(Poller(1));
    wait.begin(us(0), deadline);
    wait
}

#[test]
fn ready_events_are_delivered_and_interrupts_suspended() {
    let [a] = ids();
    let mut epoll = context(EpollConfig::LINUX, 0, &[a]);
    let mut wait = wait(None);
    assert_eq!(wait.next(&mut epoll, us(0), true), WaitStep::Suspend { napi: a });
    assert_eq!(wait.next(&mut epoll, us(0), true), WaitStep::Deliver);
}

#[test]
fn zero_time_with_preference_is_exactly_one_iteration() {
    let [a] = ids();
    let mut epoll = context(EpollConfig::LINUX, 0, &[a]);
    let mut wait = wait(None);
    assert_eq!(wait.next(&mut epoll, us(0), false), poll(a, 64));
    assert_eq!(wait.next(&mut epoll, us(0), false), WaitStep::EndPoll { napi: a });
    assert_eq!(wait.next(&mut epoll, us(0), false), WaitStep::Resume { napi: a });
    assert_eq!(wait.next(&mut epoll, us(0), false), WaitStep::Sleep { until: None });
    assert_eq!(epoll.members().len(), 0, "forgotten");
    epoll.handle_ready(a);
    assert_eq!(wait.next(&mut epoll, us(9), true), WaitStep::Suspend { napi: a });
}

#[test]
fn polling_goes_on_until_events_or_the_time_is_up() {
    let [a] = ids();
    let mut epoll = context(EpollConfig::LINUX, 64, &[a]);
    let mut first = wait(None);
    assert_eq!(first.next(&mut epoll, us(0), false), poll(a, 64));
    assert_eq!(first.next(&mut epoll, us(63), false), poll(a, 64));
    assert_eq!(first.next(&mut epoll, us(64), false), WaitStep::EndPoll { napi: a });
    assert_eq!(first.next(&mut epoll, us(65), true), WaitStep::Suspend { napi: a }, "the last poll found packets");
    let mut second = wait(None);
    assert_eq!(second.next(&mut epoll, us(0), false), poll(a, 64));
    assert_eq!(second.next(&mut epoll, us(1), true), WaitStep::EndPoll { napi: a });
}

#[test]
fn a_zero_timeout_returns_in_linux_and_polls_once_here() {
    let [a] = ids();
    let mut linux = context(EpollConfig::LINUX, 64, &[a]);
    assert_eq!(wait(Some(us(0))).next(&mut linux, us(0), false), WaitStep::TimedOut);
    let mut ours = context(EpollConfig::default(), 64, &[a]);
    let mut wait = wait(Some(us(0)));
    assert_eq!(wait.next(&mut ours, us(0), false), poll(a, 64));
    assert_eq!(wait.next(&mut ours, us(1), false), WaitStep::EndPoll { napi: a });
    assert_eq!(
        wait.next(&mut ours, us(1), false),
        WaitStep::TimedOut,
        "without a resume, because the thread does not sleep"
    );
}

#[test]
fn linux_polls_the_last_ready_instance_and_the_default_is_all() {
    let [a, b] = ids();
    let mut linux = context(EpollConfig::LINUX, 0, &[a, b]);
    linux.handle_ready(a);
    assert_eq!(linux.members().collect::<Vec<_>>(), [a]);
    let mut ours = context(EpollConfig::default(), 0, &[a, b]);
    ours.handle_ready(a);
    assert_eq!(ours.members().collect::<Vec<_>>(), [a, b]);
}

#[test]
fn a_set_is_polled_in_turn_within_one_budget_and_suspended_together() {
    let [a, b, c] = ids();
    let mut epoll = context(EpollConfig::default(), 0, &[a, b, c]);
    let mut first = wait(None);
    assert_eq!(first.next(&mut epoll, us(0), false), poll(a, 64));
    first.handle_polled(40);
    assert_eq!(first.next(&mut epoll, us(0), true), poll(b, 24));
    first.handle_polled(24);
    for napi in [a, b, c] {
        assert_eq!(first.next(&mut epoll, us(0), true), WaitStep::EndPoll { napi });
    }
    for napi in [a, b, c] {
        assert_eq!(first.next(&mut epoll, us(0), true), WaitStep::Suspend { napi });
    }
    assert_eq!(first.next(&mut epoll, us(0), true), WaitStep::Deliver);
    assert_eq!(wait(None).next(&mut epoll, us(0), false), poll(c, 64), "the budget did not reach it before");
}

#[test]
fn an_instance_without_sockets_is_resumed_and_forgotten() {
    let [a, b] = ids();
    let mut epoll = context(EpollConfig::default(), 0, &[a, a, b]);
    assert_eq!(epoll.handle_remove(a), None, "one socket is left");
    assert_eq!(epoll.handle_remove(a), Some(a));
    assert_eq!(epoll.handle_remove(a), None);
    assert_eq!(epoll.members().collect::<Vec<_>>(), [b]);
    assert_eq!(epoll.close(), [b]);
    assert!(epoll.close().is_empty());
}

#[test]
fn giving_up_preference_resumes() {
    let [a] = ids();
    let mut epoll = context(EpollConfig::default(), 0, &[a]);
    assert_eq!(epoll.handle_parameters(None), [a]);
    assert!(epoll.close().is_empty(), "there is no suspension to end");
}

#[test]
fn a_signal_releases_the_instances_first() {
    let [a] = ids();
    let mut epoll = context(EpollConfig::default(), 1_000, &[a]);
    let mut wait = wait(None);
    assert_eq!(wait.next(&mut epoll, us(0), false), poll(a, 64));
    wait.handle_signal(us(1));
    assert_eq!(wait.next(&mut epoll, us(1), false), WaitStep::EndPoll { napi: a });
    assert_eq!(wait.next(&mut epoll, us(1), false), WaitStep::Resume { napi: a });
    assert_eq!(wait.next(&mut epoll, us(1), false), WaitStep::TimedOut);
}

#[test]
fn events_that_come_while_instances_are_resumed_are_delivered() {
    let [a] = ids();
    for config in [EpollConfig::LINUX, EpollConfig::default()] {
        let mut epoll = context(config, 0, &[a]);
        // Events are delivered even if the time is over.
        for deadline in [None, Some(us(1))] {
            epoll.handle_ready(a);
            let mut wait = wait(deadline);
            assert_eq!(wait.next(&mut epoll, us(0), false), poll(a, 64));
            assert_eq!(wait.next(&mut epoll, us(0), false), WaitStep::EndPoll { napi: a });
            assert_eq!(wait.next(&mut epoll, us(0), false), WaitStep::Resume { napi: a });
            let mut step = wait.next(&mut epoll, us(2), true);
            if config == EpollConfig::default() {
                assert_eq!(step, WaitStep::Suspend { napi: a });
                step = wait.next(&mut epoll, us(2), true);
            }
            assert_eq!(step, WaitStep::Deliver, "in Linux the instance is forgotten, so nothing is suspended");
        }
    }
}

#[test]
fn a_signal_at_the_beginning_ends_the_wait_unless_there_are_events() {
    let [a] = ids();
    let mut epoll = context(EpollConfig::default(), 0, &[a]);
    for (ready, expected) in [(false, WaitStep::TimedOut), (true, WaitStep::Suspend { napi: a })] {
        let mut wait = wait(None);
        wait.handle_signal(us(0));
        assert_eq!(wait.next(&mut epoll, us(0), ready), expected);
    }
}
