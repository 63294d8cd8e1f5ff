//! The handlers of the interposed `syscall(2)`: each number with an interposed function calls that function.
//!
//! A handler passes a call on to the kernel with all six words as they are, unless the interposed function has something to
//! do: the descriptor is a datapath socket, the call makes or closes a descriptor, or it makes an epoll instance of the
//! mode's. The kernel's calls differ from the C library's functions in three ways:
//!
//! * They are no cancellation points, and C++ callers have `syscall` as a function that does not throw. Cancellation is
//!   disabled while a handler runs.
//! * `ppoll` and `pselect6` write the remaining time.
//! * A signal mask has eight bytes, which a C library's `sigset_t` begins with.
//!
//! # fork
//!
//! The C library's `fork` runs the handlers of `pthread_atfork(3)`, and the system call does not. So a child made by `fork`,
//! or by `clone` without CLONE_VM, does here what those handlers do. A child that shares the memory is treated as one of
//! `vfork(2)`.
//!
//! # io_uring
//!
//! A ring takes work from this library's sight: an `epoll_ctl` or `accept` in a ring reaches the kernel only. libuv 1.45 and
//! later add members of its epoll instance so, and a server then accepts no connection. So `io_uring_setup` fails with
//! ENOSYS, as on a kernel without io_uring, where sockets of the datapath or parameters of epoll instances depend on it.
//! This is reported once. libuv (Node, uvloop) and tokio then go on without a ring, and Netty's `IOUring.isAvailable` is
//! false, for which most of its users have epoll. tokio-uring knows no other way and ends; the report names the flag that
//! allows the ring. liburing and Go make their system calls themselves, and are out of reach.

use libc::{c_int, c_long, c_uint, c_ulong, sigset_t, timespec};

use super::{
    accept, close, connect, control_calls, exec, fd_table, lifeline, mmsg, other_fds, poll, process, receive, runtime,
    sandbox, select, send, sendfile, signals, socket_names,
};
use crate::report::{self, Topic};
use crate::syscall::{Handler, NUMBERS, enter_clone, is_prepared, raw};
use crate::timeout::{self, Timeout, duration_from_timespec};
use crate::{config, create, epoll_ctl, epoll_wait, errno};

/// Defines handlers, and [`handlers`] with all of them: `NUMBER name: |words| condition => call`. A handler makes the call
/// if the condition holds, and the system call otherwise.
macro_rules! handlers {
    ($($(#[$of:meta])* $number:ident $name:ident: |$($word:ident),*| $applies:expr => $call:expr;)*) => {
        $(
            $(#[$of])*
            #[allow(unused_unsafe, reason = "some of the interposed functions are safe")]
            unsafe extern "C" fn $name(
                number: c_long,
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
                f: usize,
            ) -> c_long {
                let words = [a, b, c, d, e, f];
                let [$($word,)* ..] = words;
                if !is_prepared() || !$applies {
                    // SAFETY: the caller's guarantees are passed on.
                    return unsafe { raw(number, words) };
                }
                // SAFETY: the caller's guarantees are passed on: the words are the arguments of this call.
                uncancelled(|| unsafe { $call } as c_long)
            }
        )*

        /// Returns the handlers, by number.
        pub(crate) const fn handlers() -> [Option<Handler>; NUMBERS] {
            let mut handlers: [Option<Handler>; NUMBERS] = [None; NUMBERS];
            $(
                $(#[$of])*
                { handlers[libc::$number as usize] = Some($name); }
            )*
            #[cfg(target_arch = "x86_64")]
            {
                handlers[libc::SYS_fork as usize] = Some(enter_clone);
            }
            handlers[libc::SYS_clone as usize] = Some(enter_clone);
            handlers[libc::SYS_clone3 as usize] = Some(enter_clone);
            handlers
        }
    };
}

handlers! {
    SYS_read read: |fd, to, length| is_ours(fd) => receive::read(fd as c_int, to as _, length);
    SYS_readv readv: |fd, vector, count| is_ours(fd) => receive::readv(fd as c_int, vector as _, count as c_int);
    SYS_preadv2 preadv2: |fd, vector, count, offset, _high, flags| is_ours(fd) =>
        receive::preadv2(fd as c_int, vector as _, count as c_int, offset as i64, flags as c_int);
    SYS_recvfrom recvfrom: |fd, to, length, flags, peer, peer_length| is_ours(fd) =>
        receive::recvfrom(fd as c_int, to as _, length, flags as c_int, peer as _, peer_length as _);
    SYS_recvmsg recvmsg: |fd, message, flags| is_ours(fd) =>
        receive::recvmsg(fd as c_int, message as _, flags as c_int);
    SYS_recvmmsg recvmmsg: |fd, messages, count, flags, timeout| is_ours(fd) =>
        mmsg::recvmmsg(fd as c_int, messages as _, count as c_uint, flags as c_int, timeout as _);
    SYS_write write: |fd, from, length| is_ours(fd) => send::write(fd as c_int, from as _, length);
    SYS_writev writev: |fd, vector, count| is_ours(fd) => send::writev(fd as c_int, vector as _, count as c_int);
    SYS_pwritev2 pwritev2: |fd, vector, count, offset, _high, flags| is_ours(fd) =>
        send::pwritev2(fd as c_int, vector as _, count as c_int, offset as i64, flags as c_int);
    SYS_sendto sendto: |fd, from, length, flags, peer, peer_length| is_ours(fd) || peer != 0 =>
        send::sendto(fd as c_int, from as _, length, flags as c_int, peer as _, peer_length as c_uint);
    // A kernel socket that sends to a destination on the NIC's prefix becomes a datapath socket.
    SYS_sendmsg sendmsg: |fd, message, flags| true => send::sendmsg(fd as c_int, message as _, flags as c_int);
    SYS_sendmmsg sendmmsg: |fd, messages, count, flags| true =>
        mmsg::sendmmsg(fd as c_int, messages as _, count as c_uint, flags as c_int);
    SYS_sendfile sendfile: |to, from, offset, count| is_ours(to) || is_ours(from) =>
        sendfile::sendfile(to as c_int, from as c_int, offset as _, count);
    SYS_splice splice: |from, from_offset, to, to_offset, count, flags| is_ours(from) || is_ours(to) =>
        sendfile::splice(from as c_int, from_offset as _, to as c_int, to_offset as _, count, flags as c_uint);

    SYS_socket socket: |domain, kind, protocol| true =>
        create::socket(domain as c_int, kind as c_int, protocol as c_int);
    SYS_socketpair socketpair: |domain, kind, protocol, pair| true =>
        other_fds::socketpair(domain as c_int, kind as c_int, protocol as c_int, pair as _);
    #[cfg(target_arch = "x86_64")]
    SYS_eventfd eventfd: |count| true => other_fds::eventfd(count as c_uint, 0);
    SYS_eventfd2 eventfd2: |count, flags| true => other_fds::eventfd(count as c_uint, flags as c_int);
    SYS_timerfd_create timerfd_create: |clock, flags| true => other_fds::timerfd_create(clock as c_int, flags as c_int);
    SYS_bind bind: |fd, to, length| true => connect::bind(fd as c_int, to as _, length as c_uint);
    SYS_listen listen: |fd, backlog| true => create::listen(fd as c_int, backlog as c_int);
    SYS_connect connect: |fd, to, length| true => connect::connect(fd as c_int, to as _, length as c_uint);
    SYS_accept accept: |fd, peer, length| true => accept::accept(fd as c_int, peer as _, length as _);
    SYS_accept4 accept4: |fd, peer, length, flags| true =>
        accept::accept4(fd as c_int, peer as _, length as _, flags as c_int);
    SYS_getsockname getsockname: |fd, to, length| is_ours(fd) =>
        socket_names::getsockname(fd as c_int, to as _, length as _);
    SYS_getpeername getpeername: |fd, to, length| is_ours(fd) =>
        socket_names::getpeername(fd as c_int, to as _, length as _);
    SYS_shutdown shutdown: |fd, how| is_ours(fd) => connect::shutdown(fd as c_int, how as c_int);
    SYS_setsockopt setsockopt: |fd, level, option, from, length| is_ours(fd) =>
        control_calls::setsockopt(fd as c_int, level as c_int, option as c_int, from as _, length as c_uint);
    SYS_getsockopt getsockopt: |fd, level, option, to, length| is_ours(fd) =>
        control_calls::getsockopt(fd as c_int, level as c_int, option as c_int, to as _, length as _);
    SYS_fcntl fcntl: |fd, command, argument| is_ours(fd) || duplicates(command) =>
        control_calls::fcntl(fd as c_int, command as c_int, argument as c_ulong);
    SYS_ioctl ioctl: |fd, request, argument| is_ours(fd) =>
        control_calls::ioctl(fd as c_int, request as c_ulong, argument as c_ulong);
    SYS_close close: |fd| true => close::close(fd as c_int);
    SYS_close_range close_range: |first, last, flags| true =>
        close::close_range(first as c_uint, last as c_uint, flags as c_int);
    SYS_dup dup: |fd| true => close::dup(fd as c_int);
    #[cfg(target_arch = "x86_64")]
    SYS_dup2 dup2: |fd, to| true => close::dup2(fd as c_int, to as c_int);
    SYS_dup3 dup3: |fd, to, flags| true => close::dup3(fd as c_int, to as c_int, flags as c_int);

    #[cfg(target_arch = "x86_64")]
    SYS_poll poll: |descriptors, count, timeout| process::may_have_entries() =>
        poll::poll(descriptors as _, count as c_ulong, timeout as c_int);
    SYS_ppoll ppoll: |descriptors, count, timeout, mask, mask_bytes| process::may_have_entries() && is_mask(mask, mask_bytes) =>
        with_remaining(timeout, || poll::ppoll(descriptors as _, count as c_ulong, timeout as _, Mask::read(mask).pointer()));
    #[cfg(target_arch = "x86_64")]
    SYS_select select: |count, reads, writes, excepts, timeout| process::may_have_entries() =>
        select::select(count as c_int, reads as _, writes as _, excepts as _, timeout as _);
    SYS_pselect6 pselect6: |count, reads, writes, excepts, timeout, mask| process::may_have_entries() =>
        pselect([count, reads, writes, excepts, timeout], mask);
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_create epoll_create: |size| true => create::epoll_create(size as c_int);
    SYS_epoll_create1 epoll_create1: |flags| true => create::epoll_create1(flags as c_int);
    SYS_epoll_ctl epoll_control: |epfd, op, fd, event| true =>
        epoll_ctl::epoll_ctl(epfd as c_int, op as c_int, fd as c_int, event as _);
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait epoll_wait: |epfd, events, max, timeout| true =>
        epoll_wait::epoll_wait(epfd as c_int, events as _, max as c_int, timeout as c_int);
    SYS_epoll_pwait epoll_pwait: |epfd, events, max, timeout, mask, mask_bytes| is_mask(mask, mask_bytes) =>
        epoll_wait::epoll_pwait(epfd as c_int, events as _, max as c_int, timeout as c_int, Mask::read(mask).pointer());
    SYS_epoll_pwait2 epoll_pwait2: |epfd, events, max, timeout, mask, mask_bytes| is_mask(mask, mask_bytes) =>
        epoll_wait::epoll_pwait2(epfd as c_int, events as _, max as c_int, timeout as _, Mask::read(mask).pointer());

    SYS_execve execve: |path, arguments, environment| process::may_have_entries() => {
        exec::before_exec();
        raw(libc::SYS_execve, [path, arguments, environment, 0, 0, 0])
    };
    SYS_execveat execveat: |directory, path, arguments, environment, flags| process::may_have_entries() => {
        exec::before_exec();
        raw(libc::SYS_execveat, [directory, path, arguments, environment, flags, 0])
    };
    SYS_prctl prctl: |option, a, b, c, d| option == libc::PR_SET_SECCOMP as usize =>
        sandbox::prctl(option as c_int, a as c_ulong, b as c_ulong, c as c_ulong, d as c_ulong);
    SYS_seccomp seccomp: |operation, flags, program| true => {
        sandbox::before_seccomp(operation, flags, program);
        raw(libc::SYS_seccomp, [operation, flags, program, 0, 0, 0])
    };
    SYS_rt_sigaction rt_sigaction: |signal, new, old, mask_bytes| true => {
        let answer = raw(libc::SYS_rt_sigaction, [signal, new, old, mask_bytes, 0, 0]);
        if answer == 0 && new != 0 {
            signals::record_handler(signal as c_int);
        }
        answer
    };
    SYS_io_uring_setup io_uring_setup: |_entries, _parameters| refuses_io_uring() => {
        errno::set_errno(libc::ENOSYS);
        -1
    };
}

/// Returns whether the interposed functions have something to do for a descriptor.
fn is_ours(fd: usize) -> bool {
    // In a forked child the interposed functions ask the parent for its connections.
    fd_table::get(fd as c_int).is_some() || process::is_child()
}

/// Returns whether a command of `fcntl(2)` makes a descriptor.
fn duplicates(command: usize) -> bool {
    matches!(command as c_int, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// Runs `call` with the cancellation of this thread disabled.
fn uncancelled<R>(call: impl FnOnce() -> R) -> R {
    const DISABLE: c_int = 1;
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = 0;
    // SAFETY: the number lives through the call.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let answer = call();
    // SAFETY: the state is the one from before.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    answer
}

/// The size of the kernel's signal set, in bytes.
const MASK_BYTES: usize = 8;

/// Returns whether the kernel accepts the size of a mask.
fn is_mask(mask: usize, bytes: usize) -> bool {
    mask == 0 || bytes == MASK_BYTES
}

/// A signal mask as the C library has it.
struct Mask(Option<sigset_t>);

impl Mask {
    /// Reads the kernel's mask at an address, which may be 0 for none.
    ///
    /// # Safety
    /// [`MASK_BYTES`] bytes can be read there.
    unsafe fn read(at: usize) -> Self {
        if at == 0 {
            return Self(None);
        }
        // SAFETY: a plain C structure, for which zero is valid, and which is not shorter; the rest by the caller.
        unsafe {
            let mut mask: sigset_t = std::mem::zeroed();
            std::ptr::copy_nonoverlapping(at as *const u8, (&raw mut mask).cast(), MASK_BYTES);
            Self(Some(mask))
        }
    }

    fn pointer(&self) -> *const sigset_t {
        self.0.as_ref().map_or(std::ptr::null(), |mask| &raw const *mask)
    }
}

/// Runs a call with a timeout, and writes the remaining time to it, as the kernel's `ppoll` and `pselect6` do.
///
/// # Safety
/// `timeout` is 0, or the address of a time.
unsafe fn with_remaining(timeout: usize, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    let given = unsafe { (timeout as *const timespec).as_ref() }.and_then(duration_from_timespec);
    let deadline = Timeout::new(given);
    let answer = call();
    if let Some(left) = deadline.remaining() {
        errno::preserve_errno(|| write_time(timeout, timeout::to_timespec(left)));
    }
    answer
}

/// Writes a time as the kernel does: memory that cannot be written is left as it is.
fn write_time(at: usize, time: timespec) {
    let from = libc::iovec { iov_base: (&raw const time).cast_mut().cast(), iov_len: size_of::<timespec>() };
    let to = libc::iovec { iov_base: at as *mut _, iov_len: size_of::<timespec>() };
    // SAFETY: the call reads the time, and fails for an address that cannot be written.
    unsafe { libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0) };
}

/// `pselect6`, whose last word is the address of the mask's address and size.
///
/// # Safety
/// The same as for the system call.
unsafe fn pselect(words: [usize; 5], mask: usize) -> c_int {
    let [count, reads, writes, excepts, timeout] = words;
    // SAFETY: guaranteed by the caller.
    let [mask, bytes] = if mask == 0 { [0, 0] } else { unsafe { (mask as *const [usize; 2]).read_unaligned() } };
    if !is_mask(mask, bytes) {
        errno::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mask = Mask::read(mask);
        with_remaining(timeout, || {
            let [reads, writes, excepts] = [reads, writes, excepts].map(|set| set as *mut libc::fd_set);
            select::pselect(count as c_int, reads, writes, excepts, timeout as _, mask.pointer())
        })
    }
}

/// Returns whether `io_uring_setup` fails in this process, and reports it once if so.
fn refuses_io_uring() -> bool {
    let config = config::get();
    let depends_on_epoll = config.epoll.is_some() || config.max_wait.is_some() || config.poll_on_zero_timeout;
    if config.allows_io_uring || !(config.datapath.is_some() || depends_on_epoll) {
        return false;
    }
    let needs = if config.datapath.is_some() { "the datapath" } else { "the mode" };
    errno::preserve_errno(|| {
        report::print_once(
            Topic::IoUring,
            format_args!(
                "the program's io_uring_setup failed with ENOSYS, so that it uses epoll, which {needs} needs; --allow-io-uring lets it have a ring"
            ),
        );
    });
    true
}

/// Returns whether a call of `fork`, `clone` or `clone3` makes a child with a copy of this process's memory and stack, which
/// returns from the call as the parent does.
///
/// # Safety
/// The same as for the system call.
pub(crate) unsafe extern "C" fn copies_memory(number: c_long, a: usize, b: usize) -> bool {
    is_prepared() && {
        // SAFETY: guaranteed by the caller.
        let (flags, stack) = unsafe { clone_arguments(number, a, b) };
        flags & libc::CLONE_VM as usize == 0 && stack == 0
    }
}

/// Returns the flags and the stack of a call of `fork`, `clone` or `clone3`.
///
/// # Safety
/// The same as for the system call.
unsafe fn clone_arguments(number: c_long, a: usize, b: usize) -> (usize, usize) {
    /// The size of `struct clone_args` in the first kernel that had it, in words.
    const WORDS: usize = 8;
    match number {
        libc::SYS_clone => (a, b),
        libc::SYS_clone3 if a != 0 && b >= size_of::<[u64; WORDS]>() => {
            // SAFETY: guaranteed by the caller: the first word of the structure is the flags, the sixth the stack.
            let [flags, .., stack, _, _] = unsafe { (a as *const [u64; WORDS]).read_unaligned() };
            (flags as usize, stack as usize)
        }
        // The kernel fails the call.
        libc::SYS_clone3 => (libc::CLONE_VM as usize, 0),
        _ => (0, 0),
    }
}

/// Makes a child with a copy of this process's memory, which records that it is one.
///
/// # Safety
/// The same as for the system call.
pub(crate) unsafe extern "C" fn fork(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    lifeline::before_fork();
    // SAFETY: guaranteed by the caller.
    let (flags, child) = unsafe { (clone_arguments(number, a, b).0, raw(number, [a, b, c, d, e, f])) };
    if child == 0 {
        process::own_copy();
        runtime::after_raw_fork(flags & libc::CLONE_FILES as usize != 0);
    } else {
        lifeline::after_fork_in_parent();
    }
    child
}
