//! AF_XDP: the queues of a network device in user space, with the kernel as control plane.
//!
//! See Linux `Documentation/networking/af_xdp.rst`. Each queue has a socket of its own with its own buffers; an XDP program
//! ([`Ports`]) sends it the ports that were registered and leaves the rest to the kernel. The program is attached by a BPF
//! link, so it goes with the process however that ends. Frames are copied between the caller's buffers and the rings:
//! *zero copy* is about the kernel.
//!
//! An interrupt is the descriptor being readable (level-triggered), and masking is not waiting on it.

mod assembler;
mod filter;
mod ports;
mod queue;
mod rings;
mod socket;

pub use ports::{Ports, PortsError, Protocol};
pub use queue::XdpQueue;

use std::sync::Arc;

use crate::interface::Interface;
use crate::open::OpenError;

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

/// Opens the device.
pub(crate) fn open(name: &str, shape: XdpShape) -> Result<(Vec<XdpQueue>, Ports, [u8; 6]), OpenError> {
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
    let failed = |action| {
        let device = device.clone();
        move |source| OpenError::System { action, device, source }
    };
    let interface = Arc::new(Interface::new(name).map_err(failed("ask about"))?);
    let index = interface.index().ok_or_else(|| OpenError::NoDevice { device: device.clone() })?;
    let mtu = interface.mtu().map_err(failed("ask about"))?;
    let address = interface.hardware_address().map_err(failed("ask about"))?;
    let queues = match shape.queues {
        Some(queues) => queues,
        None => interface.receive_queues().map_err(failed("ask about"))?,
    };
    if !(1..=filter::MAX_QUEUES as usize).contains(&queues) {
        let reason = format!("{queues} queues of {name}, but AF_XDP has 1 to {}", filter::MAX_QUEUES);
        return Err(OpenError::Options { reason });
    }
    let open = |queue| socket::Socket::open(&device, index, queue, mtu, &shape);
    let sockets = (0..queues as u32).map(open).collect::<Result<Vec<_>, _>>()?;
    // Only then does the device change.
    let ports = Ports::attach(&device, index, shape.generic, &sockets)?;
    let queue = |socket| XdpQueue::new(socket, interface.clone(), &ports, mtu, queues);
    Ok((sockets.into_iter().map(queue).collect(), ports, address))
}
