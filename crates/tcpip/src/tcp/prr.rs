//! Proportional rate reduction (RFC 9937): the sending rate during a recovery.
//!
//! A loss reduces the window to the slow start threshold. If that happened at once, nothing could be sent until
//! enough had left the network, and then a burst would follow. Instead, each acknowledgement allows a share of the
//! bytes that it reports to be sent, so that the recovery ends with the threshold in flight. If more was lost than
//! that, sending catches up with the threshold no faster than slow start.

/// State of one recovery, in bytes, with the names of the RFC.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    /// RecoverFS: bytes in flight when the recovery started.
    recover_fs: u32,
    delivered: u32,
    out: u32,
    /// No acknowledgement was processed yet.
    first_ack: bool,
}

impl Prr {
    /// Starts a recovery with `flight` bytes sent and not reported as received.
    pub(crate) const fn new(flight: u32) -> Self {
        Self { recover_fs: flight, delivered: 0, out: 0, first_ack: true }
    }

    /// Returns how many bytes may be sent after an acknowledgement that reports `delivered` bytes and leaves
    /// `in_flight`. `safe_ack` means that it advanced SND.UNA and revealed no further loss.
    pub(crate) fn acknowledged(
        &mut self,
        delivered: u32,
        in_flight: u32,
        ssthresh: u32,
        mss: u32,
        safe_ack: bool,
    ) -> u32 {
        if core::mem::take(&mut self.first_ack) {
            // What the first acknowledgement reports was in flight when the loss occurred.
            self.recover_fs = self.recover_fs.saturating_add(delivered);
        }
        self.delivered = self.delivered.saturating_add(delivered);
        let quota = if in_flight > ssthresh {
            let share = u64::from(self.delivered) * u64::from(ssthresh);
            (share.div_ceil(u64::from(self.recover_fs.max(1))) as u32).saturating_sub(self.out)
        } else {
            let allowed = self.delivered.saturating_sub(self.out).max(delivered);
            (allowed + if safe_ack { mss } else { 0 }).min(ssthresh - in_flight)
        };
        if self.out == 0 { quota.max(mss) } else { quota }
    }

    /// Records that `bytes` were sent or retransmitted.
    pub(crate) fn sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hundred segments the first is lost; the others are reported one by one.
    #[test]
    fn the_bytes_in_flight_shrink_evenly() {
        let mut prr = Prr::new(99);
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
    fn sending_catches_up_after_a_large_loss_as_in_slow_start() {
        let mut prr = Prr::new(99);
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
    fn the_first_retransmission_is_always_allowed() {
        assert_eq!(Prr::new(10).acknowledged(0, 90, 5, 1, false), 1);
    }
}
