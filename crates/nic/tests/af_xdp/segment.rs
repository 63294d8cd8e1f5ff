//! TCP segments made and read by hand, for tests that play an attacker.

use std::net::{IpAddr, SocketAddr};

use abey_nic::Frame;

use crate::{FAR, NEAR};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;

/// A TCP segment without options and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
}

/// Length of the header.
const TCP_HEADER: usize = 20;

impl Segment {
    /// The first segment of a connection.
    pub(crate) fn syn(from: SocketAddr, to: SocketAddr) -> Self {
        Self { from, to, flags: SYN, seq: 77, ack: 0 }
    }

    fn header(&self, checksum: u16) -> Vec<u8> {
        let mut bytes = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        bytes.extend([self.seq.to_be_bytes(), self.ack.to_be_bytes()].concat());
        bytes.extend([(TCP_HEADER as u8 / 4) << 4, self.flags, 0xff, 0xff]);
        bytes.extend(checksum.to_be_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    /// Returns the frame from the far end to the near one.
    pub(crate) fn frame(&self) -> Frame {
        let addresses = [octets(self.from.ip()), octets(self.to.ip())].concat();
        // The pseudo-header of RFC 9293, section 3.1, and of RFC 8200, section 8.1.
        let mut summed = addresses.clone();
        summed.extend([0, 6, 0, TCP_HEADER as u8]);
        summed.extend(self.header(0));
        let mut bytes = [NEAR, FAR].concat();
        if self.from.is_ipv4() {
            bytes.extend([0x08, 0x00]);
            let mut header = vec![0x45, 0, 0, 20 + TCP_HEADER as u8, 0, 0, 0, 0, 64, 6, 0, 0];
            header.extend(addresses);
            let sum = ones_complement(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            bytes.extend(header);
        } else {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, TCP_HEADER as u8, 6, 64]);
            bytes.extend(addresses);
        }
        bytes.extend(self.header(ones_complement(&summed)));
        Frame::from(&bytes[..])
    }

    /// Reads a segment over IPv4 without options.
    pub(crate) fn parse_v4(frame: &[u8]) -> Option<Self> {
        let is_tcp = frame.len() >= 54 && frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 6;
        let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).expect("4 bytes"));
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("4 bytes"));
        is_tcp.then(|| Self {
            from: SocketAddr::new(address(26), half(34)),
            to: SocketAddr::new(address(30), half(36)),
            flags: frame[47],
            seq: word(38),
            ack: word(42),
        })
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn ones_complement(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}
