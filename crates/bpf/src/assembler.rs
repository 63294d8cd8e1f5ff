//! The assembler: instructions, labels, and references to maps.
//!
//! Encoding as in RFC 9669, "BPF Instruction Set Architecture". Only the instructions that Abey's programs use are
//! implemented.

use std::collections::HashMap;

/// A register. `R0` holds results, `R1` to `R5` arguments, `R6` to `R9` are preserved by calls, `R10` is the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 9669")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10 = 10,
}

/// The width of a load or store.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of RFC 9669")]
pub enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// The condition of a jump. Comparisons are unsigned.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of RFC 9669")]
pub enum When {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
    Less = 0xa0,
}

/// An arithmetic operation on 64 bits. Division is unsigned.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of RFC 9669")]
pub enum Operation {
    Add = 0x00,
    Subtract = 0x10,
    Divide = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Move = 0xb0,
}

/// The right-hand side of an instruction.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of RFC 9669")]
pub enum Operand {
    Register(Register),
    Value(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Value(value)
    }
}

const LOAD_MEMORY: u8 = 0x61;
const STORE_MEMORY: u8 = 0x63;
const ARITHMETIC: u8 = 0x07;
const JUMP: u8 = 0x05;
/// Flag of an operation with a register as its right-hand side.
const BY_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_WIDE: u8 = 0x18;

/// A program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<[u8; 8]>,
    labels: HashMap<&'static str, usize>,
    /// Index of each jump, and the label it goes to.
    jumps: Vec<(usize, &'static str)>,
    /// Index of each instruction that loads the address of a map, and the map's name.
    maps: Vec<(usize, &'static str)>,
}

/// The code of a program, ready for [`object_file`](crate::object_file).
#[derive(Clone, Debug)]
pub struct Assembled {
    /// Instructions.
    pub code: Vec<u8>,
    /// Offset in bytes of each instruction that loads the address of a map, and the map's name.
    pub maps: Vec<(u64, &'static str)>,
}

impl Assembler {
    fn emit(&mut self, opcode: u8, to: Register, from: Register, offset: i16, value: i32) {
        let [low, high] = offset.to_ne_bytes();
        let [a, b, c, d] = value.to_ne_bytes();
        let registers =
            if cfg!(target_endian = "little") { (from as u8) << 4 | to as u8 } else { (to as u8) << 4 | from as u8 };
        self.code.push([opcode, registers, low, high, a, b, c, d]);
    }

    /// `to = *(size *)(from + offset)`
    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.emit(LOAD_MEMORY | size as u8, to, from, offset, 0);
    }

    /// `*(size *)(to + offset) = from`
    pub fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) {
        self.emit(STORE_MEMORY | size as u8, to, from, offset, 0);
    }

    /// `to = to OPERATION operand`
    pub fn compute(&mut self, operation: Operation, to: Register, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Register(from) => self.emit(ARITHMETIC | BY_REGISTER | operation as u8, to, from, 0, 0),
            Operand::Value(value) => self.emit(ARITHMETIC | operation as u8, to, Register::R0, 0, value),
        }
    }

    /// `if left WHEN right goto label`
    pub fn jump_if(&mut self, left: Register, when: When, right: impl Into<Operand>, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        match right.into() {
            Operand::Register(right) => self.emit(JUMP | BY_REGISTER | when as u8, left, right, 0, 0),
            Operand::Value(value) => self.emit(JUMP | when as u8, left, Register::R0, 0, value),
        }
    }

    /// `goto label`
    pub fn jump(&mut self, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.emit(JUMP, Register::R0, Register::R0, 0, 0);
    }

    /// Names the next instruction.
    ///
    /// # Panics
    /// When the label is in use.
    pub fn label(&mut self, label: &'static str) {
        let previous = self.labels.insert(label, self.code.len());
        assert!(previous.is_none(), "label {label} is in use");
    }

    /// `to = address of the map`
    pub fn load_map(&mut self, to: Register, map: &'static str) {
        self.maps.push((self.code.len(), map));
        self.emit(LOAD_WIDE, to, Register::R0, 0, 0);
        self.code.push([0; 8]);
    }

    /// Calls a helper of the kernel, by its number in [`abi`](crate::abi).
    pub fn call(&mut self, helper: i32) {
        self.emit(CALL, Register::R0, Register::R0, 0, helper);
    }

    /// Calls a function of the kernel that is no helper (`Documentation/bpf/kfuncs.rst`), by its number in the kernel's
    /// [`Btf`](crate::Btf).
    pub fn call_kernel_function(&mut self, number: i32) {
        self.emit(CALL, Register::R0, Register::R2, 0, number);
    }

    /// `R0 = address of the map's value for the 4-byte key in a register`, or 0 if there is none.
    ///
    /// The key is copied to the last 4 bytes of the stack; `R1` and `R2` are overwritten.
    pub fn look_up(&mut self, map: &'static str, key: Register) {
        self.store(Size::Word, Register::R10, -4, key);
        self.compute(Operation::Move, Register::R2, Register::R10);
        self.compute(Operation::Add, Register::R2, -4);
        self.load_map(Register::R1, map);
        self.call(crate::abi::MAP_LOOKUP_ELEM);
    }

    /// Ends the program.
    pub fn exit(&mut self) {
        self.emit(EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// Returns the code with its labels resolved.
    ///
    /// # Panics
    /// When a label is missing, or a jump is longer than 16 bits.
    pub fn assemble(mut self) -> Assembled {
        for (at, label) in &self.jumps {
            let target = *self.labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            // Distances count from the instruction after the jump.
            let distance = i16::try_from(target as i64 - *at as i64 - 1).expect("a short program");
            self.code[*at][2..4].copy_from_slice(&distance.to_ne_bytes());
        }
        let maps = self.maps.iter().map(|(at, map)| (*at as u64 * 8, *map)).collect();
        Assembled { code: self.code.concat(), maps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_encoded_as_in_rfc_9669() {
        let mut assembler = Assembler::default();
        assembler.load(Size::Word, Register::R2, Register::R1, 4);
        assembler.compute(Operation::Move, Register::R6, Register::R1);
        assembler.compute(Operation::Add, Register::R2, -4);
        assembler.label("back");
        assembler.jump_if(Register::R4, When::Greater, Register::R3, "end");
        assembler.store(Size::Word, Register::R10, -4, Register::R7);
        assembler.load_map(Register::R1, "map");
        assembler.call(1);
        assembler.call_kernel_function(7);
        assembler.jump_if(Register::R0, When::Equal, 0, "back");
        assembler.label("end");
        assembler.exit();
        let assembled = assembler.assemble();
        // Checked with `llvm-objdump`.
        let expected: [[u8; 8]; 11] = [
            [0x61, 0x12, 4, 0, 0, 0, 0, 0],
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
            [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff],
            [0x2d, 0x34, 6, 0, 0, 0, 0, 0],
            [0x63, 0x7a, 0xfc, 0xff, 0, 0, 0, 0],
            [0x18, 0x01, 0, 0, 0, 0, 0, 0],
            [0; 8],
            [0x85, 0, 0, 0, 1, 0, 0, 0],
            [0x85, 0x20, 0, 0, 7, 0, 0, 0],
            [0x15, 0x00, 0xf9, 0xff, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(assembled.code, expected.concat());
        assert_eq!(assembled.maps, [(40, "map")]);
    }
}
