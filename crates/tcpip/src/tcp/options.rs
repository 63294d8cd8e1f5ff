//! TCP options (RFC 9293, 3.2; RFC 7323; RFC 2018).
//!
//! A segment with malformed options is dropped and counted. Unknown options are skipped. SACK blocks are not
//! validated here.

use smoltcp::wire::TcpOption;

use super::sack::SackBlocks;

/// Largest shift of the window (RFC 7323, section 2.3).
pub(crate) const MAXIMUM_WINDOW_SCALE: u8 = 14;

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
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the options. Returns `None` if they are malformed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        // Almost every segment after the handshake has these.
        if let Ok([1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3]) = <[u8; 12]>::try_from(bytes) {
            let (value, echo) = (u32::from_be_bytes([v0, v1, v2, v3]), u32::from_be_bytes([e0, e1, e2, e3]));
            return Some(Self { timestamp: Some(Timestamp { value, echo }), ..Self::default() });
        }
        Self::parse_each(bytes)
    }

    fn parse_each(mut bytes: &[u8]) -> Option<Self> {
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
                TcpOption::SackRange(_) => options.sack = SackBlocks::parse(&encoded[2..]),
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
        4 * usize::from(self.mss.is_some())
            + 4 * usize::from(self.window_scale.is_some())
            + if self.timestamp.is_some() { 12 } else { 4 * usize::from(self.sack_permitted) }
            + self.sack.len()
    }

    /// Writes the options into `buffer`, whose length must be [`Options::len`].
    pub(crate) fn emit(&self, buffer: &mut [u8]) {
        if let (Some(timestamp), Ok(buffer)) = (self.timestamp, <&mut [u8; 12]>::try_from(&mut *buffer))
            && !self.sack_permitted
        {
            let [v0, v1, v2, v3] = timestamp.value.to_be_bytes();
            let [e0, e1, e2, e3] = timestamp.echo.to_be_bytes();
            *buffer = [1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3];
            return;
        }
        self.emit_each(buffer);
    }

    fn emit_each(&self, buffer: &mut [u8]) {
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
        if !self.sack.is_empty() {
            rest = self.sack.emit(pad(rest));
        }
        debug_assert!(rest.is_empty(), "the options fill the buffer");
    }
}

fn pad(rest: &mut [u8]) -> &mut [u8] {
    let rest = TcpOption::NoOperation.emit(rest);
    TcpOption::NoOperation.emit(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::seq::{Seq, SeqRange};

    fn round_trip(options: Options) {
        let mut bytes = vec![0xff; options.len()];
        options.emit(&mut bytes);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(Options::parse(&bytes), Some(options));
    }

    #[test]
    fn emitted_options_are_parsed() {
        let timestamp = Some(Timestamp { value: 7, echo: 9 });
        let blocks = |starts: &[u32]| starts.iter().map(|&start| SeqRange::new(Seq(start), Seq(start + 5))).collect();
        round_trip(Options::default());
        round_trip(Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamp,
            ..Options::default()
        });
        round_trip(Options { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ..Options::default() });
        round_trip(Options { timestamp, sack: blocks(&[1, 20, 40]), ..Options::default() });
        round_trip(Options { sack: blocks(&[1, 20]), ..Options::default() });
        round_trip(Options { sack: blocks(&[1, 20, 40, 60]), ..Options::default() });
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
