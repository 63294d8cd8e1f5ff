//! The shared-memory NIC: a wire between two processes, which is a memfd.
//!
//! One end *creates* the NIC under a name and the other *attaches*; after that they are equal. The name is that of an
//! abstract Unix socket of the user (`unix(7)`), which needs no privilege and disappears with the process. Over it the
//! creator passes the memory, and both ends pass the eventfds by which they are woken; from then on the open socket shows
//! that the other end is alive. When it closes, the link goes down, transmitted frames are dropped and counted, and a new
//! peer can attach, to new memory.
//!
//! Each end has N queue pairs. The sender steers: the Toeplitz hash of a frame chooses the receiver's queue. A ring has
//! one consumer, the queue pair it belongs to; its producer is shared by the queue pairs of the other end under a lock,
//! which is uncontended with a [symmetric key](crate::rss::SYMMETRIC_KEY).
//!
//! *Trust.* Peers are processes of one user: that of the process that called `listen`, or the one in the name
//! (`memory:NAME,user=USER`). Root is no exception. Both ends check it (SO_PEERCRED), as any user may take an abstract name. The
//! other end may write anything to the memory: that drops
//! frames, which are counted. It could stall this process by making the shared eventfds blocking, as it could with a signal.

mod attach;
mod handshake;
mod link;
mod mapping;
mod queue;
mod session;
mod shape;
#[cfg(test)]
mod tests;

use std::io;

pub use queue::MemoryQueue;
pub use shape::{MAX_QUEUES, MemoryEnd, MemoryShape};

pub(crate) use attach::{MemoryNic, listener, open, open_claimed};

use link::Shared as LinkShared;
use session::Session;

/// Returns both ends of a shared-memory NIC in one process, for tests and benchmarks, without the handshake.
///
/// # Errors
/// When the system has no memory or descriptors left.
///
/// # Panics
/// When the shape is not possible.
pub fn pair(shape: MemoryShape) -> io::Result<(Vec<MemoryQueue>, Vec<MemoryQueue>)> {
    if let Some(problem) = shape.problem() {
        panic!("a pair cannot have {problem}");
    }
    let memory = mapping::Mapping::create(shape.bytes())?.1;
    let [left, right] = [LinkShared::new(shape, "pair")?, LinkShared::new(shape, "pair")?];
    let [left_events, right_events] = [left.share_events()?, right.share_events()?];
    left.install(Session::new(&shape, &memory, session::End::Creator, right_events));
    right.install(Session::new(&shape, &memory, session::End::Attacher, left_events));
    Ok((MemoryQueue::all(&left, None), MemoryQueue::all(&right, None)))
}
