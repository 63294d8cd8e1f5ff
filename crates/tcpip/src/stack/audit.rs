//! Invariants that hold between any two calls, for tests.

use super::{Socket, Stack};
use crate::{event::SocketId, tcp::connection::Owner, time::Instant};

impl Stack {
    /// Checks the stack's invariants: each connection that has data outstanding, or that waits for the peer's window,
    /// has a deadline; the timer wheel holds that deadline; queues and sums are consistent. For tests and fuzzing: it
    /// visits every socket.
    ///
    /// # Errors
    ///
    /// The violated invariant and its socket: a bug of this crate.
    #[doc(hidden)]
    pub fn audit(&self, now: Instant) -> Result<(), (SocketId, &'static str)> {
        let mut orphans = 0;
        for (id, entry) in &self.sockets {
            if entry.in_send_queue != self.send_queue.contains(&id) {
                return Err((id, "the socket's flag and the send queue disagree"));
            }
            let Socket::Stream(connection) = &entry.socket else { continue };
            orphans += usize::from(connection.owner == Owner::Orphan);
            connection.audit(now, entry.in_send_queue).map_err(|rule| (id, rule))?;
            if let Some(deadline) = connection.deadline()
                && !entry.in_send_queue
                && !self.wheel.fires_by(id, deadline)
            {
                return Err((id, "a deadline is not in the wheel"));
            }
            let pending = !connection.edges.is_empty() && connection.owner == Owner::Application;
            if pending && !entry.in_event_queue {
                return Err((id, "an edge is pending and the socket is not in the event queue"));
            }
        }
        if orphans != self.orphans {
            return Err((SocketId::default(), "the number of orphans is wrong"));
        }
        if let (Some(wake), Some(timeout)) = (self.wheel.next_wake(), self.poll_timeout())
            && timeout > wake
        {
            return Err((SocketId::default(), "the stack's deadline is later than that of its timer wheel"));
        }
        Ok(())
    }
}
