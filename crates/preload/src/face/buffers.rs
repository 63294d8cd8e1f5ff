//! C's buffers as slices, and results as C has them.

use abey_datapath::{Error, Readiness};
use libc::{c_int, c_void, iovec, msghdr, size_t, ssize_t};

use super::errno::{fail, of};
use super::socket::Socket;
use super::watch;

/// Structures of a vector at most (`IOV_MAX`).
pub(super) const VECTORS: usize = 1024;

/// What the calls answer here, before it is C's: a count, or an error's number.
pub(super) type Answer = Result<usize, c_int>;

/// The bytes of a call's buffer; `None` is a null pointer with a length.
///
/// # Safety
/// As of a call that reads into it: `length` bytes can be written there, and no reference to them exists.
pub(super) unsafe fn room<'a>(to: *mut c_void, length: size_t) -> Option<&'a mut [u8]> {
    if length == 0 {
        return Some(&mut []);
    }
    // SAFETY: the caller's promise; they are written to before anybody reads them.
    (!to.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(to.cast(), length.min(isize::MAX as usize)) })
}

/// As [`room`], to be read.
///
/// # Safety
/// As of a call that writes them: `length` bytes can be read there, and nobody changes them.
pub(super) unsafe fn bytes<'a>(from: *const c_void, length: size_t) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: the caller's promise.
    (!from.is_null()).then(|| unsafe { std::slice::from_raw_parts(from.cast(), length.min(isize::MAX as usize)) })
}

/// The structures of a vector. `too_many` is what a call says to more than [`VECTORS`].
///
/// # Safety
/// `count` structures can be read there.
pub(super) unsafe fn vectors<'a>(vector: *const iovec, count: usize, too_many: c_int) -> Result<&'a [iovec], c_int> {
    if count > VECTORS {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if vector.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    let vectors = unsafe { std::slice::from_raw_parts(vector, count) };
    if vectors.iter().any(|one| one.iov_base.is_null() && one.iov_len > 0) {
        return Err(libc::EFAULT);
    }
    match vectors.iter().try_fold(0_usize, |sum, one| sum.checked_add(one.iov_len)) {
        Some(sum) if sum <= isize::MAX as usize => Ok(vectors),
        _ => Err(libc::EINVAL),
    }
}

/// A message's vector; see [`vectors`].
///
/// # Safety
/// As of `recvmsg` and `sendmsg`.
pub(super) unsafe fn vectors_of<'a>(message: &msghdr) -> Result<&'a [iovec], c_int> {
    // SAFETY: the caller's promise. Not every C library has the same type for the count.
    unsafe { vectors(message.msg_iov, message.msg_iovlen as _, libc::EMSGSIZE) }
}

/// A vector's room, one buffer after the other. None is null: [`vectors`] has looked.
///
/// # Safety
/// As of a call that reads into them.
pub(super) unsafe fn rooms(vectors: &[iovec]) -> impl Iterator<Item = &mut [u8]> {
    // SAFETY: the caller's promise.
    vectors.iter().filter_map(|one| unsafe { room(one.iov_base, one.iov_len) })
}

pub(super) fn length(vectors: &[iovec]) -> usize {
    vectors.iter().map(|one| one.iov_len).sum()
}

/// What C is told.
pub(super) fn tell(answer: Answer) -> ssize_t {
    match answer {
        Ok(count) => count as ssize_t,
        Err(number) => fail(number),
    }
}

/// As [`tell`], of a call that writes: it may have to end the program, too.
pub(super) fn tell_sent(answer: Answer, flags: c_int) -> ssize_t {
    if answer == Err(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: takes no pointers; the signal is this thread's own, as the kernel's would be.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    tell(answer)
}

/// What a call of C's answers.
pub(super) trait CanFail {
    /// Whether it is an error, which errno tells.
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

/// Does something that may have to wait, as the call's flags and the socket's settings say. `fd` is its number, if what the
/// kernel's side has is to be waited for, too.
pub(super) fn blocking<R>(
    fd: Option<c_int>,
    socket: &Socket,
    interest: Readiness,
    flags: c_int,
    mut attempt: impl FnMut() -> Result<R, Error>,
) -> Result<R, c_int> {
    let done = if flags & libc::MSG_DONTWAIT != 0 {
        attempt()
    } else {
        watch::until_done(fd.unwrap_or(-1), socket, interest, socket.limit(interest), attempt)
    };
    done.map_err(|error| of(&error))
}

/// Defines functions of the C library: their own part first, again after a signal that lets calls go on, and otherwise the
/// next definition.
macro_rules! calls {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $ours:expr, $next:ident;)*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// As the C library's function of this name.
        // SAFETY: has the type and the meaning of the C library's function of this name.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's promises are passed on.
            unsafe {
                $crate::face::signals::test_cancel();
                loop {
                    match $ours {
                        Some(answer) if $crate::face::signals::is_restarted($crate::face::buffers::CanFail::has_failed(&answer)) => {}
                        Some(answer) => return answer,
                        None => return $crate::real::$next.get()($($argument),*),
                    }
                }
            }
        }
    )*};
}
pub(super) use calls;
