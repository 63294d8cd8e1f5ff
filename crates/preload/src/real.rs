//! The C library's functions: for each interposed one, the next definition in the loader's search order (`dlsym(3)`,
//! `RTLD_NEXT`).
//!
//! A function is looked up at its first call rather than when the library is loaded, since constructors of other libraries
//! may call it before. If there is no next definition (an older C library), the system call is made instead.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, c_char, c_int, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd,
    sighandler_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

type Create = unsafe extern "C" fn(c_int) -> c_int;
type Wait = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
type Pwait = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
type Pwait2 = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
type Control = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
type Listen = unsafe extern "C" fn(c_int, c_int) -> c_int;

pub(crate) static EPOLL_CREATE: Next<Create> = Next::new(c"epoll_create", syscalls::epoll_create as *mut c_void);
pub(crate) static EPOLL_CREATE1: Next<Create> = Next::new(c"epoll_create1", syscalls::epoll_create1 as *mut c_void);
pub(crate) static EPOLL_WAIT: Next<Wait> = Next::new(c"epoll_wait", syscalls::epoll_wait as *mut c_void);
pub(crate) static EPOLL_PWAIT: Next<Pwait> = Next::new(c"epoll_pwait", syscalls::epoll_pwait as *mut c_void);
pub(crate) static EPOLL_PWAIT2: Next<Pwait2> = Next::new(c"epoll_pwait2", syscalls::epoll_pwait2 as *mut c_void);
pub(crate) static EPOLL_CTL: Next<Control> = Next::new(c"epoll_ctl", syscalls::epoll_ctl as *mut c_void);
pub(crate) static SOCKET: Next<Socket> = Next::new(c"socket", syscalls::socket as *mut c_void);
pub(crate) static LISTEN: Next<Listen> = Next::new(c"listen", syscalls::listen as *mut c_void);

type Poll = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type Ppoll = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
type Select = unsafe extern "C-unwind" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
type Pselect = unsafe extern "C-unwind" fn(
    c_int,
    *mut fd_set,
    *mut fd_set,
    *mut fd_set,
    *const timespec,
    *const sigset_t,
) -> c_int;
type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
#[cfg(target_env = "gnu")]
type Cancel = unsafe extern "C" fn(libc::pthread_t) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
type SigInterrupt = unsafe extern "C" fn(c_int, c_int) -> c_int;
type OnAddress = unsafe extern "C-unwind" fn(c_int, *const sockaddr, socklen_t) -> c_int;
type AskAddress = unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type Accept4 = unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
type OnOne = unsafe extern "C-unwind" fn(c_int) -> c_int;
type OnTwo = unsafe extern "C-unwind" fn(c_int, c_int) -> c_int;
type OnThree = unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int;
type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
type Fcntl = unsafe extern "C-unwind" fn(c_int, c_int, c_ulong) -> c_int;
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong) -> c_int;
type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t) -> ssize_t;
type Readv = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int) -> ssize_t;
type Recv = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
type RecvFrom =
    unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
type RecvMsg = unsafe extern "C-unwind" fn(c_int, *mut msghdr, c_int) -> ssize_t;
type Write = unsafe extern "C-unwind" fn(c_int, *const c_void, size_t) -> ssize_t;
type Send = unsafe extern "C-unwind" fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
type SendTo = unsafe extern "C-unwind" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
type SendMsg = unsafe extern "C-unwind" fn(c_int, *const msghdr, c_int) -> ssize_t;
type At = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
type SendMmsg = unsafe extern "C-unwind" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
type RecvMmsg = unsafe extern "C-unwind" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
type SendFile = unsafe extern "C-unwind" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
type Splice = unsafe extern "C-unwind" fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
type FdOpen = unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut FILE;
type FileNo = unsafe extern "C-unwind" fn(*mut FILE) -> c_int;
type VdPrintf = unsafe extern "C-unwind" fn(c_int, *const c_char, *mut c_void) -> c_int;
type VdPrintfChk = unsafe extern "C-unwind" fn(c_int, c_int, *const c_char, *mut c_void) -> c_int;
type SocketPair = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_int) -> c_int;
type EventFd = unsafe extern "C" fn(c_uint, c_int) -> c_int;
type TimerFd = unsafe extern "C" fn(c_int, c_int) -> c_int;
type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
type CloseFrom = unsafe extern "C" fn(c_int);
type Exec = unsafe extern "C" fn();
type ExitNow = unsafe extern "C" fn(c_int) -> !;
type Prctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
type SetLimit = unsafe extern "C" fn(c_uint, *const libc::rlimit) -> c_int;
type AddDup2 = unsafe extern "C" fn(*mut libc::posix_spawn_file_actions_t, c_int, c_int) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

pub(crate) static POLL: Next<Poll> = Next::required(c"poll");
pub(crate) static PPOLL: Next<Ppoll> = Next::required(c"ppoll");
pub(crate) static SELECT: Next<Select> = Next::required(c"select");
pub(crate) static PSELECT: Next<Pselect> = Next::required(c"pselect");
#[cfg(target_env = "gnu")]
pub(crate) static PTHREAD_CANCEL: Next<Cancel> = Next::required(c"pthread_cancel");
pub(crate) static SIGACTION: Next<Sigaction> = Next::required(c"sigaction");
pub(crate) static SIGNAL: Next<Signal> = Next::required(c"signal");
pub(crate) static BSD_SIGNAL: Next<Signal> = Next::required(c"bsd_signal");
pub(crate) static SYSV_SIGNAL: Next<Signal> = Next::required(c"sysv_signal");
pub(crate) static SYSV_SIGNAL_2: Next<Signal> = Next::required(c"__sysv_signal");
pub(crate) static SIGSET: Next<Signal> = Next::required(c"sigset");
pub(crate) static SIGINTERRUPT: Next<SigInterrupt> = Next::required(c"siginterrupt");
pub(crate) static BIND: Next<OnAddress> = Next::required(c"bind");
pub(crate) static CONNECT: Next<OnAddress> = Next::required(c"connect");
pub(crate) static ACCEPT: Next<AskAddress> = Next::required(c"accept");
pub(crate) static ACCEPT4: Next<Accept4> = Next::required(c"accept4");
pub(crate) static GETSOCKNAME: Next<AskAddress> = Next::required(c"getsockname");
pub(crate) static GETPEERNAME: Next<AskAddress> = Next::required(c"getpeername");
pub(crate) static SHUTDOWN: Next<OnTwo> = Next::required(c"shutdown");
pub(crate) static CLOSE: Next<OnOne> = Next::required(c"close");
pub(crate) static CLOSE_RANGE: Next<CloseRange> = Next::required(c"close_range");
pub(crate) static CLOSEFROM: Next<CloseFrom> = Next::required(c"closefrom");
pub(crate) static DUP: Next<OnOne> = Next::required(c"dup");
pub(crate) static DUP2: Next<OnTwo> = Next::required(c"dup2");
pub(crate) static DUP3: Next<OnThree> = Next::required(c"dup3");
pub(crate) static SETSOCKOPT: Next<SetOption> = Next::required(c"setsockopt");
pub(crate) static GETSOCKOPT: Next<GetOption> = Next::required(c"getsockopt");
pub(crate) static FCNTL: Next<Fcntl> = Next::required(c"fcntl");
pub(crate) static IOCTL: Next<Ioctl> = Next::required(c"ioctl");
pub(crate) static SETRLIMIT: Next<SetLimit> = Next::required(c"setrlimit");
pub(crate) static PRCTL: Next<Prctl> = Next::required(c"prctl");
pub(crate) static READ: Next<Read> = Next::required(c"read");
pub(crate) static READV: Next<Readv> = Next::required(c"readv");
pub(crate) static RECV: Next<Recv> = Next::required(c"recv");
pub(crate) static RECVFROM: Next<RecvFrom> = Next::required(c"recvfrom");
pub(crate) static RECVMSG: Next<RecvMsg> = Next::required(c"recvmsg");
pub(crate) static WRITE: Next<Write> = Next::required(c"write");
pub(crate) static WRITEV: Next<Readv> = Next::required(c"writev");
pub(crate) static SEND: Next<Send> = Next::required(c"send");
pub(crate) static SENDTO: Next<SendTo> = Next::required(c"sendto");
pub(crate) static SENDMSG: Next<SendMsg> = Next::required(c"sendmsg");
pub(crate) static PREADV2: Next<At> = Next::required(c"preadv2");
pub(crate) static PWRITEV2: Next<At> = Next::required(c"pwritev2");
pub(crate) static SENDMMSG: Next<SendMmsg> = Next::required(c"sendmmsg");
pub(crate) static RECVMMSG: Next<RecvMmsg> = Next::required(c"recvmmsg");
pub(crate) static SENDFILE: Next<SendFile> = Next::required(c"sendfile64");
pub(crate) static SOCKETPAIR: Next<SocketPair> = Next::required(c"socketpair");
pub(crate) static EVENTFD: Next<EventFd> = Next::required(c"eventfd");
pub(crate) static TIMERFD_CREATE: Next<TimerFd> = Next::required(c"timerfd_create");
pub(crate) static SPLICE: Next<Splice> = Next::required(c"splice");
pub(crate) static EXECVE: Next<Exec> = Next::required(c"execve");
pub(crate) static EXECV: Next<Exec> = Next::required(c"execv");
pub(crate) static EXECVP: Next<Exec> = Next::required(c"execvp");
pub(crate) static EXECVPE: Next<Exec> = Next::required(c"execvpe");
pub(crate) static EXECL: Next<Exec> = Next::required(c"execl");
pub(crate) static EXECLP: Next<Exec> = Next::required(c"execlp");
pub(crate) static EXECLE: Next<Exec> = Next::required(c"execle");
pub(crate) static FEXECVE: Next<Exec> = Next::required(c"fexecve");
pub(crate) static EXECVEAT: Next<Exec> = Next::required(c"execveat");
pub(crate) static EXIT_NOW: Next<ExitNow> = Next::required(c"_exit");
pub(crate) static POSIX_SPAWN: Next<Spawn> = Next::required(c"posix_spawn");
pub(crate) static POSIX_SPAWNP: Next<Spawn> = Next::required(c"posix_spawnp");
pub(crate) static SPAWN_ADDDUP2: Next<AddDup2> = Next::required(c"posix_spawn_file_actions_adddup2");
pub(crate) static FDOPEN: Next<FdOpen> = Next::required(c"fdopen");
pub(crate) static FILENO: Next<FileNo> = Next::required(c"fileno");
pub(crate) static VDPRINTF: Next<VdPrintf> = Next::required(c"vdprintf");
pub(crate) static VDPRINTF_CHK: Next<VdPrintfChk> = Next::required(c"__vdprintf_chk");

/// Looks up the functions that a program may call in a signal handler, or in a child made by `vfork(2)`, where `dlsym` is
/// not allowed.
pub(crate) fn prepare() {
    POLL.look_up();
    PPOLL.look_up();
    SELECT.look_up();
    PSELECT.look_up();
    SIGACTION.look_up();
    SIGNAL.look_up();
    READ.look_up();
    READV.look_up();
    RECV.look_up();
    RECVFROM.look_up();
    RECVMSG.look_up();
    WRITE.look_up();
    WRITEV.look_up();
    SEND.look_up();
    SENDTO.look_up();
    SENDMSG.look_up();
    PREADV2.look_up();
    PWRITEV2.look_up();
    SENDMMSG.look_up();
    RECVMMSG.look_up();
    SENDFILE.look_up();
    SPLICE.look_up();
    PRCTL.look_up();
    SETRLIMIT.look_up();
    SOCKETPAIR.look_up();
    EVENTFD.look_up();
    TIMERFD_CREATE.look_up();
    FILENO.look_up();
    VDPRINTF.look_up();
    VDPRINTF_CHK.look_up();
    ACCEPT.look_up();
    BIND.look_up();
    CONNECT.look_up();
    GETSOCKNAME.look_up();
    GETPEERNAME.look_up();
    SHUTDOWN.look_up();
    CLOSE.look_up();
    CLOSE_RANGE.look_up();
    CLOSEFROM.look_up();
    DUP.look_up();
    DUP2.look_up();
    DUP3.look_up();
    FCNTL.look_up();
    IOCTL.look_up();
    SETSOCKOPT.look_up();
    GETSOCKOPT.look_up();
    EXECVE.look_up();
    EXECV.look_up();
    EXECVP.look_up();
    EXECVPE.look_up();
    EXECL.look_up();
    EXECLP.look_up();
    EXECLE.look_up();
    FEXECVE.look_up();
    EXECVEAT.look_up();
    EXIT_NOW.look_up();
}

/// A function of type `F` that is looked up by name.
pub(crate) struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    fallback: *mut c_void,
    function: PhantomData<F>,
}

// SAFETY: `fallback` is the address of a function and never changes; `found` is atomic.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    /// Returns an entry with a `fallback`, which must be a function of type `F`.
    const fn new(name: &'static CStr, fallback: *mut c_void) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()), fallback, function: PhantomData }
    }

    /// Returns an entry for a function that every C library has. If it is missing, calls fail with ENOSYS.
    const fn required(name: &'static CStr) -> Self {
        Self::new(name, syscalls::missing as *mut c_void)
    }

    /// Returns the next definition, or the fallback.
    pub(crate) fn get(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.look_up();
        }
        // SAFETY: the address of the C function of this name, which has type `F` by the C library's headers, or of the
        // fallback, which has it by construction. All function pointers have the same size.
        unsafe { std::mem::transmute_copy(&found) }
    }

    /// Returns the address of the next definition, or of the fallback.
    pub(crate) fn get_address(&self) -> *const c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    /// Looks up the function. Threads that do so at the same time find and store the same address.
    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if next.is_null() { self.fallback } else { next };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The system calls that stand in for missing functions of the C library.
mod syscalls {
    use libc::{c_int, epoll_event, sigset_t, ssize_t, syscall, timespec};

    /// Stands in for a missing function. It is called with arguments that it ignores, which the calling conventions of both
    /// architectures allow.
    pub(super) extern "C" fn missing() -> ssize_t {
        // SAFETY: every thread has an errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        -1
    }

    /// The size of the kernel's signal set, in bytes.
    const SIGSET_BYTES: usize = 8;

    pub(super) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
        if size <= 0 {
            // SAFETY: every thread has an errno.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            return -1;
        }
        // SAFETY: the call takes no pointers.
        unsafe { epoll_create1(0) }
    }

    pub(super) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: the call takes no pointers.
        unsafe { syscall(libc::SYS_epoll_create1, flags) as c_int }
    }

    pub(super) unsafe extern "C-unwind" fn epoll_wait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
    ) -> c_int {
        // SAFETY: the caller's arguments are passed on.
        unsafe { epoll_pwait(epfd, events, max, timeout, std::ptr::null()) }
    }

    pub(super) unsafe extern "C-unwind" fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the caller's arguments are passed on.
        unsafe { syscall(libc::SYS_epoll_pwait, epfd, events, max, timeout, mask, SIGSET_BYTES) as c_int }
    }

    pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the caller's arguments are passed on.
        unsafe { syscall(libc::SYS_epoll_pwait2, epfd, events, max, timeout, mask, SIGSET_BYTES) as c_int }
    }

    pub(super) unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: the caller's arguments are passed on.
        unsafe { syscall(libc::SYS_epoll_ctl, epfd, op, fd, event) as c_int }
    }

    pub(super) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: the call takes no pointers.
        unsafe { syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
    }

    pub(super) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
        // SAFETY: the call takes no pointers.
        unsafe { syscall(libc::SYS_listen, fd, backlog) as c_int }
    }
}
