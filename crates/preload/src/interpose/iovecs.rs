//! Buffers and I/O vectors of C as slices, results as C returns them, and the macro that defines interposed calls.

use abey_datapath::{Error, IoError, Readiness};
use libc::{c_int, c_void, iovec, msghdr, size_t, ssize_t};

use super::error_codes::{errno_of, fail};
use super::socket::Socket;
use super::socket_wait;

/// The largest number of elements of a vector (`IOV_MAX`).
pub(super) const IOV_MAX: usize = 1024;

/// Size of the buffer in which vectors are gathered. A longer element is written directly.
pub(super) const GATHER_BYTES: usize = 4096;

/// A flag beside those of `recv(2)`, in the bits that these do not use: the call is `read(2)` or one like it, which returns
/// at once for a length of zero.
pub(super) const FILE_CALL: c_int = 1 << 20;

/// The result of a call before it is converted for C: a count, or an errno.
pub(super) type CallResult = Result<usize, c_int>;

/// Returns a buffer that is written to. Returns `None` for a null pointer with a length.
///
/// # Safety
/// `length` bytes can be written there, and no other reference to them exists.
pub(super) unsafe fn writable_slice<'a>(to: *mut c_void, length: size_t) -> Option<&'a mut [u8]> {
    if length == 0 {
        return Some(&mut []);
    }
    // SAFETY: guaranteed by the caller; the bytes are written before they are read.
    (!to.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(to.cast(), length.min(isize::MAX as usize)) })
}

/// Returns a buffer that is read. Returns `None` for a null pointer with a length.
///
/// # Safety
/// `length` bytes can be read there, and no thread changes them.
pub(super) unsafe fn readable_slice<'a>(from: *const c_void, length: size_t) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: guaranteed by the caller.
    (!from.is_null()).then(|| unsafe { std::slice::from_raw_parts(from.cast(), length.min(isize::MAX as usize)) })
}

/// Returns the elements of a vector. Fails with `too_many` if there are more than [`IOV_MAX`].
///
/// # Safety
/// `count` structures can be read there.
pub(super) unsafe fn iovecs<'a>(vector: *const iovec, count: usize, too_many: c_int) -> Result<&'a [iovec], c_int> {
    if count > IOV_MAX {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if vector.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: guaranteed by the caller.
    let vectors = unsafe { std::slice::from_raw_parts(vector, count) };
    if vectors.iter().any(|one| one.iov_base.is_null() && one.iov_len > 0) {
        return Err(libc::EFAULT);
    }
    match vectors.iter().try_fold(0_usize, |sum, one| sum.checked_add(one.iov_len)) {
        Some(sum) if sum <= isize::MAX as usize => Ok(vectors),
        _ => Err(libc::EINVAL),
    }
}

/// Returns the elements of a message's vector; see [`iovecs`].
///
/// # Safety
/// The same as for `recvmsg` and `sendmsg`.
pub(super) unsafe fn message_iovecs<'a>(message: &msghdr) -> Result<&'a [iovec], c_int> {
    // SAFETY: guaranteed by the caller. The type of the count differs between C libraries.
    unsafe { iovecs(message.msg_iov, message.msg_iovlen as _, libc::EMSGSIZE) }
}

/// Returns a message header with these buffers, and without an address or ancillary data.
pub(super) fn msghdr_of(vector: *mut iovec, count: usize) -> msghdr {
    // SAFETY: a plain C structure of integers and pointers, for which zero is valid.
    let mut message = unsafe { std::mem::zeroed::<msghdr>() };
    (message.msg_iov, message.msg_iovlen) = (vector, count as _);
    message
}

/// Returns the buffers of a vector, none of which is null, as [`iovecs`] has checked.
///
/// # Safety
/// The buffers can be written, and no other reference to them exists.
pub(super) unsafe fn writable_slices(vectors: &[iovec]) -> impl Iterator<Item = &mut [u8]> {
    // SAFETY: guaranteed by the caller.
    vectors.iter().filter_map(|one| unsafe { writable_slice(one.iov_base, one.iov_len) })
}

/// Returns the total length of the buffers.
pub(super) fn total_length(vectors: &[iovec]) -> usize {
    vectors.iter().map(|one| one.iov_len).sum()
}

/// Converts the result of a call for C, with errno.
pub(super) fn return_value(answer: CallResult) -> ssize_t {
    match answer {
        Ok(count) => count as ssize_t,
        Err(number) => fail(number),
    }
}

/// Converts the result of a call that sends. Raises SIGPIPE for an EPIPE, unless MSG_NOSIGNAL is set.
pub(super) fn return_sent(answer: CallResult, flags: c_int) -> ssize_t {
    if answer == Err(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: the call takes no pointers. The signal is sent to this thread, as by the kernel.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    return_value(answer)
}

/// A return type of C functions.
pub(super) trait CanFail {
    /// Returns whether the value means an error, which errno describes.
    fn has_failed(&self) -> bool;
}

impl CanFail for ssize_t {
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

impl CanFail for c_int {
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

impl CanFail for *mut libc::FILE {
    fn has_failed(&self) -> bool {
        self.is_null()
    }
}

/// Runs `attempt`, and waits between attempts unless MSG_DONTWAIT or the socket's settings forbid it. With `fd`, the wait is
/// also for the kernel socket.
pub(super) fn retry_until_ready<R>(
    fd: Option<c_int>,
    socket: &Socket,
    interest: Readiness,
    flags: c_int,
    mut attempt: impl FnMut() -> Result<R, Error>,
) -> Result<R, c_int> {
    let done = if flags & libc::MSG_DONTWAIT != 0 {
        attempt()
    } else {
        socket_wait::until_done(fd.unwrap_or(-1), socket, interest, socket.timeout(interest), attempt)
    };
    done.map_err(|error| {
        if matches!(error, Error::Socket(IoError::Moved)) {
            // The call is repeated, and goes to the kernel.
            socket.set_moved();
            super::signals::set_restart(true);
            return libc::EINTR;
        }
        errno_of(&error)
    })
}

/// Defines interposed functions. Each calls the datapath's part first, again after a signal whose handler has SA_RESTART,
/// and the C library's function if the datapath's part returns `None`.
macro_rules! interpose {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $datapath:expr, $next:ident;)*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// The same as for the C library's function.
        // SAFETY: same signature and semantics as the C library's function.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's guarantees are passed on.
            unsafe {
                $crate::interpose::signals::test_cancel();
                loop {
                    match $datapath {
                        Some(answer) if $crate::interpose::signals::should_restart($crate::interpose::iovecs::CanFail::has_failed(&answer)) => {}
                        Some(answer) => return answer,
                        None => return $crate::real::$next.get()($($argument),*),
                    }
                }
            }
        }
    )*};
}
pub(super) use interpose;
