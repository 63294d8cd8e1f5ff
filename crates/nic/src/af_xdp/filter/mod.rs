//! The XDP program: redirects registered (protocol, destination port) pairs at served addresses to our sockets, and ICMP
//! errors that quote a packet from such a port; passes everything else.
//!
//! Written for our own assembler ([`abey_bpf`]). Passed to the kernel: everything that is not TCP, UDP or an ICMP error over
//! untagged IPv4 or IPv6, fragments, errors that quote a later fragment, IPv6 with extension headers (also quoted), and frames
//! of a queue that has no socket.
//!
//! *The owner of a port* depends on the queue, as several processes may share a device, and it changes: a worker of a server
//! starts before it has queues, and its successor starts before it has ended. A program therefore often listens at the same
//! port in the kernel and here. The first segment of a connection decides: it goes to the queue's socket if the port is
//! *open* there ([`Port`]), otherwise to the kernel. Later segments go to the socket if the port has *flows* there. A port that
//! is closed keeps its flows until they have ended.
//!
//! *Connections of the kernel* are the kernel's, whatever arrives: every TCP segment to a registered port, and every error about
//! one, is looked up in the kernel's own tables (`bpf_skc_lookup_tcp`). It is passed if the kernel has a socket of the
//! connection in any state: also a request for one (SYN-RECEIVED) and TIME-WAIT. The answer of a client to a SYN cookie
//! belongs to no socket yet, so the listener is asked whether it is valid (`bpf_tcp_check_syncookie`). Nothing is recorded
//! here, so there is nothing that a forged segment could delete or a flood evict. Both helpers exist since Linux 5.2; the BPF
//! link that attaches the program needs 5.9.
//!
//! *Held flows.* While a connection is handed over to the kernel, there is a socket of it that must not receive yet. Its
//! segments are redirected as long as it has an entry in a map of its own ([`flows`](super::flows)). Only ports with such
//! entries ([`Port`]) cost the lookup.
//!
//! *Served addresses* are those that the network stack behind a queue has ([`addresses`](super::addresses)). What is sent to
//! others is the kernel's, which may forward it, or have it on another device.

mod decide;
mod parse;

use std::net::{IpAddr, SocketAddr};

use abey_bpf::{Assembled, Assembler, Map, Operation, Program, Register::*, abi, object_file};

/// Name of the program in the object.
pub(super) const PROGRAM: &str = "abey_filter";
/// Name of the program that passes every frame to the kernel.
pub(super) const PASS_PROGRAM: &str = "abey_pass";
/// Name of the map from [`key`] to [`Port`].
pub(super) const PORTS: &str = "abey_ports";
/// Name of the map from queue to socket.
pub(super) const SOCKETS: &str = "abey_sockets";
/// Name of the map from [`address_key`] to the queues where the address is served.
pub(super) const ADDRESSES: &str = "abey_addresses";
/// Maximum number of served addresses.
pub(super) const MAX_ADDRESSES: u32 = 4_096;
/// Name of the map of connections that are being handed over to the kernel.
pub(super) const HELD_FLOWS: &str = "abey_held";
/// Maximum number of connections that are being handed over at the same time.
pub(super) const MAX_HELD: u32 = 4_096;
/// Maximum number of registered ports.
pub(super) const MAX_PORTS: u32 = 65_536;
/// Maximum number of queues.
pub(super) const MAX_QUEUES: u32 = 256;
/// A set of queues, one bit each.
pub(super) type Queues = [u8; QUEUES_BYTES];
const QUEUES_BYTES: usize = MAX_QUEUES as usize / 8;
/// Of a registered port: the queues where it is open, those where it has flows (for UDP that is all), and in the first byte
/// whether it has held flows.
pub(super) type Port = [Queues; 3];
/// Index of the flows in a [`Port`].
const FLOWS: usize = 1;
/// Index of the held flows in a [`Port`].
pub(super) const HELD: usize = 2;
pub(super) const NO_QUEUE: Queues = [0; QUEUES_BYTES];
pub(super) const ALL_QUEUES: Queues = [0xff; QUEUES_BYTES];

/// Offsets on the stack.
mod stack {
    pub(super) const PORT_KEY: i16 = -4;
    /// Whether the addresses of the connection are of IPv6.
    pub(super) const IS_V6: i16 = -8;
    /// Key of the destination address.
    pub(super) const ADDRESS: i16 = -24;
    /// `struct bpf_sock_tuple` of the connection as seen by its peer, padded with zeros: the peer's address, the local
    /// address, the peer's port, the local port.
    pub(super) const CONNECTION: i16 = -60;
}
/// Key of a connection, as on the stack.
pub(super) type FlowKey = [u8; CONNECTION_BYTES];
const CONNECTION_BYTES: usize = 36;
/// Key of an address: IPv4 as IPv4-mapped (RFC 4291, section 2.5.5.2).
pub(super) type AddressKey = [u8; 16];

/// Kinds of frames, in `R9`.
mod kind {
    /// Any other frame.
    pub(super) const OTHER: i32 = 0;
    /// A TCP segment.
    pub(super) const SEGMENT: i32 = 1;
    /// The first segment of a connection.
    pub(super) const FIRST: i32 = 2;
    /// An ICMP error about a TCP segment.
    pub(super) const QUOTED: i32 = 3;
}
/// Offset of the destination port in the headers of TCP and UDP.
const DESTINATION_PORT: i32 = 2;

/// Offsets in `struct xdp_md` of `linux/bpf.h`.
mod context {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

/// Returns the key of a port: the protocol in the high half, and in the low half the port in the byte order of packets.
pub(super) fn key(protocol: u8, port: u16) -> u32 {
    u32::from(protocol) << 16 | u32::from(u16::from_ne_bytes(port.to_be_bytes()))
}

/// Returns the key of an address.
pub(super) fn address_key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the key of a TCP connection.
pub(super) fn flow_key(local: SocketAddr, remote: SocketAddr) -> FlowKey {
    let mut key = [0; CONNECTION_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        key[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    for address in [remote.ip(), local.ip()] {
        match address {
            IpAddr::V4(v4) => put(&v4.octets()),
            IpAddr::V6(v6) => put(&v6.octets()),
        }
    }
    put(&remote.port().to_be_bytes());
    put(&local.port().to_be_bytes());
    key
}

fn program() -> Assembled {
    let mut asm = Assembler::default();
    asm.compute(Operation::Move, R6, R1);
    parse::parse(&mut asm);
    asm.label("transport");
    decide::decide(&mut asm);
    asm.assemble()
}

/// Returns the program that passes every frame to the kernel, for frames that are injected.
fn pass_program() -> Assembled {
    let mut asm = Assembler::default();
    asm.compute(Operation::Move, R0, abi::XDP_PASS);
    asm.exit();
    asm.assemble()
}

/// Returns the program and its maps as an ELF object.
pub(super) fn object() -> Vec<u8> {
    let map = |name, [kind, key_bytes, value_bytes, entries, flags]: [u32; 5]| Map {
        name,
        kind,
        key_bytes,
        value_bytes,
        entries,
        flags,
    };
    let maps = [
        map(PORTS, [abi::MAP_TYPE_HASH, 4, size_of::<Port>() as u32, MAX_PORTS, abi::NO_PREALLOC]),
        map(
            ADDRESSES,
            [abi::MAP_TYPE_HASH, size_of::<AddressKey>() as u32, QUEUES_BYTES as u32, MAX_ADDRESSES, abi::NO_PREALLOC],
        ),
        map(HELD_FLOWS, [abi::MAP_TYPE_HASH, CONNECTION_BYTES as u32, 4, MAX_HELD, abi::NO_PREALLOC]),
        map(SOCKETS, [abi::MAP_TYPE_XSKMAP, 4, 4, MAX_QUEUES, 0]),
    ];
    let programs = [
        Program { name: PROGRAM, section: "xdp", code: program() },
        Program { name: PASS_PROGRAM, section: "xdp.frags", code: pass_program() },
    ];
    object_file(&programs, &maps)
}
