//! Fuzz targets: functions of bytes that panic if they find an error. `tests/fuzz.rs` calls them with random bytes on
//! any compiler; `fuzz/` at the top of the repository calls them with the inputs of a coverage-guided fuzzer.

#![allow(dead_code, unreachable_pub, reason = "each includer uses a part")]

pub mod frames;
pub mod segments;

/// Choices read from the fuzzer's bytes; zeros after the last byte.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        u32::from(self.word()) % end.max(1)
    }

    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
