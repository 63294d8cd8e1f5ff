//! Threads that wait on the datapath's real epoll, one running at a time, while anything happens between any two of their
//! steps: nothing that arrived stays untold.
//!
//! The clock is virtual, the NICs are rings, and the service threads and the pool's workers are played; descriptors are real.
//! A choice at every step says what happens next: a datagram arrives, somebody has a turn, time passes, another thread goes on.
//! When there are no more choices whatever is due is done, until nothing is: then every datagram must have been read.

mod app;
mod model;
mod tests;
mod world;

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use abey_delivery::Nanos;

use super::{NOW, Over};
use world::{Happened, World};

/// Who decides what happens next.
pub(super) struct Director {
    world: Mutex<World>,
    turn: Condvar,
}

thread_local! {
    /// Who directs the thread, and its number.
    static DIRECTED: RefCell<Option<(Arc<Director>, usize)>> = const { RefCell::new(None) };
}

fn directed() -> Option<(Arc<Director>, usize)> {
    DIRECTED.with_borrow(Clone::clone)
}

/// Whether the calling thread is one of a play's.
pub(crate) fn is_live() -> bool {
    DIRECTED.with_borrow(Option::is_some)
}

/// Others may do something here.
pub(crate) fn point() {
    if let Some((director, me)) = directed() {
        director.step(me, None);
    }
}

/// As [`point`], after a poll, which takes time.
pub(crate) fn pause() {
    if let Some((director, me)) = directed() {
        director.world().takes_time();
        director.step(me, None);
    }
}

/// Time passes until then.
pub(crate) fn spin(until: Nanos) {
    if let Some((director, _)) = directed() {
        let mut world = director.world();
        world.now = world.now.max(until);
        NOW.set(Some(world.now));
    }
}

/// The thread sleeps until `look` finds something (the flag beside its answer), or fails, or `until` has come.
pub(crate) fn asleep<R>(
    until: Option<Nanos>,
    mut look: impl FnMut() -> rustix::io::Result<(R, bool)>,
) -> rustix::io::Result<R> {
    let (director, me) = directed().expect("a thread of a play");
    loop {
        // Something may happen between the last look and the sleep.
        director.step(me, Some(until));
        if std::mem::take(&mut director.world().signal) {
            return Err(rustix::io::Errno::INTR);
        }
        let (found, is_something) = look()?;
        if is_something || until.is_some_and(|until| until <= director.world().now) {
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

    /// The calling thread is a play's from now on, and has its turn when this returns.
    fn enter(self: &Arc<Self>, me: usize) {
        DIRECTED.set(Some((self.clone(), me)));
        let world = self.world();
        self.wait_for_turn(world, me);
    }

    /// The thread is at the end of its part.
    fn leave(&self, me: usize) {
        DIRECTED.set(None);
        let mut world = self.world();
        world.threads[me].is_there = false;
        world.pass_on(me);
        self.turn.notify_all();
    }

    /// Something fails the play.
    fn fail(&self, why: String) {
        let mut world = self.world();
        world.end(Some(why));
        self.turn.notify_all();
    }

    /// What happens before the thread, which is asleep until some time or awake, takes its next step.
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
