//! TCP header: parsing and writing (RFC 9293, section 3.1).
//!
//! The fixed part is read and written here, as one array, since each segment crosses it. The other formats come from
//! smoltcp's `wire` module, which is maintained, fuzzed, and covers ARP, neighbour discovery, ICMP and the TCP options.

use core::net::IpAddr;

use smoltcp::wire::IpProtocol;

use super::{
    options::Options,
    seq::{Seq, SeqRange},
};
use crate::{checksum::Sum, ecn::Codepoint, packet::Checksums};

/// Length of a header without options in bytes.
pub(crate) const HEADER_LEN: usize = 20;

/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_OFFSET: usize = 16;

/// TCP flags. URG is ignored: urgent data is handled as ordinary data (RFC 6093).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const FIN: Self = Self(1);
    pub(crate) const SYN: Self = Self(2);
    pub(crate) const RST: Self = Self(4);
    pub(crate) const PSH: Self = Self(8);
    pub(crate) const ACK: Self = Self(16);
    /// ECN echo and congestion window reduced (RFC 3168, section 6.1).
    pub(crate) const ECE: Self = Self(64);
    pub(crate) const CWR: Self = Self(128);
    const URG: u8 = 32;

    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self(0) }
    }
}

/// TCP header. `window` is the unscaled field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    pub options: Options,
    /// ECN field of the IP packet that carries the segment.
    pub ecn: Codepoint,
}

impl Header {
    pub(crate) const fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }

    /// Returns the sequence numbers that a segment with `payload` bytes occupies.
    pub(crate) const fn range(&self, payload: usize) -> SeqRange {
        let control = self.has(Flags::SYN) as u32 + self.has(Flags::FIN) as u32;
        SeqRange::new(self.seq, self.seq.plus(payload as u32 + control))
    }

    /// Returns the length of the header with its options in bytes.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }
}

/// Reason why a segment was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Header,
    Checksum,
}

/// Ports, header and payload of a received segment.
#[derive(Debug)]
pub(crate) struct Parsed<'a> {
    pub source_port: u16,
    pub destination_port: u16,
    pub header: Header,
    pub payload: &'a [u8],
}

/// Parses a segment from `source` to `destination`.
pub(crate) fn parse(bytes: &[u8], source: IpAddr, destination: IpAddr, verify: bool) -> Result<Parsed<'_>, Malformed> {
    let fixed: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Malformed::Header)?;
    let [s0, s1, d0, d1, n0, n1, n2, n3, a0, a1, a2, a3, offset, flags, w0, w1, ..] = *fixed;
    let header_len = 4 * usize::from(offset >> 4);
    let options = bytes.get(HEADER_LEN..header_len).ok_or(Malformed::Header)?;
    if verify && !Sum::pseudo_header(source, destination, IpProtocol::Tcp, bytes.len()).add(bytes).is_valid() {
        return Err(Malformed::Checksum);
    }
    let options = Options::parse(options).ok_or(Malformed::Header)?;
    let (source_port, destination_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    if source_port == 0 || destination_port == 0 {
        return Err(Malformed::Header);
    }
    let header = Header {
        seq: Seq(u32::from_be_bytes([n0, n1, n2, n3])),
        ack: Seq(u32::from_be_bytes([a0, a1, a2, a3])),
        flags: Flags(flags & !Flags::URG),
        window: u16::from_be_bytes([w0, w1]),
        options,
        ecn: Codepoint::NotEct,
    };
    Ok(Parsed { source_port, destination_port, header, payload: &bytes[header_len..] })
}

/// Writes `header` and `payload` into `buffer`, whose length must be exact.
pub(crate) fn emit(
    buffer: &mut [u8],
    header: &Header,
    payload: (&[u8], &[u8]),
    ports: (u16, u16),
    (source, destination): (IpAddr, IpAddr),
    checksums: Checksums,
) {
    let header_len = header.len();
    let (fixed, rest) = buffer.split_first_chunk_mut().expect("the buffer has room for the header");
    *fixed = fixed_part(header, header_len, ports);
    let (options, data) = rest.split_at_mut(header_len - HEADER_LEN);
    header.options.emit(options);
    let (first, second) = data.split_at_mut(payload.0.len());
    first.copy_from_slice(payload.0);
    second.copy_from_slice(payload.1);
    checksums.fill(buffer, CHECKSUM_OFFSET, IpProtocol::Tcp, source, destination);
}

/// Returns the header without options, with a checksum and an urgent pointer of zero.
fn fixed_part(header: &Header, header_len: usize, ports: (u16, u16)) -> [u8; HEADER_LEN] {
    let [s0, s1] = ports.0.to_be_bytes();
    let [d0, d1] = ports.1.to_be_bytes();
    let [n0, n1, n2, n3] = header.seq.0.to_be_bytes();
    let [a0, a1, a2, a3] = if header.has(Flags::ACK) { header.ack.0.to_be_bytes() } else { [0; 4] };
    let [w0, w1] = header.window.to_be_bytes();
    let (offset, flags) = (((header_len / 4) << 4) as u8, header.flags.0);
    [s0, s1, d0, d1, n0, n1, n2, n3, a0, a1, a2, a3, offset, flags, w0, w1, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emitted_segments_are_parsed_and_verified() {
        let header = Header {
            seq: Seq(u32::MAX),
            ack: Seq(7),
            flags: Flags::ACK.with(Flags::PSH).with(Flags::CWR),
            window: 1234,
            options: Options { mss: Some(1460), ..Options::default() },
            ecn: Codepoint::NotEct,
        };
        let addresses = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut bytes = vec![0xaa; header.len() + 5];
        emit(&mut bytes, &header, (b"hel", b"lo"), (80, 90), addresses, Checksums::Full);
        let parsed = parse(&bytes, addresses.0, addresses.1, true).unwrap();
        assert_eq!((parsed.header, parsed.payload), (header, &b"hello"[..]));
        assert_eq!((parsed.source_port, parsed.destination_port), (80, 90));
        bytes[22] ^= 1;
        assert_eq!(parse(&bytes, addresses.0, addresses.1, true).unwrap_err(), Malformed::Checksum);
        assert_eq!(parse(&bytes[..19], addresses.0, addresses.1, true).unwrap_err(), Malformed::Header);
    }
}
