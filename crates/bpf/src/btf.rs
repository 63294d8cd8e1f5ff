//! Reader of BTF, the kernel's description of its own types: offsets of structure members and numbers of functions in the
//! running kernel.
//!
//! Source: Linux `Documentation/bpf/btf.rst`. Members of structures and unions are parsed; of every other kind of type only
//! the length.

use std::collections::HashMap;
use std::path::Path;

const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Numbers of `linux/btf.h`.
mod abi {
    pub(super) const MAGIC: u16 = 0xeb9f;
    pub(super) const HEADER_BYTES: usize = 24;
    pub(super) const KIND_INT: u32 = 1;
    pub(super) const KIND_ARRAY: u32 = 3;
    pub(super) const KIND_STRUCT: u32 = 4;
    pub(super) const KIND_UNION: u32 = 5;
    pub(super) const KIND_ENUM: u32 = 6;
    pub(super) const KIND_FUNC: u32 = 12;
    pub(super) const KIND_FUNC_PROTO: u32 = 13;
    pub(super) const KIND_VAR: u32 = 14;
    pub(super) const KIND_DATASEC: u32 = 15;
    pub(super) const KIND_DECL_TAG: u32 = 17;
    pub(super) const KIND_ENUM64: u32 = 19;
}

/// Reason why an offset or a number could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The kernel has no BTF, or it is not readable.
    #[error("cannot read {PATH}: {source}; it needs a kernel with CONFIG_DEBUG_INFO_BTF")]
    Read {
        /// Error of the read.
        source: std::io::Error,
    },
    /// The BTF is malformed.
    #[error("{PATH} is malformed")]
    Form,
    /// The running kernel's structure lacks the member.
    #[error("this kernel's struct {structure} has no member {member}")]
    NoMember {
        /// Name of the structure.
        structure: String,
        /// Name of the member.
        member: String,
    },
    /// The running kernel lacks the function.
    #[error("this kernel has no function {function}")]
    NoFunction {
        /// Name of the function.
        function: String,
    },
}

/// The parsed BTF of a kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Offset of the string section.
    strings: usize,
    /// Offset of each type, by its number. Number 0 is `void`, which has no entry in the file.
    types: Vec<usize>,
    /// Offset of each structure, by its name.
    structures: HashMap<Vec<u8>, usize>,
}

impl Btf {
    /// Reads the BTF of the running kernel.
    ///
    /// # Errors
    /// [`BtfError::Read`], [`BtfError::Form`].
    pub fn of_kernel() -> Result<Self, BtfError> {
        let bytes = std::fs::read(Path::new(PATH)).map_err(|source| BtfError::Read { source })?;
        Self::parse(bytes).ok_or(BtfError::Form)
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut btf = Self { bytes, strings: 0, types: vec![0], structures: HashMap::new() };
        let magic = u16::from_ne_bytes(btf.bytes.get(..2)?.try_into().ok()?);
        let header = btf.word(4)? as usize;
        if magic != abi::MAGIC || header < abi::HEADER_BYTES {
            return None;
        }
        let [types, types_bytes, strings] = [8, 12, 16].map(|at| btf.word(at));
        let (mut at, end) = (header + types? as usize, header + types? as usize + types_bytes? as usize);
        btf.strings = header + strings? as usize;
        while at < end {
            let (kind, members) = btf.kind(at)?;
            btf.types.push(at);
            if kind == abi::KIND_STRUCT {
                let name = btf.name(btf.word(at)?)?.to_vec();
                btf.structures.entry(name).or_insert(at);
            }
            at += 12 + extra_bytes(kind, members);
        }
        Some(btf)
    }

    /// Returns the offset of a member in a structure, in bytes. Members of anonymous structures and unions count as members
    /// of the structure around them.
    ///
    /// # Errors
    /// [`BtfError::NoMember`], also for a bit field that does not begin at a byte.
    pub fn offset(&self, structure: &str, member: &str) -> Result<i32, BtfError> {
        let found = self.structures.get(structure.as_bytes()).and_then(|at| self.bit(*at, member.as_bytes(), 0));
        let no_member = || BtfError::NoMember { structure: structure.to_owned(), member: member.to_owned() };
        found.filter(|bit| bit % 8 == 0).and_then(|bit| i32::try_from(bit / 8).ok()).ok_or_else(no_member)
    }

    /// Returns the number of a function, for [`call_kernel_function`](crate::Assembler::call_kernel_function).
    ///
    /// # Errors
    /// [`BtfError::NoFunction`]
    pub fn function(&self, name: &str) -> Result<i32, BtfError> {
        let is_it = |at: usize| {
            self.kind(at).is_some_and(|(kind, _)| kind == abi::KIND_FUNC)
                && self.word(at).and_then(|offset| self.name(offset)) == Some(name.as_bytes())
        };
        // Number 0 has no entry.
        let number = self.types.iter().skip(1).position(|at| is_it(*at)).and_then(|at| i32::try_from(at + 1).ok());
        number.ok_or_else(|| BtfError::NoFunction { function: name.to_owned() })
    }

    /// Returns the offset of a member in bits. Anonymous structures are followed eight levels deep.
    fn bit(&self, at: usize, member: &[u8], depth: u32) -> Option<u32> {
        let (kind, members) = self.kind(at)?;
        if !matches!(kind, abi::KIND_STRUCT | abi::KIND_UNION) || depth > 8 {
            return None;
        }
        // With `kind_flag` the upper byte of an offset is the length of a bit field.
        let mask = if self.word(at + 4)? >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
        (0..members).map(|number| at + 12 + 12 * number).find_map(|entry| {
            let (name, bit) = (self.name(self.word(entry)?)?, self.word(entry + 8)? & mask);
            if name == member {
                return Some(bit);
            }
            let part = name.is_empty().then(|| self.types.get(self.word(entry + 4)? as usize).copied())??;
            Some(bit + self.bit(part, member, depth + 1)?)
        })
    }

    /// Returns the kind and the number of members of the type at this offset.
    fn kind(&self, at: usize) -> Option<(u32, usize)> {
        let info = self.word(at + 4)?;
        Some((info >> 24 & 0x1f, (info & 0xffff) as usize))
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?))
    }

    fn name(&self, offset: u32) -> Option<&[u8]> {
        self.bytes.get(self.strings + offset as usize..)?.split(|byte| *byte == 0).next()
    }
}

/// Returns the length of a type beyond the twelve bytes that all types have.
const fn extra_bytes(kind: u32, members: usize) -> usize {
    match kind {
        abi::KIND_INT | abi::KIND_VAR | abi::KIND_DECL_TAG => 4,
        abi::KIND_ARRAY => 12,
        abi::KIND_STRUCT | abi::KIND_UNION | abi::KIND_DATASEC | abi::KIND_ENUM64 => 12 * members,
        abi::KIND_ENUM | abi::KIND_FUNC_PROTO => 8 * members,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int first; union { struct { int low; int high; }; long whole; }; }`
    fn example() -> Vec<u8> {
        let strings = b"\0outer\0first\0low\0high\0whole\0";
        let word = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let types = [
            word(&[0, abi::KIND_INT << 24, 4, 0]),
            word(&[0, abi::KIND_STRUCT << 24 | 2, 8, 13, 1, 0, 17, 1, 32]),
            word(&[0, abi::KIND_UNION << 24 | 2, 8, 0, 2, 0, 22, 1, 0]),
            word(&[1, abi::KIND_STRUCT << 24 | 2, 16, 7, 1, 0, 0, 3, 64]),
            word(&[13, abi::KIND_FUNC << 24, 0]),
        ]
        .concat();
        let mut bytes = abi::MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let length = types.len() as u32;
        bytes.extend(word(&[abi::HEADER_BYTES as u32, 0, length, length, strings.len() as u32]));
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_of_anonymous_structures_and_functions_are_found() {
        let btf = Btf::parse(example()).expect("well-formed BTF");
        for (member, offset) in [("first", 0), ("low", 8), ("high", 12), ("whole", 8)] {
            assert_eq!(btf.offset("outer", member).ok(), Some(offset), "{member}");
        }
        let missing = btf.offset("outer", "none").expect_err("no such member");
        assert_eq!(missing.to_string(), "this kernel's struct outer has no member none");
        assert!(btf.offset("inner", "first").is_err());
        assert_eq!(btf.function("low").ok(), Some(5));
        assert_eq!(btf.function("outer").expect_err("a structure").to_string(), "this kernel has no function outer");
    }

    #[test]
    fn truncated_and_foreign_files_are_refused() {
        let whole = example();
        assert!(Btf::parse(Vec::new()).is_none());
        assert!(Btf::parse(vec![0; 64]).is_none());
        // The types end at their declared length.
        for length in 0..whole.len() - 29 {
            assert!(Btf::parse(whole[..length].to_vec()).is_none(), "{length} bytes");
        }
    }
}
