//! The lock: a thread that finds it busy leaves a mark, which the holder handles. And parking: a wake-up ends a sleep,
//! or prevents it.

use std::sync::atomic::Ordering::SeqCst;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use crate::lock::{Held, Marks, PendingLock};
use crate::park_state::ParkState;

/// The lock's value: the marks that were handled.
type Handled = Marks;

fn unlock(mut held: Held<'_, Handled>) {
    loop {
        let marks = held.take_marks();
        *held |= marks;
        match held.release() {
            None => return,
            Some(again) => held = again,
        }
    }
}

fn mark(lock: &PendingLock<Handled>, marks: Marks) {
    if let Some(held) = lock.lock_or_mark(marks) {
        unlock(held);
    }
}

#[test]
fn no_mark_is_lost() {
    loom::model(|| {
        let lock = Arc::new(PendingLock::new(0));
        let other = lock.clone();
        let interrupt = thread::spawn(move || mark(&other, 1));
        // A holder that came without a mark, and a second event.
        unlock(lock.lock().0);
        mark(&lock, 2);
        interrupt.join().expect("joined");
        assert_eq!(*lock.lock().0, 3, "both marks were handled before both threads had unlocked");
    });
}

#[test]
fn no_mark_is_lost_between_two_markers_and_a_holder() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Arc::new(PendingLock::new(0));
        let threads = [1, 2].map(|marks| {
            let lock = lock.clone();
            thread::spawn(move || mark(&lock, marks))
        });
        unlock(lock.lock().0);
        for thread in threads {
            thread.join().expect("joined");
        }
        assert_eq!(*lock.lock().0, 3);
    });
}

/// A thread that sleeps on a descriptor: the descriptor is a flag, and sleeping for ever is a deadlock, which loom reports.
struct Sleeper {
    state: ParkState,
    written: AtomicBool,
    notify: loom::sync::Notify,
}

impl Sleeper {
    fn wake(&self) {
        if self.state.unpark() {
            self.written.swap(true, SeqCst);
            self.notify.notify();
        }
    }

    /// Sleeps until `ready`.
    fn wait(&self, ready: &AtomicBool) {
        while !ready.load(SeqCst) {
            if self.state.park() && !ready.load(SeqCst) {
                while !self.written.swap(false, SeqCst) {
                    self.notify.wait();
                }
            }
            self.state.finish();
        }
    }
}

#[test]
fn a_wake_up_is_not_lost() {
    loom::model(|| {
        let sleeper = Arc::new(Sleeper {
            state: ParkState::new(),
            written: AtomicBool::new(false),
            notify: loom::sync::Notify::new(),
        });
        let ready = Arc::new(AtomicBool::new(false));
        let (waker, done) = (sleeper.clone(), ready.clone());
        let thread = thread::spawn(move || {
            done.store(true, SeqCst);
            waker.wake();
        });
        sleeper.wait(&ready);
        thread.join().expect("joined");
    });
}
