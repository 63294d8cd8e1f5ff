//! The preloaded face of Abey: gives an unmodified program the epoll and socket parameters of a delivery mode, or sockets
//! of Abey's own datapath.
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
//! With `ABEY_DATAPATH` there are also `poll`, `select`, `sigaction` (by which the kinds of handlers
//! are known), `bind`, `accept`, `connect`, `close`, `dup`, the calls that read and write, and those
//! that ask for and set options: a TCP or UDP socket on an address of the datapath's NIC is then the datapath's. `face` tells
//! how, and what is not done yet. Without it these calls look at one word and go on to the C library.
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
//! * Programs that wait by `poll` or `select`, for the parameters of epoll instances: the kernel busy polls for those by other
//!   means (`SO_BUSY_POLL`). Those that wait by io_uring, for the datapath's sockets too, which are never ready there.
//! * Descriptors made before: an epoll instance inherited from a parent without the library keeps its parameters.
//!
//! Nothing may link this library; only the dynamic loader loads it. Executing it prints its version.

mod create;
mod entry;
mod face;
mod members;
mod real;
mod report;
mod state;
mod times;
mod wait;
