//! One Ethernet frame in a buffer of the caller. Bursts reuse such buffers, so that a packet costs no allocation.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Length of an Ethernet header without tags, in bytes: two addresses and the type (IEEE 802.3).
pub const ETHERNET_HEADER: usize = 14;

/// State of the transport checksum (TCP, UDP, ICMPv6) of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The sender has computed it, and the receiver must verify it.
    #[default]
    Complete,
    /// The frame never leaves memory: the sender did not compute a checksum, and the receiver must not verify it. Allowed
    /// with [`Capabilities::checksum_offload`](crate::Capabilities) only.
    NotNeeded,
    /// The field holds the sum of the pseudo-header only, for hardware to complete, but the frame did not pass through any
    /// (received with AF_XDP from a veth peer with tx-checksumming on). The payload is not protected by a checksum.
    Partial,
}

/// A buffer of fixed capacity that holds one Ethernet frame, without the frame check sequence.
#[derive(Clone)]
pub struct Frame {
    data: Box<[u8]>,
    length: usize,
    /// State of the transport checksum.
    pub checksum: Checksum,
}

impl Frame {
    /// Returns an empty frame with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { data: vec![0; capacity].into_boxed_slice(), length: 0, checksum: Checksum::Complete }
    }

    /// Returns `count` empty frames, each with room for a packet of `mtu` bytes and its Ethernet header.
    pub fn burst(count: usize, mtu: usize) -> Vec<Self> {
        (0..count).map(|_| Self::with_capacity(ETHERNET_HEADER + mtu)).collect()
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.data.len()
    }

    /// Returns the whole buffer, to be written before a call of [`set_len`](Self::set_len).
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Sets the length of the frame in bytes.
    ///
    /// # Panics
    /// When it exceeds the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.data.len(), "a frame of {length} bytes in a buffer of {}", self.data.len());
        self.length = length;
    }

    /// Returns the frame with another state of its checksum.
    #[must_use]
    pub fn with_checksum(self, checksum: Checksum) -> Self {
        Self { checksum, ..self }
    }

    /// Makes the frame a copy of `bytes` with a complete checksum.
    ///
    /// # Panics
    /// When they exceed the capacity.
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
