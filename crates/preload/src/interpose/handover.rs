//! What happens to a connection that another process, or a call that the datapath does not have, needs: it moves into the
//! kernel socket of its descriptor ([`abey_datapath::handover`]), which the kernel then answers for.
//!
//! # When
//!
//! The datapath lives in one process. Descriptors do not: a child has copies of them, and a program passes them on.
//!
//! | event | what happens |
//! | --- | --- |
//! | `fork` | nothing: connections stay in the datapath. A server that forks to save its data loses nothing |
//! | the child uses an inherited connection or UDP socket: any call but `close` | it asks the parent, whose thread hands the connection over ([`inherited`](super::inherited)); then the kernel answers in both |
//! | the child waits for an inherited listener | new connections go to the kernel's listener, which both have; those that wait in the datapath are handed over one by one ([`shared_listener`](super::shared_listener)) |
//! | the child uses an inherited epoll instance | its members in the datapath are handed over, and become the kernel's members of the same instance |
//! | the parent closes a connection, or ends by `exit`, while a child that has inherited it lives ([`lifeline`](super::lifeline)) | hands it over: the child's copy keeps it open, as in the kernel |
//! | `dup2` to 0, 1 or 2; any `dup` in a child of `vfork` | hands it over: the C library's streams, and a program that is executed next, use the kernel |
//! | a UDP socket or a listener at 0, 1 or 2 of a program that is executed (inetd) | the socket is the kernel's from then on; connections that wait at the listener in the datapath go to the kernel's, or are reset where it cannot take them. At other numbers most programs leave them by mistake, and nothing happens |
//! | `exec`, `posix_spawn` ([`exec`](super::exec)) | hands over what is not close-on-exec, and what `posix_spawn_file_actions_adddup2` names. `exec` in the process of the datapath hands over everything, so that the kernel closes the rest in an orderly way |
//! | `sendmsg` with SCM_RIGHTS | hands over the connections in it, also to the same process |
//! | an option that only the kernel has ([`option_policy`](super::option_policy)) | hands over a connection or a UDP socket; a listener gets no new connections. Not where a pump would have to serve it |
//! | MSG_OOB, MSG_ZEROCOPY, `splice`, O_ASYNC, SIOCATMARK | hands over, and the kernel makes the call |
//! | `vfork`, `posix_spawn`: the child shares the parent's memory | no table changes in it. It hands over by itself, as another thread would |
//! | the parent was killed, or does not answer | the child's call fails as the kernel fails it on a socket without a connection. The kernel has reset the connection |
//! | `system`, `popen` | nothing: the C library's own calls are not interposed. The program has the descriptors, but no connection |
//!
//! A connection of which one call of this process is in progress (a thread waits in `read`, `poll` or `epoll_wait`) ends that
//! wait; the call is repeated through the kernel. In epoll instances the member moves from the datapath's side to the
//! kernel's. Where no kernel can take the connection, a socket pair replaces the descriptor.
//!
//! One line on standard error says so for each kind of event, since what the kernel has is not accelerated any more.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abey_datapath::TcpStream;
use abey_datapath::handover::HandedOver;
use libc::c_int;

use super::context::uninterposed;
use super::fd_table::{self, Entry};
use super::socket::{Role, Socket};
use super::{listen, member_table, process};
use crate::report::{self, Topic};
use crate::{errno, real};

/// Why a connection is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A forked child uses it.
    Child,
    /// A forked child may use it, and this process closes it. Not reported: the child may not use it.
    Close,
    /// A program that is executed inherits it.
    Exec,
    /// It is sent to another process, or replaces a standard stream.
    Passed,
    /// A call that only the kernel has.
    Call(&'static str),
    /// A socket option that only the kernel has. No pump serves such a connection.
    Option(&'static str),
}

impl Reason {
    pub(super) fn report(self) {
        let line = |topic, what: std::fmt::Arguments<'_>| {
            report::print_once(topic, format_args!("{what}: such connections continue in the kernel"));
        };
        match self {
            Self::Close => {}
            Self::Child => line(Topic::HandOverChild, format_args!("a forked process has a connection of its parent")),
            Self::Exec => line(Topic::HandOverExec, format_args!("an executed program inherits a connection")),
            Self::Passed => line(Topic::HandOverPassed, format_args!("a connection is passed on by its descriptor")),
            Self::Option(name) => {
                line(Topic::HandOverCall, format_args!("the program sets {name}, which only the kernel has"));
            }
            Self::Call(name) => line(Topic::HandOverCall, format_args!("the program uses {name} on a connection")),
        }
    }
}

/// Hands over the socket of a descriptor, if it is one of the datapath. Returns whether the kernel now answers for the
/// descriptor.
pub(super) fn hand_over(fd: c_int, why: Reason) -> bool {
    let Some(object) = fd_table::entry(fd) else { return true };
    let Entry::Socket(socket) = &*object else { return false };
    errno::preserve_errno(|| {
        uninterposed(|| match socket.role.get() {
            Some(Role::Stream(stream)) => {
                hand_over_stream(fd, stream, why).is_some_and(|done| settle(&object, fd, done))
            }
            Some(Role::Datagram(_)) if matches!(why, Reason::Call(_)) => false,
            Some(Role::Datagram(datagram)) => {
                datagram.socket.hand_over().inspect(|()| why.report()).is_ok()
                    && settle(&object, fd, HandedOver::Kernel)
            }
            Some(Role::Listener(_)) => {
                match why {
                    Reason::Exec => listen::leave(socket),
                    // The eventfd is for forked children.
                    Reason::Passed => drop(listen::share(socket)),
                    _ => {}
                }
                false
            }
            None => false,
        })
    })
}

/// Hands over a connection. Returns `None` if it stays in the datapath, because it is not established or has ended.
fn hand_over_stream(fd: c_int, stream: &TcpStream, why: Reason) -> Option<HandedOver> {
    // SAFETY: open for the rest of the program's call, which names it.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let done = match why {
        Reason::Option(_) => stream.hand_over_to_kernel(socket).map(|()| HandedOver::Kernel),
        _ => stream.hand_over(socket),
    }
    .ok()?;
    why.report();
    Some(done)
}

/// Ends what this process has of a connection that was handed over by this or another process. Returns true.
///
/// In a child of `vfork` the tables are the parent's, which does this at its next call.
fn settle(object: &Arc<Entry>, fd: c_int, done: HandedOver) -> bool {
    let pump = match done {
        HandedOver::Pump(end) => Some(end),
        HandedOver::Kernel => None,
    };
    if process::is_vforked() {
        pump.iter().for_each(|end| replace(fd, end));
        return true;
    }
    let descriptors = fd_table::descriptors_of(object);
    for fd in &descriptors {
        pump.iter().for_each(|end| replace(*fd, end));
        member_table::move_to_kernel(object, *fd);
    }
    descriptors.into_iter().for_each(|fd| fd_table::remove_if(fd, object));
    true
}

/// Ends what this process has of a connection that a call has found moved.
#[cold]
pub(super) fn settle_moved(object: &Arc<Entry>, fd: c_int) {
    let Entry::Socket(socket) = &**object else { return };
    errno::preserve_errno(|| {
        uninterposed(|| {
            if let Some(done) = socket.handed_over() {
                settle(object, fd, done);
            }
        });
    });
}

/// Returns the connections that were moved at the request of other processes, and that this process still has.
#[cold]
pub(super) fn find_moved() -> Vec<(c_int, Arc<Entry>)> {
    fd_table::find(|object| matches!(object, Entry::Socket(socket) if socket.check_moved()))
}

/// Hands over a connection that the program is about to close here, if another process may have it. Must precede the removal
/// of the entry and the closing.
pub(super) fn before_close(fd: c_int, object: &Arc<Entry>) {
    let Entry::Socket(socket) = &**object else { return };
    let Some(role) = socket.role.get().filter(|_| super::lifeline::is_shared(socket.forks)) else { return };
    // A child of `vfork` closes its own copies.
    if process::is_vforked() || fd_table::descriptors_of(object).len() > 1 {
        return;
    }
    errno::preserve_errno(|| {
        uninterposed(|| match role {
            Role::Stream(stream) => {
                let forks = socket.forks;
                let is_inherited = move || uninterposed(|| super::lifeline::is_shared(forks));
                // SAFETY: open for the rest of the program's call, which names it.
                let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
                if let Ok(HandedOver::Pump(end)) = stream.hand_over_inherited(descriptor, is_inherited) {
                    replace(fd, &end);
                }
            }
            // If it fails, the datagrams that were not received are lost.
            Role::Datagram(datagram) => drop(datagram.socket.hand_over()),
            Role::Listener(_) => {}
        });
    });
}

/// Hands over every connection that `is` selects, before the process executes another program or ends; other sockets only if
/// they are standard streams, or if the process ends.
pub(super) fn hand_over_all(why: Reason, is: impl Fn(c_int, &Socket) -> bool) {
    if !process::is_table_active() {
        return;
    }
    for (fd, object) in fd_table::find(|object| matches!(object, Entry::Socket(socket) if socket.role.get().is_some()))
    {
        if let Entry::Socket(socket) = &*object
            && (socket.stream().is_some() || fd <= libc::STDERR_FILENO || why == Reason::Close)
            && is(fd, socket)
        {
            hand_over(fd, why);
        }
    }
}

/// Makes `fd` a descriptor of the socket pair that stands for the connection. Its flags stay.
pub(super) fn replace(fd: c_int, end: &OwnedFd) {
    // SAFETY: the calls take no pointers.
    unsafe {
        let flags = real::FCNTL.get()(fd, libc::F_GETFD, 0);
        let status = real::FCNTL.get()(fd, libc::F_GETFL, 0);
        if flags >= 0 {
            let close_on_exec = if flags & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
            real::DUP3.get()(end.as_raw_fd(), fd, close_on_exec);
            real::FCNTL.get()(fd, libc::F_SETFL, status as libc::c_ulong);
        }
    }
}
