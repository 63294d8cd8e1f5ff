//! AF_XDP: the queues of a network device in user space.
//!
//! See Linux `Documentation/networking/af_xdp.rst`. Each queue has a socket of its own with its own buffers; an XDP program
//! ([`Ports`]) redirects the packets of registered ports to it and passes the rest to the kernel. The program is attached by
//! a BPF link, which the kernel removes when the process ends; that may be another process than the one with the socket
//! ([`SharedNic`](crate::broker::SharedNic)). Frames are copied between the caller's buffers and the rings; *zero copy* means
//! that the kernel does not copy them.
//!
//! The interrupt is the readable descriptor (level-triggered), and masked means that the caller does not poll it.

mod addresses;
mod device;
mod facts;
mod filter;
mod flows;
mod handover;
mod holder;
mod inject;
mod offer_program;
mod offers;
mod ports;
mod program;
mod queue;
mod rings;
mod shape;
mod socket;
#[cfg(test)]
mod verdicts;

pub(crate) use device::XdpDevice;
pub use offers::Handshake;
pub use ports::{Ports, PortsError};
pub use queue::XdpQueue;
pub use shape::{XdpCopy, XdpShape};
pub(crate) use socket::HandedOut;

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::claim::Claim;
use crate::error::OpenError;
use facts::Facts;
use program::Program;
use socket::Socket;

/// An opened device: its queue pairs, its ports, and its Ethernet address.
type Opened = (Vec<XdpQueue>, Ports, [u8; 6]);

/// Opens a device for this process alone.
pub(crate) fn open(name: &str, shape: XdpShape) -> Result<Opened, OpenError> {
    let facts = Facts::read(name, &shape)?;
    let open = |queue| Socket::open(&facts, queue, socket::create(&facts)?, &shape);
    let sockets = (0..facts.queues as u32).map(open).collect::<Result<Vec<_>, _>>()?;
    let program = Program::load(&facts.device)?;
    for (queue, socket) in sockets.iter().enumerate() {
        program.set_socket(queue as u32, Some(socket.as_fd())).map_err(facts.failed("give its sockets to"))?;
    }
    // The device is changed last.
    program.attach(facts.index, shape.generic)?;
    let ports = Ports::of_program(&facts.device, facts.index, Arc::new(program));
    Ok((queue_pairs(&facts, sockets, &ports), ports, facts.address))
}

/// Number of descriptors of each queue in a claim: its socket and its memory.
pub(crate) const DESCRIPTORS: usize = 2;

/// Opens the queues of a claim. Also returns whether other processes have some of the queues.
pub(crate) fn open_claimed(
    name: &str,
    claim: Claim,
    shape: XdpShape,
) -> Result<(Vec<XdpQueue>, Ports, [u8; 6], bool), OpenError> {
    let shape = XdpShape { queues: Some(claim.of), ..shape };
    let facts = Facts::read(name, &shape)?;
    let fits = claim.queues.iter().all(|queue| (*queue as usize) < claim.of);
    if claim.descriptors.len() != DESCRIPTORS * claim.queues.len() || claim.queues.is_empty() || !fits {
        let (sent, queues) = (claim.descriptors.len(), claim.queues.len());
        let reason = format!("its broker sent {sent} descriptors for {queues} queues");
        return Err(OpenError::Refused { device: facts.device, reason });
    }
    let is_part = claim.queues.len() < claim.of;
    let mut descriptors = claim.descriptors.into_iter();
    let mut sockets = Vec::with_capacity(claim.queues.len());
    for queue in claim.queues {
        let (socket, memory) = descriptors.next().zip(descriptors.next()).expect("they were counted");
        let socket = (socket, claim.is_bound);
        sockets.push(Socket::open_claimed(&facts, queue, socket, &memory, &shape)?);
    }
    claim.broker.engage().map_err(facts.failed("have frames redirected from"))?;
    let ports = Ports::of_broker(&facts.device, claim.broker);
    Ok((queue_pairs(&facts, sockets, &ports), ports, facts.address, is_part))
}

fn queue_pairs(facts: &Facts, sockets: Vec<Socket>, ports: &Ports) -> Vec<XdpQueue> {
    let queues = sockets.len();
    let queue = |socket| XdpQueue::new(socket, facts.interface.clone(), ports, facts.mtu, queues);
    sockets.into_iter().map(queue).collect()
}
