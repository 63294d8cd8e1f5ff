//! Why a mode has not reached a socket, as one sentence that ends with what to do.

use std::fmt;

use super::{Library, Needs, ServedSocket};
use crate::process::{Protocol, WaitCall};

/// Why a mode has not reached a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The library is not in the process.
    NoLibrary(Library),
    /// It waits by io_uring.
    IoUring,
    /// It waits by a call in which the kernel does not busy poll.
    NoEpoll,
    /// Its epoll instance has no busy-poll parameters, although the library is in the process.
    NoParameters,
    /// Its socket has no SO_BUSY_POLL, although the library is in the process.
    NoSocketBusyPoll,
    /// The kernel accepts the listener's connections, although the library is in the process.
    InKernel,
    /// The connection is the kernel's, and was accepted by another process.
    Accepted,
}

/// A socket that a mode has not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotEngaged {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The socket.
    pub socket: ServedSocket,
    /// The call that waits for it.
    pub call: WaitCall,
    /// Why.
    pub reason: Reason,
    /// What the mode needs.
    pub needs: Needs,
}

impl NotEngaged {
    /// Returns the sentence without the process, which is equal for processes that have the same problem.
    #[must_use]
    pub fn cause(&self) -> String {
        format!("{}: {}", self.why(), self.advice())
    }

    /// Returns whether the connection was handed to the kernel, as the datapath does with a connection that another process
    /// uses. It is reported, and is no failure.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.reason == Reason::Accepted
    }

    fn why(&self) -> String {
        let at = self.address();
        let call = name(self.call);
        let is_datapath = matches!(self.needs, Needs::Datapath { .. });
        match self.reason {
            Reason::NoLibrary(library) => {
                let absent = match library {
                    Library::Static => "is statically linked, so libabey.so is not in it",
                    Library::Privileged => "gains privileges when it starts, so libabey.so does nothing in it",
                    Library::Missing | Library::Loaded => "runs without libabey.so (its environment lacks LD_PRELOAD)",
                };
                let kernel = if is_datapath { ", and the kernel serves " } else { ", and waits for " };
                format!("it {absent}{kernel}{at}")
            }
            Reason::IoUring if is_datapath => format!("it waits for {at} by io_uring, which the kernel serves"),
            Reason::IoUring => format!("it waits for {at} by io_uring, in which the kernel does not busy poll"),
            Reason::NoEpoll => format!("it waits for {at} in {call}, and the kernel busy polls in epoll_wait only"),
            Reason::NoParameters => {
                format!("it waits for {at} on an epoll instance without busy-poll parameters, made past the C library")
            }
            Reason::NoSocketBusyPoll => {
                format!("its socket on {at} has no SO_BUSY_POLL: it was made past the C library")
            }
            Reason::InKernel => format!(
                "it waits for {at} in {call} past the C library (as Go does), or on a socket that another program \
                 opened, so the kernel accepts"
            ),
            Reason::Accepted => {
                format!("it serves connections on {at} that another process accepted, so they are the kernel's")
            }
        }
    }

    fn advice(&self) -> &'static str {
        let is_datapath = matches!(self.needs, Needs::Datapath { .. });
        match (self.reason, is_datapath) {
            (Reason::NoLibrary(Library::Privileged), _) => "start it as a user who has them",
            (Reason::NoLibrary(Library::Missing), _) => "let it inherit the environment, or name it with --skip",
            (Reason::IoUring, true) => "turn io_uring off in the program, or use --world linux",
            (Reason::Accepted, true) => "let one process accept and serve, or use --world linux",
            (_, true) => "use --world linux",
            (Reason::IoUring, false) => {
                "turn io_uring off in the program, or use a mode that needs no epoll, such as defer50"
            }
            (_, false) => "use a mode that needs nothing of the program, such as defer50",
        }
    }

    fn address(&self) -> String {
        let protocol = match self.socket.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        format!("{protocol} {}", self.socket.local)
    }
}

impl fmt::Display for NotEngaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}): {}", self.comm, self.pid, self.cause())
    }
}

/// Returns the name of a call, or of the best known of a group.
fn name(call: WaitCall) -> &'static str {
    match call {
        WaitCall::Epoll => "epoll_wait",
        WaitCall::Poll => "poll",
        WaitCall::Select => "select",
        WaitCall::Accept => "accept",
        WaitCall::Receive => "recv",
        WaitCall::IoUring => "io_uring",
    }
}
