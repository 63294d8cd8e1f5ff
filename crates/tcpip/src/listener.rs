//! Listening TCP socket: its half-open connections, its accept queue, and when to use SYN cookies.
//!
//! The backlog bounds both. Beyond that many half-open connections, SYNs are answered with cookies. Beyond that many
//! connections in the accept queue, SYNs and the final ACKs of handshakes are dropped, so that the peers retry.
//! The stack reports a listener with as many connections of both kinds together, so that its caller can steer further SYNs
//! to another one ([`Stack::poll_full_listener`](crate::Stack::poll_full_listener)).

use core::net::SocketAddr;
use std::collections::VecDeque;

use crate::{
    TcpOptions,
    event::{Readiness, SocketId},
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
    /// The most connections that are half open or wait to be accepted before SYNs are held.
    pub limit: usize,
    pub half_open: usize,
    pub queue: VecDeque<SocketId>,
    last_cookie: Option<Instant>,
    /// Whether it was reported as full.
    reported_full: bool,
}

impl Listener {
    pub(crate) fn new(local: SocketAddr, backlog: usize) -> Self {
        Self {
            local,
            edges: Readiness::NONE,
            options: TcpOptions::default(),
            backlog: backlog.max(1),
            limit: usize::MAX,
            half_open: 0,
            queue: VecDeque::new(),
            last_cookie: None,
            reported_full: false,
        }
    }

    pub(crate) fn is_queue_full(&self) -> bool {
        self.queue.len() >= self.backlog
    }

    pub(crate) fn is_at_limit(&self) -> bool {
        self.half_open + self.queue.len() >= self.limit
    }

    pub(crate) fn is_flooded(&self) -> bool {
        self.half_open >= self.backlog
    }

    /// Returns whether the listener has become full (`Some(true)`), or half empty after that (`Some(false)`), since the last
    /// call. Half-open connections count for at most half of the backlog, so that a flood of SYNs alone does not fill it.
    pub(crate) fn poll_fullness(&mut self) -> Option<bool> {
        let waiting = |at_most: usize| self.queue.len() + self.half_open.min(at_most);
        let is_full = if self.reported_full {
            2 * waiting(self.backlog / 2) > self.backlog
        } else {
            waiting(self.backlog.div_ceil(2)) >= self.backlog
        };
        (is_full != std::mem::replace(&mut self.reported_full, is_full)).then_some(is_full)
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
