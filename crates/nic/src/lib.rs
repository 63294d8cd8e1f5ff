//! Packet queues: a shared-memory NIC, TAP and AF_XDP behind one trait, and decorators that wrap any of them.
//!
//! [`open()`] gives the [`QueuePair`]s of a NIC by its name. [`Pcap`] and [`Impaired`] wrap any of them; [`pair`] is two
//! ends in one process, for tests:
//!
//! ```
//! use abey_nic::{Frame, MemoryShape, QueuePair, pair};
//!
//! let (mut left, mut right) = pair(MemoryShape::default())?;
//! let (left, right) = (&mut left[0], &mut right[0]);
//!
//! // Nothing there: the interrupt is armed, and a thread would sleep on the descriptor now.
//! right.acknowledge()?;
//! assert!(!right.unmask());
//!
//! left.transmit(&[Frame::from(&[0xff; 60][..])])?;
//! left.kick()?;
//!
//! // Interrupt: mask, then poll until there is nothing more.
//! assert!(right.acknowledge()?);
//! right.mask();
//! let mut burst = Frame::burst(64, right.capabilities().mtu);
//! assert_eq!(right.receive(&mut burst)?, 1);
//! assert_eq!(*burst[0], [0xff; 60]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bpf;
pub mod broker;
pub mod checksum;
pub mod ring;
pub mod rss;

mod af_xdp;
mod counters;
mod frame;
mod headers;
mod impaired;
mod interface;
mod memory;
mod message;
mod open;
mod pcap;
mod queue;
mod tap;

pub use af_xdp::{Ports, PortsError, Protocol, Redirected, XdpCopy, XdpQueue, XdpShape};
pub use counters::{Counters, Drops};
pub use frame::{Checksum, ETHERNET_HEADER, Frame};
pub use impaired::{Impaired, Impairment};
pub use memory::{MAX_QUEUES, MemoryEnd, MemoryQueue, MemoryShape, pair};
pub use open::{Nic, NicName, OpenError, Options, ParseNicError, open};
pub use pcap::{Pcap, Recording};
pub use queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};
pub use tap::TapQueue;
