//! The part of an AF_XDP device that exists once, even if several processes have its queues.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use super::facts::Facts;
use super::filter::Queues;
use super::offers::Handshake;
use super::ports::PortsError;
use super::program::Program;
use super::shape::XdpShape;
use super::socket::{self, HandedOut};
use crate::error::OpenError;
use crate::redirect::{Protocol, Redirected};

/// A network device with its XDP program, for sockets of other processes.
#[derive(Debug)]
pub(crate) struct XdpDevice {
    facts: Facts,
    shape: XdpShape,
    program: Program,
}

impl XdpDevice {
    /// Attaches the program, which passes everything to the kernel at first.
    pub(crate) fn open(name: &str, shape: XdpShape) -> Result<Self, OpenError> {
        let facts = Facts::read(name, &shape)?;
        let program = Program::load(&facts.device)?;
        program.attach(facts.index, shape.generic)?;
        Ok(Self { facts, shape, program })
    }

    pub(crate) fn queues(&self) -> usize {
        self.facts.queues
    }

    /// Creates a socket of a queue for another process, and its memory.
    pub(crate) fn socket(&self, queue: u32, allows_unbound: bool) -> Result<HandedOut, OpenError> {
        socket::socket_to_hand_out(&self.facts, queue, &self.shape, allows_unbound)
    }

    pub(crate) fn set_socket(&self, queue: u32, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.program.set_socket(queue, socket)
    }

    /// Redirects the segments of a TCP connection even if the kernel has a socket of it.
    pub(crate) fn hold_flow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.program.hold_flow(local, remote)
    }

    /// Prepares [`Self::offer`].
    pub(crate) fn prepare_offers(&self) -> io::Result<()> {
        self.program.prepare_offers(self.facts.index)
    }

    /// Offers a connection to the kernel's listener.
    pub(crate) fn offer(
        &self,
        flow: (SocketAddr, SocketAddr),
        handshake: &Handshake,
        ack: Option<&[u8]>,
    ) -> io::Result<()> {
        self.program.offer(self.facts.index, flow, handshake, ack)
    }

    /// Ends [`Self::hold_flow`].
    pub(crate) fn release_flow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.program.release_flow(local, remote)
    }

    /// Sets whether packets to an address are redirected on these queues.
    pub(crate) fn serve(&self, address: IpAddr, queues: &[u32], on: bool) -> io::Result<()> {
        self.program.change_address(address, |bits| set_bits(bits, queues, on))
    }

    /// Gives a frame to the kernel as if the device had received it.
    pub(crate) fn inject(&self, frame: &[u8]) -> io::Result<()> {
        self.program.inject(self.facts.index, frame)
    }

    /// Sets which packets of a port on these queues go to their sockets.
    pub(crate) fn set_port(
        &self,
        protocol: Protocol,
        port: u16,
        queues: &[u32],
        what: Redirected,
    ) -> Result<(), PortsError> {
        let change = self.program.change_port(protocol, port, |entry| {
            for (bits, on) in entry.iter_mut().zip(what.open_and_flows()) {
                set_bits(bits, queues, on);
            }
        });
        change.map_err(|source| PortsError { device: self.facts.device.clone(), protocol, port, source })
    }
}

/// Adds queues to a set, or removes them.
fn set_bits(bits: &mut Queues, queues: &[u32], on: bool) {
    for queue in queues {
        let (byte, bit) = (*queue as usize / 8, 1 << (queue % 8));
        bits[byte] = if on { bits[byte] | bit } else { bits[byte] & !bit };
    }
}
