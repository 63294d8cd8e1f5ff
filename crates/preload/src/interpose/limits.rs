//! The interposed `setrlimit(2)`: a limit of the address space does not count what the datapath maps.
//!
//! The runtime's threads have stacks and, in the GNU C library, an arena of 64 MiB of address space each, and the NIC's buffers are
//! mapped. A program that allows itself 200 MiB (vsftpd) could not allocate any more. So the limit that the kernel gets is higher by
//! [`ALLOWANCE`], which `getrlimit(2)` shows. `prlimit(2)` and limits that the program was started with are left as they are.

use libc::{c_int, c_uint, rlimit};

use crate::real;

/// Address space of the datapath, in bytes. It is counted, and mostly not memory.
const ALLOWANCE: libc::rlim_t = 1 << 30;

/// `setrlimit(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, limits: *const rlimit) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    unsafe { set(resource, limits) }
}

/// `setrlimit64(3)`, which is the same on 64-bit machines.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, limits: *const rlimit) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    unsafe { set(resource, limits) }
}

/// # Safety
/// The same as for `setrlimit`.
unsafe fn set(resource: c_uint, limits: *const rlimit) -> c_int {
    let next = real::SETRLIMIT.get();
    // In a forked child the parent's mappings count as well.
    let counts = crate::config::get().datapath.is_some() && !super::context::is_uninterposed();
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        if let Some(limits) = limits.as_ref()
            && counts
            && resource == libc::RLIMIT_AS as c_uint
        {
            let raise = |limit: libc::rlim_t| limit.saturating_add(ALLOWANCE);
            let raised = rlimit { rlim_cur: raise(limits.rlim_cur), rlim_max: raise(limits.rlim_max) };
            // Fails if the hard limit is lower already and this process may not raise it.
            if next(resource, &raw const raised) == 0 {
                return 0;
            }
        }
        next(resource, limits)
    }
}
