//! The preloaded face of Abey: gives an unmodified program the epoll and socket parameters of a delivery mode.
//!
//! `LD_PRELOAD=libabey.so` puts this library before the C library in the dynamic loader's search, so that a program's
//! calls of these functions come here first:
//!
//! | function | what is added |
//! | --- | --- |
//! | `epoll_create`, `epoll_create1` | the mode's busy-poll parameters are set on the new instance (`EPIOCSPARAMS`) |
//! | `epoll_wait`, `epoll_pwait`, `epoll_pwait2` | `fullbusy`: no wait in the kernel blocks for longer than 1 ms; opt-in: a wait with timeout 0 polls once |
//! | `epoll_ctl` | nothing; tells which instances watch connections, since only those are waited for in pieces |
//! | `socket` | `sockbusyX`: `SO_BUSY_POLL` on IPv4 and IPv6 sockets |
//! | `listen` | opt-in: queue steering of `SO_REUSEPORT` groups |
//!
//! What to do comes from the environment, in the variables that [`abey_linux::library`] describes; `abey run` sets them.
//! Without any, every call goes straight through. Children inherit the environment across `fork` and `exec`, and epoll
//! instances keep their parameters across `fork`.
//!
//! A thing that was asked for and cannot be done is said in one line on standard error, once per tree of processes, and
//! the program runs on with plain kernel behaviour; with `ABEY_STRICT=1` it is stopped with status 3 instead.
//!
//! # What is not reached
//!
//! * Statically linked programs, and those that make their system calls themselves, as Go's runtime does: the loader
//!   does not stand between them and the kernel.
//! * Set-user-ID and set-group-ID programs: the loader ignores `LD_PRELOAD` with a path in it, by design.
//! * Programs that wait by `poll`, `select` or io_uring: the kernel busy polls for those by other means.
//! * Descriptors made before: an epoll instance inherited from a parent without the library keeps its parameters.
//!
//! Nothing may link this library; only the dynamic loader loads it. Executing it prints its version.

mod create;
mod entry;
mod members;
mod real;
mod report;
mod state;
mod wait;
