//! Interposed `sendmmsg(2)` and `recvmmsg(2)`.

use libc::{c_int, c_uint, mmsghdr, timespec};

use super::error_codes::fail;
use super::iovecs::{IOV_MAX, interpose};
use super::receive::datapath_recvmsg;
use super::send::datapath_sendmsg;
use super::{fd_table, udp};
use crate::timeout::{self, Timeout, duration_from_timespec};

/// # Safety
/// The same as for `sendmmsg`.
unsafe fn datapath_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Option<c_int> {
    // SAFETY: guaranteed by the caller; each message is used separately.
    unsafe {
        if count > 0 && !messages.is_null() {
            (0..count as usize).for_each(|at| super::ancillary::hand_over_rights(&(*messages.add(at)).msg_hdr));
            udp::prepare_send(fd, (*messages).msg_hdr.msg_name.cast(), (*messages).msg_hdr.msg_namelen);
        }
        for_each_message(fd, messages, (count as usize).min(IOV_MAX), |message, _| {
            let answer = datapath_sendmsg(fd, &raw const (*message).msg_hdr, flags)?;
            Some((answer, true))
        })
    }
}

/// # Safety
/// The same as for `recvmmsg`.
unsafe fn datapath_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    let timeout = unsafe { timeout.as_mut() };
    let deadline = match timeout.as_deref() {
        // The kernel fails with EINVAL.
        Some(time) => Timeout::new(Some(duration_from_timespec(time)?)),
        None => Timeout::new(None),
    };
    // SAFETY: guaranteed by the caller; each message is used separately.
    let answer = unsafe {
        for_each_message(fd, messages, count as usize, |message, done| {
            let once = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
            let answer = datapath_recvmsg(fd, &raw mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE | once)?;
            // As in the kernel, the timeout is checked only after a message was received.
            Some((answer, !deadline.has_expired()))
        })
    }?;
    if let (Some(timeout), Some(left)) = (timeout, deadline.remaining())
        && answer > 0
    {
        *timeout = timeout::to_timespec(left);
    }
    Some(answer)
}

/// Calls `one` for each message until it fails, or until its second result is false. Returns the number of messages, or
/// the error if the first one failed.
///
/// # Safety
/// `messages` points to `count` messages.
unsafe fn for_each_message(
    fd: c_int,
    messages: *mut mmsghdr,
    count: usize,
    mut one: impl FnMut(*mut mmsghdr, usize) -> Option<(isize, bool)>,
) -> Option<c_int> {
    fd_table::with_socket(fd, |_| ())?;
    if messages.is_null() && count > 0 {
        return Some(fail(libc::EFAULT));
    }
    for done in 0..count {
        // SAFETY: guaranteed by the caller.
        let message = unsafe { messages.add(done) };
        let (answer, continues) = one(message, done)?;
        if answer < 0 {
            return Some(if done > 0 { done as c_int } else { -1 });
        }
        // SAFETY: as above.
        unsafe { (*message).msg_len = answer as c_uint };
        if !continues {
            return Some(done as c_int + 1);
        }
    }
    Some(count as c_int)
}

interpose! {
    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int =
        datapath_sendmmsg(fd, messages, count, flags), SENDMMSG;
    /// `recvmmsg(2)`.
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int =
        datapath_recvmmsg(fd, messages, count, flags, timeout), RECVMMSG;
}
