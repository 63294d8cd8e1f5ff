//! The part of an AF_XDP device that is there once, whoever has its queues.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::program::Program;
use super::{Facts, PortsError, Protocol, Redirected, XdpShape, socket};
use crate::open::OpenError;

/// A network device with its XDP program attached, whose sockets are other processes'.
#[derive(Debug)]
pub(crate) struct XdpDevice {
    facts: Facts,
    shape: XdpShape,
    program: Program,
}

impl XdpDevice {
    /// Attaches the program, which leaves everything to the kernel at first.
    pub(crate) fn open(name: &str, shape: XdpShape) -> Result<Self, OpenError> {
        let facts = Facts::ask(name, &shape)?;
        let program = Program::load(&facts.device)?;
        program.attach(facts.index, shape.generic)?;
        Ok(Self { facts, shape, program })
    }

    pub(crate) fn queues(&self) -> usize {
        self.facts.queues
    }

    /// A socket to hand out, and its memory.
    pub(crate) fn socket(&self) -> Result<(OwnedFd, OwnedFd), OpenError> {
        socket::socket_to_hand_out(&self.facts, &self.shape)
    }

    pub(crate) fn set_socket(&self, queue: u32, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.program.set_socket(queue, socket)
    }

    /// What of a port's traffic on these queues goes to their sockets.
    pub(crate) fn set_port(
        &self,
        protocol: Protocol,
        port: u16,
        queues: &[u32],
        what: Redirected,
    ) -> Result<(), PortsError> {
        let change = self.program.change_port(protocol, port, |entry| {
            for (bits, on) in entry.iter_mut().zip(what.open_and_flows()) {
                for queue in queues {
                    let (byte, bit) = (*queue as usize / 8, 1 << (queue % 8));
                    bits[byte] = if on { bits[byte] | bit } else { bits[byte] & !bit };
                }
            }
        });
        change.map_err(|source| PortsError { device: self.facts.device.clone(), protocol, port, source })
    }
}
