//! Packet queues: a shared-memory NIC, TAP and AF_XDP behind one trait, and decorators that wrap any of them.
//!
//! [`open()`] returns the [`QueuePair`]s of a NIC by its name. [`Pcap`] and [`Impaired`] wrap any of them. [`pair`] returns
//! both ends of a NIC in one process, for tests:
//!
//! ```
//! use abey_nic::{Frame, MemoryShape, QueuePair, pair};
//!
//! let (mut left, mut right) = pair(MemoryShape::default())?;
//! let (left, right) = (&mut left[0], &mut right[0]);
//!
//! // No frame yet: the interrupt is armed, and a thread would now sleep on the descriptor.
//! right.acknowledge()?;
//! assert!(!right.unmask());
//!
//! left.transmit(&[Frame::from(&[0xff; 60][..])])?;
//! left.kick()?;
//!
//! // Interrupt: mask, then poll until the ring is empty.
//! assert!(right.acknowledge()?);
//! right.mask();
//! let mut burst = Frame::burst(64, right.capabilities().mtu);
//! assert_eq!(right.receive(&mut burst)?, 1);
//! assert_eq!(*burst[0], [0xff; 60]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod broker;
pub mod checksum;
pub mod credentials;
pub mod ring;
pub mod rss;

pub mod accept;
mod af_xdp;
mod claim;
mod counters;
mod error;
mod frame;
mod hairpin;
mod headers;
mod impaired;
mod interface;
mod memory;
pub mod message;
mod name;
mod open;
mod pcap;
mod port_holder;
mod queue;
mod redirect;
pub mod repair;
mod sock_diag;
mod sockopt;
mod tap;

pub use af_xdp::{Handshake, Ports, PortsError, XdpCopy, XdpQueue, XdpShape};
pub use counters::{Counters, Drops};
pub use error::OpenError;
pub use frame::{Checksum, ETHERNET_HEADER, Frame};
pub use hairpin::HairpinQueue;
pub use impaired::{Impaired, Impairment};
pub use memory::{MAX_QUEUES, MemoryEnd, MemoryQueue, MemoryShape, pair};
pub use name::{MemoryName, NicName, ParseNicError};
pub use open::{Nic, Options, open};
pub use pcap::{Pcap, Recording};
pub use port_holder::PortHolders;
pub use queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};
pub use redirect::{Protocol, Redirected};
pub use tap::TapQueue;
