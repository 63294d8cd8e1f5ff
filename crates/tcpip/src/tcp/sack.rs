//! Blocks of the SACK option (RFC 2018, section 3).

use super::seq::{Seq, SeqRange};

/// Kind of the option. smoltcp's type for it has room for three blocks only.
const KIND: u8 = 5;
/// Length of a block in bytes.
const BLOCK: usize = 8;
/// Maximum number of blocks, without a timestamp.
pub(crate) const SACK_BLOCKS: usize = 4;
/// Maximum number of blocks beside a timestamp.
const BLOCKS_WITH_TIMESTAMP: usize = 3;

/// SACK blocks of one segment.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub(crate) struct SackBlocks {
    /// Those beyond `count` are zero.
    blocks: [SeqRange; SACK_BLOCKS],
    count: u8,
}

/// Most segments have no blocks.
impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && (self.count == 0 || self.blocks == other.blocks)
    }
}

impl SackBlocks {
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn as_slice(&self) -> &[SeqRange] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Returns the length of the option with its padding in bytes.
    pub(crate) fn len(&self) -> usize {
        option_len(self.count.into())
    }

    /// Parses the blocks of an option. Those beyond the fourth do not fit into a TCP header.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let blocks = bytes.as_chunks::<BLOCK>().0.iter().map(|&[a, b, c, d, e, f, g, h]| {
            SeqRange::new(Seq(u32::from_be_bytes([a, b, c, d])), Seq(u32::from_be_bytes([e, f, g, h])))
        });
        blocks.collect()
    }

    /// Writes the option without its padding, and returns the rest of `buffer`.
    pub(crate) fn emit<'a>(&self, buffer: &'a mut [u8]) -> &'a mut [u8] {
        let (option, rest) = buffer.split_at_mut(2 + BLOCK * usize::from(self.count));
        option[..2].copy_from_slice(&[KIND, 2 + BLOCK as u8 * self.count]);
        for (bytes, block) in option[2..].chunks_exact_mut(BLOCK).zip(self.as_slice()) {
            bytes[..4].copy_from_slice(&block.start.0.to_be_bytes());
            bytes[4..].copy_from_slice(&block.end.0.to_be_bytes());
        }
        rest
    }
}

/// Takes the first four blocks.
impl FromIterator<SeqRange> for SackBlocks {
    fn from_iter<T: IntoIterator<Item = SeqRange>>(ranges: T) -> Self {
        let mut blocks = Self::default();
        for (slot, range) in blocks.blocks.iter_mut().zip(ranges) {
            *slot = range;
            blocks.count += 1;
        }
        blocks
    }
}

/// Returns the length of an option of `blocks` blocks with its padding, in bytes.
pub(crate) const fn option_len(blocks: usize) -> usize {
    if blocks > 0 { 4 + BLOCK * blocks } else { 0 }
}

/// Returns the number of blocks that fit into `bytes` of a segment with or without a timestamp.
pub(crate) fn room(bytes: usize, timestamp: bool) -> usize {
    let most = if timestamp { BLOCKS_WITH_TIMESTAMP } else { SACK_BLOCKS };
    (bytes.saturating_sub(4) / BLOCK).min(most)
}
