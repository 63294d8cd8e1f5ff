//! Many messages in one call: `sendmmsg(2)`, `recvmmsg(2)`.

use libc::{c_int, c_uint, mmsghdr, timespec};

use super::buffers::{VECTORS, calls};
use super::errno::fail;
use super::receive::receive_message_ours;
use super::send::send_message_ours;
use super::{table, udp};
use crate::times::{self, Limit, of_timespec};

/// # Safety
/// As of `sendmmsg`.
unsafe fn send_ours(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promises; each message is used by itself.
    unsafe {
        if count > 0 && !messages.is_null() {
            udp::before_sending(fd, (*messages).msg_hdr.msg_name.cast(), (*messages).msg_hdr.msg_namelen);
        }
        each(fd, messages, (count as usize).min(VECTORS), |message, _| {
            let answer = send_message_ours(fd, &raw const (*message).msg_hdr, flags)?;
            Some((answer, true))
        })
    }
}

/// # Safety
/// As of `recvmmsg`.
unsafe fn receive_ours(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let timeout = unsafe { timeout.as_mut() };
    let limit = match timeout.as_deref() {
        // One that is no time is the kernel's to refuse.
        Some(time) => Limit::new(Some(of_timespec(time)?)),
        None => Limit::new(None),
    };
    // SAFETY: the caller's promises; each message is used by itself.
    let answer = unsafe {
        each(fd, messages, count as usize, |message, done| {
            let once = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
            let answer = receive_message_ours(fd, &raw mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE | once)?;
            // As the kernel does it: looked at when a message has come, and not before.
            Some((answer, !limit.is_over()))
        })
    }?;
    if let (Some(timeout), Some(left)) = (timeout, limit.left())
        && answer > 0
    {
        *timeout = times::timespec(left);
    }
    Some(answer)
}

/// Does one after the other until one fails; whether to go on after it is what `one` says beside its answer. An error is told
/// if it was the first.
///
/// # Safety
/// `count` messages are there.
unsafe fn each(
    fd: c_int,
    messages: *mut mmsghdr,
    count: usize,
    mut one: impl FnMut(*mut mmsghdr, usize) -> Option<(isize, bool)>,
) -> Option<c_int> {
    table::with_socket(fd, |_| ())?;
    if messages.is_null() && count > 0 {
        return Some(fail(libc::EFAULT));
    }
    for done in 0..count {
        // SAFETY: the caller's promise.
        let message = unsafe { messages.add(done) };
        let (answer, goes_on) = one(message, done)?;
        if answer < 0 {
            return Some(if done > 0 { done as c_int } else { -1 });
        }
        // SAFETY: as above.
        unsafe { (*message).msg_len = answer as c_uint };
        if !goes_on {
            return Some(done as c_int + 1);
        }
    }
    Some(count as c_int)
}

calls! {
    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int =
        send_ours(fd, messages, count, flags), SENDMMSG;
    /// `recvmmsg(2)`.
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int =
        receive_ours(fd, messages, count, flags, timeout), RECVMMSG;
}
