//! A NIC in two parts: what one privileged process holds ([`SharedNic`]), and the queue pairs of which other processes
//! have some each ([`Claim`], [`open_claimed`]).
//!
//! The broker listens on an abstract Unix socket ([`Listener`]) of the network namespace that the NIC is in: it is there
//! for any user, in any root directory, and vanishes with the broker. A process connects, says a token that only those are
//! told who are to have queues, and gets descriptors ([`claim`]); later it makes [`Request`]s. The connection lasts as long
//! as the claim: whoever is killed gives everything back by that.
//!
//! | NIC | what the broker holds | what a claim brings | to how many processes |
//! | --- | --- | --- | --- |
//! | `af_xdp:DEV` | the XDP program, its link and its maps | an AF_XDP socket for each queue, not bound yet, and its memory | as many as there are queues |
//! | `tap:DEV` | nothing | a descriptor for each queue | one |
//! | `memory:NAME` | nothing | the socket that peers attach to | one |
//!
//! Under AF_XDP the kernel stays the host: it answers ARP and ping, and takes what arrives on queues that nobody has
//! claimed. On the other two Abey is the host, and a host's neighbours and pings need one process that knows of them.

mod client;
mod protocol;
mod shared;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use client::{ClaimError, claim};
pub use protocol::{Listener, Peer, Reply, Request};
pub use shared::SharedNic;

use crate::af_xdp::{self, Protocol, Redirected};
use crate::memory::{self, MemoryEnd};
use crate::open::{Nic, NicName, OpenError, Options};
use crate::tap;

/// What a process that has claimed queue pairs asks of who gave them to it. Each may block for a moment.
pub trait Broker: fmt::Debug + Send + Sync {
    /// The queue pairs are ready for frames.
    ///
    /// # Errors
    /// When the broker is gone, or the kernel refuses.
    fn engage(&self) -> io::Result<()>;

    /// What of a port's traffic goes to the claimed queue pairs, as far as it arrives on their queues.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn redirect(&self, protocol: Protocol, port: u16, what: Redirected) -> io::Result<()>;

    /// Tells the kernel that a neighbour is in use (`NTF_USE`), so that it looks for it or after it.
    ///
    /// # Errors
    /// As for [`Self::engage`].
    fn use_neighbor(&self, address: IpAddr) -> io::Result<()>;

    /// Tells whoever runs the broker why this process cannot use its queue pairs: it may have no standard error of its own.
    ///
    /// # Errors
    /// When the broker is gone.
    fn complain(&self, why: &str) -> io::Result<()>;

    /// Gives the queue pairs back: no frame comes to them any more.
    fn give_back(&self);
}

/// Some or all of a NIC's queue pairs, as its broker gave them to this process.
#[derive(Debug)]
pub struct Claim {
    /// The numbers of the queues, ascending.
    pub queues: Vec<u32>,
    /// How many queues the NIC has.
    pub of: usize,
    /// What [`SharedNic::hand_out`] gave.
    pub descriptors: Vec<OwnedFd>,
    /// A listening socket at which this process can be asked how it is, where it has no place for one of its own.
    pub control: Option<OwnedFd>,
    /// Who gave them.
    pub broker: Arc<dyn Broker>,
}

/// Opens the queue pairs of a claim. Needs no privileges.
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
