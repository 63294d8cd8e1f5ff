//! TCP header: parsing and writing (RFC 9293, section 3.1).
//!
//! The formats come from smoltcp's `wire` module, which is maintained, fuzzed, and covers ARP, neighbour discovery,
//! ICMP and the TCP options.

use core::net::IpAddr;

use smoltcp::wire::{TcpPacket, TcpSeqNumber};

use super::{
    options::Options,
    seq::{Seq, SeqRange},
};
use crate::{ecn::Codepoint, packet::Checksums};

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
    let packet = TcpPacket::new_checked(bytes).map_err(|_| Malformed::Header)?;
    if verify && !packet.verify_checksum(&source.into(), &destination.into()) {
        return Err(Malformed::Checksum);
    }
    let options = Options::parse(packet.options()).ok_or(Malformed::Header)?;
    if packet.src_port() == 0 || packet.dst_port() == 0 {
        return Err(Malformed::Header);
    }
    let flags = Flags::FIN
        .when(packet.fin())
        .with(Flags::SYN.when(packet.syn()))
        .with(Flags::RST.when(packet.rst()))
        .with(Flags::PSH.when(packet.psh()))
        .with(Flags::ACK.when(packet.ack()))
        .with(Flags::ECE.when(packet.ece()))
        .with(Flags::CWR.when(packet.cwr()));
    let header = Header {
        seq: Seq(packet.seq_number().0.cast_unsigned()),
        ack: Seq(packet.ack_number().0.cast_unsigned()),
        flags,
        window: packet.window_len(),
        options,
        ecn: Codepoint::NotEct,
    };
    Ok(Parsed {
        source_port: packet.src_port(),
        destination_port: packet.dst_port(),
        header,
        payload: packet.payload(),
    })
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
    let mut packet = TcpPacket::new_unchecked(buffer);
    packet.set_src_port(ports.0);
    packet.set_dst_port(ports.1);
    packet.set_seq_number(TcpSeqNumber(header.seq.0.cast_signed()));
    packet.set_ack_number(TcpSeqNumber(if header.has(Flags::ACK) { header.ack.0.cast_signed() } else { 0 }));
    packet.clear_flags();
    packet.set_header_len(header_len as u8);
    packet.set_fin(header.has(Flags::FIN));
    packet.set_syn(header.has(Flags::SYN));
    packet.set_rst(header.has(Flags::RST));
    packet.set_psh(header.has(Flags::PSH));
    packet.set_ack(header.has(Flags::ACK));
    packet.set_ece(header.has(Flags::ECE));
    packet.set_cwr(header.has(Flags::CWR));
    packet.set_window_len(header.window);
    packet.set_urgent_at(0);
    let buffer = packet.into_inner();
    header.options.emit(&mut buffer[HEADER_LEN..header_len]);
    let (first, second) = buffer[header_len..].split_at_mut(payload.0.len());
    first.copy_from_slice(payload.0);
    second.copy_from_slice(payload.1);
    checksums.fill(buffer, CHECKSUM_OFFSET, smoltcp::wire::IpProtocol::Tcp, source, destination);
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
