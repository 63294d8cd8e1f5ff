//! Sockets as documents.

use std::net::SocketAddr;

use abey_tcpip::SocketInfo;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// The most sockets of a shard in an answer. They are copied with the shard's lock held, which takes some microseconds.
pub const MAX_SOCKETS: usize = 256;

/// The sockets of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketPage {
    /// The shard's NAPI instance.
    pub napi: u32,
    /// Its queue pair.
    pub queue: u32,
    /// The sockets, usually the oldest first, and so listeners before their connections.
    pub sockets: Vec<Socket>,
    /// The number of further sockets.
    pub more: usize,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// `tcp` or `udp`.
    pub transport: String,
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address; `null` if there is none.
    pub remote: Option<SocketAddr>,
    /// A state of RFC 9293 in lower case, `listen` or `fin-wait-1`; of a UDP socket `connected` or `unconnected`.
    pub state: String,
    /// The bytes that the application has not read; for a listener, the connections that it has not accepted.
    pub unread: usize,
    /// The bytes that were not sent or not acknowledged; for a listener, the most connections that may wait.
    pub unsent: usize,
    /// The owner: `application`, `listener` (not accepted yet), or none (`nobody`: closed by the application, and not finished).
    pub holder: String,
}

impl From<SocketInfo> for Socket {
    fn from(info: SocketInfo) -> Self {
        let SocketInfo { transport, local, remote, state, unread, unsent, holder } = info;
        let (transport, state, holder) = (transport.to_string(), state.to_string(), holder.to_string());
        Self { transport, local, remote, state, unread, unsent, holder }
    }
}

/// Returns a page for each shard, each with up to `max` sockets.
pub(super) fn pages(host: &Host, max: usize) -> Vec<SocketPage> {
    let max = max.min(MAX_SOCKETS);
    let shards = host.shards().iter();
    shards
        .map(|shard| {
            let (count, some) = shard.sockets(max);
            let sockets: Vec<Socket> = some.into_iter().map(Socket::from).collect();
            SocketPage { napi: shard.id.get(), queue: shard.index.0, more: count - sockets.len(), sockets }
        })
        .collect()
}
