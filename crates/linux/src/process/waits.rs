//! The system calls that the threads of a process wait in, and the descriptors that they wait for.
//!
//! `/proc/PID/task/TID/syscall` has the number and the arguments of the call in which a thread is blocked (`proc(5)`). Lists of
//! descriptors, as `poll` and `select` take them, are read from the memory of the process. Both need the same privilege as
//! `ptrace(2)`. Only calls in the caller's own word size are recognised.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::tree::threads;
use super::{ProcessError, explain_io};

/// A call that waits for descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitCall {
    /// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`.
    Epoll,
    /// `poll`, `ppoll`.
    Poll,
    /// `select`, `pselect`.
    Select,
    /// `accept`, `accept4`.
    Accept,
    /// `recv`, `recvfrom`, `recvmsg`, `recvmmsg`, `read`, `readv`.
    Receive,
    /// `io_uring_enter`.
    IoUring,
}

/// A thread's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadWait {
    /// The call.
    pub call: WaitCall,
    /// The descriptors that it waits for: of an epoll instance or a ring the descriptor of that.
    pub fds: Vec<i32>,
}

/// The most descriptors of one `poll` or `select` that are read.
const MAX_FDS: usize = 4096;

/// The most threads of one process that are examined.
const MAX_THREADS: usize = 1024;

/// Returns the text of `/proc/PID/task/TID/syscall` of each thread that is blocked in a call that waits for descriptors, by
/// thread. A text that has not changed is the same call.
///
/// # Errors
/// [`ProcessError::NoProcess`], or [`ProcessError::NoPermission`] if the caller may not trace the process.
pub fn blocked_calls(pid: u32) -> Result<BTreeMap<u32, String>, ProcessError> {
    let mut calls = BTreeMap::new();
    for tid in threads(pid)?.into_iter().take(MAX_THREADS) {
        match std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")) {
            Ok(text) if call_of(&text).is_some() => {
                calls.insert(tid, text);
            }
            // It runs, or waits for something else.
            Ok(_) => {}
            Err(error) => match explain_io(pid, "the system calls", &error) {
                ProcessError::NoProcess(_) => {}
                error => return Err(error),
            },
        }
    }
    Ok(calls)
}

/// Returns the wait that a text of [`blocked_calls`] describes; `None` if the lists of descriptors cannot be read.
#[must_use]
pub fn wait_of(pid: u32, text: &str) -> Option<ThreadWait> {
    let (call, arguments) = call_of(text)?;
    let memory = || File::open(format!("/proc/{pid}/mem")).ok();
    let fds = match call {
        WaitCall::Poll => polled(&memory()?, arguments[0], arguments[1])?,
        WaitCall::Select => selected(&memory()?, arguments[0], arguments[1])?,
        _ => vec![i32::try_from(arguments[0]).ok()?],
    };
    Some(ThreadWait { call, fds })
}

/// Returns the call and its first two arguments.
fn call_of(text: &str) -> Option<(WaitCall, [u64; 2])> {
    let mut words = text.split_whitespace();
    let call = known(words.next()?.parse().ok()?)?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    Some((call, [argument()?, argument()?]))
}

/// Returns the call with a number of this machine's 64-bit system calls.
#[cfg(target_pointer_width = "64")]
fn known(number: libc::c_long) -> Option<WaitCall> {
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_epoll_wait => return Some(WaitCall::Epoll),
        libc::SYS_poll => return Some(WaitCall::Poll),
        libc::SYS_select => return Some(WaitCall::Select),
        _ => {}
    }
    Some(match number {
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => WaitCall::Epoll,
        libc::SYS_ppoll => WaitCall::Poll,
        libc::SYS_pselect6 => WaitCall::Select,
        libc::SYS_accept | libc::SYS_accept4 => WaitCall::Accept,
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg | libc::SYS_read | libc::SYS_readv => {
            WaitCall::Receive
        }
        libc::SYS_io_uring_enter => WaitCall::IoUring,
        _ => return None,
    })
}

/// Recognises no call: 32-bit machines have several numbers for each.
#[cfg(not(target_pointer_width = "64"))]
fn known(_: libc::c_long) -> Option<WaitCall> {
    None
}

/// Returns the descriptors of an array of `struct pollfd` that are polled for input.
fn polled(memory: &File, address: u64, count: u64) -> Option<Vec<i32>> {
    let mut bytes = vec![0; usize::try_from(count).ok()?.min(MAX_FDS) * size_of::<libc::pollfd>()];
    memory.read_exact_at(&mut bytes, address).ok()?;
    let entry = |one: &[u8]| {
        let fd = i32::from_ne_bytes(one[..4].try_into().expect("four bytes"));
        let events = i16::from_ne_bytes(one[4..6].try_into().expect("two bytes"));
        (fd >= 0 && events & libc::POLLIN != 0).then_some(fd)
    };
    Some(bytes.chunks_exact(size_of::<libc::pollfd>()).filter_map(entry).collect())
}

/// Returns the descriptors of a `fd_set` below `count`.
fn selected(memory: &File, count: u64, address: u64) -> Option<Vec<i32>> {
    if address == 0 {
        return Some(Vec::new());
    }
    let count = usize::try_from(count).ok()?.min(MAX_FDS);
    // The kernel reads whole words.
    let mut bytes = vec![0; count.div_ceil(64) * 8];
    memory.read_exact_at(&mut bytes, address).ok()?;
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    let bits = words
        .enumerate()
        .flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit));
    Some(bits.filter(|fd| *fd < count).map(|fd| fd as i32).collect())
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_thread_that_runs_or_sleeps_waits_for_no_descriptor() {
        let nanosleep = format!("{} 0x0 0x7ffd 0x0 0x0 0x0 0x0 0x7ffd 0x7f\n", libc::SYS_nanosleep);
        for text in ["running\n", "-1 0x7ffd 0x7f\n", &nanosleep, "", "232"] {
            assert_eq!(wait_of(std::process::id(), text), None, "{text}");
        }
        let accept = format!("{} 0x5 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f\n", libc::SYS_accept4);
        assert_eq!(wait_of(1, &accept), Some(ThreadWait { call: WaitCall::Accept, fds: vec![5] }));
    }

    /// Returns the wait of a thread that runs `block` until the socket that it waits for receives something.
    fn wait_in(call: WaitCall, socket: &UdpSocket, block: impl FnOnce(i32) + Send) -> ThreadWait {
        let fd = socket.as_raw_fd();
        std::thread::scope(|scope| {
            scope.spawn(move || block(fd));
            // Other tests of this process wait as well, for other descriptors.
            let found = loop {
                let calls = blocked_calls(std::process::id()).expect("its own threads");
                let waits = calls.values().filter_map(|text| wait_of(std::process::id(), text));
                if let Some(found) = waits.into_iter().find(|wait| wait.call == call && wait.fds.contains(&fd)) {
                    break found;
                }
                std::thread::yield_now();
            };
            socket.send_to(b"x", socket.local_addr().expect("bound")).expect("sent");
            found
        })
    }

    #[test]
    fn the_descriptors_of_poll_select_and_receive_are_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let only = vec![socket.as_raw_fd()];
        let received = wait_in(WaitCall::Receive, &socket, |_| {
            socket.recv(&mut [0; 8]).expect("received");
        });
        assert_eq!(received.fds, only);
        let polled = wait_in(WaitCall::Poll, &socket, |fd| {
            let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
            let mut all = [entry(-1, libc::POLLIN), entry(1, libc::POLLPRI), entry(fd, libc::POLLIN)];
            // SAFETY: the array has three entries.
            assert!(unsafe { libc::poll(all.as_mut_ptr(), 3, -1) } > 0);
        });
        assert_eq!(polled.fds, only);
        socket.recv(&mut [0; 8]).expect("received");
        let selected = wait_in(WaitCall::Select, &socket, |fd| {
            // SAFETY: a set of zeros is an empty set.
            let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
            let none = std::ptr::null_mut();
            // SAFETY: the descriptor is below FD_SETSIZE, and the set is valid for the calls.
            unsafe {
                libc::FD_SET(fd, &raw mut set);
                assert!(libc::select(fd + 1, &raw mut set, none, none, std::ptr::null_mut()) > 0);
            }
        });
        assert_eq!(selected.fds, only);
    }
}
