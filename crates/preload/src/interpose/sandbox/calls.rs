//! The system calls that the library makes by itself, which a program's filter may forbid.

use abey_linux::seccomp::{Call, Instruction, allows};
use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, SO_BUSY_POLL, SOCK_CLOEXEC, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET,
};

/// A descriptor, for filters that look at other arguments.
const FD: u64 = 100;

/// A system call: its name, its number, and those of its arguments that filters look at.
type Named = (&'static str, i64, &'static [u64]);

const TCP: u64 = (SOCK_STREAM | SOCK_CLOEXEC) as u64;
const PACKETS: u64 = (SOCK_SEQPACKET | SOCK_CLOEXEC) as u64;

/// What the threads of the program and of the runtime call while sockets of the datapath are in use, and to hand them over.
const IN_USE: &[Named] = &[
    ("socket", libc::SYS_socket, &[AF_INET as u64, TCP]),
    ("socket", libc::SYS_socket, &[AF_INET6 as u64, TCP]),
    ("bind", libc::SYS_bind, &[FD]),
    ("accept4", libc::SYS_accept4, &[FD]),
    ("sendto", libc::SYS_sendto, &[FD]),
    ("sendmsg", libc::SYS_sendmsg, &[FD]),
    ("recvfrom", libc::SYS_recvfrom, &[FD]),
    ("recvmsg", libc::SYS_recvmsg, &[FD]),
    ("getsockopt", libc::SYS_getsockopt, &[FD]),
    ("setsockopt", libc::SYS_setsockopt, &[FD]),
    ("getsockname", libc::SYS_getsockname, &[FD]),
    ("read", libc::SYS_read, &[FD]),
    ("write", libc::SYS_write, &[FD]),
    ("close", libc::SYS_close, &[FD]),
    ("dup3", libc::SYS_dup3, &[FD]),
    ("fcntl", libc::SYS_fcntl, &[FD, libc::F_GETFD as u64]),
    ("fcntl", libc::SYS_fcntl, &[FD, libc::F_GETFL as u64]),
    ("fcntl", libc::SYS_fcntl, &[FD, libc::F_SETFL as u64]),
    ("ppoll", libc::SYS_ppoll, &[]),
    ("epoll_pwait", libc::SYS_epoll_pwait, &[FD]),
    ("epoll_ctl", libc::SYS_epoll_ctl, &[FD]),
    ("timerfd_settime", libc::SYS_timerfd_settime, &[FD]),
    ("eventfd2", libc::SYS_eventfd2, &[]),
    ("futex", libc::SYS_futex, &[]),
    ("getpid", libc::SYS_getpid, &[]),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, &[]),
    ("clock_gettime", libc::SYS_clock_gettime, &[]),
    ("clock_nanosleep", libc::SYS_clock_nanosleep, &[]),
    ("prctl", libc::SYS_prctl, &[libc::PR_GET_TIMERSLACK as u64]),
    ("prctl", libc::SYS_prctl, &[libc::PR_SET_TIMERSLACK as u64]),
    ("brk", libc::SYS_brk, &[]),
    ("mmap", libc::SYS_mmap, &[0, 4096, (libc::PROT_READ | libc::PROT_WRITE) as u64]),
    ("mremap", libc::SYS_mremap, &[]),
    ("munmap", libc::SYS_munmap, &[]),
    ("madvise", libc::SYS_madvise, &[]),
    ("mprotect", libc::SYS_mprotect, &[]),
];

/// What the runtime calls to begin, beside the above.
const TO_BEGIN: &[Named] = &[
    ("socket", libc::SYS_socket, &[AF_UNIX as u64, PACKETS]),
    ("socket", libc::SYS_socket, &[AF_NETLINK as u64]),
    ("connect", libc::SYS_connect, &[FD]),
    ("listen", libc::SYS_listen, &[FD]),
    ("socketpair", libc::SYS_socketpair, &[AF_UNIX as u64]),
    ("clone3", libc::SYS_clone3, &[]),
    ("rseq", libc::SYS_rseq, &[]),
    ("set_robust_list", libc::SYS_set_robust_list, &[]),
    ("sched_getaffinity", libc::SYS_sched_getaffinity, &[]),
    ("prctl", libc::SYS_prctl, &[libc::PR_SET_NAME as u64]),
    ("prlimit64", libc::SYS_prlimit64, &[]),
    ("epoll_create1", libc::SYS_epoll_create1, &[]),
    ("timerfd_create", libc::SYS_timerfd_create, &[]),
    ("fcntl", libc::SYS_fcntl, &[FD, libc::F_DUPFD_CLOEXEC as u64]),
    ("rt_sigaction", libc::SYS_rt_sigaction, &[]),
    ("openat", libc::SYS_openat, &[]),
    ("statx", libc::SYS_statx, &[]),
    ("getdents64", libc::SYS_getdents64, &[]),
    ("readlinkat", READ_LINK, &[]),
    ("ioctl", libc::SYS_ioctl, &[FD, libc::SIOCGIFMTU]),
];

#[cfg(target_arch = "x86_64")]
const READ_LINK: i64 = libc::SYS_readlink;
#[cfg(not(target_arch = "x86_64"))]
const READ_LINK: i64 = libc::SYS_readlinkat;

/// EPIOCSPARAMS of `linux/eventpoll.h`.
const EPIOCSPARAMS: u64 = 0x4008_8a01;

/// What sets a mode's parameters of the kernel.
const PARAMETERS: &[Named] = &[
    ("ioctl", libc::SYS_ioctl, &[FD, EPIOCSPARAMS]),
    ("setsockopt", libc::SYS_setsockopt, &[FD, SOL_SOCKET as u64, SO_BUSY_POLL as u64]),
];

/// What prints a message.
const MESSAGES: &[Named] =
    &[("fstat", libc::SYS_fstat, &[2]), ("newfstatat", libc::SYS_newfstatat, &[2]), ("write", libc::SYS_write, &[2])];

/// The calls of a purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Sockets of the datapath are in use.
    Use,
    /// The runtime is built.
    Begin,
    /// The mode's parameters are set.
    Parameters,
    /// A message is printed.
    Messages,
}

/// Returns the first call of a purpose that the filter forbids.
pub(super) fn forbidden(filter: &[Instruction], purpose: Purpose) -> Option<&'static str> {
    let calls = match purpose {
        Purpose::Use => IN_USE,
        Purpose::Begin => TO_BEGIN,
        Purpose::Parameters => PARAMETERS,
        Purpose::Messages => MESSAGES,
    };
    let denied = calls.iter().find(|(_, number, arguments)| !allows(filter, &Call::new(*number, arguments)));
    denied.map(|(name, ..)| *name)
}
