//! What a queue pair did, counted: frames, bytes, drops by reason, interrupts and system calls.

use std::ops::AddAssign;

/// Counters of one queue pair since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to the caller.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames accepted from the caller and put on their way.
    pub transmitted: u64,
    /// Their bytes.
    pub transmitted_bytes: u64,
    /// Transmit calls that could not take every frame, for lack of room.
    pub back_pressure: u64,
    /// Received frames whose transport checksum was left partial ([`crate::Checksum::Partial`]).
    pub partial_checksums: u64,
    /// Frames dropped, by reason.
    pub drops: Drops,
    /// Interrupts taken: acknowledgements that found the descriptor signalled. `None` where the NIC cannot tell.
    pub interrupts: Option<u64>,
    /// Interrupts this queue pair raised at its peer. `None` where the kernel is the peer and does not say.
    pub interrupts_raised: Option<u64>,
    /// Interrupts this queue pair did not raise because the peer was masked, one for each burst. `None` as above.
    pub interrupts_suppressed: Option<u64>,
    /// System calls made by receive, transmit, kick, unmask and acknowledge.
    pub system_calls: u64,
}

/// Frames that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// To transmit while nobody was at the other end, or in the ring when the other end was replaced.
    pub link_down: u64,
    /// To transmit but longer than the MTU and an Ethernet header, or shorter than an Ethernet header.
    pub transmit_length: u64,
    /// To transmit with a checksum that was not computed, to a device that would send it so.
    pub transmit_checksum: u64,
    /// Received with a length that the slot cannot have or that is no Ethernet frame.
    pub receive_length: u64,
    /// Received but longer than the caller's buffer.
    pub buffer: u64,
    /// Times an index in shared memory was impossible. What lay in the ring then was given up, its number unknown.
    pub ring_index: u64,
    /// By the kernel, for want of buffers or of room in the receive ring (AF_XDP), as it reports them.
    pub kernel: u64,
    /// By the impairment that was asked for.
    pub impairment: u64,
}

impl Drops {
    /// All of them together.
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
        let ours = link_down + transmit_length + transmit_checksum + receive_length + buffer;
        ours + ring_index + kernel + impairment
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
