//! The XDP program: redirects registered (protocol, destination port) pairs to our sockets, and ICMP errors that quote a
//! packet from such a port; passes everything else.
//!
//! Written for our own assembler ([`crate::bpf`]). Passed to the
//! kernel: everything that is not TCP, UDP or an ICMP error over untagged IPv4 or IPv6, fragments, errors that quote a
//! later fragment, IPv6 with extension headers (also quoted), and frames of a queue that has no socket.
//!
//! *Whose a port is* depends on the queue, as several processes may share a device, and it changes: a server's worker is
//! there before it has queues of its own, its successor before it has gone. So a program's listening socket is often in
//! the kernel and here, at the same port. What decides is a connection's first segment: it goes to the queue's socket if
//! the port is *open* there ([`Port`]), otherwise to the kernel, and then the connection is noted as the kernel's. Later
//! segments go where the port has *flows*, unless they are of a connection with a note. A port that is open no more keeps
//! its flows until they have ended. The notes are as many as there is room for; the oldest go first.

use crate::bpf::{Assembled, Assembler, Map, Operation, Program, Register, Register::*, Size, When, object_file};
use crate::headers::{ICMP, ICMPV6, TCP, UDP};

/// Name of the program in the object.
pub(super) const PROGRAM: &str = "abey_filter";
/// Name of the map from [`key`] to [`Port`].
pub(super) const PORTS: &str = "abey_ports";
/// Name of the map from queue to socket.
pub(super) const SOCKETS: &str = "abey_sockets";
/// Name of the map of connections that are the kernel's.
pub(super) const NOTES: &str = "abey_notes";
/// Most connections that are noted.
const MAX_NOTES: u32 = 65_536;
/// Most ports at a time.
pub(super) const MAX_PORTS: u32 = 65_536;
/// Most queues.
pub(super) const MAX_QUEUES: u32 = 256;
/// A set of queues, one bit each.
pub(super) type Queues = [u8; QUEUES_BYTES];
const QUEUES_BYTES: usize = MAX_QUEUES as usize / 8;
/// Of a registered port: the queues where it is open, and those where it has flows (for UDP that is all).
pub(super) type Port = [Queues; 2];
/// Where the latter are in a [`Port`].
const FLOWS: usize = 1;
pub(super) const NO_QUEUE: Queues = [0; QUEUES_BYTES];
pub(super) const ALL_QUEUES: Queues = [0xff; QUEUES_BYTES];

/// Where things are on the stack. The key of the notes: the peer's address in 16 bytes, both ports, 4 bytes of zero.
mod stack {
    pub(super) const PORT_KEY: i16 = -4;
    pub(super) const ZERO: i16 = -8;
    pub(super) const NOTE_PADDING: i16 = -12;
    pub(super) const NOTE_PORTS: i16 = -16;
    pub(super) const NOTE: i16 = -32;
}
/// Bytes of a note's key.
const NOTE_BYTES: u32 = 24;

/// What `R9` says of a frame.
mod kind {
    /// Nothing that matters.
    pub(super) const OTHER: i32 = 0;
    /// A TCP segment.
    pub(super) const SEGMENT: i32 = 1;
    /// A connection's first.
    pub(super) const FIRST: i32 = 2;
}
/// Where the destination port is in the headers of TCP and UDP, behind the source port.
const DESTINATION_PORT: i32 = 2;
/// Bytes before the packet that an ICMP error quotes.
const ICMP_HEADER: i32 = 8;

/// Numbers of `linux/bpf.h`.
mod abi {
    pub(super) const XDP_PASS: i32 = 2;
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const MAP_UPDATE_ELEM: i32 = 2;
    pub(super) const MAP_DELETE_ELEM: i32 = 3;
    pub(super) const REDIRECT_MAP: i32 = 51;
    pub(super) const MAP_TYPE_HASH: u32 = 1;
    pub(super) const MAP_TYPE_LRU_HASH: u32 = 9;
    pub(super) const MAP_TYPE_XSKMAP: u32 = 17;
    pub(super) const F_NO_PREALLOC: u32 = 1;
    /// Offsets in `struct xdp_md`.
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

/// The key of a port: the protocol in the high half, the port as its bytes lie in the packet in the low one.
pub(super) fn key(protocol: u8, port: u16) -> u32 {
    u32::from(protocol) << 16 | u32::from(u16::from_ne_bytes(port.to_be_bytes()))
}

/// Two bytes of a packet as a 16-bit load sees them.
fn half(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// Leaves for `pass` unless the packet goes on for `bytes` from `from`; `R4` is lost.
fn require(asm: &mut Assembler, from: Register, bytes: i32) {
    asm.compute(Operation::Move, R4, from);
    asm.compute(Operation::Add, R4, bytes);
    asm.jump_if(R4, When::Greater, R3, "pass");
}

/// Goes on with the packet that an ICMP error quotes, whose *source* is ours: `R7` becomes its protocol, and `R8` points so
/// that the source port lies where the program looks for a destination port.
fn look_at_quoted_v4(asm: &mut Assembler) {
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
    asm.load(Size::Byte, R5, R8, ICMP_HEADER as i16);
    header_length(asm);
    asm.compute(Operation::Add, R8, ICMP_HEADER - DESTINATION_PORT);
    asm.compute(Operation::Add, R8, R5);
    asm.jump("transport");
}

/// As [`look_at_quoted_v4`].
fn look_at_quoted_v6(asm: &mut Assembler) {
    asm.label("icmpv6");
    require(asm, R8, ICMP_HEADER + 40);
    // Destination unreachable, packet too big, time exceeded, parameter problem (RFC 4443).
    asm.load(Size::Byte, R5, R8, 0);
    asm.jump_if(R5, When::Less, 1, "pass");
    asm.jump_if(R5, When::Greater, 4, "pass");
    asm.load(Size::Byte, R7, R8, ICMP_HEADER as i16 + 6);
    asm.compute(Operation::Add, R8, ICMP_HEADER + 40 - DESTINATION_PORT);
    asm.jump("transport");
}

/// From the first byte of an IPv4 header in `R5` to the header's length in bytes; at least 20.
fn header_length(asm: &mut Assembler) {
    asm.compute(Operation::And, R5, 0x0f);
    asm.jump_if(R5, When::Less, 5, "pass");
    asm.compute(Operation::ShiftLeft, R5, 2);
}

/// Makes `register` point at the stack.
fn point(asm: &mut Assembler, register: Register, at: i16) {
    asm.compute(Operation::Move, register, R10);
    asm.compute(Operation::Add, register, i32::from(at));
}

/// Goes on with a packet that is for us, at whose transport header `R8` points: what kind it is, and whose. The words of
/// the peer's address lie at these offsets from `R2`; an IPv4 address has one.
fn look_at_packet(asm: &mut Assembler, address: &[i16]) {
    asm.jump_if(R7, When::NotEqual, i32::from(TCP), "transport");
    // Up to the flags of TCP (RFC 9293, section 3.1).
    require(asm, R8, 14);
    for at in 0..4 {
        match address.get(at) {
            Some(offset) => asm.load(Size::Word, R5, R2, *offset),
            None => asm.compute(Operation::Move, R5, 0),
        }
        asm.store(Size::Word, R10, stack::NOTE + 4 * at as i16, R5);
    }
    asm.load(Size::Word, R5, R8, 0);
    asm.store(Size::Word, R10, stack::NOTE_PORTS, R5);
    asm.jump("flags");
}

/// As [`look_at_packet`], for either version of IP.
fn look_at_flags(asm: &mut Assembler) {
    const SYN: i32 = 0x02;
    const ACK: i32 = 0x10;
    asm.label("flags");
    asm.compute(Operation::Move, R5, 0);
    asm.store(Size::Word, R10, stack::NOTE_PADDING, R5);
    asm.store(Size::Word, R10, stack::ZERO, R5);
    asm.load(Size::Byte, R5, R8, 13);
    asm.compute(Operation::And, R5, SYN | ACK);
    asm.compute(Operation::Move, R9, kind::SEGMENT);
    asm.jump_if(R5, When::NotEqual, SYN, "transport");
    asm.compute(Operation::Move, R9, kind::FIRST);
    asm.jump("transport");
}

/// Goes to `theirs` unless the [`Port`] at which `R0` points is ours on the frame's queue.
fn is_ours_there(asm: &mut Assembler) {
    asm.load(Size::Word, R2, R6, abi::RX_QUEUE_INDEX);
    asm.jump_if(R2, When::Greater, MAX_QUEUES as i32 - 1, "theirs");
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
    asm.jump_if(R5, When::Equal, 0, "theirs");
}

/// Goes to `pass` if the segment is of a connection that is the kernel's; a connection that begins with us no longer is.
fn look_at_notes(asm: &mut Assembler) {
    asm.jump_if(R9, When::Equal, kind::OTHER, "redirect");
    asm.load_map(R1, NOTES);
    point(asm, R2, stack::NOTE);
    asm.jump_if(R9, When::Equal, kind::FIRST, "ours now");
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::NotEqual, 0, "pass");
    asm.jump("redirect");
    asm.label("ours now");
    asm.call(abi::MAP_DELETE_ELEM);
}

/// Not for us: a connection that begins is the kernel's.
fn leave_to_kernel(asm: &mut Assembler) {
    asm.label("theirs");
    asm.jump_if(R9, When::NotEqual, kind::FIRST, "pass");
    asm.load_map(R1, NOTES);
    point(asm, R2, stack::NOTE);
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
    asm.load(Size::Word, R2, R6, abi::DATA);
    asm.load(Size::Word, R3, R6, abi::DATA_END);
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
    look_at_packet(&mut asm, &[14 + 8, 14 + 12, 14 + 16, 14 + 20]);

    asm.label("ipv4");
    require(&mut asm, R2, 14 + 20);
    // A fragment has an offset or says that there are more.
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
    look_at_packet(&mut asm, &[14 + 12]);
    look_at_flags(&mut asm);
    look_at_quoted_v4(&mut asm);
    look_at_quoted_v6(&mut asm);

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
    asm.jump_if(R0, When::Equal, 0, "theirs");
    is_ours_there(&mut asm);
    look_at_notes(&mut asm);
    asm.label("redirect");
    asm.load(Size::Word, R2, R6, abi::RX_QUEUE_INDEX);
    asm.load_map(R1, SOCKETS);
    // What to do where the queue has no socket.
    asm.compute(Operation::Move, R3, abi::XDP_PASS);
    asm.call(abi::REDIRECT_MAP);
    asm.exit();
    leave_to_kernel(&mut asm);
    asm.assemble()
}

/// The program and its maps as an ELF object.
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
        map(PORTS, [abi::MAP_TYPE_HASH, 4, size_of::<Port>() as u32, MAX_PORTS, abi::F_NO_PREALLOC]),
        map(NOTES, [abi::MAP_TYPE_LRU_HASH, NOTE_BYTES, 4, MAX_NOTES, 0]),
        map(SOCKETS, [abi::MAP_TYPE_XSKMAP, 4, 4, MAX_QUEUES, 0]),
    ];
    object_file(&[Program { name: PROGRAM, section: "xdp", code: program() }], &maps)
}
