//! The part of the program that reads a frame's headers.
//!
//! After it, at the label `transport`: `R6` is the context, `R7` the protocol, `R8` points at the transport header, `R9` is
//! the [`kind`] of the frame, and the stack has the frame's destination address and, of TCP, the addresses and ports of the
//! connection. What is none of these jumps to `pass`.

use abey_bpf::Operation::{Add, And, Move, ShiftLeft};
use abey_bpf::Register::{R2, R3, R4, R5, R6, R7, R8, R9, R10};
use abey_bpf::{Assembler, Register, Size, When};

use super::{CONNECTION_BYTES, DESTINATION_PORT, context, kind, stack};
use crate::headers::{ICMP, ICMPV6, TCP};

/// Length of an Ethernet header.
pub(super) const ETHERNET: i32 = 14;
/// Length of an IPv4 header without options.
pub(super) const IPV4: i32 = 20;
/// Length of an IPv6 header without extensions.
pub(super) const IPV6: i32 = 40;
/// Length of a TCP header without options.
pub(super) const TCP_HEADER: i32 = 20;
/// Length of the header before the packet that an ICMP error quotes.
const ICMP_HEADER: i32 = 8;
/// Offsets of the words of the source and the destination address in the headers of IP.
const SOURCE_V4: [i16; 1] = [12];
const DESTINATION_V4: [i16; 1] = [16];
const SOURCE_V6: [i16; 4] = [8, 12, 16, 20];
const DESTINATION_V6: [i16; 4] = [24, 28, 32, 36];

/// Returns the value of a 16-bit load of two bytes of a packet.
fn half(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// Points `R2` at the frame and `R3` at its end.
pub(super) fn load_bounds(asm: &mut Assembler) {
    asm.load(Size::Word, R2, R6, context::DATA);
    asm.load(Size::Word, R3, R6, context::DATA_END);
}

/// Jumps to `pass` unless the packet has `bytes` more bytes after `from`. Overwrites `R4`.
pub(super) fn require(asm: &mut Assembler, from: Register, bytes: i32) {
    require_or(asm, from, bytes, "pass");
}

/// Jumps to `label` unless the packet has `bytes` more bytes after `from`. Overwrites `R4`.
pub(super) fn require_or(asm: &mut Assembler, from: Register, bytes: i32, label: &'static str) {
    asm.compute(Move, R4, from);
    asm.compute(Add, R4, bytes);
    asm.jump_if(R4, When::Greater, R3, label);
}

/// Stores the words at these offsets from `from` on the stack. Overwrites `R5`.
fn copy_words(asm: &mut Assembler, to: i16, from: Register, offsets: impl IntoIterator<Item = i16>) {
    for (at, offset) in offsets.into_iter().enumerate() {
        asm.load(Size::Word, R5, from, offset);
        asm.store(Size::Word, R10, to + 4 * at as i16, R5);
    }
}

/// Stores the destination address of the IP header at `header` from `R2`.
fn store_destination(asm: &mut Assembler, header: i32) {
    let offsets: &[i16] = if header == IPV4 { &DESTINATION_V4 } else { &DESTINATION_V6 };
    let mut at = stack::ADDRESS;
    if header == IPV4 {
        // As in an IPv4-mapped address (RFC 4291, section 2.5.5.2).
        for word in [0, 0, u32::from_ne_bytes([0, 0, 0xff, 0xff]).cast_signed()] {
            asm.compute(Move, R5, word);
            asm.store(Size::Word, R10, at, R5);
            at += 4;
        }
    }
    copy_words(asm, at, R2, offsets.iter().map(|offset| ETHERNET as i16 + offset));
}

/// Stores the addresses of a connection: the words of the peer's and of the local one at offsets from `from`, in a header
/// that is `shift` bytes behind it.
fn store_connection(asm: &mut Assembler, from: Register, shift: i16, peer: &[i16], local: &[i16]) {
    let (addresses, is_v6) = (peer.iter().chain(local).map(|offset| offset + shift), peer.len() > 1);
    copy_words(asm, stack::CONNECTION, from, addresses);
    asm.compute(Move, R5, i32::from(is_v6));
    asm.store(Size::Word, R10, stack::IS_V6, R5);
    if !is_v6 {
        asm.compute(Move, R5, 0);
        for at in (12..CONNECTION_BYTES as i16).step_by(4) {
            asm.store(Size::Word, R10, stack::CONNECTION + at, R5);
        }
    }
}

/// Returns where the ports of a connection are on the stack, after its addresses.
fn ports(is_v6: bool) -> i16 {
    stack::CONNECTION + if is_v6 { 32 } else { 8 }
}

/// Continues with the TCP segment at `R8`.
fn parse_segment(asm: &mut Assembler, is_v6: bool) {
    const SYN: i32 = 0x02;
    const ACK: i32 = 0x10;
    asm.jump_if(R7, When::NotEqual, i32::from(TCP), "transport");
    require(asm, R8, TCP_HEADER);
    if is_v6 {
        store_connection(asm, R2, ETHERNET as i16, &SOURCE_V6, &DESTINATION_V6);
    } else {
        store_connection(asm, R2, ETHERNET as i16, &SOURCE_V4, &DESTINATION_V4);
    }
    copy_words(asm, ports(is_v6), R8, [0]);
    asm.load(Size::Byte, R5, R8, 13);
    asm.compute(And, R5, SYN | ACK);
    asm.compute(Move, R9, kind::SEGMENT);
    asm.jump_if(R5, When::NotEqual, SYN, "transport");
    asm.compute(Move, R9, kind::FIRST);
    asm.jump("transport");
}

/// Continues with the packet that an ICMP error quotes, which was sent by this end and has its transport header at `R8`:
/// changes `R8` so that its source port is read as the destination port.
fn parse_quoted(asm: &mut Assembler, is_v6: bool) {
    asm.compute(Add, R8, -DESTINATION_PORT);
    asm.jump_if(R7, When::NotEqual, i32::from(TCP), "transport");
    require(asm, R8, DESTINATION_PORT + 4);
    for (to, from) in [(2, 0), (0, 2)] {
        asm.load(Size::Half, R5, R8, DESTINATION_PORT as i16 + from);
        asm.store(Size::Half, R10, ports(is_v6) + to, R5);
    }
    asm.compute(Move, R9, kind::QUOTED);
    asm.jump("transport");
}

fn parse_icmp(asm: &mut Assembler) {
    require(asm, R8, ICMP_HEADER + IPV4);
    // Destination unreachable, time exceeded, parameter problem (RFC 792).
    asm.load(Size::Byte, R5, R8, 0);
    asm.jump_if(R5, When::Equal, 3, "quoted");
    asm.jump_if(R5, When::Equal, 11, "quoted");
    asm.jump_if(R5, When::NotEqual, 12, "pass");
    asm.label("quoted");
    asm.load(Size::Half, R5, R8, ICMP_HEADER as i16 + 6);
    asm.compute(And, R5, half([0x1f, 0xff]));
    asm.jump_if(R5, When::NotEqual, 0, "pass");
    asm.load(Size::Byte, R7, R8, ICMP_HEADER as i16 + 9);
    store_connection(asm, R8, ICMP_HEADER as i16, &DESTINATION_V4, &SOURCE_V4);
    asm.load(Size::Byte, R5, R8, ICMP_HEADER as i16);
    header_length(asm);
    asm.compute(Add, R8, ICMP_HEADER);
    asm.compute(Add, R8, R5);
    parse_quoted(asm, false);
}

fn parse_icmpv6(asm: &mut Assembler) {
    require(asm, R8, ICMP_HEADER + IPV6);
    // Destination unreachable, packet too big, time exceeded, parameter problem (RFC 4443).
    asm.load(Size::Byte, R5, R8, 0);
    asm.jump_if(R5, When::Less, 1, "pass");
    asm.jump_if(R5, When::Greater, 4, "pass");
    asm.load(Size::Byte, R7, R8, ICMP_HEADER as i16 + 6);
    store_connection(asm, R8, ICMP_HEADER as i16, &DESTINATION_V6, &SOURCE_V6);
    asm.compute(Add, R8, ICMP_HEADER + IPV6);
    parse_quoted(asm, true);
}

/// Replaces the first byte of an IPv4 header in `R5` by the header's length in bytes; jumps to `pass` if it is below 20.
fn header_length(asm: &mut Assembler) {
    asm.compute(And, R5, 0x0f);
    asm.jump_if(R5, When::Less, 5, "pass");
    asm.compute(ShiftLeft, R5, 2);
}

fn parse_v4(asm: &mut Assembler) {
    require(asm, R2, ETHERNET + IPV4);
    // A fragment has an offset or the flag "more fragments".
    asm.load(Size::Half, R5, R2, ETHERNET as i16 + 6);
    asm.compute(And, R5, half([0x3f, 0xff]));
    asm.jump_if(R5, When::NotEqual, 0, "pass");
    store_destination(asm, IPV4);
    asm.load(Size::Byte, R7, R2, ETHERNET as i16 + 9);
    asm.load(Size::Byte, R5, R2, ETHERNET as i16);
    header_length(asm);
    asm.compute(Move, R8, R2);
    asm.compute(Add, R8, ETHERNET);
    asm.compute(Add, R8, R5);
    asm.jump_if(R7, When::Equal, i32::from(ICMP), "icmp");
    parse_segment(asm, false);
    asm.label("icmp");
    parse_icmp(asm);
}

fn parse_v6(asm: &mut Assembler) {
    require(asm, R2, ETHERNET + IPV6);
    store_destination(asm, IPV6);
    asm.load(Size::Byte, R7, R2, ETHERNET as i16 + 6);
    asm.compute(Move, R8, R2);
    asm.compute(Add, R8, ETHERNET + IPV6);
    asm.jump_if(R7, When::Equal, i32::from(ICMPV6), "icmpv6");
    parse_segment(asm, true);
    asm.label("icmpv6");
    parse_icmpv6(asm);
}

/// Reads the headers of a frame.
pub(super) fn parse(asm: &mut Assembler) {
    asm.compute(Move, R9, kind::OTHER);
    load_bounds(asm);
    require(asm, R2, ETHERNET);
    asm.load(Size::Half, R5, R2, 12);
    asm.jump_if(R5, When::Equal, half([0x08, 0x00]), "ipv4");
    asm.jump_if(R5, When::NotEqual, half([0x86, 0xdd]), "pass");
    parse_v6(asm);
    asm.label("ipv4");
    parse_v4(asm);
}
