//! Properties of a device that is to be opened with AF_XDP.

use std::io;
use std::sync::Arc;

use super::filter;
use super::shape::{XdpCopy, XdpShape};
use crate::error::OpenError;
use crate::frame::ETHERNET_HEADER;
use crate::interface::Interface;

/// Bytes that the kernel leaves free in front of each received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

/// Properties of a device that is to be opened.
#[derive(Debug)]
pub(super) struct Facts {
    /// Name, such as `af_xdp:eth0`.
    pub(super) device: String,
    pub(super) interface: Arc<Interface>,
    pub(super) index: u32,
    pub(super) mtu: usize,
    pub(super) address: [u8; 6],
    pub(super) queues: usize,
}

impl Facts {
    /// Checks the shape and reads the properties from the kernel.
    pub(super) fn read(name: &str, shape: &XdpShape) -> Result<Self, OpenError> {
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
        let failed = |source| OpenError::System { action: "read the properties of", device: device.clone(), source };
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

    /// Returns the length of each buffer in bytes.
    pub(super) fn chunk(&self) -> Result<usize, OpenError> {
        let mtu = self.mtu;
        chunk_for(mtu).ok_or_else(|| OpenError::Refused {
            device: self.device.clone(),
            reason: format!("its MTU is {mtu} bytes and AF_XDP frames are shorter than a page; make it 3500 or less"),
        })
    }

    /// Returns a conversion of system errors, with what was attempted.
    pub(super) fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> OpenError + use<> {
        let device = self.device.clone();
        move |source| OpenError::System { action, device: device.clone(), source }
    }
}

/// Returns the size of a buffer that holds a frame of this MTU; `None` when only more than a page would.
fn chunk_for(mtu: usize) -> Option<usize> {
    [2048, 4096].into_iter().find(|chunk| HEADROOM + ETHERNET_HEADER + 4 + mtu <= *chunk)
}
