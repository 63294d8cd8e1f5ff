//! The members of all epoll instances of this process, as procfs has them (`proc_pid_fdinfo(5)`).
//!
//! A scan opens files. In a thread of the process these would take the descriptors that the program expects to get next, so the
//! thread has a table of descriptors of its own, which begins empty (`close_range(2)`, Linux 5.9). All calls are direct: the
//! interposed ones would take its numbers for the program's.

use std::ffi::{CStr, CString};

use libc::{c_int, c_long};

use super::super::runtime_fds;
use crate::signal_mask;
use crate::syscall::raw;

/// The part of `struct linux_dirent64` before the name.
const HEADER: usize = 19;

/// A member of an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The descriptor of the instance.
    pub(super) epoll: c_int,
    pub(super) fd: c_int,
    pub(super) events: u32,
    pub(super) data: u64,
    /// The inode of the file that the descriptor had when it was added.
    pub(super) inode: libc::ino_t,
}

/// Returns the members of the program's epoll instances. None, if the kernel or the system does not say.
pub(super) fn scan() -> Vec<Member> {
    let before = signal_mask::block_all();
    let thread = std::thread::Builder::new()
        .name("abey-scan".to_owned())
        .spawn(|| super::uninterposed(|| if leave_descriptors() { members() } else { Vec::new() }));
    signal_mask::restore(&before);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Gives this thread an empty table of descriptors. Returns whether it has one.
fn leave_descriptors() -> bool {
    let arguments = [0, u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE as usize, 0, 0, 0];
    // SAFETY: the call takes no pointers, and closes nothing that another thread has.
    unsafe { raw(libc::SYS_close_range, arguments) == 0 }
}

fn members() -> Vec<Member> {
    let epolls = descriptors().into_iter().filter(|fd| !runtime_fds::is_runtime_fd(*fd) && is_epoll(*fd));
    epolls.flat_map(|epoll| parse(epoll, &read(&format!("/proc/self/fdinfo/{epoll}")))).collect()
}

fn parse(epoll: c_int, about: &[u8]) -> Vec<Member> {
    let about = String::from_utf8_lossy(about);
    let member = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        let inode = libc::ino_t::from_str_radix(words.find_map(|word| word.strip_prefix("ino:"))?, 16).ok()?;
        Some(Member { epoll, fd, events, data, inode })
    };
    about.lines().filter_map(member).collect()
}

/// Returns the descriptors of the process.
fn descriptors() -> Vec<c_int> {
    let listing = transfer("/proc/self/fd", libc::O_DIRECTORY, libc::SYS_getdents64);
    let (mut found, mut rest) = (Vec::new(), &listing[..]);
    while rest.len() > HEADER {
        let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]])).clamp(HEADER, rest.len());
        let name = CStr::from_bytes_until_nul(&rest[HEADER..length]).ok();
        found.extend(name.and_then(|name| name.to_str().ok()?.parse::<c_int>().ok()));
        rest = &rest[length..];
    }
    found
}

fn is_epoll(fd: c_int) -> bool {
    let Ok(path) = CString::new(format!("/proc/self/fd/{fd}")) else { return false };
    let mut link = [0_u8; 32];
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, link.as_mut_ptr() as usize, link.len(), 0, 0];
    // SAFETY: the path and the buffer live through the call.
    let length = unsafe { raw(libc::SYS_readlinkat, arguments) };
    usize::try_from(length).is_ok_and(|length| &link[..length.min(link.len())] == b"anon_inode:[eventpoll]")
}

fn read(path: &str) -> Vec<u8> {
    transfer(path, 0, libc::SYS_read)
}

/// Returns what `call` reads of a file, until it returns 0 or fails.
fn transfer(path: &str, flags: c_int, call: c_long) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0_u8; 16 << 10]);
    let Ok(path) = CString::new(path) else { return all };
    let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path lives through the call.
    let file =
        unsafe { raw(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0]) };
    let Ok(file) = usize::try_from(file) else { return all };
    loop {
        // SAFETY: the buffer has room for its length.
        let count = unsafe { raw(call, [file, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) };
        match usize::try_from(count) {
            Ok(1..) => all.extend_from_slice(&buffer[..count as usize]),
            _ => break,
        }
    }
    // SAFETY: the call takes no pointers; the descriptor is this thread's.
    unsafe { raw(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    all
}
