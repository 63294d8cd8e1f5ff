//! Replays the external events of a simulated queue on the datapath's code, and compares the calls to the delivery core.
//!
//! The simulator records the *external* events ([`What`]): packets in the ring, interrupts, timers, turns that the scheduler
//! gave to polling threads, and the moments at which the application's thread made a step of its wait. Here a runtime receives
//! the same events at the same times. Its clock shows the time of the last event, and its NIC is a ring in memory. One thread
//! runs all parties: the application, in the real [`Epoll::wait`](crate::Epoll::wait) or blocking receive, and between its
//! steps the service thread, the workers and the peer. Both worlds decide by themselves what a poll finds, which call to the
//! core is next and how its actions are executed. The two recordings must be equal to the nanosecond.
//!
//! *Inherent differences, and their treatment.*
//!
//! - In the simulator an interrupt or timer can come in the middle of a poll, and finds the instance owned. In the datapath
//!   it finds the lock taken, leaves a mark and is handled after the poll. So the polls of the recorded run take no time, and
//!   their cost comes after them (`abey_sim::run_recorded`).
//! - In the simulator the CPU runs the softirq. In the datapath the thread that receives the interrupt or timer does, which
//!   is the sleeping application if it is the shard's waiter, else the service thread.
//! - A receive in the simulator learns its queue from its first packet, a socket of the datapath has it from the beginning.
//!   The recorded run is given the queue beforehand.
//! - The number of a busy poller is left out of the comparison.

mod live;
mod ring;
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use abey_delivery::{Nanos, PollContext};
use abey_sim::{External, What};
use rustix::event::Timespec;

use crate::environment::{Environment, Found, System};
use crate::shard::{Shard, WakeCauses};
use crate::work_queue::WorkQueue;
use ring::Ring;

thread_local! {
    static NOW: Cell<Option<Nanos>> = const { Cell::new(None) };
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// The state of a replay.
struct Stage {
    events: VecDeque<External>,
    ring: Ring,
    shard: Arc<Shard>,
    queue: Arc<WorkQueue>,
    context: PollContext,
}

/// The payload that unwinds the application when the recording ends, or cannot continue.
struct Over;

const NOTHING: WakeCauses = WakeCauses { irq: false, timer: false, unparked: false };

fn is_playing() -> bool {
    STAGE.with_borrow(Option::is_some)
}

/// The next event.
fn peek() -> External {
    let next = STAGE.with_borrow(|stage| stage.as_ref().and_then(|stage| stage.events.front().copied()));
    next.unwrap_or_else(|| over())
}

fn over() -> ! {
    std::panic::resume_unwind(Box::new(Over))
}

/// Removes the next event, and sets the clock to its time.
fn pop() -> External {
    let event = peek();
    STAGE.with_borrow_mut(|stage| stage.as_mut().and_then(|stage| stage.events.pop_front()));
    NOW.set(Some(event.at));
    event
}

/// Applies an event to the shard while the application is between two steps.
fn play(event: External) {
    let (ring, shard, queue, context) = STAGE.with_borrow(|stage| {
        let stage = stage.as_ref().expect("on stage");
        (stage.ring.clone(), stage.shard.clone(), stage.queue.clone(), stage.context)
    });
    match event.what {
        What::Arrival { others, requests } => ring.arrive(others, requests),
        What::Interrupt => {
            ring.raise();
            shard.serve(WakeCauses { irq: true, ..NOTHING });
        }
        What::Timer => _ = shard.serve(WakeCauses { timer: true, ..NOTHING }),
        What::Turn if context == PollContext::Workqueue => _ = worker_turn(&queue, std::slice::from_ref(&shard)),
        What::Turn => _ = shard.serve_poll(),
        What::Woken | What::Step => {}
    }
}

/// Applies events up to the application's next step.
fn until_step() {
    loop {
        let event = pop();
        match event.what {
            What::Step => return,
            _ => play(event),
        }
    }
}

/// Polls the next scheduled instance, as a worker does. Returns whether there was one.
fn worker_turn(queue: &WorkQueue, shards: &[Arc<Shard>]) -> bool {
    let Some(napi) = queue.try_next() else { return false };
    let outcome = shards[napi.as_usize()].worker_poll();
    queue.polled(napi, outcome);
    true
}

/// Plays events until the sleep of the application ends. `has_irq` is whether it sleeps on the shard's interrupt; `None` if
/// it is not attached to the shard.
fn sleep(until: Option<Nanos>, has_irq: Option<bool>) -> Found {
    loop {
        let event = peek();
        match event.what {
            What::Interrupt if has_irq == Some(true) => {
                pop();
                STAGE.with_borrow(|stage| stage.as_ref().expect("an event was played").ring.raise());
                return Found { irqs: vec![true], ..Found::default() };
            }
            What::Timer if has_irq.is_some() && until.is_some_and(|until| until <= event.at) => {
                pop();
                return Found::default();
            }
            What::Woken => {
                pop();
                until_step();
                return Found { unparked: true, ..Found::default() };
            }
            // The simulator's application runs, and this one sleeps.
            What::Step => over(),
            _ => play(pop()),
        }
    }
}

/// An environment that plays a recording ([`Stage`]) or a random schedule ([`live`]), and is [`System`] on other threads.
pub(crate) enum Scripted {}

impl Environment for Scripted {
    fn monotonic() -> u64 {
        NOW.get().map_or_else(System::monotonic, Nanos::as_nanos)
    }

    fn starts_threads() -> bool {
        NOW.get().is_none()
    }

    fn sleep<P: FnMut(Option<&Timespec>) -> rustix::io::Result<Found>>(
        until: Option<Nanos>,
        has_irq: Option<bool>,
        mut poll: P,
        timed: impl FnOnce(Nanos, P) -> rustix::io::Result<Found>,
    ) -> rustix::io::Result<Found> {
        if is_playing() {
            return Ok(sleep(until, has_irq));
        }
        if live::is_live() {
            return live::sleep(until, || poll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })));
        }
        System::sleep(until, has_irq, poll, timed)
    }

    fn before_spin(until: Nanos) {
        live::spin(until);
    }

    /// The work of the shards may have woken the application. Then it continues when it has the CPU.
    fn after_sleep() {
        if is_playing() && peek().what == What::Woken {
            pop();
            until_step();
        }
    }

    fn after_poll() {
        if is_playing() {
            until_step();
        }
        live::pause();
    }

    fn preemption_point() {
        live::point();
    }
}
