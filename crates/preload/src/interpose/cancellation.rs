//! The interposed `pthread_cancel(3)`: cancellation of threads that wait for a datapath socket.
//!
//! The C library cancels a thread that sleeps in one of its own cancellation points by unwinding it from a signal handler.
//! A wait for a datapath socket sleeps in a system call below frames that hold locks, which must not be unwound. So the
//! waiting thread is woken instead, returns through its frames, and calls `pthread_testcancel` in the interposed function,
//! where nothing is left to drop. The C library sends its signal only to threads that are in its own calls; this library
//! sends the same signal to threads that wait in a datapath call.
//!
//! A thread registers at its first call that may wait, before it checks whether it was cancelled ([`register`]). Later
//! cancellations are recorded for it. It checks for them before each sleep ([`is_cancelled`]), and its waker ends a sleep
//! that is about to begin. A `select` without any descriptor sleeps without a waker, and is ended by the signal alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abey_datapath::ThreadWaker;
use libc::{c_int, pid_t, pthread_t};

use crate::real;

/// A registered thread.
struct Waiter {
    thread: pthread_t,
    tid: pid_t,
    /// Set from its first sleep on.
    waker: Option<ThreadWaker>,
    is_cancelled: bool,
}

static WAITERS: Mutex<Vec<Waiter>> = Mutex::new(Vec::new());

/// Number of registered threads that were cancelled and have not noticed it.
static CANCELLED: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's own record of its registration.
struct Registration {
    thread: Cell<Option<pthread_t>>,
    has_waker: Cell<bool>,
}

thread_local! {
    static REGISTRATION: Registration = const { Registration { thread: Cell::new(None), has_waker: Cell::new(false) } };
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get() else { return };
        let mut waiters = waiters();
        let removed =
            waiters.extract_if(.., |waiter| waiter.thread == thread).filter(|waiter| waiter.is_cancelled).count();
        CANCELLED.fetch_sub(removed, Ordering::Relaxed);
    }
}

fn waiters() -> MutexGuard<'static, Vec<Waiter>> {
    WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the calling thread, which may wait. Must be called before the thread checks whether it was cancelled.
#[inline]
pub(super) fn register() {
    // Without thread-local storage the thread is already ending, and waits no more.
    let _ = REGISTRATION.try_with(|registration| {
        if registration.thread.get().is_none() {
            add_waiter(registration);
        }
    });
}

#[cold]
fn add_waiter(registration: &Registration) {
    // SAFETY: the calls take no arguments.
    let (thread, tid) = unsafe { (libc::pthread_self(), libc::gettid()) };
    // Set first, since a signal handler may interrupt the rest and make calls of its own.
    registration.thread.set(Some(thread));
    waiters().push(Waiter { thread, tid, waker: None, is_cancelled: false });
}

/// Returns whether the calling thread, which is about to sleep, was cancelled since it last asked.
pub(super) fn is_cancelled() -> bool {
    register();
    let is_first = REGISTRATION.try_with(|registration| !registration.has_waker.replace(true)).unwrap_or(false);
    if !is_first && CANCELLED.load(Ordering::Acquire) == 0 {
        return false;
    }
    // Threads that wait in the runtime have a waker.
    let waker = is_first.then(|| ThreadWaker::of_this_thread().ok()).flatten();
    // SAFETY: the call takes no arguments.
    let thread = unsafe { libc::pthread_self() };
    let mut waiters = waiters();
    let Some(own) = waiters.iter_mut().find(|waiter| waiter.thread == thread) else { return false };
    own.waker = waker.or(own.waker.take());
    let was_cancelled = std::mem::take(&mut own.is_cancelled);
    CANCELLED.fetch_sub(usize::from(was_cancelled), Ordering::Relaxed);
    was_cancelled
}

/// `pthread_cancel(3)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
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

/// Interrupts a thread's sleep with the C library's own signal, whose handler finds the thread outside its calls.
#[cfg(target_env = "gnu")]
fn interrupt(tid: pid_t) {
    /// SIGCANCEL, which the C library reserves.
    const CANCEL: c_int = 32;
    // The kernel's `struct sigaction` begins with the handler.
    let mut action = [0_usize; 8];
    // SAFETY: the call writes the structure, which has four words, and changes nothing.
    let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, CANCEL, std::ptr::null::<usize>(), &raw mut action, 8) };
    // Without a handler, the signal would end the process.
    if asked == 0 && action[0] > libc::SIG_IGN {
        // SAFETY: the call takes no pointers; the call fails for a thread that has ended.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, CANCEL) };
    }
}
