//! Plays what happened to a simulated queue to the datapath's own code, and compares what both asked of the delivery core.
//!
//! The simulator records what happened *from outside* ([`What`]): packets in the ring, interrupts taken, timers that went
//! off, turns that the scheduler gave to polling threads, and when the application's thread took a step of its wait. Here
//! the same happens to a runtime at the same times: its clock shows the time of the last event, its NIC is a ring in memory,
//! and one thread plays everybody: the application, in the real [`Epoll::wait`](crate::Epoll::wait) or blocking receive, and
//! in its pauses the service thread, the workers and the peer. What a poll finds, what is asked of the core next and how the
//! answers are carried out is then for each of the two to do; the recordings must be the same to the nanosecond.
//!
//! *What is inherent, and how it is dealt with.*
//!
//! - In the simulator an interrupt or timer can come in the middle of a poll, and finds the instance owned. In the datapath
//!   it finds the lock taken, leaves a mark and is dealt with after the poll. So the recorded run is one whose polls take no
//!   time, and what they would have cost comes after them (`abey_sim::run_recorded`).
//! - Who runs the softirq: in the simulator the CPU, in the datapath whoever takes the interrupt or timer. That is the
//!   sleeping application if it drives the shard, else the service thread.
//! - A receive in the simulator knows its queue from its first packet, a socket of the datapath from the beginning: the
//!   recorded run is told beforehand.
//! - The number under which a thread busy polls is left out of the comparison.

mod live;
mod ring;
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use abey_delivery::{Nanos, PollContext};
use abey_sim::{External, What};

use crate::pool::Pool;
use crate::shard::{Causes, Shard};
use ring::Ring;

thread_local! {
    static NOW: Cell<Option<Nanos>> = const { Cell::new(None) };
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// What is played to whom.
struct Stage {
    events: VecDeque<External>,
    ring: Ring,
    shard: Arc<Shard>,
    pool: Arc<Pool>,
    context: PollContext,
}

/// Unwinds out of the application when the piece is over, or cannot go on.
struct Over;

const NOTHING: Causes = Causes { nic: false, timer: false, woken: false };

/// The time on the clock, where something is played.
pub(crate) fn now() -> Option<Nanos> {
    NOW.get()
}

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

/// The next event happens now, which is its time.
fn pop() -> External {
    let event = peek();
    STAGE.with_borrow_mut(|stage| stage.as_mut().and_then(|stage| stage.events.pop_front()));
    NOW.set(Some(event.at));
    event
}

/// Something happens to the shard while the application does something else.
fn play(event: External) {
    let (ring, shard, pool, context) = STAGE.with_borrow(|stage| {
        let stage = stage.as_ref().expect("on stage");
        (stage.ring.clone(), stage.shard.clone(), stage.pool.clone(), stage.context)
    });
    match event.what {
        What::Arrival { others, requests } => ring.arrive(others, requests),
        What::Interrupt => {
            ring.raise();
            shard.serve(Causes { nic: true, ..NOTHING });
        }
        What::Timer => _ = shard.serve(Causes { timer: true, ..NOTHING }),
        What::Turn if context == PollContext::Workqueue => _ = pool.work_once(),
        What::Turn => _ = shard.serve_poll(),
        What::Woken | What::Step => {}
    }
}

/// Up to the application's next step.
fn until_step() {
    loop {
        let event = pop();
        match event.what {
            What::Step => return,
            _ => play(event),
        }
    }
}

/// The application is between two polls.
pub(crate) fn pause() {
    if is_playing() {
        until_step();
    }
    live::pause();
}

pub(crate) use live::{asleep, is_live, point, spin};

/// The application sleeps until then; it drives the shard if it has an answer to whether it listens to the interrupt.
/// Whether it was woken, and whether the interrupt woke it.
pub(crate) fn sleep(until: Option<Nanos>, drives: Option<bool>) -> Option<(bool, bool)> {
    if !is_playing() {
        return None;
    }
    loop {
        let event = peek();
        match event.what {
            What::Interrupt if drives == Some(true) => {
                pop();
                STAGE.with_borrow(|stage| stage.as_ref().expect("on stage").ring.raise());
                return Some((false, true));
            }
            What::Timer if drives.is_some() && until.is_some_and(|until| until <= event.at) => {
                pop();
                return Some((false, false));
            }
            What::Woken => {
                pop();
                until_step();
                return Some((true, false));
            }
            // There it goes on, here it sleeps.
            What::Step => over(),
            _ => play(pop()),
        }
    }
}

/// The application has done a shard's work in its sleep. If that woke it, it goes on when it has the CPU.
pub(crate) fn awake() {
    if is_playing() && peek().what == What::Woken {
        pop();
        until_step();
    }
}
