//! The program at the device's ingress (tcx) that lets the kernel's listener take an offered connection ([`offers`](super::offers)).
//!
//! Written for our own assembler ([`abey_bpf`]). It acts on one kind of frame: a TCP segment without SYN and RST that begins an
//! offered connection, that is, whose sequence and acknowledgement numbers are those of the end of its handshake. All other
//! frames go on. IPv4 with options and IPv6 with extension headers are not recognised.

use abey_bpf::{Assembled, Assembler, Map, Operation, Program, Register::*, Size, When, abi, object_file};

use super::filter::FlowKey;
use crate::headers::TCP;

/// Name of the program in the object.
pub(super) const PROGRAM: &str = "abey_offer";
/// Name of the map from a connection to its [`Offer`].
pub(super) const OFFERS: &str = "abey_offers";
/// The most offers. The oldest are evicted.
const MAX_OFFERS: u32 = 4096;
/// The kernel function that makes a request of a segment with a SYN cookie (Linux 6.9).
pub(super) const ASSIGN: &str = "bpf_sk_assign_tcp_reqsk";

/// An offered connection: in network byte order the sequence and the acknowledgement number of the segment that begins it, then
/// the clock of its timestamps minus the kernel's in milliseconds, and `struct bpf_tcp_req_attrs` of `linux/tcp.h`.
pub(super) type Offer = [u8; OFFER_BYTES];
pub(super) const OFFER_BYTES: usize = CLOCK as usize + 4 + ATTRIBUTES_BYTES;
const ACKNOWLEDGEMENT: i16 = 4;
const CLOCK: i16 = 8;
const ATTRIBUTES: i16 = 12;
const ATTRIBUTES_BYTES: usize = 20;
/// Offset of `rcv_tsecr` in the attributes.
const TIMESTAMP: i16 = 4;

/// Offsets on the stack.
mod stack {
    /// The frame's headers. The IP header begins at a multiple of four.
    pub(super) const FRAME: i16 = -78;
    pub(super) const IP: i16 = FRAME + 14;
    /// Key of a flow, as in the XDP program: `struct bpf_sock_tuple`, padded with zeros.
    pub(super) const FLOW: i16 = -116;
    pub(super) const ATTRIBUTES: i16 = -136;
}

/// Offset of the state in `struct bpf_sock` of `linux/bpf.h`, and a value from `net/tcp_states.h`.
const SOCKET_STATE: i16 = 72;
const TCP_LISTEN: i32 = 10;

/// Returns the value of a 16-bit load of two bytes of a packet.
fn half(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// Points `register` at an offset on the stack.
fn point(asm: &mut Assembler, register: abey_bpf::Register, at: i16) {
    asm.compute(Operation::Move, register, R10);
    asm.compute(Operation::Add, register, i32::from(at));
}

/// Copies the first bytes of the frame to the stack; jumps to `next` if it is shorter.
fn copy_headers(asm: &mut Assembler, bytes: i32) {
    asm.compute(Operation::Move, R1, R6);
    asm.compute(Operation::Move, R2, 0);
    point(asm, R3, stack::FRAME);
    asm.compute(Operation::Move, R4, bytes);
    asm.call(abi::SKB_LOAD_BYTES);
    asm.jump_if(R0, When::NotEqual, 0, "next");
}

/// Continues at `segment` with a TCP header at this offset on the stack: stores the key of the flow, whose words of the peer's
/// address and of the local one are at these offsets in the IP header. `R7`: sequence number; `R8`: acknowledgement number;
/// `R9`: whether it is IPv6; `R5`: flags.
fn parse_segment(asm: &mut Assembler, transport: i16, peer: &[i16], local: &[i16]) {
    let words = peer.iter().chain(local).map(|offset| stack::IP + offset).chain([transport]).map(Some);
    let padded = words.chain(std::iter::repeat(None));
    for (to, from) in (0..size_of::<FlowKey>() as i16).step_by(4).zip(padded) {
        match from {
            Some(from) => asm.load(Size::Word, R5, R10, from),
            None => asm.compute(Operation::Move, R5, 0),
        }
        asm.store(Size::Word, R10, stack::FLOW + to, R5);
    }
    asm.load(Size::Word, R7, R10, transport + 4);
    asm.load(Size::Word, R8, R10, transport + 8);
    asm.compute(Operation::Move, R9, i32::from(peer.len() > 1));
    asm.load(Size::Byte, R5, R10, transport + 13);
    asm.jump("segment");
}

/// Jumps to `next` unless the segment begins an offered connection. `R7` becomes the [`Offer`].
fn find_offer(asm: &mut Assembler) {
    const SYN_RST_ACK: i32 = 0x16;
    const ACK: i32 = 0x10;
    asm.label("segment");
    asm.compute(Operation::And, R5, SYN_RST_ACK);
    asm.jump_if(R5, When::NotEqual, ACK, "next");
    point(asm, R2, stack::FLOW);
    asm.load_map(R1, OFFERS);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::Equal, 0, "next");
    asm.load(Size::Word, R5, R0, 0);
    asm.jump_if(R5, When::NotEqual, R7, "next");
    asm.load(Size::Word, R5, R0, ACKNOWLEDGEMENT);
    asm.jump_if(R5, When::NotEqual, R8, "next");
    asm.compute(Operation::Move, R7, R0);
}

/// Copies the attributes to the stack, with the connection's clock now.
fn copy_attributes(asm: &mut Assembler) {
    const NANOS_PER_MILLI: i32 = 1_000_000;
    for at in (0..ATTRIBUTES_BYTES as i16).step_by(4) {
        asm.load(Size::Word, R5, R7, ATTRIBUTES + at);
        asm.store(Size::Word, R10, stack::ATTRIBUTES + at, R5);
    }
    asm.call(abi::KTIME_GET_NS);
    asm.compute(Operation::Divide, R0, NANOS_PER_MILLI);
    asm.load(Size::Word, R5, R7, CLOCK);
    asm.compute(Operation::Add, R5, R0);
    asm.store(Size::Word, R10, stack::ATTRIBUTES + TIMESTAMP, R5);
}

/// Gives the frame a request of the listener that receives it, unless the kernel has a socket of the connection.
fn assign(asm: &mut Assembler, function: i32) {
    point(asm, R2, stack::FLOW);
    asm.compute(Operation::Move, R3, size_of::<FlowKey>() as i32);
    asm.jump_if(R9, When::NotEqual, 0, "look up");
    asm.compute(Operation::Move, R3, 12);
    asm.label("look up");
    asm.compute(Operation::Move, R1, R6);
    // The current network namespace.
    asm.compute(Operation::Move, R4, -1);
    asm.compute(Operation::Move, R5, 0);
    asm.call(abi::SKC_LOOKUP_TCP);
    asm.jump_if(R0, When::Equal, 0, "next");
    asm.compute(Operation::Move, R8, R0);
    asm.compute(Operation::Move, R9, 1);
    asm.load(Size::Word, R5, R8, SOCKET_STATE);
    asm.jump_if(R5, When::NotEqual, TCP_LISTEN, "release");
    asm.compute(Operation::Move, R1, R8);
    asm.call(abi::SKC_TO_TCP_SOCK);
    asm.jump_if(R0, When::Equal, 0, "release");
    asm.compute(Operation::Move, R1, R6);
    asm.compute(Operation::Move, R2, R0);
    point(asm, R3, stack::ATTRIBUTES);
    asm.compute(Operation::Move, R4, ATTRIBUTES_BYTES as i32);
    asm.call_kernel_function(function);
    asm.compute(Operation::Move, R9, R0);
    // It returns an `int`.
    asm.compute(Operation::ShiftLeft, R9, 32);
    asm.label("release");
    asm.compute(Operation::Move, R1, R8);
    asm.call(abi::SK_RELEASE);
    asm.jump_if(R9, When::NotEqual, 0, "next");
    asm.load_map(R1, OFFERS);
    point(asm, R2, stack::FLOW);
    asm.call(abi::MAP_DELETE_ELEM);
}

fn program(function: i32) -> Assembled {
    const V4: i16 = stack::IP + 20;
    const V6: i16 = stack::IP + 40;
    let mut asm = Assembler::default();
    asm.compute(Operation::Move, R6, R1);
    copy_headers(&mut asm, 14 + 20 + 20);
    asm.load(Size::Half, R5, R10, stack::FRAME + 12);
    asm.jump_if(R5, When::Equal, half([0x08, 0x00]), "ipv4");
    asm.jump_if(R5, When::NotEqual, half([0x86, 0xdd]), "next");
    copy_headers(&mut asm, 14 + 40 + 20);
    asm.load(Size::Byte, R5, R10, stack::IP + 6);
    asm.jump_if(R5, When::NotEqual, i32::from(TCP), "next");
    parse_segment(&mut asm, V6, &[8, 12, 16, 20], &[24, 28, 32, 36]);
    asm.label("ipv4");
    asm.load(Size::Byte, R5, R10, stack::IP);
    asm.jump_if(R5, When::NotEqual, 0x45, "next");
    // A fragment has an offset or the flag "more fragments".
    asm.load(Size::Half, R5, R10, stack::IP + 6);
    asm.compute(Operation::And, R5, half([0x3f, 0xff]));
    asm.jump_if(R5, When::NotEqual, 0, "next");
    asm.load(Size::Byte, R5, R10, stack::IP + 9);
    asm.jump_if(R5, When::NotEqual, i32::from(TCP), "next");
    parse_segment(&mut asm, V4, &[12], &[16]);
    find_offer(&mut asm);
    copy_attributes(&mut asm);
    assign(&mut asm, function);
    asm.label("next");
    asm.compute(Operation::Move, R0, abi::TCX_NEXT);
    asm.exit();
    asm.assemble()
}

/// Returns the program and its map as an ELF object, for a kernel with this number of the function [`ASSIGN`].
pub(super) fn object(function: i32) -> Vec<u8> {
    let map = Map {
        name: OFFERS,
        kind: abi::MAP_TYPE_LRU_HASH,
        key_bytes: size_of::<FlowKey>() as u32,
        value_bytes: OFFER_BYTES as u32,
        entries: MAX_OFFERS,
        flags: 0,
    };
    object_file(&[Program { name: PROGRAM, section: "classifier", code: program(function) }], &[map])
}
