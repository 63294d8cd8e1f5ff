//! Detection of partial checksums.
//!
//! A Linux sender with checksum offload stores the folded sum of the pseudo-header in the checksum field and leaves the
//! rest to the NIC (Linux `Documentation/networking/checksum-offloads.rst`). A veth has no hardware that does the
//! rest, and AF_XDP passes the frame on unchanged.

use crate::headers::{Flow, TCP, UDP};

/// Returns whether the TCP or UDP checksum of a received frame is only the sum of the pseudo-header.
pub fn is_partial(frame: &[u8]) -> bool {
    partial(frame).unwrap_or(false)
}

fn partial(frame: &[u8]) -> Option<bool> {
    let flow = Flow::of(frame)?;
    let transport = flow.transport?;
    let at = match flow.protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let field = u16::from_be_bytes([*transport.get(at)?, *transport.get(at + 1)?]);
    let length = transport.len() as u64;
    let pseudo = sum(flow.addresses) + u64::from(flow.protocol) + length;
    if fold(pseudo) != field {
        return Some(false);
    }
    // One in 65,536 complete checksums has this value too; it then verifies.
    Some(fold(pseudo + sum(transport)) != 0xffff)
}

/// Returns the sum of 16-bit big-endian words, an odd last byte padded with zero (RFC 1071), not folded.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |&last| u64::from(last) << 8);
    words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>() + odd
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an IPv4 UDP datagram with the payload "hello", with a complete or a partial checksum.
    fn datagram(complete: bool) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 33, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x13, 0x88, 0x17, 0x70, 0, 13, 0, 0]);
        frame.extend(b"hello");
        let pseudo = sum(&frame[26..34]) + 17 + 13;
        let value = if complete { !fold(pseudo + sum(&frame[34..])) } else { fold(pseudo) };
        frame[40..42].copy_from_slice(&value.to_be_bytes());
        frame
    }

    #[test]
    fn partial_checksums_differ_from_complete_and_wrong_ones() {
        assert!(is_partial(&datagram(false)));
        assert!(!is_partial(&datagram(true)));
        let mut wrong = datagram(true);
        wrong[40] ^= 0x5a;
        assert!(!is_partial(&wrong));
    }

    #[test]
    fn truncated_frames_are_never_partial() {
        let whole = datagram(false);
        for length in 0..whole.len() {
            assert!(!is_partial(&whole[..length]), "{length} bytes");
        }
    }
}
