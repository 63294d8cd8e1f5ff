//! Initial sequence numbers and timestamp offsets (RFC 6528; RFC 7323, section 5.4).
//!
//! ISN = M + F(local, remote, secret): a clock with a tick of 4 us plus a keyed hash of the flow. Numbers of one flow
//! grow from one connection to the next, and reveal nothing about those of other flows. The timestamp clock has a
//! tick of one millisecond and is offset by another hash of the flow, so that a peer cannot read the host's uptime. A
//! new connection of the same flow has later timestamps than the old one, as the reuse of TIME-WAIT requires.

use super::seq::Seq;
use crate::{
    flow::{Flow, Secret},
    time::{Instant, MILLISECOND},
};

/// Generator of sequence numbers and timestamp offsets, with a secret for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsnGenerator {
    sequence: Secret,
    timestamp: Secret,
}

impl IsnGenerator {
    pub(crate) fn new(seed: u64) -> Self {
        Self { sequence: Secret::derive(seed, 1), timestamp: Secret::derive(seed, 2) }
    }

    /// Returns the initial sequence number of a connection of `flow` that starts now.
    pub(crate) fn initial(&self, now: Instant, flow: &Flow) -> Seq {
        Seq((now.0 / 4_000) as u32).plus(self.sequence.hash(flow) as u32)
    }

    /// Returns the offset of the flow's timestamps from the millisecond clock.
    pub(crate) fn timestamp_offset(&self, flow: &Flow) -> u32 {
        self.timestamp.hash(flow) as u32
    }
}

/// Returns the timestamp at `now` of a flow with this `offset`.
pub(crate) const fn timestamp(now: Instant, offset: u32) -> u32 {
    ((now.0 / MILLISECOND) as u32).wrapping_add(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_time_and_differs_between_flows() {
        let flow = |port| Flow {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            local_port: 80,
            remote_port: port,
        };
        let numbers = IsnGenerator::new(5);
        let first = numbers.initial(Instant(0), &flow(1));
        assert_eq!(numbers.initial(Instant(4_000_000), &flow(1)), first.plus(1_000));
        assert_ne!(numbers.initial(Instant(0), &flow(2)), first);
        assert_ne!(IsnGenerator::new(6).initial(Instant(0), &flow(1)), first);
        assert_ne!(numbers.timestamp_offset(&flow(1)), numbers.timestamp_offset(&flow(2)));
    }
}
