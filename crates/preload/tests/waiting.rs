//! `epoll_wait` keeps its semantics when a wait is split into slices, or polls once: timeouts, errors, masks, signals and
//! cancellation.

mod common;

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{guest, is_guest, succeeds, succeeds_silently};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::EventFd;

const SLICES: (&str, &str) = ("ABEY_MAX_WAIT", "1ms");
/// So short that nearly all the time of a wait is spent between its slices.
const TINY_SLICES: (&str, &str) = ("ABEY_MAX_WAIT", "1ns");
const POLL: (&str, &str) = ("ABEY_ZERO_TIMEOUT", "poll");

/// The interposed calls.
#[derive(Clone, Copy, Debug)]
enum Call {
    Wait,
    Pwait,
    Pwait2,
}

const CALLS: [Call; 3] = [Call::Wait, Call::Pwait, Call::Pwait2];

/// Waits with a timeout in milliseconds. Returns the result and errno.
fn wait(call: Call, epfd: RawFd, timeout: i32, mask: Option<&libc::sigset_t>) -> (i32, i32) {
    const MAX: i32 = 4;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX as usize];
    let events = events.as_mut_ptr();
    let mask = mask.map_or(null(), |mask| &raw const *mask);
    let time = libc::timespec { tv_sec: (timeout / 1_000).into(), tv_nsec: (timeout % 1_000 * 1_000_000).into() };
    let time = if timeout < 0 { null() } else { &raw const time };
    // SAFETY: room for MAX events; the time and mask live through the call; every thread has an errno.
    unsafe {
        *libc::__errno_location() = 77;
        let answer = match call {
            Call::Wait => libc::epoll_wait(epfd, events, MAX, timeout),
            Call::Pwait => libc::epoll_pwait(epfd, events, MAX, timeout, mask),
            Call::Pwait2 => libc::epoll_pwait2(epfd, events, MAX, time, mask),
        };
        (answer, *libc::__errno_location())
    }
}

struct Setting {
    epoll: Epoll,
    event: EventFd,
    /// Only waits for instances that contain a connection are split into slices.
    _socket: UdpSocket,
}

fn setting() -> Setting {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll instance");
    let event = EventFd::from_value(0).expect("an eventfd");
    epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 7)).expect("added");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 8)).expect("added");
    Setting { epoll, event, _socket: socket }
}

impl Setting {
    fn fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn handle(signal: i32) {
    let action = libc::sigaction {
        sa_sigaction: handler as *const () as usize,
        // SAFETY: an empty set is all zeros.
        sa_mask: unsafe { std::mem::zeroed() },
        sa_flags: 0,
        sa_restorer: None,
    };
    // SAFETY: the action is valid, and its handler only counts.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }, 0);
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: an empty set is all zeros, and the signals exist.
    unsafe {
        let mut set = std::mem::zeroed();
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

fn change_mask(how: i32, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = set_of(&[]);
    // SAFETY: both sets are live.
    assert_eq!(unsafe { libc::pthread_sigmask(how, set, &raw mut before) }, 0);
    before
}

fn blocked(signal: i32) -> bool {
    let now = change_mask(libc::SIG_BLOCK, &set_of(&[]));
    // SAFETY: the set is live.
    unsafe { libc::sigismember(&raw const now, signal) == 1 }
}

#[test]
#[ignore = "a guest"]
fn guest_timeouts() {
    if !is_guest("guest_timeouts") {
        return;
    }
    let setting = setting();
    for call in CALLS {
        assert_eq!(wait(call, setting.fd(), 0, None), (0, 77), "{call:?}");
        let start = Instant::now();
        assert_eq!(wait(call, setting.fd(), 5, None), (0, 77), "{call:?}");
        assert!(start.elapsed() >= Duration::from_millis(5), "{call:?}: {:?}", start.elapsed());

        // A pending event, with every kind of timeout.
        setting.event.write(1).expect("written");
        for timeout in [0, 5, -1, -7] {
            assert_eq!(wait(call, setting.fd(), timeout, None), (1, 77), "{call:?} {timeout}");
        }
        setting.event.read().expect("read");

        // An event during the wait.
        for timeout in [-1, 60_000] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(12));
                    setting.event.write(1).expect("written");
                });
                let start = Instant::now();
                assert_eq!(wait(call, setting.fd(), timeout, None), (1, 77), "{call:?} {timeout}");
                assert!(start.elapsed() < Duration::from_secs(50));
            });
            setting.event.read().expect("read");
        }
    }
}

#[test]
#[ignore = "a guest"]
fn guest_errors() {
    if !is_guest("guest_errors") {
        return;
    }
    let setting = setting();
    for timeout in [0, 5, -1] {
        for call in CALLS {
            assert_eq!(wait(call, -1, timeout, None), (-1, libc::EBADF), "{call:?}");
            assert_eq!(wait(call, setting.event.as_fd().as_raw_fd(), timeout, None), (-1, libc::EINVAL), "{call:?}");
        }
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: asks for no events, which fails.
        let answer = unsafe { libc::epoll_wait(setting.fd(), &raw mut event, 0, timeout) };
        assert_eq!((answer, nix::errno::Errno::last()), (-1, nix::errno::Errno::EINVAL));
    }
    for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
        let (time, mut event) = (libc::timespec { tv_sec, tv_nsec }, libc::epoll_event { events: 0, u64: 0 });
        // SAFETY: room for one event; the time is invalid, and the call fails.
        let answer = unsafe { libc::epoll_pwait2(setting.fd(), &raw mut event, 1, &raw const time, null()) };
        assert_eq!((answer, nix::errno::Errno::last()), (-1, nix::errno::Errno::EINVAL));
    }
}

#[test]
#[ignore = "a guest"]
fn guest_masks() {
    if !is_guest("guest_masks") {
        return;
    }
    let setting = setting();
    handle(libc::SIGUSR1);
    let open = change_mask(libc::SIG_BLOCK, &set_of(&[libc::SIGUSR1]));
    for call in [Call::Pwait, Call::Pwait2] {
        HANDLED.store(0, Ordering::SeqCst);
        // SAFETY: sent to this thread, which blocks the signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        // The call's mask applies, also if it is null: the signal stays blocked first, and then ends the wait.
        assert_eq!(wait(call, setting.fd(), 3, None), (0, 77), "{call:?}");
        assert_eq!(wait(call, setting.fd(), 3, Some(&set_of(&[libc::SIGUSR1]))), (0, 77), "{call:?}");
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
        assert_eq!(wait(call, setting.fd(), -1, Some(&open)), (-1, libc::EINTR), "{call:?}");
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1);
        assert!(blocked(libc::SIGUSR1) && !blocked(libc::SIGTERM), "the mask is as before");
    }
}

#[test]
#[ignore = "a guest"]
fn guest_interrupted() {
    if !is_guest("guest_interrupted") {
        return;
    }
    const ROUNDS: u32 = 100;
    handle(libc::SIGUSR1);
    let (ready, readied) = mpsc::channel();
    let interrupted = Arc::new(AtomicU32::new(0));
    let finished = Arc::new(AtomicBool::new(false));
    let (count, end) = (interrupted.clone(), finished.clone());
    let thread = thread::spawn(move || {
        let setting = setting();
        // SAFETY: takes no pointers.
        ready.send(unsafe { libc::pthread_self() }).expect("the other thread is there");
        while !end.load(Ordering::SeqCst) {
            assert_eq!(
                wait(CALLS[count.load(Ordering::SeqCst) as usize % 3], setting.fd(), -1, None),
                (-1, libc::EINTR)
            );
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let waiter = readied.recv().expect("the waiter is there");
    // A signal just before a wait does not end it, with or without the library. This is rare, since the thread waits again
    // at once; the signal is then sent again. If signals were lost between slices, every other round would need this.
    let mut sent_again = 0;
    for round in 1..=ROUNDS {
        thread::sleep(Duration::from_millis(2));
        finished.store(round == ROUNDS, Ordering::SeqCst);
        // SAFETY: the thread runs until the last round is over.
        let send = || unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
        send();
        let mut since = Instant::now();
        while interrupted.load(Ordering::SeqCst) < round {
            if since.elapsed() > Duration::from_secs(2) {
                sent_again += 1;
                assert!(sent_again < ROUNDS / 10, "signals ran their handler and did not end the wait");
                send();
                since = Instant::now();
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
    thread.join().expect("the waiter ends");
}

static CANCELLED_AT: AtomicU32 = AtomicU32::new(0);

extern "C-unwind" fn wait_for_cancellation(epfd: *mut libc::c_void) -> *mut libc::c_void {
    CANCELLED_AT.store(1, Ordering::SeqCst);
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    unsafe { libc::epoll_wait(epfd as usize as i32, &raw mut event, 1, -1) };
    CANCELLED_AT.store(2, Ordering::SeqCst);
    null_mut()
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
}

#[test]
#[ignore = "a guest"]
fn guest_cancelled() {
    if !is_guest("guest_cancelled") {
        return;
    }
    let setting = setting();
    // SAFETY: the thread only waits, in a function that may be unwound and owns nothing; functions that may unwind have
    // the same calling convention as others.
    unsafe {
        let start: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void =
            std::mem::transmute(wait_for_cancellation as extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void);
        let mut thread = std::mem::zeroed();
        assert_eq!(libc::pthread_create(&raw mut thread, null(), start, setting.fd() as usize as *mut libc::c_void), 0);
        while CANCELLED_AT.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(10));
        assert_eq!(pthread_cancel(thread), 0);
        let mut result = null_mut();
        assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
    }
    assert_eq!(CANCELLED_AT.load(Ordering::SeqCst), 1);
}

/// Installs a seccomp filter that makes one system call fail with this error.
fn forbid(call: libc::c_long, error: i32) {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut code = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the program is valid and lives through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
#[ignore = "a guest"]
fn guest_sandboxed() {
    if !is_guest("guest_sandboxed") {
        return;
    }
    let setting = setting();
    forbid(libc::SYS_epoll_pwait2, libc::EPERM);
    for call in [Call::Wait, Call::Pwait, Call::Wait] {
        assert_eq!(wait(call, setting.fd(), 0, None), (0, 77), "{call:?}");
        let start = Instant::now();
        assert_eq!(wait(call, setting.fd(), 3, None), (0, 77), "{call:?}");
        assert!(start.elapsed() >= Duration::from_millis(3));
        setting.event.write(1).expect("written");
        assert_eq!(wait(call, setting.fd(), 0, None), (1, 77), "{call:?}");
        setting.event.read().expect("read");
    }
}

#[test]
fn timeouts_are_exact() {
    for variables in [&[SLICES][..], &[SLICES, POLL], &[TINY_SLICES], &[("ABEY_MAX_WAIT", "1700us")], &[POLL], &[]] {
        succeeds_silently(guest("guest_timeouts", variables));
    }
}

#[test]
fn errors_are_those_of_the_kernel() {
    for variables in [&[SLICES][..], &[TINY_SLICES], &[POLL], &[]] {
        succeeds_silently(guest("guest_errors", variables));
    }
}

#[test]
fn the_mask_argument_applies_during_the_wait_only() {
    for variables in [&[SLICES][..], &[TINY_SLICES], &[]] {
        succeeds_silently(guest("guest_masks", variables));
    }
}

#[test]
fn a_signal_ends_the_wait_at_any_moment() {
    for variables in [&[SLICES][..], &[TINY_SLICES]] {
        succeeds_silently(guest("guest_interrupted", variables));
    }
}

#[test]
fn a_thread_can_be_cancelled_in_a_wait() {
    for variables in [&[SLICES][..], &[TINY_SLICES], &[]] {
        succeeds_silently(guest("guest_cancelled", variables));
    }
}

#[test]
fn without_epoll_pwait2_waits_work_and_poll_once_reports_an_error() {
    succeeds_silently(guest("guest_sandboxed", &[]));
    succeeds_silently(guest("guest_sandboxed", &[("ABEY_MAX_WAIT", "700us")]));
    let errors = succeeds(guest("guest_sandboxed", &[POLL]));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("libabey.so: the kernel or a sandbox does not allow epoll_pwait2"), "{errors}");
}

/// Returns how often this thread sleeps in a wait of 200 ms.
fn sleeps(epoll: &Epoll) -> i64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let slept = || getrusage(UsageWho::RUSAGE_THREAD).expect("usage").voluntary_context_switches();
    let before = slept();
    assert_eq!(wait(Call::Wait, epoll.0.as_raw_fd(), 200, None).0, 0);
    slept() - before
}

#[test]
#[ignore = "a guest"]
fn guest_listening() {
    if !is_guest("guest_listening") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let accepting = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll instance");
    accepting.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 1)).expect("added");
    assert!(sleeps(&accepting) < 5, "an accept loop is woken for nothing");
    assert!(sleeps(&setting().epoll) >= 10, "a loop with a connection does not wait in slices");
    // A reused descriptor is a new instance.
    let number = accepting.0.as_raw_fd();
    accepting
        .add(UdpSocket::bind("127.0.0.1:0").expect("a socket"), EpollEvent::new(EpollFlags::EPOLLIN, 2))
        .expect("added");
    drop(accepting);
    let again = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll instance");
    assert_eq!(again.0.as_raw_fd(), number);
    assert!(sleeps(&again) < 5, "an instance inherits the state of an earlier one");
}

#[test]
fn only_waits_for_instances_with_connections_are_sliced() {
    succeeds_silently(guest("guest_listening", &[SLICES]));
}
