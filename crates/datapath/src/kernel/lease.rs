//! What a socket has of its port, and who needs the port after it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use abey_delivery::NapiIndex;

use super::Kernel;
use super::ports::Key;
use crate::shard::Shard;

/// Whose packets a port is needed for.
#[derive(Debug)]
pub(crate) enum Users {
    /// Nobody's but the socket's that has the lease.
    None,
    /// One connection's.
    Flow { shard: Weak<Shard>, local: SocketAddr, remote: SocketAddr },
    /// Those of every connection with this port.
    Port { shards: Vec<Weak<Shard>>, port: u16 },
}

impl Users {
    pub(super) fn are_gone(&self) -> bool {
        match self {
            Self::None => true,
            Self::Flow { shard, local, remote } => shard
                .upgrade()
                .is_none_or(|shard| shard.with(|core| core.over || !core.stack.has_flow(*local, *remote))),
            Self::Port { shards, port } => shards
                .iter()
                .filter_map(Weak::upgrade)
                .all(|shard| shard.with(|core| core.over || !core.stack.has_flow_at(*port))),
        }
    }
}

/// A port that is reserved and redirected as long as this lives, and as its users need it.
#[derive(Debug)]
pub(crate) struct Lease {
    kernel: Arc<Kernel>,
    key: Key,
    users: Users,
}

impl Lease {
    pub(super) fn new(kernel: &Arc<Kernel>, key: Key) -> Self {
        Self { kernel: kernel.clone(), key, users: Users::None }
    }

    pub(crate) fn port(&self) -> u16 {
        self.key.1
    }

    /// Whose packets the port is needed for when the lease is dropped.
    pub(crate) fn set_users(&mut self, users: Users) {
        self.users = users;
    }

    /// Connections from this port live in `shard`. To be said before the first packet is sent.
    pub(crate) fn set_shard(&self, shard: NapiIndex) {
        if let Some(handover) = &self.kernel.handover {
            handover.set(self.port(), Some(shard));
        }
    }

    /// The kernel socket of the runtime's that holds the port: bound, not listening. `None` when the runtime is gone, or
    /// when a socket of the program's holds the port.
    pub(crate) fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.kernel.ports.socket(self.key)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let users = std::mem::replace(&mut self.users, Users::None);
        if users.are_gone() {
            self.kernel.give_back(self.key);
        } else {
            self.kernel.linger(self.key, users);
        }
    }
}
