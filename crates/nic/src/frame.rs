//! One Ethernet frame in a buffer the caller owns: bursts reuse such buffers, so that no packet costs an allocation.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Length of an Ethernet header without tags, in bytes: two addresses and the type (IEEE 802.3).
pub const ETHERNET_HEADER: usize = 14;

/// What is known about the transport checksum (TCP, UDP, ICMPv6) of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: on receive it must be verified, on transmit it has been computed.
    #[default]
    Complete,
    /// The frame never leaves memory, so the sender did not compute one and the receiver must not look. May only be
    /// sent where [`Capabilities::checksum_offload`](crate::Capabilities) says so.
    NotNeeded,
    /// The sender left only the sum of the pseudo-header, for a NIC to complete that never saw the frame (received
    /// through AF_XDP from a veth peer with tx-checksumming on). The payload is unprotected but almost surely intact.
    Partial,
}

/// A buffer of fixed capacity that holds one Ethernet frame, without the frame check sequence.
#[derive(Clone)]
pub struct Frame {
    data: Box<[u8]>,
    length: usize,
    /// What is known about the transport checksum.
    pub checksum: Checksum,
}

impl Frame {
    /// An empty frame with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { data: vec![0; capacity].into_boxed_slice(), length: 0, checksum: Checksum::Complete }
    }

    /// `count` empty frames with room for a packet of `mtu` bytes and its Ethernet header each: a burst.
    pub fn burst(count: usize, mtu: usize) -> Vec<Self> {
        (0..count).map(|_| Self::with_capacity(ETHERNET_HEADER + mtu)).collect()
    }

    /// How many bytes fit.
    pub fn capacity(&self) -> usize {
        self.data.len()
    }

    /// The whole buffer, for somebody who then says with [`set_len`](Self::set_len) how much of it is the frame.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Says how many bytes of the buffer are the frame.
    ///
    /// # Panics
    /// When that is more than the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.data.len(), "a frame of {length} bytes in a buffer of {}", self.data.len());
        self.length = length;
    }

    /// The same frame with something else known about its checksum.
    #[must_use]
    pub fn with_checksum(self, checksum: Checksum) -> Self {
        Self { checksum, ..self }
    }

    /// Makes the frame a copy of `bytes` with a complete checksum.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn set(&mut self, bytes: &[u8]) {
        self.data[..bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len();
        self.checksum = Checksum::Complete;
    }
}

impl PartialEq for Frame {
    /// Equal frames may lie in buffers of different capacity.
    fn eq(&self, other: &Self) -> bool {
        **self == **other && self.checksum == other.checksum
    }
}

impl Eq for Frame {}

impl From<&[u8]> for Frame {
    fn from(bytes: &[u8]) -> Self {
        Self { data: bytes.into(), length: bytes.len(), checksum: Checksum::Complete }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[..self.length]
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data[..self.length]
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Frame").field("bytes", &&**self).field("checksum", &self.checksum).finish()
    }
}
