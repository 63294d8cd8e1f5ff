//! `libabey.so`, the library that is preloaded into unmodified programs. It gives them the epoll and socket parameters of
//! a delivery mode, or sockets of Abey's own datapath.
//!
//! `LD_PRELOAD=libabey.so` puts this library before the C library in the dynamic loader's search order (`ld.so(8)`), so
//! that it interposes the following functions:
//!
//! | function | added behaviour |
//! | --- | --- |
//! | `epoll_create`, `epoll_create1` | sets the mode's busy-poll parameters on the new instance (`EPIOCSPARAMS`, `ioctl_eventpoll(2)`) |
//! | `epoll_wait`, `epoll_pwait`, `epoll_pwait2` | `fullbusy`: no wait in the kernel blocks for longer than 1 ms; opt-in: a wait with timeout 0 polls once |
//! | `epoll_ctl` | none; records which instances contain connections, since only these are waited for in slices |
//! | `socket` | `sockbusyX`: sets `SO_BUSY_POLL` on IPv4 and IPv6 sockets (`socket(7)`) |
//! | `syscall` | numbers of interposed functions go to these; `io_uring_setup` fails with ENOSYS if epoll parameters or a datapath are set |
//! | `listen` | opt-in: queue steering of `SO_REUSEPORT` groups |
//! | `setrlimit` | a limit of the address space does not count what the datapath maps |
//! | `prctl` | before a seccomp filter is installed, the library prepares for what it forbids |
//!
//! With `ABEY_DATAPATH`, the module `interpose` also interposes `poll`, `select`, `sigaction` (to learn the flags of the
//! handlers), `bind`, `accept`, `connect`, `close`, `dup`, and the calls that read, write, and get or set options. A TCP or
//! UDP socket on an address of the datapath's NIC is then a datapath socket. Without `ABEY_DATAPATH`, these calls check
//! one word and go on to the C library.
//!
//! The configuration comes from the environment variables that [`abey_linux::library`] describes; `abey run` sets them.
//! Without any of them, every call goes straight to the C library. Children inherit the environment across `fork` and
//! `exec`, and epoll instances keep their parameters across `fork`.
//!
//! If a setting cannot be applied, the library prints one line on standard error, once per tree of processes, and the
//! program continues with plain kernel behaviour. With `ABEY_STRICT=1` the program is stopped with status 3 instead.
//!
//! # Limits
//!
//! These are out of reach, and behave as without the library:
//!
//! * Statically linked programs, and programs that make their system calls themselves, as Go's runtime and liburing do.
//! * Set-user-ID and set-group-ID programs and those with file capabilities (`AT_SECURE`), in which the loader ignores an
//!   `LD_PRELOAD` with a path. If the library is loaded otherwise, it ignores the environment there and does nothing.
//! * Epoll parameters have no effect on programs that wait with `poll` or `select`; the kernel busy polls for these with
//!   `SO_BUSY_POLL`. Datapath sockets are never ready in an io_uring.
//! * An epoll instance that was inherited from a parent without the library keeps its parameters.
//!
//! Nothing may link this library; only the dynamic loader loads it. Executing it prints its version.

mod config;
mod constructor;
mod create;
mod entry;
mod epoll_ctl;
mod epoll_wait;
mod errno;
mod interpose;
mod real;
mod report;
mod signal_mask;
mod syscall;
mod timeout;
