//! Signals during a wait for datapath sockets, with the semantics of `signal(7)`; and the interposed calls that install
//! handlers, such as `sigaction(2)`.
//!
//! * `poll`, `select` and `epoll_wait` fail with EINTR after a handler has run, whatever its flags.
//! * A blocking read, write, accept or connect fails with EINTR if the socket has a timeout (SO_RCVTIMEO, SO_SNDTIMEO) or
//!   the handler was installed without SA_RESTART. Otherwise the call is restarted.
//!
//! # The flags of the handler
//!
//! A sleep in `ppoll(2)` always fails with EINTR, and does not say which handler has run. There are two cases:
//!
//! * *All handlers have SA_RESTART, or none has.* Then it does not matter which one has run, and a wait costs nothing more.
//!   This library interposes the calls that install handlers; it queries handlers that were installed before, or by a
//!   direct system call. Nearly every program has one kind only: C programs use `signal(3)`, which sets SA_RESTART, and
//!   Python uses `siginterrupt(3)`, which clears it.
//! * *Both kinds exist.* From then on a wait that is about to sleep blocks all signals, and sleeps on a signalfd as well,
//!   which is readable when a signal is pending. It then queries the pending signals and the flags of their handlers, and
//!   unblocks the signals: two or three more system calls per sleep. The lowest signal number decides, since the kernel
//!   delivers it first. The same is done if the wait busy polls first, since a signal during the busy poll would be
//!   missed otherwise.
//!
//! Handlers are not wrapped, since `sigaction` and a debugger would then show the wrappers. The C library's internal
//! signals, of which one cancels threads, are never blocked, and restart the call.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::{c_int, sigaction as Action, sighandler_t, sigset_t};

use crate::{config, errno, real};

const RESTARTS: u8 = 1;
const INTERRUPTS: u8 = 2;

/// The kinds of handlers that were found so far.
static HANDLER_KINDS: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// Whether the call that fails with EINTR shall be restarted.
    static RESTART: Cell<bool> = const { Cell::new(false) };
    /// The thread's signalfd and its signal set.
    static SIGNALFD: RefCell<Option<(OwnedFd, sigset_t)>> = const { RefCell::new(None) };
}

/// Returns the kind of an action; 0 if it is not a handler.
fn handler_kind(action: &Action) -> u8 {
    match action.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => 0,
        _ if action.sa_flags & libc::SA_RESTART != 0 => RESTARTS,
        _ => INTERRUPTS,
    }
}

/// Returns the current action of a signal.
fn current_action(signal: c_int) -> Option<Action> {
    let mut now = MaybeUninit::<Action>::zeroed();
    // SAFETY: the call writes the action if it succeeds.
    unsafe { (real::SIGACTION.get()(signal, std::ptr::null(), now.as_mut_ptr()) == 0).then(|| now.assume_init()) }
}

fn record_kind(kind: u8) {
    if kind & !HANDLER_KINDS.load(Ordering::Relaxed) != 0 {
        HANDLER_KINDS.fetch_or(kind, Ordering::Relaxed);
    }
}

/// Records a handler that was just installed, if a datapath is configured.
pub(super) fn record_handler(signal: c_int) {
    if config::get().datapath.is_some() {
        errno::preserve_errno(|| record_kind(current_action(signal).as_ref().map_or(0, handler_kind)));
    }
}

fn scan_handlers() {
    errno::preserve_errno(|| {
        (1..=libc::SIGRTMAX()).filter_map(current_action).for_each(|action| record_kind(handler_kind(&action)))
    });
}

/// Returns the kinds of handlers that exist.
fn handler_kinds() -> u8 {
    static SCANNED: OnceLock<()> = OnceLock::new();
    SCANNED.get_or_init(scan_handlers);
    HANDLER_KINDS.load(Ordering::Relaxed)
}

/// Returns whether handlers with and without SA_RESTART exist, so that a sleep must find out which signal ended it.
pub(crate) fn has_both_kinds() -> bool {
    handler_kinds() == RESTARTS | INTERRUPTS
}

/// Returns whether the call fails with EINTR, after a handler has ended a sleep and all handlers are of one kind.
pub(crate) fn fails_with_eintr() -> bool {
    if handler_kinds() == 0 {
        // A handler that was installed by a direct system call, or the C library's.
        scan_handlers();
    }
    handler_kinds() & INTERRUPTS != 0
}

/// Returns the thread's signalfd, which is readable when a signal outside `unblocked` is pending.
pub(crate) fn pending_signalfd(unblocked: &sigset_t) -> Option<c_int> {
    errno::preserve_errno(|| {
        SIGNALFD.with(|pending| {
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
                // SAFETY: a new descriptor, which nothing else owns.
                _ if made >= 0 => *pending = Some((unsafe { OwnedFd::from_raw_fd(made) }, wanted)),
                _ => return None,
            }
            Some(made)
        })
    })
}

/// Returns whether the first pending signal ends the call, with all signals blocked, of which `blocked` were blocked before.
/// Returns `None` if no pending signal has a handler.
pub(crate) fn first_pending_interrupts(blocked: &sigset_t) -> Option<bool> {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: the call writes the set; a zeroed set is valid.
    let set = unsafe {
        libc::sigpending(set.as_mut_ptr());
        set.assume_init()
    };
    let kinds = members(&set)
        .filter(|signal| !has(blocked, *signal))
        .filter_map(current_action)
        .map(|action| handler_kind(&action));
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

/// Records whether the call that fails with EINTR shall be restarted.
pub(crate) fn set_restart(restarts: bool) {
    RESTART.set(restarts);
}

/// Returns whether the call shall be restarted. Must be the last step of a call that waits, with nothing left to drop, since
/// a cancelled thread ends here.
#[inline]
pub(crate) fn should_restart(failed: bool) -> bool {
    failed && crate::errno::errno() == libc::EINTR && ended_by_signal()
}

#[cold]
fn ended_by_signal() -> bool {
    let again = RESTART.replace(false);
    test_cancel();
    again
}

/// Ends the thread if it was cancelled; calls that may wait are cancellation points (`pthreads(7)`).
pub(crate) fn test_cancel() {
    if super::process::is_table_active() {
        super::cancellation::register();
    }
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: takes no arguments, and unwinds only through frames that allow it.
    unsafe { pthread_testcancel() };
}

/// `sigaction(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    let answer = unsafe { real::SIGACTION.get()(signal, new, old) };
    // SAFETY: guaranteed by the caller: null, or an action.
    let new = unsafe { new.as_ref() };
    if answer == 0 {
        record_kind(new.map_or(0, handler_kind));
    }
    answer
}

/// Defines interposed functions that install a handler and return the previous one.
macro_rules! interpose_handlers {
    ($($(#[$about:meta])* $name:ident, $next:ident;)*) => {$(
        $(#[$about])*
        // SAFETY: same signature and semantics as the C library's function.
        #[unsafe(no_mangle)]
        extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller's arguments are passed on.
            let before = unsafe { real::$next.get()(signal, handler) };
            if before != libc::SIG_ERR {
                record_handler(signal);
            }
            before
        }
    )*};
}

interpose_handlers! {
    /// `signal(2)`.
    signal, SIGNAL;
    /// `bsd_signal(3)`.
    bsd_signal, BSD_SIGNAL;
    /// `sysv_signal(3)`.
    sysv_signal, SYSV_SIGNAL;
    /// `__sysv_signal`, which programs built for System V call as `signal`.
    __sysv_signal, SYSV_SIGNAL_2;
    /// `sigset(3)`.
    sigset, SIGSET;
}

/// `siginterrupt(3)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
extern "C" fn siginterrupt(signal: c_int, on: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let answer = unsafe { real::SIGINTERRUPT.get()(signal, on) };
    if answer == 0 {
        record_handler(signal);
    }
    answer
}
