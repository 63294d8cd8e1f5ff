//! Wire: one direction of the link as a FIFO, and segmentation of messages.

use crate::distribution::Sampler;
use crate::profile::Nic;

/// Headers of a TCP segment over IPv4 with timestamps: 20 + 20 + 12 bytes.
const TCP_IP_HEADER: u64 = 52;

/// Ethernet header and checksum, 14 + 4 bytes.
const ETHERNET_HEADER: u64 = 18;

/// Additional bytes of a frame on the wire: preamble and gap, 8 + 12 bytes.
const ETHERNET_GAP: u64 = 20;

/// Maximum bytes of a burst: what segmentation offload takes at once (64 KiB).
const BURST_BYTES: u64 = 65_536;

/// Median of a connection's window over messages, in bytes.
const WINDOW_BYTES: f64 = 192.0 * 1024.0;

/// Standard deviation of the windows' logarithm. Connections that share a wire get shares in proportion to their
/// windows. The published latencies of 1 MB requests over a full wire (`softirq` row of `threaded-napi-tcp-rr.csv`:
/// p50 79 ms, p90 166 ms, p99 306 ms) are lognormal with this value.
const WINDOW_SIGMA: f64 = 0.58;

/// Largest window in bytes.
const WINDOW_MOST: u64 = 4 << 20;

/// Message on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) segments: u32,
    /// Bytes of all its frames on the wire.
    pub(crate) wire_bytes: u64,
}

impl Message {
    /// Returns a packet of `bytes` with all headers.
    pub(crate) const fn packet(bytes: u64) -> Self {
        Self { segments: 1, wire_bytes: bytes }
    }
}

/// Segmentation of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Payload of a full segment.
    payload: u64,
    /// Maximum number of full segments per burst.
    pub(crate) burst: u32,
}

impl Framing {
    pub(crate) fn new(nic: &Nic) -> Self {
        let payload = nic.mtu_bytes - TCP_IP_HEADER;
        Self { payload, burst: (BURST_BYTES / payload).max(1) as u32 }
    }

    /// Returns the distribution of the windows of messages in bytes.
    pub(crate) fn windows() -> Sampler {
        Sampler::Lognormal { mu: libm::log(WINDOW_BYTES), sigma: WINDOW_SIGMA, most: WINDOW_MOST }
    }

    /// Returns a window in segments.
    pub(crate) fn window(&self, bytes: u64) -> u32 {
        (bytes / self.payload).max(1) as u32
    }

    /// Returns the bytes of a full segment on the wire.
    pub(crate) const fn full_bytes(&self) -> u64 {
        self.payload + TCP_IP_HEADER + ETHERNET_HEADER + ETHERNET_GAP
    }

    pub(crate) fn message(&self, bytes: u64) -> Message {
        let segments = bytes.div_ceil(self.payload).max(1);
        let wire_bytes = bytes + segments * (TCP_IP_HEADER + ETHERNET_HEADER + ETHERNET_GAP);
        Message { segments: segments as u32, wire_bytes }
    }
}

/// One direction of the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// When everything so far is transmitted, in picoseconds.
    free_at_ps: u64,
    /// Time of one byte in units of 2^-32 picoseconds.
    byte_ps: u64,
    /// A shorter queue than this is already part of the profile's times.
    tolerance_ns: u64,
    /// Transmission time that is already part of the profile's times, in nanoseconds.
    included_ns: u64,
}

impl Wire {
    /// Creates a wire. The profile's times include the transmission of `usual_bytes`, and waiting up to
    /// `tolerance_ns`.
    pub(crate) fn new(nic: &Nic, usual_bytes: u64, tolerance_ns: u64) -> Self {
        let byte_ps = (8_000_000 << 32) / nic.wire_mbits_per_s;
        let mut wire = Self { free_at_ps: 0, byte_ps, tolerance_ns, included_ns: 0 };
        wire.included_ns = wire.picoseconds(usual_bytes) / 1_000;
        wire
    }

    fn picoseconds(&self, bytes: u64) -> u64 {
        ((u128::from(bytes) * u128::from(self.byte_ps)) >> 32) as u64
    }

    /// Transmits a message. Returns the delay beyond the profile's times.
    #[inline]
    pub(crate) fn carry(&mut self, now: u64, bytes: u64) -> u64 {
        let span = self.picoseconds(bytes);
        let start = self.free_at_ps.max(now * 1_000);
        self.free_at_ps = start + span;
        let wait = start / 1_000 - now;
        let wait = if wait <= self.tolerance_ns { 0 } else { wait };
        wait + (span / 1_000).saturating_sub(self.included_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn nic() -> Nic {
        Profile::load("epyc-7662").expect("shipped").nic
    }

    #[test]
    fn messages_are_cut_at_the_segment_size() {
        let framing = Framing::new(&nic());
        for (bytes, segments) in [(1, 1), (1_448, 1), (1_449, 2), (1_000_000, 691)] {
            let message = framing.message(bytes);
            assert_eq!(message, Message { segments, wire_bytes: bytes + 90 * u64::from(segments) }, "{bytes}");
        }
        assert_eq!(framing.burst, 45);
    }

    #[test]
    fn a_wire_is_first_in_first_out_at_its_rate() {
        let mut wire = Wire::new(&nic(), 0, 0);
        assert_eq!(wire.carry(1_000, 12_500), 1_000, "100 Gbit/s are 12.5 bytes a nanosecond");
        assert_eq!(wire.carry(1_500, 12_500), 500 + 1_000, "behind the first");
        assert_eq!(wire.carry(10_000, 125), 10);
    }

    #[test]
    fn what_the_profile_has_in_its_times_is_not_counted_twice() {
        let mut wire = Wire::new(&nic(), 1_250, 200);
        assert_eq!(wire.carry(0, 1_250), 0);
        assert_eq!(wire.carry(0, 1_250), 0, "100 ns of waiting are usual");
        assert_eq!(wire.carry(0, 1_250), 0);
        assert_eq!(wire.carry(0, 1_250), 300, "300 are not");
    }
}
