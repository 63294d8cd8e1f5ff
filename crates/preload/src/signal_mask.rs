//! The calling thread's signal mask (`pthread_sigmask(3)`).
//!
//! Plain functions rather than a guard: a cancelled thread unwinds through frames that hold a mask, and nothing there may
//! need a destructor.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libc::sigset_t;

/// Blocks every signal except the C library's internal ones, and returns the mask from before.
///
/// The C library cancels a thread with an internal signal and waits for its handler, so that blocking this one would hang
/// `pthread_cancel`. `sigfillset` leaves these signals out.
pub(crate) fn block_all() -> sigset_t {
    let (mut all, mut before) = (MaybeUninit::<sigset_t>::zeroed(), MaybeUninit::<sigset_t>::zeroed());
    // SAFETY: both sets live through the calls; zeroed sets are valid.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Restores a mask that [`block_all`] returned.
pub(crate) fn restore(before: &sigset_t) {
    // SAFETY: the set lives through the call; nothing is written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
}
