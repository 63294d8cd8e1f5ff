//! The calling thread's `errno(3)`.

use libc::c_int;

/// Returns errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's function returns a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the C library's function returns a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// Runs `work` and restores errno afterwards, so that the program does not see the calls that `work` makes.
pub(crate) fn preserve_errno<R>(work: impl FnOnce() -> R) -> R {
    let before = errno();
    let result = work();
    set_errno(before);
    result
}
