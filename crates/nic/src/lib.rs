//! Packet queues: a shared-memory NIC, TAP and AF_XDP behind one trait, and decorators that wrap any of them.

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
mod open;
mod pcap;
mod queue;
mod tap;

pub use af_xdp::{Ports, PortsError, Protocol, XdpCopy, XdpQueue, XdpShape};
pub use counters::{Counters, Drops};
pub use frame::{Checksum, ETHERNET_HEADER, Frame};
pub use impaired::{Impaired, Impairment};
pub use memory::{MAX_QUEUES, MemoryEnd, MemoryQueue, MemoryShape, pair};
pub use open::{Nic, NicName, OpenError, Options, ParseNicError, open};
pub use pcap::{Pcap, Recording};
pub use queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};
pub use tap::TapQueue;
