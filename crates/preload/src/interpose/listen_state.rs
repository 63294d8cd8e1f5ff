//! The state of a socket that listens. [`mod@super::listen`] fills it and opens the datapath's listener.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock};

use abey_datapath::{Epoll, TcpListener};

use super::accept_credit::AcceptCredit;
use super::context::uninterposed;

/// The state of a socket that listens.
#[derive(Debug)]
pub(crate) struct ListenState {
    pub(super) at: SocketAddr,
    /// IPV6_V6ONLY.
    pub(super) v6_only: bool,
    /// Number of connections that may wait in each shard: one more than the backlog, as in Linux.
    pub(super) backlog: usize,
    /// The kernel socket listens too.
    pub(crate) has_kernel_side: bool,
    /// The group of listeners that share the port (SO_REUSEPORT).
    pub(crate) group: Option<Group>,
    /// Runs the deferred opening once.
    pub(super) opening: Once,
    /// `shutdown` was called, and the socket listens no more.
    pub(crate) is_shut_down: AtomicBool,
    pub(crate) balance: AcceptBalance,
    /// The process that called `listen`.
    pub(super) process: u32,
    pub(super) credit: AcceptCredit,
    /// Children of this process may accept too, or another process listened on the socket before this one did.
    pub(super) is_shared: AtomicBool,
    /// Readable while connections wait in the datapath, for children; with the epoll that makes it so.
    pub(super) waiting: OnceLock<(Epoll, OwnedFd)>,
}

/// State that keeps the two sides of a listener balanced.
#[derive(Debug, Default)]
pub(crate) struct AcceptBalance {
    /// Number of datapath connections that were accepted in a row.
    pub(super) consecutive: AtomicU32,
    /// Held by the thread that accepts from a blocking kernel socket.
    pub(super) accepting: Mutex<()>,
}

/// A group of listeners that share a port (SO_REUSEPORT): what its members have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) addr: SocketAddr,
    /// IPV6_V6ONLY.
    pub(crate) v6_only: bool,
}

impl ListenState {
    /// Returns whether the socket listens for connections to `to`.
    pub(super) fn receives(&self, to: SocketAddr) -> bool {
        let (ip, at) = (to.ip().to_canonical(), self.at.ip());
        let any_of_family = at.is_unspecified() && (at.is_ipv4() == ip.is_ipv4() || at.is_ipv6() && !self.v6_only);
        let is_open = !self.is_shut_down.load(Ordering::Relaxed);
        is_open && self.at.port() == to.port() && (at == ip || any_of_family)
    }

    /// Stops listening, as `shutdown(2)`.
    pub(crate) fn shut_down(&self, listener: Option<&TcpListener>) {
        self.is_shut_down.store(true, Ordering::Release);
        if let Some(listener) = listener {
            uninterposed(|| listener.stop());
        }
    }
}
