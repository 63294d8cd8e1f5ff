//! What must be true between any two calls, for tests.

use super::{Socket, Stack};
use crate::{event::SocketId, tcp::connection::Owner, time::Instant};

impl Stack {
    /// The first rule of the stack's own that is broken, and for which socket: whether a connection that has something
    /// outstanding, or waits for leave to send, has a deadline; whether the wheel knows it; whether sums are right. For
    /// tests and fuzzing: it looks at every socket.
    ///
    /// # Errors
    ///
    /// A bug of this crate.
    #[doc(hidden)]
    pub fn audit(&self, now: Instant) -> Result<(), (SocketId, &'static str)> {
        let mut orphans = 0;
        for (id, entry) in &self.sockets {
            if entry.is_sending != self.sending.contains(&id) {
                return Err((id, "the mark and the queue of those that send disagree"));
            }
            let Socket::Stream(connection) = &entry.socket else { continue };
            orphans += usize::from(connection.owner == Owner::Nobody);
            connection.audit(now, entry.is_sending).map_err(|rule| (id, rule))?;
            if let Some(deadline) = connection.deadline()
                && !entry.is_sending
                && !self.wheel.covers(id, deadline)
            {
                return Err((id, "a deadline is not in the wheel"));
            }
            let news = !connection.edges.is_empty() && connection.owner == Owner::Application;
            if news && !entry.has_event {
                return Err((id, "there is news that nobody will hear of"));
            }
        }
        if orphans != self.orphans {
            return Err((SocketId::default(), "orphans are counted wrongly"));
        }
        if let (Some(wake), Some(timeout)) = (self.wheel.next_wake(), self.poll_timeout())
            && timeout > wake
        {
            return Err((SocketId::default(), "the stack sleeps longer than its wheel"));
        }
        Ok(())
    }
}
