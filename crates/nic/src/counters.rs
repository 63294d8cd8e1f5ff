//! Counters of a queue pair: frames, bytes, drops by reason, interrupts and system calls.

use std::ops::AddAssign;

/// Counters of one queue pair since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames returned to the caller.
    pub received: u64,
    /// Bytes of these frames.
    pub received_bytes: u64,
    /// Frames accepted from the caller and sent.
    pub transmitted: u64,
    /// Bytes of these frames.
    pub transmitted_bytes: u64,
    /// Transmit calls that did not accept every frame, for lack of room.
    pub back_pressure: u64,
    /// Received frames whose transport checksum was left partial ([`crate::Checksum::Partial`]).
    pub partial_checksums: u64,
    /// Frames dropped, by reason.
    pub drops: Drops,
    /// Acknowledgements that found the descriptor signalled; `None` if the descriptor has no such state.
    pub interrupts: Option<u64>,
    /// Interrupts raised at the peer; `None` if the peer is the kernel, which does not report them.
    pub interrupts_raised: Option<u64>,
    /// Interrupts not raised because the peer was masked, one for each burst; `None` as above.
    pub interrupts_suppressed: Option<u64>,
    /// System calls made by receive, transmit, kick, unmask and acknowledge.
    pub system_calls: u64,
}

/// Frames that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Transmitted while the link was down, or in the ring when the other end was replaced.
    pub link_down: u64,
    /// Transmitted but longer than the MTU and an Ethernet header, or shorter than an Ethernet header.
    pub transmit_length: u64,
    /// Transmitted with a checksum that was not computed, to a device that does not compute it.
    pub transmit_checksum: u64,
    /// Received with a length that exceeds the slot or is below that of an Ethernet header.
    pub receive_length: u64,
    /// Received but longer than the caller's buffer.
    pub buffer: u64,
    /// Number of times an index in shared memory was out of range. The frames in the ring, of unknown number, were dropped.
    pub ring_index: u64,
    /// Dropped by the kernel, for lack of buffers or of room in the receive ring (AF_XDP).
    pub kernel: u64,
    /// Dropped by an [`Impairment`](crate::Impairment).
    pub impairment: u64,
}

impl Drops {
    /// Returns the sum.
    pub fn total(&self) -> u64 {
        let Self {
            link_down,
            transmit_length,
            transmit_checksum,
            receive_length,
            buffer,
            ring_index,
            kernel,
            impairment,
        } = self;
        let by_queue_pair = link_down + transmit_length + transmit_checksum + receive_length + buffer + ring_index;
        by_queue_pair + kernel + impairment
    }
}

impl AddAssign for Drops {
    fn add_assign(&mut self, other: Self) {
        self.link_down += other.link_down;
        self.transmit_length += other.transmit_length;
        self.transmit_checksum += other.transmit_checksum;
        self.receive_length += other.receive_length;
        self.buffer += other.buffer;
        self.ring_index += other.ring_index;
        self.kernel += other.kernel;
        self.impairment += other.impairment;
    }
}

impl AddAssign for Counters {
    /// Sums the counters of several queue pairs.
    fn add_assign(&mut self, other: Self) {
        let sum = |a: Option<u64>, b: Option<u64>| a.map_or(b, |a| Some(a + b.unwrap_or(0)));
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.transmitted += other.transmitted;
        self.transmitted_bytes += other.transmitted_bytes;
        self.back_pressure += other.back_pressure;
        self.partial_checksums += other.partial_checksums;
        self.drops += other.drops;
        self.interrupts = sum(self.interrupts, other.interrupts);
        self.interrupts_raised = sum(self.interrupts_raised, other.interrupts_raised);
        self.interrupts_suppressed = sum(self.interrupts_suppressed, other.interrupts_suppressed);
        self.system_calls += other.system_calls;
    }
}
