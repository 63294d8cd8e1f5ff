//! The part of the program that decides about a frame whose headers were read.

use abey_bpf::Operation::{Add, And, Move, Or, ShiftLeft, ShiftRight};
use abey_bpf::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use abey_bpf::{Assembler, Register, Size, When, abi};

use super::parse::{ETHERNET, IPV4, IPV6, TCP_HEADER, load_bounds, require, require_or};
use super::{ADDRESSES, FLOWS, HELD, HELD_FLOWS, MAX_QUEUES, PORTS, QUEUES_BYTES, SOCKETS};
use super::{CONNECTION_BYTES, DESTINATION_PORT, context, kind, stack};
use crate::headers::{TCP, UDP};

/// Offset of the state in `struct bpf_sock` of `linux/bpf.h`, and a value from `net/tcp_states.h`.
const SOCKET_STATE: i16 = 72;
const TCP_LISTEN: i32 = 10;
/// BPF_F_CURRENT_NETNS of `linux/bpf.h`: the namespace of the device.
const CURRENT_NETNS: i32 = -1;
/// Lengths of `struct bpf_sock_tuple` for each version of IP.
const TUPLE_V4: i32 = 12;
const TUPLE_V6: i32 = CONNECTION_BYTES as i32;

/// Points `register` at an offset on the stack.
fn point(asm: &mut Assembler, register: Register, at: i16) {
    asm.compute(Move, register, R10);
    asm.compute(Add, register, i32::from(at));
}

/// Jumps to `pass` unless the frame's queue is in the set at `R0`. Overwrites `R0`, `R2`, `R4` and `R5`.
fn check_queue(asm: &mut Assembler) {
    asm.load(Size::Word, R2, R6, context::RX_QUEUE_INDEX);
    asm.jump_if(R2, When::Greater, MAX_QUEUES as i32 - 1, "pass");
    asm.compute(Move, R4, R2);
    asm.compute(ShiftRight, R4, 3);
    asm.compute(Add, R0, R4);
    asm.load(Size::Byte, R5, R0, 0);
    asm.compute(And, R2, 7);
    asm.compute(ShiftRight, R5, R2);
    asm.compute(And, R5, 1);
    asm.jump_if(R5, When::Equal, 0, "pass");
}

/// Jumps to `pass` unless the port is open, or has flows, on the frame's queue. `R7` becomes whether flows of it are held.
fn check_port(asm: &mut Assembler) {
    asm.jump_if(R7, When::Equal, i32::from(TCP), "port");
    asm.jump_if(R7, When::NotEqual, i32::from(UDP), "pass");
    asm.label("port");
    // The frame's bounds are those that `parse` has loaded.
    require(asm, R8, DESTINATION_PORT + 2);
    asm.load(Size::Half, R5, R8, DESTINATION_PORT as i16);
    asm.compute(ShiftLeft, R7, 16);
    asm.compute(Or, R7, R5);
    asm.store(Size::Word, R10, stack::PORT_KEY, R7);
    asm.load_map(R1, PORTS);
    point(asm, R2, stack::PORT_KEY);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::Equal, 0, "pass");
    asm.load(Size::Byte, R7, R0, (HELD * QUEUES_BYTES) as i16);
    asm.jump_if(R9, When::Equal, kind::FIRST, "port's queues");
    asm.compute(Add, R0, (FLOWS * QUEUES_BYTES) as i32);
    asm.label("port's queues");
    check_queue(asm);
}

/// Jumps to `pass` unless the destination address is served on the frame's queue.
fn check_address(asm: &mut Assembler) {
    asm.load_map(R1, ADDRESSES);
    point(asm, R2, stack::ADDRESS);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::Equal, 0, "pass");
    check_queue(asm);
}

/// Jumps to `redirect` if the flow is held.
fn check_held(asm: &mut Assembler) {
    asm.jump_if(R7, When::Equal, 0, "not held");
    asm.load_map(R1, HELD_FLOWS);
    point(asm, R2, stack::CONNECTION);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::NotEqual, 0, "redirect");
    asm.label("not held");
}

/// Sets `R0` to the kernel's socket of the connection or its listener, or to 0.
fn look_up_socket(asm: &mut Assembler) {
    asm.compute(Move, R3, TUPLE_V4);
    asm.load(Size::Word, R5, R10, stack::IS_V6);
    asm.jump_if(R5, When::Equal, 0, "tuple");
    asm.compute(Move, R3, TUPLE_V6);
    asm.label("tuple");
    asm.compute(Move, R1, R6);
    point(asm, R2, stack::CONNECTION);
    asm.compute(Move, R4, CURRENT_NETNS);
    asm.compute(Move, R5, 0);
    asm.call(abi::SKC_LOOKUP_TCP);
}

/// Jumps to `pass` if the kernel has the connection: a socket of it, a request for one, or its TIME-WAIT; or if the segment
/// ends a handshake of which a listener has kept nothing (SYN cookies).
fn check_kernel(asm: &mut Assembler) {
    look_up_socket(asm);
    asm.jump_if(R0, When::Equal, 0, "redirect");
    asm.compute(Move, R7, R0);
    asm.load(Size::Word, R5, R7, SOCKET_STATE);
    asm.jump_if(R5, When::NotEqual, TCP_LISTEN, "release and pass");
    asm.jump_if(R9, When::NotEqual, kind::SEGMENT, "release and redirect");
    asm.load(Size::Word, R5, R10, stack::IS_V6);
    asm.jump_if(R5, When::NotEqual, 0, "cookie of IPv6");
    check_cookie(asm, IPV4);
    asm.label("cookie of IPv6");
    check_cookie(asm, IPV6);
    asm.label("release and redirect");
    asm.compute(Move, R1, R7);
    asm.call(abi::SK_RELEASE);
    asm.jump("redirect");
    asm.label("release and pass");
    asm.compute(Move, R1, R7);
    asm.call(abi::SK_RELEASE);
    asm.jump("pass");
}

/// Checks the segment at `R8` against the cookies of the listener in `R7`. It costs a comparison of times as long as the
/// listener has sent none.
fn check_cookie(asm: &mut Assembler, header: i32) {
    // The verifier has forgotten that the frame is this long.
    load_bounds(asm);
    require_or(asm, R2, ETHERNET + header, "release and redirect");
    asm.compute(Add, R2, ETHERNET);
    asm.compute(Move, R1, R7);
    asm.compute(Move, R3, header);
    asm.compute(Move, R4, R8);
    asm.compute(Move, R5, TCP_HEADER);
    asm.call(abi::TCP_CHECK_SYNCOOKIE);
    asm.jump_if(R0, When::Equal, 0, "release and pass");
    asm.jump("release and redirect");
}

/// Decides about the frame. The cheapest checks come first.
pub(super) fn decide(asm: &mut Assembler) {
    check_port(asm);
    check_address(asm);
    asm.jump_if(R9, When::Equal, kind::OTHER, "redirect");
    check_held(asm);
    check_kernel(asm);
    asm.label("redirect");
    asm.load(Size::Word, R2, R6, context::RX_QUEUE_INDEX);
    asm.load_map(R1, SOCKETS);
    // The action for a queue without a socket.
    asm.compute(Move, R3, abi::XDP_PASS);
    asm.call(abi::REDIRECT_MAP);
    asm.exit();
    asm.label("pass");
    asm.compute(Move, R0, abi::XDP_PASS);
    asm.exit();
}
