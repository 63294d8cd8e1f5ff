//! Threads that wait on the datapath's real epoll, one running at a time, with arbitrary events between any two of their
//! steps. Every datagram that arrived must be reported.
//!
//! The clock is virtual, the NICs are rings, and the service threads and the pool's workers are simulated; descriptors are real.
//! A choice at every step determines the next event: a datagram arrives, a party has a turn, time passes, another thread runs.
//! After the last choice all events that are due happen, until none is due. Then every datagram must have been read.

mod app;
mod model;
mod tests;
mod world;

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use abey_delivery::Nanos;

use super::{NOW, Over};
use crate::environment::Found;
use world::{Happened, World};

/// The scheduler of a play, which decides the next event.
pub(super) struct Director {
    world: Mutex<World>,
    turn: Condvar,
}

thread_local! {
    /// The director of the thread, and the thread's number.
    static DIRECTED: RefCell<Option<(Arc<Director>, usize)>> = const { RefCell::new(None) };
}

fn directed() -> Option<(Arc<Director>, usize)> {
    DIRECTED.with_borrow(Clone::clone)
}

/// Returns whether the calling thread belongs to a play.
pub(super) fn is_live() -> bool {
    DIRECTED.with_borrow(Option::is_some)
}

/// Lets other parties act.
pub(super) fn point() {
    if let Some((director, me)) = directed() {
        director.step(me, None);
    }
}

/// Lets other parties act after a poll, which takes time.
pub(super) fn pause() {
    if let Some((director, me)) = directed() {
        director.world().takes_time();
        director.step(me, None);
    }
}

/// Lets time pass until `until`.
pub(super) fn spin(until: Nanos) {
    if let Some((director, _)) = directed() {
        let mut world = director.world();
        world.now = world.now.max(until);
        NOW.set(Some(world.now));
    }
}

/// Sleeps until `poll` finds something or fails, or until `until`.
pub(super) fn sleep(
    until: Option<Nanos>,
    mut poll: impl FnMut() -> rustix::io::Result<Found>,
) -> rustix::io::Result<Found> {
    let (director, me) = directed().expect("a thread of a play");
    loop {
        // Something may happen between the last poll and the sleep.
        director.step(me, Some(until));
        if std::mem::take(&mut director.world().signal) {
            return Err(rustix::io::Errno::INTR);
        }
        let found = poll()?;
        if !found.is_empty() || until.is_some_and(|until| until <= director.world().now) {
            director.world().threads[me].asleep = None;
            return Ok(found);
        }
    }
}

impl Director {
    fn new(world: World) -> Arc<Self> {
        Arc::new(Self { world: Mutex::new(world), turn: Condvar::new() })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the calling thread to the play. Returns when it has its turn.
    fn enter(self: &Arc<Self>, me: usize) {
        DIRECTED.set(Some((self.clone(), me)));
        let world = self.world();
        self.wait_for_turn(world, me);
    }

    /// Removes the thread from the play.
    fn leave(&self, me: usize) {
        DIRECTED.set(None);
        let mut world = self.world();
        world.threads[me].is_there = false;
        world.pass_on(me);
        self.turn.notify_all();
    }

    /// Fails the play.
    fn fail(&self, why: String) {
        let mut world = self.world();
        world.end(Some(why));
        self.turn.notify_all();
    }

    /// Lets events happen before the next step of the thread, which is asleep until some time or awake.
    fn step(&self, me: usize, asleep: Option<Option<Nanos>>) {
        let mut world = self.world();
        world.threads[me].asleep = asleep;
        loop {
            if world.is_over {
                drop(world);
                std::panic::resume_unwind(Box::new(Over));
            }
            NOW.set(Some(world.now));
            match world.happen(me) {
                Happened::Something => {}
                Happened::GoOn => break,
                Happened::Another => {
                    world.pass_on(me);
                    self.turn.notify_all();
                    return self.wait_for_turn(world, me);
                }
            }
        }
        NOW.set(Some(world.now));
    }

    fn wait_for_turn(&self, mut world: MutexGuard<'_, World>, me: usize) {
        while world.running != me && !world.is_over {
            world = self.turn.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        NOW.set(Some(world.now));
    }
}
