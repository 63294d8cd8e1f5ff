//! A listening TCP socket: connections half open, connections to accept, and when to fall back to cookies.
//!
//! Two bounds, both the backlog: connections whose handshake is not over (past it, SYNs are answered with cookies), and
//! connections that wait to be accepted (past it, SYNs and the last ACK of handshakes are dropped, so that peers try
//! again).

use core::net::SocketAddr;
use std::collections::VecDeque;

use crate::{
    config::Keepalive,
    event::{Readiness, SocketId},
    tcp::cookies,
    time::Instant,
};

/// What accepted connections inherit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Template {
    pub nodelay: bool,
    pub keepalive: Option<Keepalive>,
    pub receive_buffer: Option<u32>,
    pub send_buffer: Option<usize>,
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub local: SocketAddr,
    pub edges: Readiness,
    pub template: Template,
    pub backlog: usize,
    pub half_open: usize,
    pub queue: VecDeque<SocketId>,
    last_cookie: Option<Instant>,
}

impl Listener {
    pub(crate) fn new(local: SocketAddr, backlog: usize) -> Self {
        Self {
            local,
            edges: Readiness::NONE,
            template: Template::default(),
            backlog: backlog.max(1),
            half_open: 0,
            queue: VecDeque::new(),
            last_cookie: None,
        }
    }

    pub(crate) fn is_queue_full(&self) -> bool {
        self.queue.len() >= self.backlog
    }

    pub(crate) fn is_flooded(&self) -> bool {
        self.half_open >= self.backlog
    }

    pub(crate) fn cookie_sent(&mut self, now: Instant) {
        self.last_cookie = Some(now);
    }

    /// Whether a cookie may come back: without this, guessing numbers would be worth trying at any time.
    pub(crate) fn expects_cookies(&self, now: Instant) -> bool {
        self.last_cookie.is_some_and(|last| now.nanos_since(last) <= cookies::LIFETIME)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::READABLE.when(!self.queue.is_empty())
    }
}
