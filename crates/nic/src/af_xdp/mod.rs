//! AF_XDP: the queues of a network device in user space, with the kernel as control plane.
//!
//! See Linux `Documentation/networking/af_xdp.rst`. Each queue has a socket of its own with its own buffers; an XDP program
//! ([`Ports`]) sends it the ports that were registered and leaves the rest to the kernel. The program is attached by a BPF
//! link, so it goes with the process however that ends; that may be another process than the one with the socket
//! ([`SharedNic`](crate::broker::SharedNic)). Frames are copied between the caller's buffers and the rings:
//! *zero copy* is about the kernel.
//!
//! An interrupt is the descriptor being readable (level-triggered), and masking is not waiting on it.

mod device;
mod filter;
mod ports;
mod program;
mod queue;
mod rings;
mod socket;

pub(crate) use device::XdpDevice;
pub use ports::{Ports, PortsError, Protocol, Redirected};
pub use queue::XdpQueue;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::broker::Claim;
use crate::interface::Interface;
use crate::open::OpenError;
use program::Program;
use socket::Socket;

/// Whether the kernel copies frames between driver and rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpCopy {
    /// As the driver can; [`Capabilities`](crate::Capabilities) tells which.
    #[default]
    Any,
    /// Always.
    Copy,
    /// Never; an error where the driver cannot.
    ZeroCopy,
}

/// How to open a device with AF_XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpShape {
    /// Sockets to open, for queues 0 and up; `None` for every receive queue of the device. What arrives on the other
    /// queues goes to the kernel, also for registered ports: whoever asks for fewer steers flows away from those.
    pub queues: Option<usize>,
    /// Frames in each ring: a power of two from 64 to 16,384.
    pub slots: u32,
    /// Whether frames are copied by the kernel.
    pub copy: XdpCopy,
    /// Run the program in the kernel's stack rather than in the driver, for drivers without XDP. Always copies.
    pub generic: bool,
}

impl Default for XdpShape {
    fn default() -> Self {
        Self { queues: None, slots: 1024, copy: XdpCopy::Any, generic: false }
    }
}

/// What opening gives: the queue pairs, the ports that come to them, and the Ethernet address.
type Opened = (Vec<XdpQueue>, Ports, [u8; 6]);

/// Opens the device, all of it in this process.
pub(crate) fn open(name: &str, shape: XdpShape) -> Result<Opened, OpenError> {
    let facts = Facts::ask(name, &shape)?;
    let open = |queue| Socket::open(&facts, queue, facts.socket()?, &shape);
    let sockets = (0..facts.queues as u32).map(open).collect::<Result<Vec<_>, _>>()?;
    let program = Program::load(&facts.device)?;
    for (queue, socket) in sockets.iter().enumerate() {
        program.set_socket(queue as u32, Some(socket.as_fd())).map_err(facts.failed("give its sockets to"))?;
    }
    // Only then does the device change.
    program.attach(facts.index, shape.generic)?;
    let ports = Ports::of_program(&facts.device, Arc::new(program));
    Ok((facts.queue_pairs(sockets, &ports), ports, facts.address))
}

/// Descriptors that a claim brings for each queue: its socket, and the memory that it has.
pub(crate) const DESCRIPTORS: usize = 2;

/// Opens the queues of a claim; the device is the broker's. Whether other processes have the rest of them.
pub(crate) fn open_claimed(
    name: &str,
    claim: Claim,
    shape: XdpShape,
) -> Result<(Vec<XdpQueue>, Ports, [u8; 6], bool), OpenError> {
    let shape = XdpShape { queues: Some(claim.of), ..shape };
    let facts = Facts::ask(name, &shape)?;
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
        sockets.push(Socket::open_claimed(&facts, queue, socket, &memory, &shape)?);
    }
    claim.broker.engage().map_err(facts.failed("have frames redirected from"))?;
    let ports = Ports::of_broker(&facts.device, claim.broker);
    Ok((facts.queue_pairs(sockets, &ports), ports, facts.address, is_part))
}

/// What is known about a device that is to be opened.
#[derive(Debug)]
struct Facts {
    /// As in `af_xdp:eth0`.
    device: String,
    interface: Arc<Interface>,
    index: u32,
    mtu: usize,
    address: [u8; 6],
    queues: usize,
}

impl Facts {
    /// Asks the kernel, once the shape is checked.
    fn ask(name: &str, shape: &XdpShape) -> Result<Self, OpenError> {
        if !(64..=16_384).contains(&shape.slots) || !shape.slots.is_power_of_two() {
            let reason = format!("{} slots, but an AF_XDP ring has a power of two from 64 to 16384", shape.slots);
            return Err(OpenError::Options { reason });
        }
        if shape.generic && shape.copy == XdpCopy::ZeroCopy {
            return Err(OpenError::Options {
                reason: "zero copy from a generic XDP program, which always copies".to_owned(),
            });
        }
        let device = format!("af_xdp:{name}");
        let failed = |source| OpenError::System { action: "ask about", device: device.clone(), source };
        let interface = Arc::new(Interface::new(name).map_err(failed)?);
        let index = interface.index().ok_or_else(|| OpenError::NoDevice { device: device.clone() })?;
        let mtu = interface.mtu().map_err(failed)?;
        let address = interface.hardware_address().map_err(failed)?;
        let queues = match shape.queues {
            Some(queues) => queues,
            None => interface.receive_queues().map_err(failed)?,
        };
        if !(1..=filter::MAX_QUEUES as usize).contains(&queues) {
            let reason = format!("{queues} queues of {name}, but AF_XDP has 1 to {}", filter::MAX_QUEUES);
            return Err(OpenError::Options { reason });
        }
        Ok(Self { device, interface, index, mtu, address, queues })
    }

    /// Bytes of each buffer.
    fn chunk(&self) -> Result<usize, OpenError> {
        let mtu = self.mtu;
        socket::chunk_for(mtu).ok_or_else(|| OpenError::Refused {
            device: self.device.clone(),
            reason: format!("its MTU is {mtu} bytes and AF_XDP frames are shorter than a page; make it 3500 or less"),
        })
    }

    /// A new AF_XDP socket in this network namespace, not bound yet. Making one needs CAP_NET_RAW; using it does not.
    fn socket(&self) -> Result<OwnedFd, OpenError> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
        socket.map_err(|error| socket::refusal(&self.device, None, XdpCopy::Any, error.into()))
    }

    fn queue_pairs(&self, sockets: Vec<Socket>, ports: &Ports) -> Vec<XdpQueue> {
        let queues = sockets.len();
        let queue = |socket| XdpQueue::new(socket, self.interface.clone(), ports, self.mtu, queues);
        sockets.into_iter().map(queue).collect()
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> OpenError + use<> {
        let device = self.device.clone();
        move |source| OpenError::System { action, device: device.clone(), source }
    }
}
