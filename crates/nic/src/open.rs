//! Opens a NIC by its name: `memory:NAME`, `memory:self`, `tap:DEV` or `af_xdp:DEV`.

use crate::af_xdp::{self, Ports, XdpShape};
use crate::error::OpenError;
use crate::hairpin;
use crate::memory::{self, MemoryEnd, MemoryNic, MemoryShape};
use crate::name::NicName;
use crate::queue::QueuePair;
use crate::rss::Rss;
use crate::tap;

/// Options for opening a NIC. Those of other kinds of NIC have no effect.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Number of queue pairs of a TAP device.
    pub tap_queues: usize,
    /// Options for opening a device with AF_XDP.
    pub xdp: XdpShape,
    /// Which end of a shared-memory NIC to open.
    pub end: MemoryEnd,
    /// The shape of a shared-memory NIC that is created.
    pub memory: MemoryShape,
}

impl Default for Options {
    fn default() -> Self {
        Self { tap_queues: 1, xdp: XdpShape::default(), end: MemoryEnd::default(), memory: MemoryShape::default() }
    }
}

/// An open NIC.
#[derive(Debug)]
pub struct Nic {
    name: NicName,
    address: [u8; 6],
    rss: Option<Rss>,
    ports: Option<Ports>,
    queues: Vec<Box<dyn QueuePair>>,
    is_part: bool,
}

impl Nic {
    pub(crate) fn new<Q: QueuePair + 'static>(
        name: NicName,
        address: [u8; 6],
        rss: Option<Rss>,
        ports: Option<Ports>,
        queues: Vec<Q>,
        is_part: bool,
    ) -> Self {
        let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
        Self { name, address, rss, ports, queues, is_part }
    }

    pub(crate) fn of_memory(name: NicName, nic: MemoryNic, end: MemoryEnd) -> Self {
        let end = match end {
            MemoryEnd::Create => 1,
            MemoryEnd::Attach => 2,
        };
        // Locally administered (IEEE 802); the last byte differs at the two ends.
        let address = [0x02, 0xab, 0xe7, 0, 0, end];
        let rss = Rss::new(nic.shape.key, nic.shape.queues as u32);
        Self::new(name, address, Some(rss), None, nic.queues, false)
    }

    /// Returns the name.
    pub fn name(&self) -> &NicName {
        &self.name
    }

    /// Returns the Ethernet address for frames from this end.
    pub fn hardware_address(&self) -> [u8; 6] {
        self.address
    }

    /// Returns how frames to this end are steered to its queues, where that is known. With it a client can choose the
    /// queue on which the packets of a connection arrive.
    pub fn rss(&self) -> Option<&Rss> {
        self.rss.as_ref()
    }

    /// Returns the ports that are redirected from the kernel to the NIC, where both share the device (AF_XDP); `None` for a
    /// NIC that receives every frame.
    pub fn ports(&self) -> Option<&Ports> {
        self.ports.as_ref()
    }

    /// Returns whether other processes have some of the NIC's queue pairs, so that frames for sockets of this process may
    /// arrive on queues of another one.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// Returns the number of queue pairs that were not taken yet.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Takes the queue pairs. A second call returns none.
    pub fn take_queues(&mut self) -> Vec<Box<dyn QueuePair>> {
        std::mem::take(&mut self.queues)
    }
}

/// Opens the NIC called `name`.
///
/// # Errors
/// [`OpenError`]
pub fn open(name: &str, options: &Options) -> Result<Nic, OpenError> {
    let name: NicName = name.parse()?;
    match &name {
        NicName::Memory(memory) => {
            let nic = memory::open(memory, options.end, options.memory)?;
            Ok(Nic::of_memory(name, nic, options.end))
        }
        NicName::Hairpin => {
            let queues = hairpin::open(options.memory.queues)?;
            Ok(Nic::new(name, hairpin::ADDRESS, None, None, queues, false))
        }
        NicName::Tap(device) => {
            let (queues, address) = tap::open(device, options.tap_queues)?;
            Ok(Nic::new(name, address, None, None, queues, false))
        }
        NicName::AfXdp(device) => {
            let (queues, ports, address) = af_xdp::open(device, options.xdp)?;
            Ok(Nic::new(name, address, None, Some(ports), queues, false))
        }
    }
}
