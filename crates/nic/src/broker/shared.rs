//! The broker's part of a NIC.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use crate::af_xdp::{self, HandedOut, Handshake, PortsError, XdpDevice};
use crate::error::OpenError;
use crate::memory;
use crate::message::MAX_DESCRIPTORS;
use crate::name::NicName;
use crate::open::Options;
use crate::redirect::{Protocol, Redirected};
use crate::tap;

/// A NIC with queue pairs for other processes. Dropping it detaches the XDP program.
#[derive(Debug)]
pub struct SharedNic {
    name: NicName,
    options: Options,
    xdp: Option<XdpDevice>,
    /// The AF_XDP sockets that were granted, by queue.
    sockets: Vec<Option<OwnedFd>>,
    queues: usize,
}

impl SharedNic {
    /// Opens the shared part of a NIC, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no such device, or the system refuses.
    pub fn open(name: &NicName, options: &Options) -> Result<Self, OpenError> {
        let xdp = match name {
            NicName::AfXdp(device) => Some(XdpDevice::open(device, options.xdp)?),
            _ => None,
        };
        let queues = match (&xdp, name) {
            (Some(device), _) => device.queues(),
            (None, NicName::Tap(_)) => options.tap_queues,
            (None, _) => options.memory.queues,
        };
        let max = (MAX_DESCRIPTORS - 1) / af_xdp::DESCRIPTORS;
        if queues > max {
            let reason = format!("{queues} queues, but at most {max} can be shared with other processes");
            return Err(OpenError::Options { reason });
        }
        let sockets = (0..queues).map(|_| None).collect();
        Ok(Self { name: name.clone(), options: *options, xdp, sockets, queues })
    }

    /// Returns the number of queue pairs.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Returns whether several processes can have some queue pairs each; otherwise one process has all.
    pub fn is_divisible(&self) -> bool {
        self.xdp.is_some()
    }

    /// Returns the descriptors with which a process opens these queue pairs, none of which another process has, and whether
    /// AF_XDP sockets among them are [bound](crate::broker::Claim::is_bound). `is_own` says whether the process runs as the
    /// user of this one, and so has its privileges.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When these are not all queue pairs and the NIC is not divisible.
    pub fn hand_out(&mut self, queues: &[u32], is_own: bool) -> Result<(Vec<OwnedFd>, bool), OpenError> {
        assert!(self.is_divisible() || queues.len() == self.queues, "{} is for one process", self.name);
        match (&self.xdp, &self.name) {
            (Some(device), _) => {
                let mut handed = Vec::with_capacity(queues.len());
                let mut all_bound = true;
                for queue in queues {
                    let HandedOut { socket, memory, is_bound } = device.socket(*queue, is_own)?;
                    all_bound &= is_bound;
                    handed.push(socket.try_clone().map_err(|source| self.failed("share a socket of", source))?);
                    handed.push(memory);
                    self.sockets[*queue as usize] = Some(socket);
                }
                Ok((handed, all_bound))
            }
            (None, NicName::Tap(device)) => tap::attach_queues(device, self.options.tap_queues).map(|fds| (fds, false)),
            (None, NicName::Memory(name)) => Ok((vec![memory::listener(name)?], false)),
            (None, NicName::Hairpin) => Ok((Vec::new(), false)),
            (None, NicName::AfXdp(_)) => unreachable!("an AF_XDP device has its program"),
        }
    }

    /// Lets frames arrive on these queue pairs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn engage(&self, queues: &[u32]) -> io::Result<()> {
        let Some(device) = &self.xdp else { return Ok(()) };
        for queue in queues {
            if let Some(socket) = &self.sockets[*queue as usize] {
                device.set_socket(*queue, Some(socket.as_fd()))?;
            }
        }
        Ok(())
    }

    /// Takes these queue pairs back: the kernel receives their frames.
    pub fn take_back(&mut self, queues: &[u32]) {
        let Some(device) = &self.xdp else { return };
        for queue in queues {
            // It fails for a socket that was not in the map.
            let _ = device.set_socket(*queue, None);
            self.sockets[*queue as usize] = None;
        }
    }

    /// Sets which packets of a port go to the queue pairs of these queues; the kernel gets the others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_port(&self, protocol: Protocol, port: u16, queues: &[u32], what: Redirected) -> Result<(), PortsError> {
        self.xdp.as_ref().map_or(Ok(()), |device| device.set_port(protocol, port, queues, what))
    }

    /// Sets whether packets to an address are redirected to the queue pairs of these queues.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn serve(&self, address: IpAddr, queues: &[u32], on: bool) -> io::Result<()> {
        self.xdp.as_ref().map_or(Ok(()), |device| device.serve(address, queues, on))
    }

    /// Sets whether the segments of a TCP connection of which the kernel has a socket are passed to it. They are from the
    /// beginning.
    ///
    /// # Errors
    /// When the kernel refuses, or the NIC is not shared with it.
    pub fn pass_flow(&self, local: SocketAddr, remote: SocketAddr, on: bool) -> io::Result<()> {
        match &self.xdp {
            Some(device) if on => device.release_flow(local, remote),
            Some(device) => device.hold_flow(local, remote),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Prepares [`Self::offer`].
    ///
    /// # Errors
    /// EOPNOTSUPP if the kernel takes no offers; the NIC is not shared with the kernel.
    pub fn prepare_offers(&self) -> io::Result<()> {
        let unsupported = || Err(io::ErrorKind::Unsupported.into());
        self.xdp.as_ref().map_or_else(unsupported, XdpDevice::prepare_offers)
    }

    /// Lets the kernel's listener accept a connection, as [`Ports::offer`](crate::Ports::offer).
    ///
    /// # Errors
    /// Those of that call, or the NIC is not shared with the kernel.
    pub fn offer(&self, flow: (SocketAddr, SocketAddr), handshake: &Handshake, ack: Option<&[u8]>) -> io::Result<()> {
        let unsupported = || Err(io::ErrorKind::Unsupported.into());
        self.xdp.as_ref().map_or_else(unsupported, |device| device.offer(flow, handshake, ack))
    }

    /// Gives a frame to the kernel as if the device had received it.
    ///
    /// # Errors
    /// When the kernel refuses, or the NIC is not shared with it.
    pub fn inject(&self, frame: &[u8]) -> io::Result<()> {
        self.xdp.as_ref().map_or_else(|| Err(io::ErrorKind::Unsupported.into()), |device| device.inject(frame))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> OpenError {
        OpenError::System { action, device: self.name.to_string(), source }
    }
}
