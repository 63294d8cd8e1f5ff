//! The XDP program: redirects registered (protocol, destination port) pairs to our sockets, and ICMP errors that quote a
//! packet from such a port; passes everything else.
//!
//! Written for the assembler next door and wrapped in an ELF object in memory, which is what loaders take. Passed to the
//! kernel: everything that is not TCP, UDP or an ICMP error over untagged IPv4 or IPv6, fragments, errors that quote a
//! later fragment, IPv6 with extension headers (also quoted), and frames of a queue that has no socket.

use object::write::{Object, Relocation, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind};
use object::{SymbolFlags, SymbolKind, SymbolScope, elf};

use super::assembler::{Assembled, Assembler, Operation, Register, Register::*, Size, When};
use crate::headers::{ICMP, ICMPV6, TCP, UDP};

/// Name of the program in the object.
pub(super) const PROGRAM: &str = "abey_filter";
/// Name of the map from [`key`] to 1.
pub(super) const PORTS: &str = "abey_ports";
/// Name of the map from queue to socket.
pub(super) const SOCKETS: &str = "abey_sockets";
/// Most ports at a time.
pub(super) const MAX_PORTS: u32 = 65_536;
/// Most queues.
pub(super) const MAX_QUEUES: u32 = 256;
/// Where the destination port is in the headers of TCP and UDP, behind the source port.
const DESTINATION_PORT: i32 = 2;
/// Bytes before the packet that an ICMP error quotes.
const ICMP_HEADER: i32 = 8;

/// Numbers of `linux/bpf.h`.
mod abi {
    pub(super) const XDP_PASS: i32 = 2;
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const REDIRECT_MAP: i32 = 51;
    pub(super) const MAP_TYPE_HASH: u32 = 1;
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

fn program() -> Assembled {
    let mut asm = Assembler::default();
    // R6: context; R2: packet; R3: its end.
    asm.compute(Operation::Move, R6, R1);
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
    asm.jump("transport");

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
    asm.jump_if(R7, When::NotEqual, i32::from(ICMP), "transport");
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
    asm.store(Size::Word, R10, -4, R7);
    asm.compute(Operation::Move, R2, R10);
    asm.compute(Operation::Add, R2, -4);
    asm.load_map(R1, PORTS);
    asm.call(abi::MAP_LOOKUP_ELEM);
    asm.jump_if(R0, When::Equal, 0, "pass");
    asm.load(Size::Word, R2, R6, abi::RX_QUEUE_INDEX);
    asm.load_map(R1, SOCKETS);
    // What to do where the queue has no socket.
    asm.compute(Operation::Move, R3, abi::XDP_PASS);
    asm.call(abi::REDIRECT_MAP);
    asm.exit();

    asm.label("pass");
    asm.compute(Operation::Move, R0, abi::XDP_PASS);
    asm.exit();
    asm.assemble()
}

/// The program and its maps as an ELF object, as a C compiler would leave it.
pub(super) fn object_file() -> Vec<u8> {
    let endian = if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };
    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, endian);
    let license = object.add_section(Vec::new(), b"license".to_vec(), SectionKind::Data);
    object.append_section_data(license, b"Dual MIT/GPL\0", 1);

    let section = object.add_section(Vec::new(), b"maps".to_vec(), SectionKind::Data);
    let mut map = |name: &str, definition: [u32; 5]| {
        let bytes = definition.map(u32::to_ne_bytes).concat();
        let value = object.append_section_data(section, &bytes, 4);
        object.add_symbol(symbol(name, value, bytes.len(), SymbolKind::Data, section))
    };
    // Type, bytes of a key, bytes of a value, entries, flags.
    let ports = map(PORTS, [abi::MAP_TYPE_HASH, 4, 4, MAX_PORTS, abi::F_NO_PREALLOC]);
    let sockets = map(SOCKETS, [abi::MAP_TYPE_XSKMAP, 4, 4, MAX_QUEUES, 0]);

    let program = program();
    let text = object.add_section(Vec::new(), b"xdp".to_vec(), SectionKind::Text);
    let value = object.append_section_data(text, &program.code, 8);
    object.add_symbol(symbol(PROGRAM, value, program.code.len(), SymbolKind::Text, text));
    for (offset, map) in program.maps {
        let symbol = if map == PORTS { ports } else { sockets };
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
        let relocation = Relocation { offset, symbol, addend: 0, flags };
        object.add_relocation(text, relocation).expect("a relocation that ELF has");
    }
    object.write().expect("an object that ELF has")
}

fn symbol(name: &str, value: u64, size: usize, kind: SymbolKind, section: object::write::SectionId) -> Symbol {
    Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size: size as u64,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    }
}
