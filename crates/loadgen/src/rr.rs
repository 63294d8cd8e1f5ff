//! Request/response exchanges as in netperf's TCP_RR and UDP_RR: fixed sizes, answers are counted, contents ignored.

use std::time::Duration;

/// How long an answer to a UDP request may take before the flow's outstanding requests count as lost.
///
/// The flow then continues from a new port, so that a late answer is not mistaken for that of a later request.
pub const LOST_AFTER: Duration = Duration::from_secs(1);

/// Counts whole messages of a fixed size in a byte stream that may be split anywhere.
#[derive(Clone, Copy, Debug)]
pub struct MessageCounter {
    size: usize,
    /// Bytes received of the incomplete message.
    partial: usize,
}

impl MessageCounter {
    /// Returns a counter of messages of `size` bytes, at least 1.
    pub fn new(size: usize) -> Self {
        assert!(size > 0, "a message has at least one byte");
        Self { size, partial: 0 }
    }

    /// Takes the next `bytes` of the stream, and returns how many messages they complete.
    pub fn feed(&mut self, bytes: usize) -> usize {
        let total = self.partial + bytes;
        self.partial = total % self.size;
        total / self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cutting_of_the_stream_counts_the_same(size in 1usize..300, chunks in prop::collection::vec(0usize..1000, 0..40)) {
            let mut counter = MessageCounter::new(size);
            let counted: usize = chunks.iter().map(|&chunk| counter.feed(chunk)).sum();
            prop_assert_eq!(counted, chunks.iter().sum::<usize>() / size);
        }
    }
}
