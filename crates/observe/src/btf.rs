//! Where the kernel that runs keeps what we read: offsets of structure members, from its own type information.
//!
//! Source: Linux `Documentation/bpf/btf.rst`. Only what finding members takes is read: structures, unions, and how long
//! every other kind of type is.

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
    pub(super) const KIND_FUNC_PROTO: u32 = 13;
    pub(super) const KIND_VAR: u32 = 14;
    pub(super) const KIND_DATASEC: u32 = 15;
    pub(super) const KIND_DECL_TAG: u32 = 17;
    pub(super) const KIND_ENUM64: u32 = 19;
}

/// Why the kernel's types are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The kernel does not offer them.
    #[error("cannot read {PATH}: {source}; it needs a kernel with CONFIG_DEBUG_INFO_BTF")]
    Read {
        /// The system's reason.
        source: std::io::Error,
    },
    /// They are in a form that is not documented.
    #[error("{PATH} does not have the documented form")]
    Form,
    /// The kernel is built otherwise.
    #[error("this kernel's struct {structure} has no member {member}")]
    NoMember {
        /// The structure.
        structure: String,
        /// The member.
        member: String,
    },
}

/// The types of the kernel.
#[derive(Debug)]
pub(crate) struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    /// Where each type begins, by its number.
    types: Vec<usize>,
    structures: HashMap<Vec<u8>, usize>,
}

impl Btf {
    /// Those of the kernel that runs.
    pub(crate) fn of_kernel() -> Result<Self, BtfError> {
        let bytes = std::fs::read(Path::new(PATH)).map_err(|source| BtfError::Read { source })?;
        Self::parse(bytes).ok_or(BtfError::Form)
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut read = Self { bytes, strings: 0, types: vec![0], structures: HashMap::new() };
        let magic = u16::from_ne_bytes(read.bytes.get(..2)?.try_into().ok()?);
        let header = read.word(4)? as usize;
        if magic != abi::MAGIC || header < abi::HEADER_BYTES {
            return None;
        }
        let [types, types_bytes, strings] = [8, 12, 16].map(|at| read.word(at));
        let (mut at, end) = (header + types? as usize, header + types? as usize + types_bytes? as usize);
        read.strings = header + strings? as usize;
        while at < end {
            let (kind, members) = read.kind(at)?;
            read.types.push(at);
            if kind == abi::KIND_STRUCT {
                let name = read.name(read.word(at)?)?.to_vec();
                read.structures.entry(name).or_insert(at);
            }
            at += 12 + rest(kind, members);
        }
        Some(read)
    }

    /// Bytes from the beginning of a structure to a member of it, or to a member of its unnamed parts.
    pub(crate) fn offset(&self, structure: &str, member: &str) -> Result<i32, BtfError> {
        let found = self.structures.get(structure.as_bytes()).and_then(|at| self.bit(*at, member.as_bytes(), 0));
        let no_member = || BtfError::NoMember { structure: structure.to_owned(), member: member.to_owned() };
        found.filter(|bit| bit % 8 == 0).and_then(|bit| i32::try_from(bit / 8).ok()).ok_or_else(no_member)
    }

    /// In bits; unnamed structures lie within each other a few levels deep at most.
    fn bit(&self, at: usize, member: &[u8], depth: u32) -> Option<u32> {
        let (kind, members) = self.kind(at)?;
        if !matches!(kind, abi::KIND_STRUCT | abi::KIND_UNION) || depth > 8 {
            return None;
        }
        // With this flag the upper byte of an offset is the length of a bit field.
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

    /// What kind of type begins there, and how many members it has.
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

/// How many bytes follow the twelve that every type has.
const fn rest(kind: u32, members: usize) -> usize {
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
    fn members_are_found_also_in_unnamed_parts() {
        let btf = Btf::parse(example()).expect("the documented form");
        for (member, offset) in [("first", 0), ("low", 8), ("high", 12), ("whole", 8)] {
            assert_eq!(btf.offset("outer", member).ok(), Some(offset), "{member}");
        }
        let missing = btf.offset("outer", "none").expect_err("no such member");
        assert_eq!(missing.to_string(), "this kernel's struct outer has no member none");
        assert!(btf.offset("inner", "first").is_err());
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_refused() {
        let whole = example();
        assert!(Btf::parse(Vec::new()).is_none());
        assert!(Btf::parse(vec![0; 64]).is_none());
        // The types end at their declared length.
        for length in 0..whole.len() - 29 {
            assert!(Btf::parse(whole[..length].to_vec()).is_none(), "{length} bytes");
        }
    }
}
