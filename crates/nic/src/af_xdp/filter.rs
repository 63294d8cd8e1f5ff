//! The XDP program: redirects registered (protocol, destination port) pairs to our sockets, and ICMP errors that quote a
//! packet from such a port; passes everything else.
//!
//! Written for our own assembler ([`abey_bpf`]). Passed to the
//! kernel: everything that is not TCP, UDP or an ICMP error over untagged IPv4 or IPv6, fragments, errors that quote a
//! later fragment, IPv6 with extension headers (also quoted), and frames of a queue that has no socket.
//!
//! *The owner of a port* depends on the queue, as several processes may share a device, and it changes: a worker of a server
//! starts before it has queues, and its successor starts before it has ended. A program therefore often listens at the same
//! port in the kernel and here. The first segment of a connection decides: it goes to the queue's socket if the port is
//! *open* there ([`Port`]), otherwise to the kernel, and the connection is then recorded as one of the kernel's. Later
//! segments go to the socket if the port has *flows* there and the connection is not recorded. A port that is closed keeps
//! its flows until they have ended. The record is an LRU map: when it is full, the oldest entries are evicted.
//!
//! *Flow exceptions.* A connection that was handed over to the kernel has an entry in a map of its own, by the addresses and
//! ports of both ends; its segments pass to the kernel, and so do ICMP errors about it. This is no LRU map: a flood of SYNs
//! must not return an idle connection to a socket that does not know it. A SYN removes the entry only if the kernel has no
//! socket of the connection any more; the user of the program removes the others ([`flows`](super::flows)). Only ports with
//! such entries ([`Port`]) cost the lookup.

use std::net::{IpAddr, SocketAddr};

use abey_bpf::{Assembled, Assembler, Map, Operation, Program, Register, Register::*, Size, When, abi, object_file};

use crate::headers::{ICMP, ICMPV6, TCP, UDP};

/// Name of the program in the object.
pub(super) const PROGRAM: &str = "abey_filter";
/// Name of the program that passes every frame to the kernel.
pub(super) const PASS_PROGRAM: &str = "abey_pass";
/// Name of the map from [`key`] to [`Port`].
pub(super) const PORTS: &str = "abey_ports";
/// Name of the map from queue to socket.
pub(super) const SOCKETS: &str = "abey_sockets";
/// Name of the map of the kernel's connections.
pub(super) const KERNEL_CONNECTIONS: &str = "abey_notes";
/// Maximum number of recorded connections.
const MAX_KERNEL_CONNECTIONS: u32 = 65_536;
/// Name of the map of connections that were handed over to the kernel.
pub(super) const FLOWS_MAP: &str = "abey_flows";
/// Maximum number of connections that were handed over and still exist.
pub(super) const MAX_FLOWS: u32 = 65_536;
/// Maximum number of registered ports.
pub(super) const MAX_PORTS: u32 = 65_536;
/// Maximum number of queues.
pub(super) const MAX_QUEUES: u32 = 256;
/// A set of queues, one bit each.
pub(super) type Queues = [u8; QUEUES_BYTES];
const QUEUES_BYTES: usize = MAX_QUEUES as usize / 8;
/// Of a registered port: the queues where it is open, those where it has flows (for UDP that is all), and in the first byte
/// whether it has flow exceptions.
pub(super) type Port = [Queues; 3];
/// Index of the latter in a [`Port`].
const FLOWS: usize = 1;
/// Index of the exceptions in a [`Port`].
pub(super) const EXCEPTIONS: usize = 2;
pub(super) const NO_QUEUE: Queues = [0; QUEUES_BYTES];
pub(super) const ALL_QUEUES: Queues = [0xff; QUEUES_BYTES];

/// Offsets on the stack. The key of a connection: the peer's address in 16 bytes, both ports, 4 bytes of zero.
mod stack {
    pub(super) const PORT_KEY: i16 = -4;
    pub(super) const ZERO: i16 = -8;
    pub(super) const CONNECTION_PADDING: i16 = -12;
    pub(super) const CONNECTION_PORTS: i16 = -16;
    pub(super) const CONNECTION: i16 = -32;
    /// Key of a flow exception: the peer's and the local address in 16 bytes each, the peer's and the local port.
    pub(super) const FLOW_PORTS: i16 = -36;
    pub(super) const FLOW_LOCAL: i16 = -52;
    pub(super) const FLOW: i16 = -68;
    /// Whether the addresses are of IPv6.
    pub(super) const IS_V6: i16 = -72;
    /// `struct bpf_sock_tuple` for IPv4; the key of a flow is the one for IPv6.
    pub(super) const TUPLE_V4: i16 = -84;
}
/// Key of a flow exception.
pub(super) type FlowKey = [u8; FLOW_BYTES];
const FLOW_BYTES: usize = 36;
/// Length of a connection's key in bytes.
const CONNECTION_BYTES: u32 = 24;

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
/// Length of the header before the packet that an ICMP error quotes.
const ICMP_HEADER: i32 = 8;

/// Offset of the state in `struct bpf_sock` of `linux/bpf.h`, and a value from `net/tcp_states.h`.
const SOCKET_STATE: i16 = 72;
const TCP_LISTEN: i32 = 10;
/// BPF_F_CURRENT_NETNS of `linux/bpf.h`.
const CURRENT_NETNS: i32 = -1;

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

/// Returns the value of a 16-bit load of two bytes of a packet.
fn half(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// Jumps to `pass` unless the packet has `bytes` more bytes after `from`. Overwrites `R4`.
fn require(asm: &mut Assembler, from: Register, bytes: i32) {
    asm.compute(Operation::Move, R4, from);
    asm.compute(Operation::Add, R4, bytes);
    asm.jump_if(R4, When::Greater, R3, "pass");
}

/// Continues with the packet that an ICMP error quotes, which was sent by this end: `R7` becomes its protocol, and `R8` such
/// a pointer that its source port is read as the destination port.
fn parse_quoted_v4(asm: &mut Assembler) {
    asm.label("icmp");
    require(asm, R8, ICMP_HEADER + 20);
    // Destination unreachable, time exceeded, parameter problem (RFC 792).
    asm.load(Size::Byte, R5, R8, 0);
    asm.jump_if(R5, When::Equal, 3, "quoted");
    asm.jump_if(R5, When::Equal, 11, "quoted");
    asm.jump_if(R5, When::NotEqual, 12, "pass");
    asm.label("quoted");
    asm.load(Size::Half, R5, R8, ICMP_HEADER as i16 + 6);
    asm.compute(Operation::And, R5, half([0x1f, 0xff]));
    asm.jump_if(R5, When::NotEqual, 0, "pass");
    asm.load(Size::Byte, R7, R8, ICMP_HEADER as i16 + 9);
    store_quoted_addresses(asm, &[12], &[16]);
    asm.load(Size::Byte, R5, R8, ICMP_HEADER as i16);
    header_length(asm);
    asm.compute(Operation::Add, R8, ICMP_HEADER - DESTINATION_PORT);
    asm.compute(Operation::Add, R8, R5);
    asm.jump("quoted ports");
}

/// Stores the addresses of the packet that an ICMP error at `R8` quotes, in the key of its flow. The words of the local
/// address and of the peer's are at these offsets in its header.
fn store_quoted_addresses(asm: &mut Assembler, local: &[i16], peer: &[i16]) {
    for (to, words) in [(stack::FLOW, peer), (stack::FLOW_LOCAL, local)] {
        for at in 0..4 {
            match words.get(at) {
                Some(offset) => asm.load(Size::Word, R5, R8, ICMP_HEADER as i16 + offset),
                None => asm.compute(Operation::Move, R5, 0),
            }
            asm.store(Size::Word, R10, to + 4 * at as i16, R5);
        }
    }
}

/// Completes the key of a quoted flow with the ports, if the packet is of TCP.
fn parse_quoted_ports(asm: &mut Assembler) {
    asm.label("quoted ports");
    asm.jump_if(R7, When::NotEqual, i32::from(TCP), "transport");
    require(asm, R8, DESTINATION_PORT + 4);
    for (to, from) in [(2, 0), (0, 2)] {
        asm.load(Size::Half, R5, R8, DESTINATION_PORT as i16 + from);
        asm.store(Size::Half, R10, stack::FLOW_PORTS + to, R5);
    }
    asm.compute(Operation::Move, R9, kind::QUOTED);
    asm.jump("transport");
}

/// As [`parse_quoted_v4`].
fn parse_quoted_v6(asm: &mut Assembler) {
    asm.label("icmpv6");
    require(asm, R8, ICMP_HEADER + 40);
    // Destination unreachable, packet too big, time exceeded, parameter problem (RFC 4443).
    asm.load(Size::Byte, R5, R8, 0);
    asm.jump_if(R5, When::Less, 1, "pass");
    asm.jump_if(R5, When::Greater, 4, "pass");
    asm.load(Size::Byte, R7, R8, ICMP_HEADER as i16 + 6);
    store_quoted_addresses(asm, &[8, 12, 16, 20], &[24, 28, 32, 36]);
    asm.compute(Operation::Add, R8, ICMP_HEADER + 40 - DESTINATION_PORT);
    asm.jump("quoted ports");
}

/// Replaces the first byte of an IPv4 header in `R5` by the header's length in bytes; jumps to `pass` if it is below 20.
fn header_length(asm: &mut Assembler) {
    asm.compute(Operation::And, R5, 0x0f);
    asm.jump_if(R5, When::Less, 5, "pass");
    asm.compute(Operation::ShiftLeft, R5, 2);
}

/// Points `register` at an offset on the stack.
fn point(asm: &mut Assembler, register: Register, at: i16) {
    asm.compute(Operation::Move, register, R10);
    asm.compute(Operation::Add, register, i32::from(at));
}

/// Returns the key of the exception for a TCP connection.
pub(super) fn flow_key(local: SocketAddr, remote: SocketAddr) -> FlowKey {
    let mut key = [0; FLOW_BYTES];
    for (at, address) in [(0, remote), (16, local)] {
        match address.ip() {
            IpAddr::V4(v4) => key[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => key[at..at + 16].copy_from_slice(&v6.octets()),
        }
    }
    key[32..34].copy_from_slice(&remote.port().to_be_bytes());
    key[34..].copy_from_slice(&local.port().to_be_bytes());
    key
}

/// Continues with a packet with its transport header at `R8`: determines its kind, and stores the keys of its connection. The
/// words of the peer's address and of the local one are at these offsets from `R2`; an IPv4 address has one.
fn parse_packet(asm: &mut Assembler, address: &[i16], local: &[i16]) {
    asm.jump_if(R7, When::NotEqual, i32::from(TCP), "transport");
    // Up to the flags of TCP (RFC 9293, section 3.1).
    require(asm, R8, 14);
    for at in 0..4 {
        match address.get(at) {
            Some(offset) => asm.load(Size::Word, R5, R2, *offset),
            None => asm.compute(Operation::Move, R5, 0),
        }
        asm.store(Size::Word, R10, stack::CONNECTION + 4 * at as i16, R5);
        asm.store(Size::Word, R10, stack::FLOW + 4 * at as i16, R5);
        match local.get(at) {
            Some(offset) => asm.load(Size::Word, R5, R2, *offset),
            None => asm.compute(Operation::Move, R5, 0),
        }
        asm.store(Size::Word, R10, stack::FLOW_LOCAL + 4 * at as i16, R5);
    }
    asm.compute(Operation::Move, R5, i32::from(address.len() > 1));
    asm.store(Size::Word, R10, stack::IS_V6, R5);
    asm.load(Size::Word, R5, R8, 0);
    asm.store(Size::Word, R10, stack::CONNECTION_PORTS, R5);
    asm.store(Size::Word, R10, stack::FLOW_PORTS, R5);
    asm.jump("flags");
}

/// The part of [`parse_packet`] that both versions of IP share.
fn parse_flags(asm: &mut Assembler) {
    const SYN: i32 = 0x02;
    const ACK: i32 = 0x10;
    asm.label("flags");
    asm.compute(Operation::Move, R5, 0);
    asm.store(Size::Word, R10, stack::CONNECTION_PADDING, R5);
    asm.store(Size::Word, R10, stack::ZERO, R5);
    asm.load(Size::Byte, R5, R8, 13);
    asm.compute(Operation::And, R5, SYN | ACK);
    asm.compute(Operation::Move, R9, kind::SEGMENT);
    asm.jump_if(R5, When::NotEqual, SYN, "transport");
    asm.compute(Operation::Move, R9, kind::FIRST);
    asm.jump("transport");
}

/// Jumps to `pass` if the frame concerns a flow exception. Preserves `R0`, the [`Port`]; overwrites `R7` and `R8`.
fn check_exceptions(asm: &mut Assembler) {
    asm.jump_if(R9, When::Equal, kind::OTHER, "no exception");
    asm.load(Size::Byte, R5, R0, (EXCEPTIONS * QUEUES_BYTES) as i16);
    asm.jump_if(R5, When::Equal, 0, "no exception");
    // The pointer outlives the call in a register that calls preserve.
    asm.compute(Operation::Move, R8, R0);
    asm.load_map(R1, FLOWS_MAP);
    point(asm, R2, stack::FLOW);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::Equal, 0, "restore");
    asm.jump_if(R9, When::NotEqual, kind::FIRST, "pass");
    lookup_socket(asm);
    asm.label("stale");
    asm.load_map(R1, FLOWS_MAP);
    point(asm, R2, stack::FLOW);
    asm.call(abi::MAP_DELETE_ELEM);
    asm.label("restore");
    asm.compute(Operation::Move, R0, R8);
    asm.label("no exception");
}

/// Jumps to `pass` if the kernel has a socket of the flow, to `stale` if not. Overwrites `R7`.
fn lookup_socket(asm: &mut Assembler) {
    point(asm, R2, stack::FLOW);
    asm.compute(Operation::Move, R3, FLOW_BYTES as i32);
    asm.load(Size::Word, R5, R10, stack::IS_V6);
    asm.jump_if(R5, When::NotEqual, 0, "lookup");
    for (to, from) in [(0, stack::FLOW), (4, stack::FLOW_LOCAL), (8, stack::FLOW_PORTS)] {
        asm.load(Size::Word, R5, R10, from);
        asm.store(Size::Word, R10, stack::TUPLE_V4 + to, R5);
    }
    point(asm, R2, stack::TUPLE_V4);
    asm.compute(Operation::Move, R3, 12);
    asm.label("lookup");
    asm.compute(Operation::Move, R1, R6);
    asm.compute(Operation::Move, R4, CURRENT_NETNS);
    asm.compute(Operation::Move, R5, 0);
    asm.call(abi::SK_LOOKUP_TCP);
    asm.jump_if(R0, When::Equal, 0, "stale");
    asm.load(Size::Word, R7, R0, SOCKET_STATE);
    asm.compute(Operation::Move, R1, R0);
    asm.call(abi::SK_RELEASE);
    asm.jump_if(R7, When::NotEqual, TCP_LISTEN, "pass");
}

/// Jumps to `kernel` unless the [`Port`] at `R0` is open, or has flows, on the frame's queue.
fn check_queue(asm: &mut Assembler) {
    asm.load(Size::Word, R2, R6, context::RX_QUEUE_INDEX);
    asm.jump_if(R2, When::Greater, MAX_QUEUES as i32 - 1, "kernel");
    asm.jump_if(R9, When::Equal, kind::FIRST, "bits");
    asm.compute(Operation::Add, R0, (FLOWS * QUEUES_BYTES) as i32);
    asm.label("bits");
    asm.compute(Operation::Move, R4, R2);
    asm.compute(Operation::ShiftRight, R4, 3);
    asm.compute(Operation::Add, R0, R4);
    asm.load(Size::Byte, R5, R0, 0);
    asm.compute(Operation::Move, R4, R2);
    asm.compute(Operation::And, R4, 7);
    asm.compute(Operation::ShiftRight, R5, R4);
    asm.compute(Operation::And, R5, 1);
    asm.jump_if(R5, When::Equal, 0, "kernel");
}

/// Jumps to `pass` if the segment belongs to a connection of the kernel; a connection that begins here is removed from the
/// record.
fn check_kernel_connections(asm: &mut Assembler) {
    asm.jump_if(R9, When::Equal, kind::OTHER, "redirect");
    asm.jump_if(R9, When::Equal, kind::QUOTED, "redirect");
    asm.load_map(R1, KERNEL_CONNECTIONS);
    point(asm, R2, stack::CONNECTION);
    asm.jump_if(R9, When::Equal, kind::FIRST, "begins here");
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::NotEqual, 0, "pass");
    asm.jump("redirect");
    asm.label("begins here");
    asm.call(abi::MAP_DELETE_ELEM);
}

/// Passes the packet to the kernel, and records a connection that begins.
fn pass_to_kernel(asm: &mut Assembler) {
    asm.label("kernel");
    asm.jump_if(R9, When::NotEqual, kind::FIRST, "pass");
    asm.load_map(R1, KERNEL_CONNECTIONS);
    point(asm, R2, stack::CONNECTION);
    point(asm, R3, stack::ZERO);
    asm.compute(Operation::Move, R4, 0);
    asm.call(abi::MAP_UPDATE_ELEM);
    asm.label("pass");
    asm.compute(Operation::Move, R0, abi::XDP_PASS);
    asm.exit();
}

fn program() -> Assembled {
    let mut asm = Assembler::default();
    // R6: context; R2: packet; R3: its end; R9: the kind of frame.
    asm.compute(Operation::Move, R6, R1);
    asm.compute(Operation::Move, R9, kind::OTHER);
    asm.load(Size::Word, R2, R6, context::DATA);
    asm.load(Size::Word, R3, R6, context::DATA_END);
    require(&mut asm, R2, 14);
    asm.load(Size::Half, R5, R2, 12);
    asm.jump_if(R5, When::Equal, half([0x08, 0x00]), "ipv4");
    asm.jump_if(R5, When::NotEqual, half([0x86, 0xdd]), "pass");

    // IPv6: R7: next header; R8: what follows.
    require(&mut asm, R2, 14 + 40);
    asm.load(Size::Byte, R7, R2, 14 + 6);
    asm.compute(Operation::Move, R8, R2);
    asm.compute(Operation::Add, R8, 14 + 40);
    asm.jump_if(R7, When::Equal, i32::from(ICMPV6), "icmpv6");
    let local = [14 + 24, 14 + 28, 14 + 32, 14 + 36];
    parse_packet(&mut asm, &[14 + 8, 14 + 12, 14 + 16, 14 + 20], &local);

    asm.label("ipv4");
    require(&mut asm, R2, 14 + 20);
    // A fragment has an offset or the flag "more fragments".
    asm.load(Size::Half, R5, R2, 14 + 6);
    asm.compute(Operation::And, R5, half([0x3f, 0xff]));
    asm.jump_if(R5, When::NotEqual, 0, "pass");
    asm.load(Size::Byte, R7, R2, 14 + 9);
    asm.load(Size::Byte, R5, R2, 14);
    header_length(&mut asm);
    asm.compute(Operation::Move, R8, R2);
    asm.compute(Operation::Add, R8, 14);
    asm.compute(Operation::Add, R8, R5);
    asm.jump_if(R7, When::Equal, i32::from(ICMP), "icmp");
    parse_packet(&mut asm, &[14 + 12], &[14 + 16]);
    parse_flags(&mut asm);
    parse_quoted_v4(&mut asm);
    parse_quoted_v6(&mut asm);
    parse_quoted_ports(&mut asm);

    asm.label("transport");
    asm.jump_if(R7, When::Equal, i32::from(TCP), "ports");
    asm.jump_if(R7, When::NotEqual, i32::from(UDP), "pass");
    asm.label("ports");
    require(&mut asm, R8, DESTINATION_PORT + 2);
    asm.load(Size::Half, R5, R8, DESTINATION_PORT as i16);
    asm.compute(Operation::ShiftLeft, R7, 16);
    asm.compute(Operation::Or, R7, R5);
    asm.store(Size::Word, R10, stack::PORT_KEY, R7);
    point(&mut asm, R2, stack::PORT_KEY);
    asm.load_map(R1, PORTS);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::Equal, 0, "kernel");
    check_exceptions(&mut asm);
    check_queue(&mut asm);
    check_kernel_connections(&mut asm);
    asm.label("redirect");
    asm.load(Size::Word, R2, R6, context::RX_QUEUE_INDEX);
    asm.load_map(R1, SOCKETS);
    // The action for a queue without a socket.
    asm.compute(Operation::Move, R3, abi::XDP_PASS);
    asm.call(abi::REDIRECT_MAP);
    asm.exit();
    pass_to_kernel(&mut asm);
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
        map(KERNEL_CONNECTIONS, [abi::MAP_TYPE_LRU_HASH, CONNECTION_BYTES, 4, MAX_KERNEL_CONNECTIONS, 0]),
        map(FLOWS_MAP, [abi::MAP_TYPE_HASH, FLOW_BYTES as u32, 4, MAX_FLOWS, abi::NO_PREALLOC]),
        map(SOCKETS, [abi::MAP_TYPE_XSKMAP, 4, 4, MAX_QUEUES, 0]),
    ];
    let programs = [
        Program { name: PROGRAM, section: "xdp", code: program() },
        Program { name: PASS_PROGRAM, section: "xdp.frags", code: pass_program() },
    ];
    object_file(&programs, &maps)
}
