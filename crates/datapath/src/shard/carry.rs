//! Carries out what the delivery core asks for, and brings it the events: interrupts, timers, polls by every context.

use abey_delivery::{
    Actions, InterruptAction, Nanos, NapiSettings, Outcome, PollContext, Poller, SoftirqStep, ThreadStep,
};

use super::core::{Core, PollBy};
use abey_record::Call;

impl Core {
    /// Does what the core asks for. Polls that the softirq is to do are done by [`Core::work_off`], before the lock is let
    /// go, on the thread that is here: as in the kernel, the softirq runs where the event was.
    pub(super) fn carry_out(&mut self, mut actions: Actions) {
        while !actions.is_none() {
            self.nic_used |= actions.interrupt.is_some();
            let mut next = Actions::NONE;
            match actions.interrupt {
                Some(InterruptAction::Mask) => self.nic.mask(),
                Some(InterruptAction::Unmask) => {
                    let pending = self.nic.unmask() && self.failed.is_none();
                    let now = self.now();
                    next = self.napi.act(Call::Unmasked(now, pending));
                }
                None => {}
            }
            // The timer is read off the instance when the lock is let go.
            match actions.run {
                Some(PollContext::Softirq) => self.notes.softirq |= self.softirq.handle_schedule(self.index),
                Some(PollContext::Thread | PollContext::BusyThread) => {
                    self.notes.wake_service |= self.thread.handle_wake();
                }
                Some(PollContext::Workqueue) => self.notes.hand_to_pool = true,
                None => {}
            }
            actions = next;
        }
    }

    /// The NIC's descriptor was readable.
    pub(super) fn take_interrupt(&mut self) {
        self.nic_used = true;
        match self.nic.acknowledge() {
            Ok(false) => {}
            Ok(true) => {
                self.counters.interrupts += 1;
                self.note_frame_came();
                let now = self.now();
                let actions = self.napi.act(Call::Interrupt(now));
                self.carry_out(actions);
            }
            // The poll that follows finds the same failure and reports it.
            Err(_) => {
                let now = self.now();
                let actions = self.napi.act(Call::Interrupt(now));
                self.carry_out(actions);
            }
        }
    }

    /// Whatever is due.
    pub(super) fn check_timers(&mut self) {
        let now = self.now();
        self.burst.check(now);
        self.handle_stack_timeout(now);
        if self.napi.get().timer().is_some_and(|at| at <= now) {
            let actions = self.napi.act(Call::Timer(now));
            self.counters.timer_polls += u64::from(actions.run.is_some());
            self.carry_out(actions);
        }
        if self.nic.deadline().is_some_and(|at| at <= now.into()) {
            let actions = self.napi.act(Call::Interrupt(now));
            self.carry_out(actions);
        }
    }

    /// Runs the softirq if it was raised, and sends and posts what came of everything so far.
    pub(super) fn work_off(&mut self) {
        loop {
            while std::mem::take(&mut self.notes.softirq) {
                self.run_softirq(PollBy::Softirq);
            }
            self.flush();
            // A full ring tells when it has room by an interrupt, for which it must be asked.
            if !self.transmit.is_held_up() || self.asked_for_room || !self.is_unmasked() || self.failed.is_some() {
                break;
            }
            self.asked_for_room = true;
            self.nic_used = true;
            if self.nic.unmask() {
                let now = self.now();
                let actions = self.napi.act(Call::Interrupt(now));
                self.carry_out(actions);
            }
        }
        self.post_events();
    }

    /// One run of the softirq, in the budget of its kind.
    pub(super) fn run_softirq(&mut self, by: PollBy) {
        let now = self.now();
        self.handed_over = false;
        self.softirq.begin_run(now);
        loop {
            let now = self.now();
            match self.softirq.next(now) {
                SoftirqStep::Poll(napi) => {
                    let (work, outcome) = self.context_poll(PollContext::Softirq, by);
                    self.softirq.handle_polled(napi, work, outcome);
                }
                SoftirqStep::Done => break,
                SoftirqStep::HandOver(_) => {
                    self.handed_over = true;
                    self.notes.wake_service = true;
                    break;
                }
            }
        }
        self.counters.squeezes += self.softirq.take_squeezes();
    }

    /// A poll by a context, if the instance is in its hands.
    pub(super) fn context_poll(&mut self, context: PollContext, by: PollBy) -> (u16, Outcome) {
        let Some(budget) = self.napi.begin(Call::BeginPoll(context)) else { return (0, Outcome::Released) };
        let work = self.poll(budget, by);
        let now = self.now();
        let done = self.napi.poll_done(now, work);
        self.carry_out(done.actions);
        (work, done.outcome)
    }

    /// One poll by the instance's thread. Whether it goes on.
    pub(super) fn thread_poll(&mut self) -> bool {
        let (_, outcome) = self.context_poll(PollContext::Thread, PollBy::Thread);
        self.thread.handle_polled(outcome) == ThreadStep::Poll
    }

    /// One iteration of an application's busy poll.
    pub(super) fn busy_poll(&mut self, poller: Poller, budget: u16, prefer: bool) -> u16 {
        self.burst.end();
        self.check_timers();
        let Some(budget) = self.napi.begin(Call::BeginBusyPoll(poller, budget, prefer)) else { return 0 };
        self.finish_busy_poll(budget)
    }

    fn finish_busy_poll(&mut self, budget: u16) -> u16 {
        let work = self.poll(budget, PollBy::Busy);
        let now = self.now();
        let done = self.napi.poll_done(now, work);
        self.carry_out(done.actions);
        work
    }

    /// A busy poller stops.
    pub(super) fn end_busy_poll(&mut self, poller: Poller) {
        let now = self.now();
        let (last, actions) = self.napi.end_busy_poll(now, poller);
        self.carry_out(actions);
        if let Some(budget) = last {
            self.finish_busy_poll(budget);
        }
    }

    pub(super) fn suspend(&mut self) {
        let now = self.now();
        let actions = self.napi.act(Call::Suspend(now));
        self.counters.suspensions += u64::from(actions.timer.is_some());
        self.carry_out(actions);
    }

    pub(super) fn resume(&mut self) {
        let now = self.now();
        let actions = self.napi.act(Call::Resume(now));
        self.counters.resumes += u64::from(actions.run.is_some());
        self.carry_out(actions);
    }

    pub(super) fn apply_settings(&mut self, settings: NapiSettings) {
        let nothing = self.napi.act(Call::Settings(settings));
        debug_assert!(nothing.is_none(), "settings are obeyed at the next schedule");
    }

    pub(super) fn enable(&mut self) {
        let actions = self.napi.act(Call::Enable);
        self.carry_out(actions);
    }

    /// Takes the instance out of delivery, whoever has it.
    pub(super) fn disable(&mut self) {
        let actions = self.napi.act(Call::Disable);
        self.carry_out(actions);
    }

    /// A frame that another shard received and this one must know of.
    pub(super) fn take_mail(&mut self, now: Nanos, frame: &[u8]) {
        self.stack.handle_frame(crate::clock::stack_time(now), frame);
    }
}
