//! Threads that are cancelled while they wait for a socket of ours (`pthread_cancel(3)`).
//!
//! The C library cancels a thread that sleeps in one of its own calls by unwinding it out of a signal handler. Ours sleep
//! in a system call below frames that hold locks' and sockets' state, so they are woken instead, go back the way they came,
//! and end where the program called, with nothing left to drop. The C library sends no signal to a thread that is not in
//! its own calls; so we do, the same one, to threads that are known to wait in ours.
//!
//! What is left is a cancellation between the last look and the sleep, which is noticed when the sleep ends.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, pid_t, pthread_t};

use crate::real;

/// A thread that has waited in ours.
struct Waiter {
    thread: pthread_t,
    tid: pid_t,
    is_cancelled: bool,
}

static WAITERS: Mutex<Vec<Waiter>> = Mutex::new(Vec::new());

/// How many of them were cancelled and have not seen it.
static CANCELLED: AtomicUsize = AtomicUsize::new(0);

/// A thread's place among them.
struct Known(pthread_t);

thread_local! {
    static KNOWN: RefCell<Option<Known>> = const { RefCell::new(None) };
}

impl Drop for Known {
    fn drop(&mut self) {
        let mut waiters = waiters();
        let gone =
            waiters.extract_if(.., |waiter| waiter.thread == self.0).filter(|waiter| waiter.is_cancelled).count();
        CANCELLED.fetch_sub(gone, Ordering::Relaxed);
    }
}

fn waiters() -> MutexGuard<'static, Vec<Waiter>> {
    WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread is about to sleep. Whether it was cancelled, and has not been told yet.
pub(super) fn is_cancelled() -> bool {
    // SAFETY: takes nothing.
    let thread = unsafe { libc::pthread_self() };
    KNOWN.with(|known| {
        let mut known = known.borrow_mut();
        if known.is_none() {
            // SAFETY: takes nothing.
            let tid = unsafe { libc::gettid() };
            waiters().push(Waiter { thread, tid, is_cancelled: false });
            *known = Some(Known(thread));
        }
    });
    if CANCELLED.load(Ordering::Acquire) == 0 {
        return false;
    }
    let mut waiters = waiters();
    let own = waiters.iter_mut().find(|waiter| waiter.thread == thread);
    let told = own.is_some_and(|own| std::mem::take(&mut own.is_cancelled));
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
