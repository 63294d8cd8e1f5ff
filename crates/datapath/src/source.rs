//! The trait of sockets that can be waited for.

use std::sync::Arc;

use crate::host::Host;
use crate::shard::ShardSocket;

/// A socket that can be added to an [`Epoll`](crate::Epoll).
pub trait Source: sealed::Sealed {
    /// Returns the shards and IDs of the socket.
    #[doc(hidden)]
    fn info(&self) -> SourceInfo<'_>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The shards and IDs of a socket.
#[derive(Clone, Copy, Debug)]
pub struct SourceInfo<'a> {
    pub(crate) host: &'a Arc<Host>,
    pub(crate) sockets: &'a [ShardSocket],
    /// The socket accepts connections and receives no data; the packets worth polling for are those of its connections.
    /// As in the kernel, where a listener has no NAPI ID, an epoll that has only listeners polls no queue.
    pub(crate) is_listener: bool,
}
