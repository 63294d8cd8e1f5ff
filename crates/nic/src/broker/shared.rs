//! What a broker holds of a NIC.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::af_xdp::{self, PortsError, Protocol, Redirected, XdpDevice};
use crate::memory;
use crate::message::MAX_DESCRIPTORS;
use crate::open::{NicName, OpenError, Options};
use crate::tap;

/// A NIC whose queue pairs are for other processes. Dropping it takes the XDP program with it.
#[derive(Debug)]
pub struct SharedNic {
    name: NicName,
    options: Options,
    xdp: Option<XdpDevice>,
    /// The AF_XDP sockets that were handed out, by queue.
    sockets: Vec<Option<OwnedFd>>,
    queues: usize,
}

impl SharedNic {
    /// Opens what is shared of the NIC called `name`, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the name is none, the device is not there, or the system refuses; each says what to do.
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
        let most = (MAX_DESCRIPTORS - 1) / af_xdp::DESCRIPTORS;
        if queues > most {
            let reason = format!("{queues} queues, but at most {most} can be given to other processes");
            return Err(OpenError::Options { reason });
        }
        let sockets = (0..queues).map(|_| None).collect();
        Ok(Self { name: name.clone(), options: *options, xdp, sockets, queues })
    }

    /// How many queue pairs there are.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Whether several processes can each have some of the queue pairs; otherwise one has all of them.
    pub fn is_divisible(&self) -> bool {
        self.xdp.is_some()
    }

    /// What a process needs to open these queue pairs, of which none is handed out.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When it is not all of them and the NIC is not divisible.
    pub fn hand_out(&mut self, queues: &[u32]) -> Result<Vec<OwnedFd>, OpenError> {
        assert!(self.is_divisible() || queues.len() == self.queues, "{} goes to one process", self.name);
        match (&self.xdp, &self.name) {
            (Some(device), _) => {
                let mut handed = Vec::with_capacity(queues.len());
                for queue in queues {
                    let (socket, memory) = device.socket()?;
                    handed.push(socket.try_clone().map_err(|source| self.failed("share a socket of", source))?);
                    handed.push(memory);
                    self.sockets[*queue as usize] = Some(socket);
                }
                Ok(handed)
            }
            (None, NicName::Tap(device)) => tap::attach_queues(device, self.options.tap_queues),
            (None, NicName::Memory(name)) => Ok(vec![memory::listener(name)?]),
            (None, NicName::AfXdp(_)) => unreachable!("an AF_XDP device has its program"),
        }
    }

    /// Frames may come to these queue pairs.
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

    /// No more frames for these queue pairs: what arrives there is the kernel's.
    pub fn take_back(&mut self, queues: &[u32]) {
        let Some(device) = &self.xdp else { return };
        for queue in queues {
            // One that was not in the map is no error that matters.
            let _ = device.set_socket(*queue, None);
            self.sockets[*queue as usize] = None;
        }
    }

    /// What of a port's traffic on these queues goes to their queue pairs; the rest is the kernel's.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_port(&self, protocol: Protocol, port: u16, queues: &[u32], what: Redirected) -> Result<(), PortsError> {
        self.xdp.as_ref().map_or(Ok(()), |device| device.set_port(protocol, port, queues, what))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> OpenError {
        OpenError::System { action, device: self.name.to_string(), source }
    }
}
