//! The rows of the design's table, one by one.

use super::*;
use crate::{EpollBusyPoll, Hold, Mode, Outcome, PollDone, SuspendVariant};

const APP: Poller = Poller(1);
const OTHER: Poller = Poller(2);

fn us(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// Enabled, unmasked, with an empty queue.
fn idle(settings: NapiSettings) -> Napi {
    let mut napi = Napi::new(NapiConfig::default(), settings);
    assert_eq!(napi.enable().interrupt, Some(InterruptAction::Unmask));
    assert!(napi.handle_unmasked(us(0), false).is_none());
    napi
}

fn mode(name: &str) -> Napi {
    idle(name.parse::<Mode>().expect(name).settings().napi)
}

/// One poll by a context that takes this many packets.
fn poll(napi: &mut Napi, now: Nanos, work: u16) -> PollDone {
    let context = napi.context().expect("a context owns it");
    assert_eq!(napi.begin_poll(context), Some(64));
    napi.handle_poll_done(now, work)
}

/// One busy-poll iteration by `APP` with the budget and preference of the named modes.
fn busy_poll(napi: &mut Napi, now: Nanos, work: u16) -> PollDone {
    assert_eq!(napi.begin_busy_poll(APP, 64, true), Some(64));
    napi.handle_poll_done(now, work)
}

fn unmask() -> Actions {
    Actions { interrupt: Some(InterruptAction::Unmask), ..Actions::NONE }
}

fn arm(at: Nanos) -> Actions {
    Actions { timer: Some(TimerAction::Arm(at)), ..Actions::NONE }
}

fn run(context: PollContext) -> Actions {
    Actions { run: Some(context), ..Actions::NONE }
}

fn released(actions: Actions) -> PollDone {
    PollDone { outcome: Outcome::Released, actions }
}

#[test]
fn an_interrupt_masks_and_schedules_and_an_empty_queue_unmasks() {
    let mut napi = mode("base");
    let actions = napi.handle_interrupt(us(1));
    assert_eq!(actions.interrupt, Some(InterruptAction::Mask));
    assert_eq!(actions.run, Some(PollContext::Softirq));
    assert_eq!(poll(&mut napi, us(2), 64).outcome, Outcome::Requeue);
    assert_eq!(poll(&mut napi, us(3), 3), released(unmask()));
    assert!(napi.handle_unmasked(us(3), false).is_none());
    assert!(!napi.is_masked() && !napi.is_owned());
}

#[test]
fn packets_that_came_before_the_unmask_are_found() {
    let mut napi = mode("base");
    let _ = napi.handle_interrupt(us(1));
    assert_eq!(poll(&mut napi, us(2), 3), released(unmask()));
    let actions = napi.handle_unmasked(us(2), true);
    assert_eq!(actions.interrupt, Some(InterruptAction::Mask));
    assert_eq!(actions.run, Some(PollContext::Softirq));
}

#[test]
fn an_interrupt_that_finds_an_owner_is_remembered() {
    let mut napi = mode("base");
    let _ = napi.handle_interrupt(us(1));
    assert!(napi.handle_interrupt(us(1)).is_none());
    assert!(napi.flags().contains(Flags::MISSED));
    assert_eq!(poll(&mut napi, us(2), 3), released(run(PollContext::Softirq)));
    assert_eq!(poll(&mut napi, us(3), 0), released(unmask()));
}

#[test]
fn deferral_re_polls_from_the_timer_until_the_countdown_is_over() {
    let mut napi = idle(NapiSettings { defer_hard_irqs: 2, gro_flush_timeout: us(50), ..NapiSettings::default() });
    let _ = napi.handle_interrupt(us(0));
    assert_eq!(poll(&mut napi, us(1), 3), released(arm(us(51))));
    assert_eq!(napi.handle_timer(us(50)), Actions::NONE, "too early");
    assert_eq!(napi.handle_timer(us(51)), run(PollContext::Softirq));
    assert_eq!(napi.handle_timer(us(51)), Actions::NONE, "twice");
    assert_eq!(poll(&mut napi, us(52), 0), released(arm(us(102))));
    assert_eq!(napi.handle_timer(us(102)), run(PollContext::Softirq));
    assert_eq!(poll(&mut napi, us(103), 0), released(unmask()), "two deferrals, both used");
}

#[test]
fn work_refills_the_countdown() {
    let mut napi = idle(NapiSettings { defer_hard_irqs: 1, gro_flush_timeout: us(50), ..NapiSettings::default() });
    let _ = napi.handle_interrupt(us(0));
    for round in 0..5 {
        assert_eq!(poll(&mut napi, us(100 * round), 1), released(arm(us(100 * round + 50))));
        assert_eq!(napi.handle_timer(us(100 * round + 50)), run(PollContext::Softirq));
    }
    assert_eq!(poll(&mut napi, us(600), 0), released(unmask()));
}

#[test]
fn a_timeout_without_deferrals_and_deferrals_without_a_timeout_unmask() {
    for (defer_hard_irqs, flush) in [(0, 50), (100, 0)] {
        let settings = NapiSettings { defer_hard_irqs, gro_flush_timeout: us(flush), ..NapiSettings::default() };
        let mut napi = idle(settings);
        let _ = napi.handle_interrupt(us(0));
        assert_eq!(poll(&mut napi, us(1), 3), released(unmask()));
    }
}

#[test]
fn a_busy_poll_owns_the_instance_and_ends_with_the_timer_armed() {
    let mut napi = mode("napibusy");
    assert_eq!(busy_poll(&mut napi, us(1), 5), PollDone { outcome: Outcome::StillBusy, actions: Actions::NONE });
    assert!(napi.flags().contains(Flags::IN_BUSY_POLL));
    assert_eq!(napi.begin_busy_poll(OTHER, 64, false), None, "one poller at a time");
    assert_eq!(napi.end_busy_poll(us(2), OTHER), (None, Actions::NONE), "not its own");
    assert_eq!(napi.end_busy_poll(us(2), APP), (Some(64), arm(us(202))));
    assert_eq!(napi.handle_poll_done(us(3), 64), released(Actions::NONE), "full: the timer polls later");
    assert_eq!(napi.timer(), Some(us(202)));
    assert_eq!(busy_poll(&mut napi, us(4), 0).outcome, Outcome::StillBusy);
    assert_eq!(napi.end_busy_poll(us(5), APP), (Some(64), arm(us(205))));
    assert_eq!(napi.handle_poll_done(us(6), 0), released(arm(us(206))), "not full: completes as usual");
}

#[test]
fn a_busy_poll_without_a_timer_reschedules_what_it_leaves() {
    let mut napi = mode("base");
    assert_eq!(napi.begin_busy_poll(APP, 8, false), Some(8));
    assert_eq!(napi.handle_poll_done(us(1), 8).outcome, Outcome::StillBusy);
    assert_eq!(napi.end_busy_poll(us(1), APP), (Some(8), Actions::NONE));
    assert_eq!(napi.handle_poll_done(us(2), 8), released(run(PollContext::Softirq)));
}

#[test]
fn a_timer_that_goes_off_during_the_last_poll_is_armed_again() {
    let mut napi = mode("napibusy");
    assert_eq!(busy_poll(&mut napi, us(1), 64).outcome, Outcome::StillBusy);
    assert_eq!(napi.end_busy_poll(us(1), APP), (Some(64), arm(us(201))));
    assert_eq!(napi.handle_timer(us(201)), Actions::NONE);
    assert_eq!(napi.handle_poll_done(us(202), 64), released(arm(us(402))));
}

#[test]
fn prefer_makes_the_owner_yield_early() {
    let mut napi = mode("napibusy");
    let _ = napi.handle_interrupt(us(0));
    assert_eq!(napi.begin_busy_poll(APP, 64, true), None);
    assert!(napi.flags().contains(Flags::PREFER_BUSY_POLL));
    assert_eq!(poll(&mut napi, us(1), 64), released(arm(us(201))), "a full poll, yet it releases the instance");
    assert!(!napi.flags().contains(Flags::PREFER_BUSY_POLL));
    assert_eq!(busy_poll(&mut napi, us(2), 64).outcome, Outcome::StillBusy);
}

#[test]
fn prefer_without_deferral_reschedules_rather_than_strand_packets() {
    let mut napi = mode("base");
    let _ = napi.handle_interrupt(us(0));
    assert_eq!(napi.begin_busy_poll(APP, 64, true), None);
    assert_eq!(poll(&mut napi, us(1), 64), released(run(PollContext::Softirq)));
}

#[test]
fn suspension_moves_the_timer_out_and_resuming_schedules() {
    let mut napi = mode("suspend20");
    assert_eq!(busy_poll(&mut napi, us(1), 5).outcome, Outcome::StillBusy);
    assert_eq!(napi.end_busy_poll(us(1), APP), (Some(64), arm(us(21))));
    assert_eq!(napi.handle_poll_done(us(1), 0), released(arm(us(21))));
    assert_eq!(napi.suspend(us(2)), arm(us(20_001)), "from the last poll");
    assert!(napi.is_suspended());
    assert_eq!(napi.handle_timer(us(21)), Actions::NONE, "an old timer that fires at the previous deadline");
    assert_eq!(napi.resume(us(100)), run(PollContext::Softirq));
    assert_eq!(poll(&mut napi, us(101), 0), released(arm(us(121))), "back to plain deferral");
}

#[test]
fn suspension_counts_from_the_last_poll_or_as_in_linux_from_delivery() {
    let settings = Mode::Suspend(us(20)).settings().napi;
    for (config, again) in [(NapiConfig::default(), Actions::NONE), (NapiConfig::LINUX, arm(us(50_000)))] {
        let mut napi = Napi::new(config, settings);
        let _ = napi.enable();
        let _ = napi.handle_unmasked(us(0), true);
        assert_eq!(poll(&mut napi, us(1), 1), released(arm(us(21))));
        assert!(!napi.suspend(us(2)).is_none());
        assert_eq!(napi.suspend(us(30_000)), again, "no poll since");
    }
}

#[test]
fn a_suspension_is_resumed_after_its_setting_was_cleared() {
    let mut napi = mode("suspend20");
    let _ = napi.suspend(us(0));
    napi.handle_settings(NapiSettings::default());
    assert_eq!(napi.resume(us(1)), run(PollContext::Softirq));
}

#[test]
fn the_safety_timer_ends_a_suspension() {
    let mut napi = mode("suspend20");
    let _ = napi.suspend(us(0));
    assert_eq!(napi.handle_timer(us(20_000)), run(PollContext::Softirq));
}

#[test]
fn suspension_without_its_timeout_or_without_deferral_does_nothing() {
    let mut napi = mode("defer50");
    assert!(napi.suspend(us(0)).is_none() && napi.resume(us(0)).is_none());
    let mut napi = idle(NapiSettings { irq_suspend_timeout: us(20_000), ..NapiSettings::default() });
    assert!(napi.suspend(us(0)).is_none() && napi.resume(us(0)).is_none());
}

#[test]
fn the_early_variant_arms_the_long_timer_when_a_busy_poll_ends() {
    let config = NapiConfig { suspend: SuspendVariant::Early, ..NapiConfig::default() };
    let mut napi = Napi::new(config, Mode::Suspend(us(20)).settings().napi);
    let _ = napi.enable();
    let _ = napi.handle_unmasked(us(0), false);
    assert_eq!(busy_poll(&mut napi, us(1), 0).outcome, Outcome::StillBusy);
    assert_eq!(napi.end_busy_poll(us(1), APP), (Some(64), arm(us(20_001))));
    assert_eq!(napi.handle_poll_done(us(2), 0), released(arm(us(20_002))));
    let EpollBusyPoll { .. } = Mode::Suspend(us(20)).settings().epoll.expect("suspension busy polls");
}

#[test]
fn disable_waits_for_the_owner() {
    let mut napi = mode("defer50");
    let _ = napi.handle_interrupt(us(0));
    assert_eq!(napi.begin_poll(PollContext::Softirq), Some(64));
    assert!(!napi.disable().disabled);
    let done = napi.handle_poll_done(us(1), 64);
    assert_eq!(done, released(Actions { disabled: true, ..Actions::NONE }), "even a full poll is the last");
    assert!(napi.handle_interrupt(us(2)).is_none());
    assert!(napi.handle_timer(us(1_000)).is_none() && napi.resume(us(2)).is_none());
    assert_eq!(napi.begin_poll(PollContext::Softirq), None);
    assert_eq!(napi.begin_busy_poll(APP, 8, true), None);
}

#[test]
fn disable_ends_a_busy_poll_and_needs_no_wait_when_idle() {
    let mut napi = mode("napibusy");
    assert_eq!(busy_poll(&mut napi, us(1), 1).outcome, Outcome::StillBusy);
    assert!(napi.disable().disabled, "between two iterations there is nothing to wait for");
    assert_eq!(napi.end_busy_poll(us(2), APP), (None, Actions::NONE));
    let mut napi = mode("napibusy");
    assert_eq!(napi.begin_busy_poll(APP, 64, true), Some(64));
    assert!(!napi.disable().disabled);
    assert!(napi.handle_poll_done(us(2), 64).actions.disabled);
    assert!(mode("base").disable().disabled);
}

#[test]
fn a_full_poll_by_a_thread_goes_on_and_a_busy_thread_never_stops_by_itself() {
    let mut napi = mode("threaded");
    assert_eq!(napi.handle_interrupt(us(0)).run, Some(PollContext::Thread));
    assert_eq!(poll(&mut napi, us(1), 64).outcome, Outcome::Requeue);
    assert_eq!(poll(&mut napi, us(2), 0), released(unmask()));

    let mut napi = mode("threaded-busy");
    assert_eq!(napi.handle_interrupt(us(0)).run, Some(PollContext::BusyThread));
    for now in 1..10 {
        assert_eq!(poll(&mut napi, us(now), 0).outcome, Outcome::Requeue);
    }
    napi.handle_settings(NapiSettings::default());
    assert_eq!(poll(&mut napi, us(10), 0), released(unmask()));
    let _ = napi.handle_unmasked(us(10), false);
    assert_eq!(napi.handle_interrupt(us(11)).run, Some(PollContext::Softirq));
}

#[test]
fn hold_spins_until_its_time_is_up() {
    let mut napi = idle(Mode::Hold(Hold::Spin(us(50))).settings().napi);
    let _ = napi.handle_interrupt(us(0));
    assert_eq!(poll(&mut napi, us(1), 1).outcome, Outcome::Holding);
    assert_eq!(poll(&mut napi, us(50), 0).outcome, Outcome::Holding);
    assert_eq!(poll(&mut napi, us(51), 0), released(unmask()));
}

#[test]
fn hold_by_timer_costs_two_polls_a_packet() {
    let mut napi = idle(Mode::Hold(Hold::Timer(us(50))).settings().napi);
    let _ = napi.handle_interrupt(us(0));
    assert_eq!(poll(&mut napi, us(1), 1), released(arm(us(51))));
    assert_eq!(napi.handle_timer(us(51)), run(PollContext::Softirq));
    assert_eq!(poll(&mut napi, us(52), 1), released(arm(us(102))));
    assert_eq!(napi.handle_timer(us(102)), run(PollContext::Softirq));
    assert_eq!(poll(&mut napi, us(103), 0), released(unmask()));
}

#[test]
fn calls_without_a_cause_change_nothing() {
    let mut napi = mode("base");
    let before = napi.clone();
    assert!(napi.enable().is_none());
    assert!(napi.handle_timer(us(5)).is_none());
    assert!(napi.handle_unmasked(us(5), true).is_none());
    assert_eq!(napi.begin_poll(PollContext::Softirq), None);
    assert_eq!(napi.handle_poll_done(us(5), 64), released(Actions::NONE));
    assert_eq!(napi.end_busy_poll(us(5), APP), (None, Actions::NONE));
    assert_eq!(napi, before);
}
