//! The run of one thread: sends due requests, receives answers, and spins or sleeps in between.

use std::num::NonZeroU64;
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::time::{ClockId, clock_gettime};

use crate::engine::{Engine, Stop};
use crate::error::LoadError;
use crate::ledger::{Ledger, Stage};
use crate::load::Phase;
use crate::network::{Event, Network};
use crate::rate::{Rate, RunConfig};
use crate::rr::LOST_AFTER;
use crate::schedule::{Schedule, random_stream};
use crate::tally::Tally;

const MS: u64 = 1_000_000;
/// The thread sleeps only if nothing is due for longer than this, ns, and wakes this much earlier.
const SLEEP_ABOVE: u64 = MS / 2;
const WAKE_BEFORE: u64 = 3 * MS / 10;
/// While requests are outstanding the thread spins, so that waking up is not measured as latency; but for no longer
/// than this since something last happened, ns.
const SPIN_FOR_ANSWERS: u64 = 2 * MS;
const LONGEST_SLEEP: u64 = 50 * MS;
/// Interval of the checks for lost datagrams and a silent server, ns.
const HOUSEKEEPING: u64 = 20 * MS;
/// Silence after which the network is asked whether peers can still be reached.
const LOOK_AT_NETWORK: Duration = Duration::from_millis(100);
/// How long an open loop waits for answers at the end of its interval before it reports the end, ns.
const GRACE: u64 = 10 * MS;
/// Most writes before answers are received again, and between the answers of two connections.
const WRITES_PER_TURN: usize = 16;
const WRITES_PER_EVENT: usize = 2;
/// While requests are sent no later than this, ns, each has a write of its own, as those of independent clients would. Later
/// ones are sent together, up to the room of the connection.
const LATE: u64 = 5_000;

/// The start of a run, and this thread's part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) begin: u64,
    pub(crate) thread: usize,
    pub(crate) threads: usize,
}

pub(crate) struct Run<'a, N: Network> {
    engine: &'a mut Engine<N>,
    stop: &'a Stop,
    on_phase: &'a mut dyn FnMut(Phase),
    /// Due times from `begin`; `None` in a closed loop.
    schedule: Option<Schedule>,
    begin: u64,
    duration: u64,
    rng: Xoshiro256PlusPlus,
    ledger: Ledger,
    /// The connection for the next request.
    turn: usize,
    drain_until: u64,
    next_housekeeping: u64,
    cpu_at_start: u64,
    spun_at_start: u64,
}

/// Runs `config` on `engine`'s connections, on the calling thread, until its end.
pub(crate) fn run<N: Network>(
    engine: &mut Engine<N>,
    config: &RunConfig,
    plan: Plan,
    stop: &Stop,
    on_phase: &mut dyn FnMut(Phase),
) -> Result<Tally, LoadError> {
    // Without timer slack, sleeps end on time rather than up to 50 us later; it is restored afterwards. If it cannot be
    // changed, the wake-up margin covers the delay.
    let slack = rustix::thread::current_timer_slack().ok();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let result = Run::new(engine, config, plan, stop, on_phase).finish();
    if let Some(slack) = slack {
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(slack));
    }
    result
}

impl<'a, N: Network> Run<'a, N> {
    fn new(
        engine: &'a mut Engine<N>,
        config: &RunConfig,
        plan: Plan,
        stop: &'a Stop,
        on_phase: &'a mut dyn FnMut(Phase),
    ) -> Self {
        let schedule = match config.rate {
            Rate::Max => None,
            Rate::PerSecond(rate) => Some(Schedule::new(config.arrivals, rate, config.seed, plan.thread, plan.threads)),
        };
        let duration = config.duration.as_nanos() as u64;
        let from = plan.begin + config.warmup.as_nanos() as u64;
        let ledger = Ledger::new(schedule.is_some(), from, from + duration);
        Self {
            engine,
            stop,
            on_phase,
            schedule,
            begin: plan.begin,
            duration,
            rng: random_stream(config.seed, plan.thread, 1),
            ledger,
            turn: 0,
            drain_until: 0,
            next_housekeeping: 0,
            cpu_at_start: 0,
            spun_at_start: 0,
        }
    }

    fn finish(mut self) -> Result<Tally, LoadError> {
        let mut events = Vec::new();
        let mut now = self.engine.clock.now();
        let mut last_activity = now;
        if self.schedule.is_none() {
            for index in 0..self.engine.connections.len() {
                self.refill(index, now)?;
            }
        }
        loop {
            if self.stop.is_raised() {
                return Err(LoadError::Stopped);
            }
            now = self.pass_boundaries(now)?;
            if self.is_over() {
                let unsent = self.skip_until(self.ledger.to);
                self.ledger.tally.unsent += unsent;
                self.ledger.tally.due += unsent;
                return Ok(self.ledger.tally);
            }
            let sleep = if N::PUNCTUAL { 0 } else { self.sleep_for(now, last_activity) };
            let sent = self.send_due(now, WRITES_PER_TURN)?;
            let sleep = if N::PUNCTUAL { self.until_next(self.engine.clock.now()).min(LONGEST_SLEEP) } else { sleep };
            self.engine.wait(&mut events, Duration::from_nanos(sleep))?;
            if sleep > 0 {
                now = self.engine.clock.now();
            }
            self.take_events(&events)?;
            let end = self.engine.clock.now();
            if sent > 0 || !events.is_empty() {
                last_activity = end;
                if self.ledger.stage == Stage::Measuring {
                    self.ledger.tally.work_ns += end - now;
                }
            }
            now = end;
        }
    }

    /// Moves from warm-up to measuring to draining when it is time, and checks for silence and loss.
    fn pass_boundaries(&mut self, mut now: u64) -> Result<u64, LoadError> {
        if self.ledger.stage == Stage::Warmup && now >= self.ledger.from {
            now = self.start_measuring(now);
        }
        if self.ledger.stage == Stage::Measuring && now >= self.ledger.to {
            self.finish_measuring(now);
        }
        if self.ledger.stage == (Stage::Draining { announced: false }) {
            let all_in = self.ledger.outstanding == 0 || !self.ledger.open_loop;
            if all_in || now >= self.ledger.to + GRACE {
                self.ledger.stage = Stage::Draining { announced: true };
                (self.on_phase)(Phase::MeasureEnd);
            }
        }
        if now >= self.next_housekeeping {
            self.next_housekeeping = now + HOUSEKEEPING;
            self.give_up_on_lost(now)?;
            self.check_silence(now)?;
        }
        Ok(now)
    }

    fn is_over(&self) -> bool {
        self.ledger.stage == (Stage::Draining { announced: true }) && self.ledger.outstanding == 0
    }

    /// Starts the measured interval. The schedule stands still while the callback runs, so that it adds to no latency.
    fn start_measuring(&mut self, now: u64) -> u64 {
        // Requests that an overloaded warm-up has not sent would otherwise fill the interval.
        self.skip_until(self.ledger.from);
        (self.on_phase)(Phase::MeasureStart);
        self.ledger.stage = Stage::Measuring;
        let after = self.engine.clock.now();
        self.begin += after - now;
        self.ledger.from += after - now;
        self.ledger.to = self.ledger.from + self.duration;
        self.cpu_at_start = thread_cpu();
        self.spun_at_start = self.engine.time_spun().unwrap_or(0);
        after
    }

    fn finish_measuring(&mut self, now: u64) {
        self.ledger.stage = Stage::Draining { announced: false };
        self.drain_until = now + self.engine.options.timeout.as_nanos() as u64;
        let tally = &mut self.ledger.tally;
        tally.elapsed_ns = self.ledger.to - self.ledger.from;
        tally.cpu_ns = thread_cpu() - self.cpu_at_start;
        if let Some(spun) = self.engine.time_spun() {
            // Most of this network's work is done in waits.
            tally.work_ns = tally.cpu_ns.saturating_sub(spun - self.spun_at_start);
        }
    }

    /// Skips requests due before `time`, and returns how many.
    fn skip_until(&mut self, time: u64) -> u64 {
        let Some(schedule) = &mut self.schedule else { return 0 };
        let mut skipped = 0;
        while self.begin + schedule.peek() < time {
            schedule.advance();
            skipped += 1;
        }
        skipped
    }

    /// Returns how long to sleep: not if something is due soon, so that neither sending nor receiving waits for a wake-up.
    fn sleep_for(&self, now: u64, last_activity: u64) -> u64 {
        if self.ledger.outstanding > 0 && now - last_activity < SPIN_FOR_ANSWERS {
            return 0;
        }
        let next = self.until_next(now);
        if next <= SLEEP_ABOVE { 0 } else { (next - WAKE_BEFORE).min(LONGEST_SLEEP) }
    }

    /// Returns for how long only answers can need work, ns.
    fn until_next(&self, now: u64) -> u64 {
        let next = match (&self.schedule, self.ledger.stage) {
            (_, Stage::Draining { .. }) | (None, _) => now + LONGEST_SLEEP,
            (Some(_), _) if self.ledger.starved => now + LONGEST_SLEEP,
            (Some(schedule), _) => self.begin + schedule.peek(),
        };
        let boundary = match self.ledger.stage {
            Stage::Warmup => self.ledger.from,
            Stage::Measuring => self.ledger.to,
            Stage::Draining { .. } => now + MS,
        };
        next.min(boundary).saturating_sub(now)
    }

    /// Sends due requests in at most `writes` writes, and returns how many were sent.
    fn send_due(&mut self, mut now: u64, writes: usize) -> Result<usize, LoadError> {
        if self.schedule.is_none() || matches!(self.ledger.stage, Stage::Draining { .. }) {
            return Ok(0);
        }
        let until = now.min(self.ledger.to - 1);
        let mut sent = 0;
        for _ in 0..writes {
            let due = self.next_due();
            if due > until {
                break;
            }
            let Some(index) = self.connection_with_room() else {
                self.ledger.starved = true;
                break;
            };
            sent += self.send_batch(index, until, now)?;
            now = self.engine.clock.now();
        }
        Ok(sent)
    }

    fn next_due(&self) -> u64 {
        self.begin + self.schedule.as_ref().expect("an open loop").peek()
    }

    /// Sends one request on connection `index`; if it is late, also other due ones, up to the room of the connection.
    fn send_batch(&mut self, index: usize, until: u64, now: u64) -> Result<usize, LoadError> {
        let room = self.engine.options.depth - self.engine.connections[index].outstanding();
        let share = if now - self.next_due() > LATE { room } else { 1 };
        let mut sent = 0;
        while sent < share {
            let due = self.next_due();
            if due > until {
                break;
            }
            self.schedule.as_mut().expect("an open loop").advance();
            self.push(index, due, now);
            sent += 1;
        }
        self.engine.flush(index)?;
        Ok(sent)
    }

    fn push(&mut self, index: usize, intended: u64, now: u64) {
        let (material, rng) = (&self.engine.material, &mut self.rng);
        self.engine.connections[index].push(intended, now, |out| material.append_request(out, rng));
        self.ledger.sent(intended, now);
    }

    /// Returns the next connection, in turn, that has room for a request.
    fn connection_with_room(&mut self) -> Option<usize> {
        let (count, depth) = (self.engine.connections.len(), self.engine.options.depth);
        if self.ledger.outstanding == count * depth {
            return None;
        }
        let index = (self.turn..count)
            .chain(0..self.turn)
            .find(|&index| self.engine.connections[index].outstanding() < depth)?;
        self.turn = if index + 1 == count { 0 } else { index + 1 };
        Some(index)
    }

    fn take_events(&mut self, events: &[Event]) -> Result<(), LoadError> {
        for event in events {
            let index = event.token as usize;
            if event.writable {
                self.engine.flush(index)?;
            }
            if !event.readable {
                continue;
            }
            let clock = self.engine.clock;
            let ledger = &mut self.ledger;
            let mut now = 0;
            self.engine.connections[index].receive(
                &mut self.engine.buffer,
                || clock.now(),
                |request, answer, at| {
                    now = at;
                    ledger.answered(request, answer, at);
                },
            )?;
            if self.schedule.is_none() {
                self.refill(index, now)?;
            } else if now > 0 {
                self.send_due(now, WRITES_PER_EVENT)?; // a request that is due now does not wait for the other events
            }
        }
        Ok(())
    }

    /// Fills connection `index` up to its depth, in a closed loop.
    fn refill(&mut self, index: usize, now: u64) -> Result<(), LoadError> {
        if matches!(self.ledger.stage, Stage::Draining { .. }) || now >= self.ledger.to {
            return Ok(());
        }
        let room = self.engine.options.depth - self.engine.connections[index].outstanding();
        if room == 0 {
            return Ok(());
        }
        for _ in 0..room {
            self.push(index, now, now);
        }
        self.engine.flush(index)
    }

    fn give_up_on_lost(&mut self, now: u64) -> Result<(), LoadError> {
        let Some(sent_before) = now.checked_sub(LOST_AFTER.as_nanos() as u64) else { return Ok(()) };
        for index in 0..self.engine.connections.len() {
            let lost = self.engine.connections[index].renew_if_lost(&self.engine.network, sent_before)?;
            if lost > 0 {
                self.engine.watch_new(index)?;
                self.ledger.outstanding -= lost;
                self.ledger.consecutive_losses += lost;
                self.ledger.tally.lost += if self.ledger.stage == Stage::Warmup { 0 } else { lost as u64 };
                if self.schedule.is_none() {
                    self.refill(index, now)?;
                }
            }
        }
        Ok(())
    }

    fn check_silence(&self, now: u64) -> Result<(), LoadError> {
        let Some(since) = self.ledger.silent_since else { return Ok(()) };
        let silent = Duration::from_nanos(now - since.min(now));
        let unanswered = self.ledger.outstanding > 0 || self.ledger.consecutive_losses > 2;
        let draining_too_long = matches!(self.ledger.stage, Stage::Draining { .. }) && now > self.drain_until;
        if unanswered
            && silent > LOOK_AT_NETWORK
            && let Some(source) = self.engine.network.lost()
        {
            return Err(LoadError::Lost { target: self.engine.options.target, source });
        }
        if (unanswered && silent > self.engine.options.timeout) || (draining_too_long && self.ledger.outstanding > 0) {
            let outstanding = self.ledger.outstanding + self.ledger.consecutive_losses;
            return Err(LoadError::Silent { target: self.engine.options.target, outstanding, silent });
        }
        Ok(())
    }
}

/// Returns the CPU time of the calling thread, ns.
fn thread_cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
