//! The datapath's face: sockets on the NIC's addresses run over Abey's own TCP/IP, in an unmodified program.
//!
//! # What a descriptor is
//!
//! The number that the program holds is a descriptor of the kernel's, always: the one that it made with `socket(2)`, or,
//! for a connection that it accepted, a kernel socket made for the purpose, which is never bound or connected. So numbers
//! never collide, `fstat`, `fcntl` and `getsockopt` answer as for any TCP socket, options that we do not know are kept
//! where they were set, and what bypasses us (a child that was forked, a library's own system calls) finds a socket that
//! is not connected rather than somebody else's file. An eventfd would be cheaper by a microsecond for each connection,
//! but `fstat` would not say `S_IFSOCK` and every option would need a place of ours.
//!
//! A table ([`table`]) tells which numbers are ours. A socket becomes ours at `listen`, when it is bound to one of the NIC's
//! addresses or to a wildcard, beside the kernel's socket, which listens as well ([`mod@listen`]); or at `connect`, when its
//! destination is reached by the NIC ([`route`]). Until then, and for everything else, the kernel has it and this library
//! adds one look at the table to a call.
//!
//! # Who may call
//!
//! The runtime is built by the first call that needs it, in the process that calls: `connect`, `accept`, or a wait for a
//! listener. A shell that starts the server opens no NIC, nor does a server that listens and leaves the rest to workers.
//! The runtime's threads have all signals blocked, so that the program's handlers run where they would without us. While it
//! is built, this thread's calls go to the kernel ([`inside`]): the runtime makes sockets as well.
//!
//! * *A signal handler* may use the kernel's descriptors as before: the look at the table takes no lock and does not
//!   allocate. It must not use a socket of ours; that would take a shard's lock.
//! * *Children, and servers of several processes:* see [`process`].
//!
//! # What goes past this library
//!
//! The C library calls itself without the loader's help, so what it does inside is the kernel's:
//!
//! * its streams: [`stdio`] gives those that are opened on a socket of ours other functions. A standard stream whose number
//!   became one of ours by `dup2` reads and writes the kernel's unconnected socket, and fails with ENOTCONN;
//! * `syscall(2)` itself, and what makes system calls without the C library (io_uring too). They find the kernel's socket;
//! * `getaddrinfo` and `syslog` open sockets that are the kernel's from their first to their last call, as they should be.
//!   `system`, `popen` and `posix_spawn` start other programs, to which a socket of ours is an unconnected one.
//!
//! What is asked of a socket and done by the kernel's of the same number, so that nothing happens: SIGIO and SIGURG (O_ASYNC,
//! F_SETOWN), MSG_ZEROCOPY's notices. Urgent data is refused (EOPNOTSUPP), `splice` too (EINVAL, after which programs copy).
//!
//! # What is not done yet
//!
//! Of UDP, what [`udp`] says. TCP_CORK and MSG_MORE are taken and do not hold anything back. A socket whose attempt to
//! connect has failed is in no epoll any more, and has to be added again if it is to connect anew.
//!
//! # Waiting
//!
//! Who waits for a socket alone does so in [`watch`], for several in [`poll`] and [`select`], for a set in [`epoll`] (whose
//! members are noted in [`members`]). All sleep in one system call, which [`outside`] makes; what becomes of a wait that a
//! signal comes into is told in [`signals`].

mod accept;
mod address;
mod batches;
mod bell;
mod buffers;
mod cancel;
mod claim;
mod close;
mod conditions;
mod connect;
mod control;
mod datagrams;
mod descriptors;
pub(crate) mod epoll;
mod errno;
mod groups;
mod kept;
mod listen;
mod members;
mod options;
mod outside;
mod poll;
mod process;
mod receive;
mod route;
mod select;
mod send;
mod sendfile;
mod signals;
mod socket;
mod stdio;
pub(crate) mod table;
mod udp;
mod watch;

use std::cell::Cell;
use std::net::SocketAddr;

use abey_linux::library::DatapathConfig;

pub(crate) use listen::listen;
pub(crate) use members::{changed, control};
pub(crate) use process::prepare;
use process::{RUNTIME, runtime};

use crate::state;

thread_local! {
    /// This thread is in a call of the runtime's, whose own calls are the kernel's.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Does something whose own calls go to the kernel.
fn inside<R>(work: impl FnOnce() -> R) -> R {
    INSIDE.with(|inside| {
        let before = inside.replace(true);
        let result = work();
        inside.set(before);
        result
    })
}

/// What to use, unless this call is the runtime's own or this process is a child without it.
fn config() -> Option<&'static DatapathConfig> {
    let config = state::get().datapath.as_ref()?;
    (!INSIDE.with(Cell::get) && !process::is_child()).then_some(config)
}

/// Whether `address` is one of the NIC's.
fn is_own(config: &DatapathConfig, address: SocketAddr) -> bool {
    config.addresses.iter().any(|(own, _)| *own == address.ip().to_canonical())
}

fn is_tcp(fd: libc::c_int) -> bool {
    kept::number(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}
