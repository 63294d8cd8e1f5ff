//! Programs whose sockets go through the C library, and whose epoll calls do not (Rust on async-io, smol or async-std: rustix
//! makes these calls itself). They wait in the kernel for what the datapath has.
//!
//! Such a program is found by what the kernel says of its descriptors ([`mod@scan`]): an epoll instance that this library has no
//! entry of, with a socket as a member that it has. From then on this process uses the kernel. Its listeners, connections and UDP
//! sockets are handed over, and the instance reports what the kernel's sockets underneath have. One line says so.
//!
//! # When
//!
//! | event | what happens |
//! | --- | --- |
//! | `accept` is about to open a deferred listener | one scan, before the datapath listens |
//! | a socket becomes one of the datapath, or `accept` returns | scans in a thread, 20 ms later and then at growing intervals, until three in a row had no new sockets |
//! | the program adds a socket of the datapath to an epoll instance by the C library | none any more: it uses the library |
//! | the program installs a seccomp filter | none any more |
//!
//! So an event loop on the C library has no scan at all, and other programs a few short ones, which no call waits for.
//!
//! # Events
//!
//! An edge-triggered member gets its event again: the hand-over changes the state of the kernel's socket, and setting
//! SO_RCVLOWAT reports data that is there already. A member whose descriptor a pump has replaced is added again. An attempt to
//! connect moves when it has succeeded; one that fails is reported by an error of the kernel's socket.
//!
//! # Limits
//!
//! A socket that is added to such an instance long after the last scan is found only when another socket is made. On a NIC that is not
//! shared with the kernel nothing can be handed over: the line is all.

mod scan;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abey_datapath::Readiness;
use libc::{c_int, epoll_event};

use self::scan::{Member, scan};
use super::context::{is_af_xdp, uninterposed};
use super::fd_table::{self, Entry};
use super::handover::{self, Reason};
use super::socket::{Role, Socket};
use super::socket_options::{int, set};
use super::{listen, member_table, process, sandbox};
use crate::report::Topic;
use crate::{config, errno, real, signal_mask};

/// The first and the longest time between two scans.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// Number of scans without a new socket before them after which the thread ends.
const QUIET_SCANS: u32 = 3;
/// Time between two attempts to hand over a connection that is not established.
const RETRY: Duration = Duration::from_millis(5);

/// Nothing is left to find: the program uses the C library, has moved to the kernel, or forbids itself system calls.
static IS_DONE: AtomicBool = AtomicBool::new(false);
/// Sockets were made since the last scan.
static HAS_NEW: AtomicBool = AtomicBool::new(false);
/// The thread is there.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static STOPPED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that the program adds sockets of the datapath to epoll instances by the C library.
#[inline]
pub(super) fn uses_library() {
    if !IS_DONE.load(Ordering::Relaxed) {
        IS_DONE.store(true, Ordering::Relaxed);
    }
}

/// Ends the scans, before the program forbids itself what they call.
pub(super) fn end() {
    if process::is_child() {
        // The thread is the parent's.
        return;
    }
    IS_DONE.store(true, Ordering::SeqCst);
    drop(lock(&STOPPED.0));
    STOPPED.1.notify_all();
    let thread = lock(&THREAD).take();
    if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
        let _ = thread.join();
    }
}

/// Starts the scans, since a socket has become one of the datapath, or `accept` was called.
#[inline]
pub(super) fn socket_made() {
    if !IS_DONE.load(Ordering::Relaxed) {
        HAS_NEW.store(true, Ordering::SeqCst);
        if !IS_RUNNING.swap(true, Ordering::SeqCst) {
            start(run_scans);
        }
    }
}

/// Hands over a connection that was accepted while the process moved to the kernel.
#[inline]
pub(super) fn accepted(fd: c_int) {
    if sandbox::is_off() {
        handover::hand_over(fd, Reason::Close);
    }
}

/// Scans before a listener is opened by `accept`. Returns whether the process uses the kernel from now on.
pub(super) fn before_open() -> bool {
    if IS_DONE.load(Ordering::Relaxed) || config::get().datapath.is_none() {
        return false;
    }
    errno::preserve_errno(|| uninterposed(find_and_move))
}

fn start(work: fn()) {
    errno::preserve_errno(|| {
        uninterposed(|| {
            let before = signal_mask::block_all();
            let thread = std::thread::Builder::new().name("abey-epoll".to_owned()).spawn(move || uninterposed(work));
            signal_mask::restore(&before);
            // Without a thread, nothing is found.
            *lock(&THREAD) = thread.ok();
        });
    });
}

fn run_scans() {
    let (mut interval, mut quiet) = (INTERVALS.0, 0);
    while quiet < QUIET_SCANS {
        if sleep(interval) {
            return;
        }
        quiet = if HAS_NEW.swap(false, Ordering::SeqCst) { 0 } else { quiet + 1 };
        if find_and_move() {
            return;
        }
        interval = (2 * interval).min(INTERVALS.1);
    }
    IS_RUNNING.store(false, Ordering::SeqCst);
}

/// Sleeps, at most for `time`. Returns whether the scans are over.
fn sleep(time: Duration) -> bool {
    let guard = lock(&STOPPED.0);
    let is_done = |(): &mut ()| !IS_DONE.load(Ordering::SeqCst);
    drop(STOPPED.1.wait_timeout_while(guard, time, is_done).unwrap_or_else(PoisonError::into_inner));
    IS_DONE.load(Ordering::SeqCst)
}

/// Scans, and moves this process to the kernel if the scan finds something. Returns whether it does.
fn find_and_move() -> bool {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = lock(&ONE);
    if sandbox::is_off() {
        return true;
    }
    let members = scan();
    if IS_DONE.load(Ordering::SeqCst) || !members.iter().any(is_unseen) {
        return false;
    }
    IS_DONE.store(true, Ordering::SeqCst);
    let Some(datapath) = &config::get().datapath else { return false };
    let what = "the program waits for its sockets by epoll calls that it makes without the C library";
    if !is_af_xdp(datapath) {
        config::failed(Topic::DirectEpoll, &format_args!("{what}, and misses their events on {}", datapath.nic));
        return false;
    }
    config::failed(Topic::DirectEpoll, &format_args!("{what}, so its sockets are the kernel's"));
    sandbox::turn_off();
    if move_sockets(&members) {
        *lock(&PENDING) = members;
        start(move_pending);
    }
    true
}

/// Returns whether a member is a socket of the datapath, in an instance that this library does not know.
fn is_unseen(member: &Member) -> bool {
    inode(member.fd) == Some(member.inode)
        && matches!(fd_table::entry(member.fd).as_deref(), Some(Entry::Socket(_)))
        && !matches!(fd_table::entry(member.epoll).as_deref(), Some(Entry::Epoll(_)))
}

/// The members of instances, while some of them are not connected yet.
static PENDING: Mutex<Vec<Member>> = Mutex::new(Vec::new());

fn move_pending() {
    let members = std::mem::take(&mut *lock(&PENDING));
    loop {
        std::thread::sleep(RETRY);
        if !move_sockets(&members) {
            return;
        }
    }
}

/// Hands every socket over. Returns whether there are attempts to connect, which have to be tried again.
fn move_sockets(members: &[Member]) -> bool {
    let mut has_pending = false;
    for (fd, object) in fd_table::find(|object| matches!(object, Entry::Socket(_))) {
        let Entry::Socket(socket) = &*object else { continue };
        match socket.role.get() {
            Some(Role::Listener(_)) => {
                listen::leave(socket);
                member_table::move_to_kernel(&object, fd);
            }
            Some(Role::Stream(_)) if !has_outcome(socket) => has_pending = true,
            Some(_) => {
                let before = inode(fd);
                if handover::hand_over(fd, Reason::Close) {
                    raise(fd);
                    if inode(fd) != before {
                        let is_this = |member: &&Member| member.fd == fd && before == Some(member.inode);
                        members.iter().filter(is_this).for_each(Member::add_again);
                    }
                } else if socket.stream().is_some_and(|stream| !stream.is_connected().unwrap_or(false)) {
                    report_failure(fd);
                }
            }
            // Only the kernel listens.
            None => fd_table::remove_if(fd, &object),
        }
    }
    has_pending
}

/// Returns whether an attempt to connect has succeeded or failed.
fn has_outcome(socket: &Socket) -> bool {
    socket
        .role
        .get()
        .is_none_or(|role| role.readiness().intersects(Readiness::WRITABLE | Readiness::HANG_UP | Readiness::ERROR))
}

/// Makes the kernel's socket, which has no connection, report an error. The program then asks for it here.
fn report_failure(fd: c_int) {
    let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the address lives through the call.
    unsafe { real::CONNECT.get()(fd, &raw const none, size_of_val(&none) as libc::socklen_t) };
}

/// Makes the kernel report what a socket has that was handed over: it wakes waiters if there is enough to read.
fn raise(fd: c_int) {
    if let Some(low) = int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low);
    }
}

impl Member {
    /// Adds the socket pair of a pump, whose descriptor was the socket's.
    fn add_again(&self) {
        let mut event = epoll_event { events: self.events, u64: self.data };
        // SAFETY: the event lives through the call.
        unsafe { real::EPOLL_CTL.get()(self.epoll, libc::EPOLL_CTL_ADD, self.fd, &raw mut event) };
    }
}

fn inode(fd: c_int) -> Option<libc::ino_t> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is written by the call, and read only when it succeeded.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_ino) }
}
