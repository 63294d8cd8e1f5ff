//! How fast to send while losses are repaired: proportional rate reduction (RFC 9937).
//!
//! When a loss is found the window is to shrink to the threshold. Cut at once, nothing could be sent until as much has left
//! the network, and then everything in bursts. Instead each acknowledgement lets a share of what it reports be sent, so
//! that recovery ends with the threshold in flight; and if more was lost than that, sending catches up with the
//! threshold, no faster than slow start.

/// The account of one recovery, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    /// In flight when it began.
    flight: u32,
    delivered: u32,
    out: u32,
    /// No acknowledgement was taken in yet.
    begins: bool,
}

impl Prr {
    /// A recovery begins with `flight` bytes sent and not reported to have arrived.
    pub(crate) const fn begin(flight: u32) -> Self {
        Self { flight, delivered: 0, out: 0, begins: true }
    }

    /// An acknowledgement reports `delivered` bytes, with `in_flight` left. `good`: it moved SND.UNA and showed no further
    /// loss. How many bytes may be sent now.
    pub(crate) fn acknowledged(&mut self, delivered: u32, in_flight: u32, threshold: u32, mss: u32, good: bool) -> u32 {
        if core::mem::take(&mut self.begins) {
            // What the first one reports was in flight when the loss happened.
            self.flight = self.flight.saturating_add(delivered);
        }
        self.delivered = self.delivered.saturating_add(delivered);
        let quota = if in_flight > threshold {
            let share = u64::from(self.delivered) * u64::from(threshold);
            (share.div_ceil(u64::from(self.flight.max(1))) as u32).saturating_sub(self.out)
        } else {
            let owed = self.delivered.saturating_sub(self.out).max(delivered);
            (owed + if good { mss } else { 0 }).min(threshold - in_flight)
        };
        if self.out == 0 { quota.max(mss) } else { quota }
    }

    /// `bytes` were sent, for the first time or again.
    pub(crate) fn sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred segments, of which the first is lost; the others are reported one by one.
    #[test]
    fn the_flight_shrinks_evenly() {
        let mut prr = Prr::begin(99);
        let (mut in_flight, mut sent) = (99, Vec::new());
        for _ in 0..99 {
            in_flight -= 1;
            let quota = prr.acknowledged(1, in_flight, 70, 1, false);
            prr.sent(quota);
            in_flight += quota;
            sent.push(quota);
        }
        let total: u32 = sent.iter().sum();
        assert_eq!((total, in_flight), (70, 70));
        assert!(sent.windows(3).all(|few| few.contains(&1)) && !sent.iter().any(|&quota| quota > 1), "{sent:?}");
    }

    #[test]
    fn a_large_loss_is_caught_up_with_as_in_slow_start() {
        let mut prr = Prr::begin(99);
        // Sixty of them are lost.
        let mut in_flight = 39;
        let mut quotas = Vec::new();
        for _ in 0..40 {
            in_flight -= 1;
            let quota = prr.acknowledged(1, in_flight, 70, 1, true);
            prr.sent(quota);
            in_flight += quota;
            quotas.push(quota);
        }
        assert!(quotas.iter().all(|&quota| quota <= 2) && in_flight == 70, "{in_flight}: {quotas:?}");
    }

    #[test]
    fn the_first_retransmission_goes_out_in_any_case() {
        assert_eq!(Prr::begin(10).acknowledged(0, 90, 5, 1, false), 1);
    }
}
