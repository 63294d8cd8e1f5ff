//! Threads that are cancelled while they wait for a socket of ours (`pthread_cancel(3)`).
//!
//! The C library cancels a thread that sleeps in one of its own calls by unwinding it out of a signal handler. Ours sleep
//! in a system call below frames that hold locks' and sockets' state, so they are woken instead, go back the way they came,
//! and end where the program called, with nothing left to drop. The C library sends no signal to a thread that is not in
//! its own calls; so we do, the same one, to threads that are known to wait in ours.
//!
//! A thread is known from its first call on that may wait, before it looks whether it was cancelled ([`know`]); what comes
//! later is noted for it. It looks at that before each sleep ([`is_cancelled`]), and the wake-up ends a sleep that it is on the
//! way to. Only a `select` with nothing left to wait for sleeps without, and has the signal alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abey_datapath::ThreadWaker;
use libc::{c_int, pid_t, pthread_t};

use crate::real;

/// A thread that may wait in ours.
struct Waiter {
    thread: pthread_t,
    tid: pid_t,
    /// From its first sleep on.
    waker: Option<ThreadWaker>,
    is_cancelled: bool,
}

static WAITERS: Mutex<Vec<Waiter>> = Mutex::new(Vec::new());

/// How many of them were cancelled and have not seen it.
static CANCELLED: AtomicUsize = AtomicUsize::new(0);

/// A thread's place among them.
struct Known {
    thread: Cell<Option<pthread_t>>,
    has_waker: Cell<bool>,
}

thread_local! {
    static KNOWN: Known = const { Known { thread: Cell::new(None), has_waker: Cell::new(false) } };
}

impl Drop for Known {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get() else { return };
        let mut waiters = waiters();
        let gone =
            waiters.extract_if(.., |waiter| waiter.thread == thread).filter(|waiter| waiter.is_cancelled).count();
        CANCELLED.fetch_sub(gone, Ordering::Relaxed);
    }
}

fn waiters() -> MutexGuard<'static, Vec<Waiter>> {
    WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread may wait. To be called before it looks whether it was cancelled.
#[inline]
pub(super) fn know() {
    // A thread whose own are gone is ending, and waits no more that could be ended.
    let _ = KNOWN.try_with(|known| {
        if known.thread.get().is_none() {
            note(known);
        }
    });
}

#[cold]
fn note(known: &Known) {
    // SAFETY: take nothing.
    let (thread, tid) = unsafe { (libc::pthread_self(), libc::gettid()) };
    // First, since the handler of a signal may interrupt what follows, and make calls of its own.
    known.thread.set(Some(thread));
    waiters().push(Waiter { thread, tid, waker: None, is_cancelled: false });
}

/// The calling thread is about to sleep. Whether it was cancelled, and has not been told yet.
pub(super) fn is_cancelled() -> bool {
    know();
    let is_first = KNOWN.try_with(|known| !known.has_waker.replace(true)).unwrap_or(false);
    if !is_first && CANCELLED.load(Ordering::Acquire) == 0 {
        return false;
    }
    // It is what the thread is about to sleep with, so it is there.
    let waker = is_first.then(|| ThreadWaker::of_this_thread().ok()).flatten();
    // SAFETY: takes nothing.
    let thread = unsafe { libc::pthread_self() };
    let mut waiters = waiters();
    let Some(own) = waiters.iter_mut().find(|waiter| waiter.thread == thread) else { return false };
    own.waker = waker.or(own.waker.take());
    let told = std::mem::take(&mut own.is_cancelled);
    CANCELLED.fetch_sub(usize::from(told), Ordering::Relaxed);
    told
}

/// `pthread_cancel(3)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::PTHREAD_CANCEL.get()(thread) };
    if answer == 0 {
        let mut waiters = waiters();
        if let Some(waiter) = waiters.iter_mut().find(|waiter| waiter.thread == thread) {
            if !std::mem::replace(&mut waiter.is_cancelled, true) {
                CANCELLED.fetch_add(1, Ordering::Release);
            }
            if let Some(waker) = &waiter.waker {
                waker.wake();
            }
            interrupt(waiter.tid);
        }
    }
    answer
}

/// Ends a thread's sleep by the C library's own signal, whose handler then finds nothing to do.
#[cfg(target_env = "gnu")]
fn interrupt(tid: pid_t) {
    /// SIGCANCEL, which programs cannot use.
    const CANCEL: c_int = 32;
    // The kernel's `struct sigaction` begins with the handler.
    let mut action = [0_usize; 8];
    // SAFETY: the structure, of four words, is written; nothing is changed.
    let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, CANCEL, std::ptr::null::<usize>(), &raw mut action, 8) };
    // Without a handler the signal would end the process.
    if asked == 0 && action[0] > libc::SIG_IGN {
        // SAFETY: takes no pointers; a thread that has ended is an error of the call's.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, CANCEL) };
    }
}
