//! Processes that have connected to the server of hand-overs and not sent their request yet.
//!
//! Any user may connect, as the socket has an abstract name. There are at most [`MAX_WAITING`] such connections, each for
//! [`REQUEST_LIMIT`]; one more closes the oldest. A process sends its request at once, and repeats it if it was closed.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use abey_nic::accept::{Accepted, Acceptor, PAUSE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most connections without a request.
const MAX_WAITING: usize = 64;
/// How long one is open.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);
/// The most connections that are accepted before those that wait get their turn.
const BATCH: usize = 32;

/// The listening socket, and the connections without a request in the order in which they were accepted.
pub(super) struct Waiting {
    acceptor: Acceptor,
    connections: VecDeque<(OwnedFd, Instant)>,
    /// When the listening socket is polled again, if no descriptor was left.
    accepts_at: Option<Instant>,
}

impl Waiting {
    pub(super) fn new(acceptor: Acceptor) -> Self {
        Self { acceptor, connections: VecDeque::new(), accepts_at: None }
    }

    /// Waits for connections with a request, or that have ended, and returns them. `None` when `stopped` is closed.
    pub(super) fn wait(&mut self, stopped: &UnixStream) -> Option<Vec<OwnedFd>> {
        let accepts = if self.accepts_at.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(&self.acceptor, accepts)];
        polled.extend(self.connections.iter().map(|(connection, _)| PollFd::new(connection, PollFlags::IN)));
        if poll(&mut polled, self.timeout().as_ref()).is_err() {
            // A signal came.
            return Some(Vec::new());
        }
        let is_ready: Vec<bool> = polled.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        drop(polled);
        if is_ready[0] {
            return None;
        }
        let now = Instant::now();
        let mut ready = Vec::new();
        for ((connection, since), is_ready) in std::mem::take(&mut self.connections).into_iter().zip(&is_ready[2..]) {
            if *is_ready {
                ready.push(connection);
            } else if now < since + REQUEST_LIMIT {
                self.connections.push_back((connection, since));
            }
        }
        if is_ready[1] || self.accepts_at.is_some_and(|at| at <= now) {
            self.accept(now);
        }
        Some(ready)
    }

    fn accept(&mut self, now: Instant) {
        self.accepts_at = None;
        for _ in 0..BATCH {
            match self.acceptor.accept() {
                Ok(Accepted::Connection(connection)) => {
                    self.connections.push_back((connection, now));
                    if self.connections.len() > MAX_WAITING {
                        self.connections.pop_front();
                    }
                }
                Ok(Accepted::Nothing) => return,
                Ok(Accepted::Exhausted) | Err(_) => {
                    self.connections.clear();
                    self.accepts_at = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let oldest = self.connections.front().map(|(_, since)| *since + REQUEST_LIMIT);
        let next = oldest.into_iter().chain(self.accepts_at).min()?;
        // Rounded up to milliseconds, so that the wait does not end before the deadline.
        Timespec::try_from(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1)).ok()
    }
}
