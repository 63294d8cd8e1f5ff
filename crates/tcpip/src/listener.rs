//! Listening TCP socket: its half-open connections, its accept queue, and when to use SYN cookies.
//!
//! The backlog bounds both. Beyond that many half-open connections, SYNs are answered with cookies. Beyond that many
//! connections in the accept queue, SYNs and the final ACKs of handshakes are dropped, so that the peers retry. A listener
//! with an [`Overflow`](crate::Overflow) leaves SYNs to another listener instead.

use core::net::SocketAddr;
use std::collections::VecDeque;

use crate::{
    TcpOptions,
    event::Readiness,
    stack::overflow::{OverflowState, Waiting},
    tcp::cookies,
    time::Instant,
};

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub local: SocketAddr,
    pub edges: Readiness,
    /// Options that accepted connections inherit.
    pub options: TcpOptions,
    pub backlog: usize,
    pub overflow: Option<OverflowState>,
    pub half_open: usize,
    pub queue: VecDeque<Waiting>,
    last_cookie: Option<Instant>,
}

impl Listener {
    pub(crate) fn new(local: SocketAddr, backlog: usize) -> Self {
        Self {
            local,
            edges: Readiness::NONE,
            options: TcpOptions::default(),
            backlog: backlog.max(1),
            overflow: None,
            half_open: 0,
            queue: VecDeque::new(),
            last_cookie: None,
        }
    }

    pub(crate) fn is_queue_full(&self) -> bool {
        self.queue.len() >= self.backlog
    }

    /// Returns whether another listener shall have further SYNs.
    pub(crate) fn is_full(&self) -> bool {
        self.room().is_some_and(|room| self.waiting(room.div_ceil(2)) >= room)
    }

    /// Returns whether at most half of the room is taken.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.room().is_some_and(|room| room > 0 && 2 * self.waiting(room / 2) <= room)
    }

    /// Returns how many connections may be half open or wait to be accepted, if another listener can have further ones.
    fn room(&self) -> Option<usize> {
        Some(self.overflow.as_ref()?.limit.min(self.backlog))
    }

    /// Returns how many connections are half open or wait to be accepted; of the former, at most this number.
    fn waiting(&self, half_open: usize) -> usize {
        self.queue.len() + self.half_open.min(half_open)
    }

    pub(crate) fn is_flooded(&self) -> bool {
        self.half_open >= self.backlog
    }

    pub(crate) fn cookie_sent(&mut self, now: Instant) {
        self.last_cookie = Some(now);
    }

    /// Returns whether a cookie may arrive. Without this limit an attacker could try to guess a cookie at any time.
    pub(crate) fn expects_cookies(&self, now: Instant) -> bool {
        self.last_cookie.is_some_and(|last| now.nanos_since(last) <= cookies::LIFETIME)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::READABLE.when(!self.queue.is_empty())
    }
}
