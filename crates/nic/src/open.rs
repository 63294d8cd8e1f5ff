//! Opens a NIC by its name: `memory:NAME`, `tap:DEV` or `af_xdp:DEV`.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::af_xdp::{self, Ports, XdpShape};
use crate::interface::problem_with_name;
use crate::memory::{self, MemoryEnd, MemoryNic, MemoryShape};
use crate::queue::QueuePair;
use crate::rss::Rss;
use crate::tap;

/// The name of a NIC, parsed and validated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NicName {
    /// `memory:NAME`: the shared-memory NIC of that name.
    Memory(String),
    /// `tap:DEV`: the TAP device of that name.
    Tap(String),
    /// `af_xdp:DEV`: the queues of that network device through AF_XDP.
    AfXdp(String),
}

/// Longest name of a shared-memory NIC: its socket has room for little more.
const MEMORY_NAME: usize = 64;

/// Why a text is not the name of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no NIC: {reason}")]
pub struct ParseNicError {
    name: String,
    reason: String,
}

impl FromStr for NicName {
    type Err = ParseNicError;

    fn from_str(text: &str) -> Result<Self, ParseNicError> {
        let wrong = |reason: &str| ParseNicError { name: text.to_owned(), reason: reason.to_owned() };
        let forms = "write memory:NAME, tap:DEV or af_xdp:DEV";
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong(forms))?;
        match kind {
            "memory" => {
                let valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if rest.is_empty() || rest.len() > MEMORY_NAME || !rest.chars().all(valid) {
                    return Err(wrong("NAME is 1 to 64 letters, digits, `-`, `_` and `.`"));
                }
                Ok(Self::Memory(rest.to_owned()))
            }
            "tap" | "af_xdp" => match problem_with_name(rest) {
                Some(problem) => Err(wrong(problem)),
                None if kind == "tap" => Ok(Self::Tap(rest.to_owned())),
                None => Ok(Self::AfXdp(rest.to_owned())),
            },
            _ => Err(wrong(forms)),
        }
    }
}

impl fmt::Display for NicName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(name) => write!(formatter, "memory:{name}"),
            Self::Tap(device) => write!(formatter, "tap:{device}"),
            Self::AfXdp(device) => write!(formatter, "af_xdp:{device}"),
        }
    }
}

/// How to open a NIC. Parts that are about another kind of NIC have no effect.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Queue pairs of a TAP device.
    pub tap_queues: usize,
    /// How to open a device with AF_XDP.
    pub xdp: XdpShape,
    /// Which end of a shared-memory NIC to be.
    pub end: MemoryEnd,
    /// The shape of a shared-memory NIC that is created.
    pub memory: MemoryShape,
}

impl Default for Options {
    fn default() -> Self {
        Self { tap_queues: 1, xdp: XdpShape::default(), end: MemoryEnd::default(), memory: MemoryShape::default() }
    }
}

/// Why a NIC could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text names no NIC.
    #[error(transparent)]
    Name(#[from] ParseNicError),
    /// The options are not possible.
    #[error("the options ask for {reason}")]
    Options {
        /// What is wrong.
        reason: String,
    },
    /// The device is not there.
    #[error("there is no device for {device}: `ip link` lists the ones of this network namespace")]
    NoDevice {
        /// The NIC.
        device: String,
    },
    /// The device is there but not for us.
    #[error("opening {device} is not allowed: run as root, or with {needs}")]
    Permission {
        /// The NIC.
        device: String,
        /// The capability that is lacking.
        needs: &'static str,
    },
    /// Another process created the NIC.
    #[error("{device} is in use already: stop the process that has it, or attach to it if it is a shared-memory NIC")]
    InUse {
        /// The NIC.
        device: String,
    },
    /// Nobody created the NIC.
    #[error("there is no {device}: start the process that creates it first, as the same user on the same machine")]
    Nobody {
        /// The NIC.
        device: String,
    },
    /// The device, or the process at the other end, does not want us or cannot do what was asked for.
    #[error("cannot open {device}: {reason}")]
    Refused {
        /// The NIC.
        device: String,
        /// Why.
        reason: String,
    },
    /// The system refused something.
    #[error("cannot {action} {device}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The NIC.
        device: String,
        /// What the system said.
        source: io::Error,
    },
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
        // Locally administered; the two ends of one wire must differ, and do.
        let address = [0x02, 0xab, 0xe7, 0, 0, end];
        let rss = Rss::new(nic.shape.key, nic.shape.queues as u32);
        Self::new(name, address, Some(rss), None, nic.queues, false)
    }

    /// Its name.
    pub fn name(&self) -> &NicName {
        &self.name
    }

    /// The Ethernet address that frames from this end should have.
    pub fn hardware_address(&self) -> [u8; 6] {
        self.address
    }

    /// How frames to this end are steered to its queues, where that is known: whoever opens a connection can then tell
    /// on which queue its packets will arrive.
    pub fn rss(&self) -> Option<&Rss> {
        self.rss.as_ref()
    }

    /// The ports the NIC takes from the kernel, where it shares the device with it (AF_XDP): at first none. `None` where
    /// every frame is ours.
    pub fn ports(&self) -> Option<&Ports> {
        self.ports.as_ref()
    }

    /// Whether other processes have some of the NIC's queue pairs, so that frames for this one's sockets may arrive where
    /// they are not seen here.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// How many queue pairs there are to take.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The queue pairs, to be used or wrapped; may move to threads of their own. The second call gives none.
    pub fn take_queues(&mut self) -> Vec<Box<dyn QueuePair>> {
        std::mem::take(&mut self.queues)
    }
}

/// Opens the NIC called `name`.
///
/// # Errors
/// When the name is none, the device is not there, or the system refuses; each says what to do.
pub fn open(name: &str, options: &Options) -> Result<Nic, OpenError> {
    let name: NicName = name.parse()?;
    match &name {
        NicName::Memory(memory) => {
            let nic = memory::open(memory, options.end, options.memory)?;
            Ok(Nic::of_memory(name, nic, options.end))
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
