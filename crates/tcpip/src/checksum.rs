//! Internet checksum (RFC 1071).
//!
//! The sum is the same for every size and byte order of the words that are added, if carries are added at the end. So
//! words of 32 bits are added in the byte order of the CPU, in lanes that vector instructions add at once. A sum of
//! 64 bits has room for the carries of any packet.

use core::net::IpAddr;

use smoltcp::wire::IpProtocol;

/// Bytes that are added at once.
const BLOCK: usize = 32;
const WORD: usize = 4;

/// Sum of words in the byte order of the CPU. Parts of a packet before the last one have an even length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes`.
    #[inline]
    pub(crate) fn add(self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks();
        let (words, rest) = rest.as_chunks::<WORD>();
        let mut sum = self.0 + if blocks.is_empty() { 0 } else { sum_blocks(blocks) };
        for &word in words {
            sum += u64::from(u32::from_ne_bytes(word));
        }
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            sum += u64::from(u32::from_ne_bytes(last));
        }
        Self(sum)
    }

    /// Returns the sum of a TCP or UDP pseudo header (RFC 9293, 3.1; RFC 8200, 8.1).
    pub(crate) fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: IpProtocol, len: usize) -> Self {
        let addresses = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Self::default().add(&source.octets()).add(&destination.octets())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Self::default().add(&source.octets()).add(&destination.octets())
            }
            _ => unreachable!("a packet has addresses of one version"),
        };
        Self(addresses.0 + u64::from(u16::from(u8::from(protocol)).to_be()) + u64::from((len as u32).to_be()))
    }

    /// Returns the sum in 16 bits, as it is stored in a packet.
    pub(crate) const fn fold(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        (sum as u16).to_ne_bytes()
    }

    /// Returns the checksum: the complement of the sum.
    pub(crate) const fn checksum(self) -> [u8; 2] {
        let [high, low] = self.fold();
        [!high, !low]
    }

    /// Returns whether this is the sum of a packet whose checksum is right.
    pub(crate) fn is_valid(self) -> bool {
        self.fold() == [0xff; 2]
    }
}

/// Returns the sum of all words. Not inlined, because the compiler then finds the vector instructions for the loop.
#[inline(never)]
fn sum_blocks(blocks: &[[u8; BLOCK]]) -> u64 {
    let mut lanes = [0; BLOCK / WORD];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<WORD>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    lanes.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::checksum;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_sum_of_sixteen_bit_words(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..50) {
            prop_assert_eq!(Sum::default().add(&bytes).fold(), checksum::data(&bytes).to_be_bytes());
            let (first, second) = bytes.split_at(2 * at.min(bytes.len() / 2));
            prop_assert_eq!(Sum::default().add(first).add(second).fold(), checksum::data(&bytes).to_be_bytes());
        }

        #[test]
        fn the_pseudo_header_is_that_of_either_version(v6 in any::<(u128, u128)>(), v4 in any::<(u32, u32)>(), len in 0..65_536_usize) {
            let addresses = [
                (IpAddr::V6(v6.0.into()), IpAddr::V6(v6.1.into())),
                (IpAddr::V4(v4.0.into()), IpAddr::V4(v4.1.into())),
            ];
            for (source, destination) in addresses {
                let expected =
                    checksum::pseudo_header(&source.into(), &destination.into(), IpProtocol::Tcp, len as u32);
                let sum = Sum::pseudo_header(source, destination, IpProtocol::Tcp, len);
                prop_assert_eq!(sum.fold(), expected.to_be_bytes());
            }
        }
    }

    #[test]
    fn a_packet_with_its_checksum_is_valid() {
        let mut bytes = *b"\x45\x00\x00\x28\x00\x00\x40\x00\x40\x06\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02";
        let checksum = Sum::default().add(&bytes).checksum();
        bytes[10..12].copy_from_slice(&checksum);
        assert!(Sum::default().add(&bytes).is_valid());
        bytes[0] ^= 1;
        assert!(!Sum::default().add(&bytes).is_valid());
    }
}
