//! A NIC shared by processes: one privileged process holds it ([`SharedNic`]), and others have some of its queue pairs each
//! ([`Claim`], [`open_claimed`]).
//!
//! The broker listens on an abstract Unix socket ([`Listener`]) in the NIC's network namespace. Such a socket is accessible to
//! every user and in every root directory, and disappears with the broker. A process connects, proves with a token that it
//! may have queues, and gets descriptors ([`claim`]); later it makes further [`Request`]s. A claim lasts as long as its
//! connection, so that a process that is killed returns its queues too.
//!
//! | NIC | held by the broker | descriptors of a claim | processes |
//! | --- | --- | --- | --- |
//! | `af_xdp:DEV` | the XDP program, its link and its maps | for each queue an AF_XDP socket, bound to it, and its memory | at most the number of queues |
//! | `tap:DEV` | nothing | one for each queue | one |
//! | `memory:NAME` | nothing | the socket that peers attach to | one |
//!
//! Under AF_XDP the host is the kernel: it answers ARP and ping, and receives frames of queues that no process has claimed.
//! On the other two the host is Abey, whose neighbour table and ping replies are in one process.

mod client;
mod connection;
mod protocol;
mod shared;

pub use crate::claim::{Broker, Claim};
pub use client::{ClaimError, claim};
pub use protocol::{Arrival, Listener, Peer, Reply, Request};
pub use shared::SharedNic;

use crate::af_xdp;
use crate::error::OpenError;
use crate::memory::{self, MemoryEnd};
use crate::name::NicName;
use crate::open::{Nic, Options, open};
use crate::tap;

/// Opens the queue pairs of a claim, without privileges.
///
/// # Errors
/// When the claim does not fit the NIC, or the system refuses.
pub fn open_claimed(name: &str, claim: Claim, options: &Options) -> Result<Nic, OpenError> {
    let name: NicName = name.parse()?;
    match &name {
        NicName::AfXdp(device) => af_xdp::open_claimed(device, claim, options.xdp)
            .map(|(queues, ports, address, part)| Nic::new(name, address, None, Some(ports), queues, part)),
        NicName::Tap(device) => tap::open_claimed(device, claim.descriptors)
            .map(|(queues, address)| Nic::new(name, address, None, None, queues, false)),
        NicName::Hairpin => open(&name.to_string(), options),
        NicName::Memory(memory) => {
            let listener = claim.descriptors.into_iter().next().ok_or_else(|| OpenError::Refused {
                device: name.to_string(),
                reason: "its broker sent no socket".to_owned(),
            })?;
            memory::open_claimed(memory, listener, options.memory)
                .map(|nic| Nic::of_memory(name, nic, MemoryEnd::Create))
        }
    }
}
