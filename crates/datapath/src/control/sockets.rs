//! Sockets as documents, and where they are gathered.

use std::net::SocketAddr;

use abey_tcpip::SocketInfo;
use serde::{Deserialize, Serialize};

use crate::error::number;
use crate::runtime::Shared;

/// Most sockets of a shard that an answer lists: they are copied with the shard's lock held, in some microseconds.
pub const MOST_SOCKETS: usize = 256;

/// Sockets of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketPage {
    /// The shard's NAPI instance.
    pub napi: u32,
    /// Its queue pair.
    pub queue: u32,
    /// The sockets, the oldest first as a rule, and so listeners before their connections.
    pub sockets: Vec<Socket>,
    /// How many more there are.
    pub more: usize,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// `tcp` or `udp`.
    pub transport: String,
    /// Its own end.
    pub local: SocketAddr,
    /// The other end; `null` where there is none.
    pub remote: Option<SocketAddr>,
    /// A state of RFC 9293 in lower case, `listen` or `fin-wait-1`; of a UDP socket `connected` or `unconnected`.
    pub state: String,
    /// Bytes that the application has not read; of a listener, connections that it has not accepted.
    pub unread: usize,
    /// Bytes that were not acknowledged or have not left; of a listener, the longest queue it may have.
    pub unsent: usize,
    /// Who has it: `application`, `listener` (not accepted yet), or `nobody` (closed, and it finishes alone).
    pub holder: String,
}

impl From<SocketInfo> for Socket {
    fn from(info: SocketInfo) -> Self {
        let SocketInfo { transport, local, remote, state, unread, unsent, holder } = info;
        let (transport, state, holder) = (transport.to_string(), state.to_string(), holder.to_string());
        Self { transport, local, remote, state, unread, unsent, holder }
    }
}

impl Shared {
    /// A page of each shard, one shard after the other.
    pub(super) fn sockets(&self, most: usize) -> Vec<SocketPage> {
        let most = most.min(MOST_SOCKETS);
        let page = |shard: &std::sync::Arc<crate::shard::Shard>| {
            let (all, some): (usize, Vec<SocketInfo>) = shard.look_at_sockets(most);
            let sockets: Vec<Socket> = some.into_iter().map(Socket::from).collect();
            SocketPage { napi: number(shard.id), queue: shard.index.0, more: all - sockets.len(), sockets }
        };
        self.shards.iter().map(page).collect()
    }
}
