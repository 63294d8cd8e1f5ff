//! The functions that stand behind ours: the next definition in the loader's search order.
//!
//! Looked up at the first call rather than when the library is loaded, since other libraries' constructors may call
//! before ours has run. Where there is no next definition (an older C library), the system call stands in for it.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void, epoll_event, sigset_t, timespec};

type Create = unsafe extern "C" fn(c_int) -> c_int;
type Wait = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
type Pwait = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
type Pwait2 = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
type Control = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;

pub(crate) static EPOLL_CREATE: Next<Create> = Next::new(c"epoll_create", direct::epoll_create as *mut c_void);
pub(crate) static EPOLL_CREATE1: Next<Create> = Next::new(c"epoll_create1", direct::epoll_create1 as *mut c_void);
pub(crate) static EPOLL_WAIT: Next<Wait> = Next::new(c"epoll_wait", direct::epoll_wait as *mut c_void);
pub(crate) static EPOLL_PWAIT: Next<Pwait> = Next::new(c"epoll_pwait", direct::epoll_pwait as *mut c_void);
pub(crate) static EPOLL_PWAIT2: Next<Pwait2> = Next::new(c"epoll_pwait2", direct::epoll_pwait2 as *mut c_void);
pub(crate) static EPOLL_CTL: Next<Control> = Next::new(c"epoll_ctl", direct::epoll_ctl as *mut c_void);
pub(crate) static SOCKET: Next<Socket> = Next::new(c"socket", direct::socket as *mut c_void);
pub(crate) static LISTEN: Next<Listen> = Next::new(c"listen", direct::listen as *mut c_void);

/// A function of type `F` to be looked up by name.
pub(crate) struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    direct: *mut c_void,
    function: PhantomData<F>,
}

// SAFETY: `direct` is the address of a function, which never changes; `found` is atomic.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    /// `direct` is a function of type `F`.
    const fn new(name: &'static CStr, direct: *mut c_void) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()), direct, function: PhantomData }
    }

    /// The next definition, or the system call.
    pub(crate) fn get(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.look_up();
        }
        // SAFETY: a function's address, either of the C function of this name, which has type `F` by the C library's
        // headers, or of the stand-in, which has it by construction; a pointer to a function is as large as any other.
        unsafe { std::mem::transmute_copy(&found) }
    }

    /// Threads that look at the same time find the same, so the order in which they store it does not matter.
    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if next.is_null() { self.direct } else { next };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The system calls themselves.
mod direct {
    use libc::{c_int, epoll_event, sigset_t, syscall, timespec};

    /// The size of the kernel's signal set, in bytes.
    const SIGSET_BYTES: usize = 8;

    pub(super) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
        if size <= 0 {
            // SAFETY: errno is always there.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            return -1;
        }
        // SAFETY: takes no pointers.
        unsafe { epoll_create1(0) }
    }

    pub(super) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: takes no pointers.
        unsafe { syscall(libc::SYS_epoll_create1, flags) as c_int }
    }

    pub(super) unsafe extern "C-unwind" fn epoll_wait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
    ) -> c_int {
        // SAFETY: the caller's arguments, as they are.
        unsafe { epoll_pwait(epfd, events, max, timeout, std::ptr::null()) }
    }

    pub(super) unsafe extern "C-unwind" fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the caller's arguments, as they are.
        unsafe { syscall(libc::SYS_epoll_pwait, epfd, events, max, timeout, mask, SIGSET_BYTES) as c_int }
    }

    pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the caller's arguments, as they are.
        unsafe { syscall(libc::SYS_epoll_pwait2, epfd, events, max, timeout, mask, SIGSET_BYTES) as c_int }
    }

    pub(super) unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: the caller's arguments, as they are.
        unsafe { syscall(libc::SYS_epoll_ctl, epfd, op, fd, event) as c_int }
    }

    pub(super) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: takes no pointers.
        unsafe { syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
    }

    pub(super) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
        // SAFETY: takes no pointers.
        unsafe { syscall(libc::SYS_listen, fd, backlog) as c_int }
    }
}
