//! TCP options (RFC 9293, 3.2; RFC 7323; RFC 2018).
//!
//! A segment with malformed options is dropped and counted. Unknown options are skipped. SACK blocks are not
//! validated here.

use smoltcp::wire::TcpOption;

use super::seq::{Seq, SeqRange};

/// Largest shift of the window (RFC 7323, section 2.3).
pub(crate) const MAXIMUM_WINDOW_SCALE: u8 = 14;

/// Kind of the SACK option (RFC 2018). smoltcp's type for it has room for three blocks only.
const SACK: u8 = 5;

/// Maximum number of SACK blocks, without a timestamp. Beside one there is room for [`SACK_BLOCKS_WITH_TIMESTAMP`].
pub(crate) const SACK_BLOCKS: usize = 4;

/// Maximum number of SACK blocks beside a timestamp.
const SACK_BLOCKS_WITH_TIMESTAMP: usize = 3;

/// Timestamp option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timestamp {
    pub value: u32,
    pub echo: u32,
}

/// Options of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamp: Option<Timestamp>,
    pub sack: [Option<SeqRange>; SACK_BLOCKS],
}

impl Options {
    /// Parses the options. Returns `None` if they are malformed.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut options = Self::default();
        while !bytes.is_empty() {
            let (rest, option) = TcpOption::parse(bytes).ok()?;
            let encoded = &bytes[..bytes.len() - rest.len()];
            bytes = rest;
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
                TcpOption::WindowScale(shift) => options.window_scale = Some(shift.min(MAXIMUM_WINDOW_SCALE)),
                TcpOption::SackPermitted => options.sack_permitted = true,
                TcpOption::SackRange(_) => options.sack = parse_blocks(&encoded[2..]),
                TcpOption::TimeStamp { tsval, tsecr } => {
                    options.timestamp = Some(Timestamp { value: tsval, echo: tsecr });
                }
                TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
            }
        }
        Some(options)
    }

    /// Returns the length of the options in bytes, a multiple of four.
    pub(crate) fn len(&self) -> usize {
        let sack = self.sack.iter().flatten().count();
        4 * usize::from(self.mss.is_some())
            + 4 * usize::from(self.window_scale.is_some())
            + if self.timestamp.is_some() { 12 } else { 4 * usize::from(self.sack_permitted) }
            + sack_len(sack)
    }

    /// Writes the options into `buffer`, whose length must be [`Options::len`].
    pub(crate) fn emit(&self, buffer: &mut [u8]) {
        let mut rest = buffer;
        if let Some(mss) = self.mss {
            rest = TcpOption::MaxSegmentSize(mss).emit(rest);
        }
        if let Some(timestamp) = self.timestamp {
            // SACK-permitted takes the place of the padding.
            if self.sack_permitted {
                rest = TcpOption::SackPermitted.emit(rest);
            } else {
                rest = pad(rest);
            }
            rest = TcpOption::TimeStamp { tsval: timestamp.value, tsecr: timestamp.echo }.emit(rest);
        } else if self.sack_permitted {
            rest = TcpOption::SackPermitted.emit(pad(rest));
        }
        if let Some(shift) = self.window_scale {
            rest = TcpOption::NoOperation.emit(rest);
            rest = TcpOption::WindowScale(shift).emit(rest);
        }
        if self.sack.iter().any(Option::is_some) {
            rest = emit_blocks(pad(rest), &self.sack);
        }
        debug_assert!(rest.is_empty(), "the options fill the buffer");
    }
}

/// Returns the length of `blocks` SACK blocks with their padding, in bytes.
pub(crate) const fn sack_len(blocks: usize) -> usize {
    if blocks > 0 { 4 + 8 * blocks } else { 0 }
}

/// Returns the number of SACK blocks that fit into `bytes` of a segment with or without a timestamp.
pub(crate) fn sack_room(bytes: usize, timestamp: bool) -> usize {
    let most = if timestamp { SACK_BLOCKS_WITH_TIMESTAMP } else { SACK_BLOCKS };
    (bytes.saturating_sub(4) / 8).min(most)
}

/// Parses the blocks of a SACK option, of eight bytes each. Those beyond the fourth do not fit into a TCP header.
fn parse_blocks(bytes: &[u8]) -> [Option<SeqRange>; SACK_BLOCKS] {
    let mut blocks = [None; SACK_BLOCKS];
    for (slot, block) in blocks.iter_mut().zip(bytes.as_chunks().0) {
        let [a, b, c, d, e, f, g, h] = *block;
        let (start, end) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        *slot = Some(SeqRange::new(Seq(start), Seq(end)));
    }
    blocks
}

/// Writes a SACK option and returns the rest of `buffer`.
fn emit_blocks<'a>(buffer: &'a mut [u8], blocks: &[Option<SeqRange>; SACK_BLOCKS]) -> &'a mut [u8] {
    let count = blocks.iter().flatten().count();
    let (option, rest) = buffer.split_at_mut(2 + 8 * count);
    option[..2].copy_from_slice(&[SACK, 2 + 8 * count as u8]);
    for (bytes, block) in option[2..].chunks_exact_mut(8).zip(blocks.iter().flatten()) {
        bytes[..4].copy_from_slice(&block.start.0.to_be_bytes());
        bytes[4..].copy_from_slice(&block.end.0.to_be_bytes());
    }
    rest
}

fn pad(rest: &mut [u8]) -> &mut [u8] {
    let rest = TcpOption::NoOperation.emit(rest);
    TcpOption::NoOperation.emit(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(options: Options) {
        let mut bytes = vec![0xff; options.len()];
        options.emit(&mut bytes);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(Options::parse(&bytes), Some(options));
    }

    #[test]
    fn emitted_options_are_parsed() {
        let timestamp = Some(Timestamp { value: 7, echo: 9 });
        let block = |start| Some(SeqRange::new(Seq(start), Seq(start + 5)));
        round_trip(Options::default());
        round_trip(Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamp,
            ..Options::default()
        });
        round_trip(Options { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ..Options::default() });
        round_trip(Options { timestamp, sack: [block(1), block(20), block(40), None], ..Options::default() });
        round_trip(Options { sack: [block(1), block(20), None, None], ..Options::default() });
        round_trip(Options { sack: [block(1), block(20), block(40), block(60)], ..Options::default() });
    }

    #[test]
    fn malformed_options_are_rejected_and_unknown_ones_skipped() {
        assert_eq!(Options::parse(&[2, 4, 5]), None, "cut short");
        assert_eq!(Options::parse(&[8, 0]), None, "no length");
        assert_eq!(Options::parse(&[3, 4, 1, 1]), None, "window scale of a wrong length");
        assert_eq!(Options::parse(&[99, 3, 1, 0]), Some(Options::default()));
        assert_eq!(Options::parse(&[3, 3, 200]).unwrap().window_scale, Some(14));
    }
}
