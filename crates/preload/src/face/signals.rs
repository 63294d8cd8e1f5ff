//! Signals that come while a call waits on a socket of ours: what the kernel would do (`signal(7)`).
//!
//! * `poll`, `select` and `epoll_wait` end with EINTR when a handler has run, whatever its flags.
//! * A blocking read, write, accept or connect ends with EINTR if the socket has a time limit (SO_RCVTIMEO, SO_SNDTIMEO) or
//!   the handler was installed without SA_RESTART; otherwise the call goes on.
//!
//! # Which handler it was
//!
//! A sleep in `ppoll` always ends with EINTR, and does not say whose handler has run. Two ways to know:
//!
//! * *All handlers agree.* This library sees handlers being installed (`sigaction`, `signal` and their relatives; those
//!   that were there before, or come by a system call of the program's own, are asked for). Nearly every program has only
//!   one kind: C programs SA_RESTART, by `signal`, and Python's, by `siginterrupt`, none. Then it does not matter which one
//!   it was, and a wait costs nothing more.
//! * *Both kinds have been seen.* From then on a wait that is about to sleep blocks all signals and sleeps on a signalfd as
//!   well, which is readable when one is pending. It then asks which are pending and what their handlers' flags are, and
//!   lets them through: two or three system calls for each sleep. The one with the lowest number decides, as in the kernel,
//!   since that is delivered first. The same is done where the wait busy polls first, so that a signal during the spinning
//!   is not lost.
//!
//! Wrapping the handlers would tell as well, but what a program reads back, what it executes and what a debugger sees
//! would be ours. The C library's own signals (it cancels threads by one) are never blocked and always restart.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::{c_int, sigaction as Action, sighandler_t, sigset_t};

use crate::{real, state};

const RESTARTS: u8 = 1;
const INTERRUPTS: u8 = 2;

/// Which kinds of handlers were ever seen.
static SEEN: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// The wait that just ended is to be made again.
    static AGAIN: Cell<bool> = const { Cell::new(false) };
    /// The thread's signalfd, with what it is for.
    static PENDING: RefCell<Option<(OwnedFd, sigset_t)>> = const { RefCell::new(None) };
}

/// The kind of an action that is a handler.
fn kind(action: &Action) -> u8 {
    match action.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => 0,
        _ if action.sa_flags & libc::SA_RESTART != 0 => RESTARTS,
        _ => INTERRUPTS,
    }
}

/// What is done about a signal at the moment.
fn action(signal: c_int) -> Option<Action> {
    let mut now = MaybeUninit::<Action>::zeroed();
    // SAFETY: the action is written by the call, if it succeeds.
    unsafe { (real::SIGACTION.get()(signal, std::ptr::null(), now.as_mut_ptr()) == 0).then(|| now.assume_init()) }
}

fn note(kind: u8) {
    if kind & !SEEN.load(Ordering::Relaxed) != 0 {
        SEEN.fetch_or(kind, Ordering::Relaxed);
    }
}

/// Takes note of a handler that was just installed; asks nothing where no datapath is configured.
fn installed(signal: c_int) {
    if state::get().datapath.is_some() {
        state::keep_errno(|| note(action(signal).as_ref().map_or(0, kind)));
    }
}

fn scan() {
    state::keep_errno(|| (1..=libc::SIGRTMAX()).filter_map(action).for_each(|action| note(kind(&action))));
}

/// Which kinds there are.
fn seen() -> u8 {
    static SCANNED: OnceLock<()> = OnceLock::new();
    SCANNED.get_or_init(scan);
    SEEN.load(Ordering::Relaxed)
}

/// Whether a sleep has to find out which signal ended it.
pub(crate) fn is_mixed() -> bool {
    seen() == RESTARTS | INTERRUPTS
}

/// After a sleep that a handler ended, where handlers agree: whether the call ends.
pub(crate) fn interrupt() -> bool {
    if seen() == 0 {
        // One that was installed behind our back, or the C library's.
        scan();
    }
    seen() & INTERRUPTS != 0
}

/// The thread's signalfd for all but `allowed`; readable when such a signal is pending.
pub(crate) fn pending_descriptor(unblocked: &sigset_t) -> Option<c_int> {
    state::keep_errno(|| {
        PENDING.with(|pending| {
            let mut pending = pending.borrow_mut();
            let wanted = complement(unblocked);
            if let Some((fd, of)) = &*pending
                && same(of, &wanted)
            {
                return Some(fd.as_raw_fd());
            }
            let fd = pending.as_ref().map_or(-1, |(fd, _)| fd.as_raw_fd());
            // SAFETY: the set lives through the call.
            let made = unsafe { libc::signalfd(fd, &raw const wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
            match &mut *pending {
                Some((_, of)) if made >= 0 => *of = wanted,
                // SAFETY: new, and nobody else's.
                _ if made >= 0 => *pending = Some((unsafe { OwnedFd::from_raw_fd(made) }, wanted)),
                _ => return None,
            }
            Some(made)
        })
    })
}

/// While signals are blocked, of which `blocked` were so before: whether the first that is pending ends the call. `None`:
/// none has a handler.
pub(crate) fn pending(blocked: &sigset_t) -> Option<bool> {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: written by the call; a zeroed set is valid.
    let set = unsafe {
        libc::sigpending(set.as_mut_ptr());
        set.assume_init()
    };
    let kinds = members(&set).filter(|signal| !has(blocked, *signal)).filter_map(action).map(|action| kind(&action));
    kinds.into_iter().find(|kind| *kind != 0).map(|kind| kind == INTERRUPTS)
}

fn has(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: the set lives through the call.
    unsafe { libc::sigismember(set, signal) == 1 }
}

fn members(set: &sigset_t) -> impl Iterator<Item = c_int> {
    (1..=libc::SIGRTMAX()).filter(|signal| has(set, *signal))
}

fn complement(set: &sigset_t) -> sigset_t {
    let mut rest = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: a zeroed set is valid; the signals exist.
    unsafe {
        libc::sigemptyset(rest.as_mut_ptr());
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| !has(set, *signal)) {
            libc::sigaddset(rest.as_mut_ptr(), signal);
        }
        rest.assume_init()
    }
}

fn same(one: &sigset_t, other: &sigset_t) -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| has(one, signal) == has(other, signal))
}

/// Takes note whether the call that is failing with EINTR is to be made again: its handler has SA_RESTART.
pub(crate) fn interrupted(restarts: bool) {
    AGAIN.set(restarts);
}

/// For the last line of a call that may wait, with nothing left to drop: whether it is to be made again. A thread that was
/// cancelled ends here.
#[inline]
pub(crate) fn is_restarted(failed: bool) -> bool {
    failed && crate::wait::errno() == libc::EINTR && ended_by_signal()
}

#[cold]
fn ended_by_signal() -> bool {
    let again = AGAIN.replace(false);
    test_cancel();
    again
}

/// Ends the thread if it was cancelled (a call that may wait is such a point).
pub(crate) fn test_cancel() {
    if super::table::is_active() {
        super::cancel::know();
    }
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: takes nothing; unwinds, if at all, through frames that allow it.
    unsafe { pthread_testcancel() };
}

/// `sigaction(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::SIGACTION.get()(signal, new, old) };
    // SAFETY: the caller's promise: null, or an action.
    let new = unsafe { new.as_ref() };
    if answer == 0 {
        note(new.map_or(0, kind));
    }
    answer
}

/// Defines a function that installs a handler in an older way.
macro_rules! installs {
    ($($(#[$about:meta])* $name:ident, $next:ident;)*) => {$(
        $(#[$about])*
        // SAFETY: has the type and the meaning of the C library's function of this name.
        #[unsafe(no_mangle)]
        extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller's arguments, as they are.
            let before = unsafe { real::$next.get()(signal, handler) };
            if before != libc::SIG_ERR {
                installed(signal);
            }
            before
        }
    )*};
}

installs! {
    /// `signal(2)`.
    signal, SIGNAL;
    /// `bsd_signal(3)`.
    bsd_signal, BSD_SIGNAL;
    /// `sysv_signal(3)`.
    sysv_signal, SYSV_SIGNAL;
    /// `__sysv_signal`, which `signal` is in programs built for System V.
    __sysv_signal, SYSV_SIGNAL_2;
    /// `sigset(3)`.
    sigset, SIGSET;
}

/// `siginterrupt(3)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn siginterrupt(signal: c_int, on: c_int) -> c_int {
    // SAFETY: takes no pointers.
    let answer = unsafe { real::SIGINTERRUPT.get()(signal, on) };
    if answer == 0 {
        installed(signal);
    }
    answer
}
