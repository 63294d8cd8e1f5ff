//! The decision: facts in, verdict out.

use super::{Library, Needs, NotEngaged, ProcessFacts, Reason, ServedSocket, Wait};
use crate::process::{EpollParams, WaitCall};

/// Returns the first socket of a process that the mode has not reached, with the reason; `None` if it has reached all that the
/// process waits for.
#[must_use]
pub fn judge(needs: &Needs, facts: &ProcessFacts) -> Option<NotEngaged> {
    let found = facts.waits.iter().find_map(|wait| {
        let not_engaged = |socket| Some((socket, wait.call, reason(needs, facts, wait, socket)?));
        wait.sockets.iter().find_map(not_engaged)
    });
    let (socket, call, reason) = found?;
    let (pid, comm) = (facts.pid, facts.comm.clone());
    Some(NotEngaged { pid, comm, socket: socket.clone(), call, reason, needs: needs.clone() })
}

/// Returns whether a wait can be one that the mode has not reached. The other facts matter only if it is, and cost more.
#[must_use]
pub fn suspect(needs: &Needs, wait: &Wait) -> bool {
    match needs {
        Needs::Epoll => epoll_reason(wait).is_some(),
        Needs::SocketBusyPoll => wait.sockets.iter().any(|socket| !socket.busy_polls),
        Needs::Datapath { .. } | Needs::Library => !wait.sockets.is_empty(),
    }
}

fn reason(needs: &Needs, facts: &ProcessFacts, wait: &Wait, socket: &ServedSocket) -> Option<Reason> {
    let absent = (facts.library != Library::Loaded).then_some(Reason::NoLibrary(facts.library));
    match needs {
        Needs::Datapath { .. } if facts.datapath.serve(socket.protocol, socket.local) => None,
        Needs::Datapath { .. } => Some(match wait.call {
            WaitCall::IoUring => Reason::IoUring,
            _ => absent.unwrap_or(if socket.is_listener { Reason::InKernel } else { Reason::Accepted }),
        }),
        // Another way of waiting would not help a program without the library, but the library would not help one that
        // waits in another way.
        Needs::Epoll => match epoll_reason(wait)? {
            Reason::NoParameters => absent.or(Some(Reason::NoParameters)),
            other => Some(other),
        },
        Needs::SocketBusyPoll if socket.busy_polls => None,
        Needs::SocketBusyPoll => absent.or(Some(Reason::NoSocketBusyPoll)),
        Needs::Library => absent,
    }
}

/// Returns why the kernel does not busy poll for a wait.
fn epoll_reason(wait: &Wait) -> Option<Reason> {
    match wait.call {
        WaitCall::Epoll => (wait.epoll == Some(EpollParams::Unset)).then_some(Reason::NoParameters),
        WaitCall::IoUring => (!wait.ring_polls).then_some(Reason::IoUring),
        WaitCall::Poll | WaitCall::Select | WaitCall::Accept | WaitCall::Receive => Some(Reason::NoEpoll),
    }
}
