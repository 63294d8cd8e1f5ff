//! Interposed calls that give an unmodified program datapath sockets: sockets on the NIC's addresses that use Abey's own
//! TCP/IP instead of the kernel's.
//!
//! # Descriptors
//!
//! The descriptor that the program holds is always one of the kernel: the one that it made with `socket(2)`, or, for an
//! accepted connection, a kernel socket made for the purpose, which is never bound or connected. So descriptor numbers
//! never collide, `fstat(2)`, `fcntl(2)` and `getsockopt(2)` answer as for any TCP socket, and options that the datapath
//! does not have are stored in the kernel socket. A call that bypasses this library (in a forked child, or a direct system
//! call) finds a socket that is not connected, rather than an unrelated file. An eventfd instead of the socket would save
//! a microsecond per connection, but `fstat` would not report `S_IFSOCK`, and every option would have to be stored here.
//!
//! [`fd_table`] maps descriptors to datapath sockets. A TCP socket becomes one at `listen`, if it is bound to an address of
//! the NIC or to a wildcard ([`mod@listen`]: the kernel socket listens as well), or at `connect`, if the NIC reaches the
//! destination ([`route`]). [`udp`] says when a UDP socket does. Until then, and for every other descriptor, the call goes
//! to the kernel, and this library adds one lookup in the table.
//!
//! # The runtime
//!
//! The first call that needs the runtime builds it, in the calling process: `connect`, `accept`, or a wait for a listener.
//! A shell that starts the server opens no NIC, nor does a master process that only listens and leaves the rest to
//! workers ([`runtime`]). The runtime's threads block all signals, so that the program's handlers run in the program's
//! threads. While the runtime is built, and in its own calls, this thread's calls go to the kernel
//! ([`context::uninterposed`]).
//!
//! A signal handler may use kernel descriptors as before: the lookup takes no lock and does not allocate
//! (`signal-safety(7)`). It must not use a datapath socket, whose calls take a shard's lock.
//!
//! # What goes to the kernel
//!
//! The C library's calls to itself do not go through the dynamic loader and are not interposed:
//!
//! * *Streams.* [`stdio`] gives a stream that is opened on a datapath socket other functions. A connection that `dup2` makes a
//!   standard stream moves to the kernel ([`handover`]).
//! * *Every system call made without the C library*, those of liburing's rings included. Calls by `syscall(2)` are
//!   interposed ([`raw_calls`]), and `io_uring_setup` among them is refused.
//! * *`getaddrinfo(3)`, `syslog(3)`* open, use and close kernel sockets.
//! * *`system(3)`, `popen(3)`* start other programs, in which a datapath socket is an unconnected one.
//!
//! A connection that needs what only the kernel has moves there: SIGIO (`O_ASYNC`), MSG_ZEROCOPY, urgent data, `splice(2)`, and
//! the use by another process. [`handover`] has the table of events.
//!
//! # Limits
//!
//! A socket whose `connect` failed is removed from its epoll
//! instances, and has to be added again before another attempt. [`udp`] lists the limits of UDP sockets.
//!
//! # Waiting
//!
//! A call that waits for one socket does so in [`socket_wait`], for several in [`poll`] and [`select`], and for an epoll
//! instance in [`epoll_set`], whose members [`member_table`] records. All sleep in the system call of [`kernel_wait`].
//! [`signals`] says how a signal ends a wait.

mod accept;
mod accept_credit;
mod ancillary;
mod cancellation;
mod close;
mod connect;
mod context;
mod control_calls;
mod datagram;
mod datagram_io;
mod direct_epoll;
mod epoll_calls;
pub(crate) mod epoll_set;
mod error_codes;
mod event_flags;
mod exec;
pub(crate) mod fd_table;
mod handover;
mod inherited;
mod iovecs;
mod kernel_wait;
mod lifeline;
mod limits;
mod linger;
mod listen;
mod listen_state;
mod member_table;
mod mmsg;
mod nic_claim;
mod option_policy;
mod other_fds;
mod poll;
mod process;
pub(crate) mod raw_calls;
mod ready_fd;
mod receive;
mod reuseport;
mod route;
mod runtime;
mod runtime_fds;
pub(crate) mod sandbox;
mod select;
mod send;
mod sendfile;
mod shared_listener;
mod signals;
mod socket;
mod socket_address;
mod socket_names;
mod socket_options;
mod socket_wait;
mod stdio;
mod tcp_info;
mod udp;
mod unknown_options;

pub(crate) use epoll_calls::{after_kernel_ctl, ctl};
pub(crate) use listen::listen;
pub(crate) use process::prepare;
