//! Congestion window (RFC 5681, RFC 6928).
//!
//! Slow start, the reduction at a loss, the collapse at a timeout and the restart after idle time are common to both
//! algorithms. The growth in congestion avoidance and the size of the reduction are those of CUBIC or Reno. A window
//! that the application does not fill does not grow, because its unused part was not tested.

use super::{
    cubic::Cubic,
    hystart::{Growth, HyStart},
    seq::Seq,
};
use crate::{config::CongestionControl, time::Instant};

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Reno,
    Cubic(Cubic),
}

/// Congestion window of one connection, in bytes. What congestion avoidance needs is at the end of the memory, because
/// most connections end before.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Congestion {
    window: u32,
    ssthresh: u32,
    /// Ends the first slow start.
    hystart: HyStart,
    /// Growth of less than a byte, multiplied by the window.
    fraction: u64,
    algorithm: Algorithm,
}

/// What an acknowledgement tells about the congestion window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Bytes that were acknowledged, and bytes that were in flight before.
    pub acked: u32,
    pub in_flight: u32,
    /// SND.UNA and SND.NXT.
    pub una: Seq,
    pub nxt: Seq,
    /// Smoothed round trip in nanoseconds.
    pub rtt: u64,
}

/// Returns the initial window of RFC 6928.
const fn initial_window(mss: u32) -> u32 {
    let doubled = 2 * mss;
    let bytes = if doubled > 14_600 { doubled } else { 14_600 };
    if 10 * mss < bytes { 10 * mss } else { bytes }
}

impl Congestion {
    pub(crate) fn new(control: CongestionControl, mss: u32) -> Self {
        let algorithm = match control {
            CongestionControl::Reno => Algorithm::Reno,
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
        };
        Self { window: initial_window(mss), ssthresh: u32::MAX, fraction: 0, algorithm, hystart: HyStart::default() }
    }

    /// Changes the algorithm. The window stays as it is.
    pub(crate) fn set_algorithm(&mut self, control: CongestionControl) {
        match (control, self.algorithm) {
            (CongestionControl::Reno, _) => self.algorithm = Algorithm::Reno,
            (CongestionControl::Cubic, Algorithm::Cubic(_)) => {}
            (CongestionControl::Cubic, Algorithm::Reno) => self.algorithm = Algorithm::Cubic(Cubic::default()),
        }
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    pub(crate) const fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Sets the initial window, when the segment size is known. The window is one segment if the SYN was lost (RFC
    /// 5681, 3.1).
    pub(crate) fn restart(&mut self, mss: u32, syn_was_lost: bool) {
        self.window = if syn_was_lost { mss } else { initial_window(mss) };
    }

    /// Adds a round-trip sample in nanoseconds.
    pub(crate) fn sample(&mut self, rtt: u64) {
        if self.ssthresh == u32::MAX {
            self.hystart.sample(rtt);
        }
    }

    /// Returns by how much the window grows less than the acknowledged bytes in slow start, or ends the first slow start.
    fn slow_start_divisor(&mut self, progress: &Progress) -> u32 {
        if self.ssthresh != u32::MAX {
            return 1;
        }
        match self.hystart.acknowledged(progress.una, progress.nxt) {
            Growth::SlowStart { divisor } => divisor,
            Growth::Exit => {
                self.ssthresh = self.window;
                1
            }
        }
    }

    /// Grows the window after an acknowledgement.
    pub(crate) fn acknowledged(&mut self, now: Instant, progress: Progress, mss: u32) {
        let Progress { mut acked, in_flight, rtt, .. } = progress;
        let divisor = self.slow_start_divisor(&progress);
        if self.window < self.ssthresh {
            if self.window >= in_flight.saturating_mul(2) {
                return;
            }
            let room = self.ssthresh - self.window;
            let growth = (acked / divisor).min(room);
            self.window = self.window.saturating_add(growth);
            acked -= (growth * divisor).min(acked);
            if self.window < self.ssthresh {
                return;
            }
        }
        if acked == 0 || in_flight.saturating_add(3 * mss) < self.window {
            return;
        }
        self.fraction += match &mut self.algorithm {
            Algorithm::Reno => u64::from(acked) * u64::from(mss),
            Algorithm::Cubic(cubic) => cubic.increase(now, self.window, acked, mss, rtt),
        };
        let growth = self.fraction / u64::from(self.window);
        self.fraction -= growth * u64::from(self.window);
        self.window = self.window.saturating_add(u32::try_from(growth).unwrap_or(u32::MAX)).min(1 << 30);
    }

    /// Reduces the window after a loss. Called once per recovery.
    pub(crate) fn loss(&mut self, in_flight: u32, mss: u32) {
        self.ssthresh = self.decrease(in_flight).max(2 * mss);
        self.window = self.ssthresh;
        self.fraction = 0;
    }

    /// Reduces the window after an ECN mark, to one segment at least (RFC 9438, 4.6). Called once per window of data.
    pub(crate) fn marked(&mut self, in_flight: u32, mss: u32) {
        let window = self.decrease(in_flight);
        self.ssthresh = window.max(2 * mss);
        self.window = window.max(mss);
        self.fraction = 0;
    }

    /// Sets the window during a recovery, so that `quota` more bytes can be sent.
    pub(crate) fn set_in_recovery(&mut self, in_flight: u32, quota: u32) {
        self.window = in_flight.saturating_add(quota);
    }

    /// Ends a recovery: sets the window to the slow start threshold.
    pub(crate) fn recovered(&mut self) {
        self.window = self.ssthresh;
    }

    /// Restores this value, which was saved before a spurious recovery (RFC 4015, 3.2, steps 5 and 6). `acked` bytes
    /// were just acknowledged; the window is limited so that no burst follows, and is not below `least`.
    pub(crate) fn restore(&mut self, in_flight: u32, acked: u32, mss: u32, least: u32) {
        self.ssthresh = self.ssthresh.max(self.window);
        self.window = self.window.min(in_flight + acked.min(initial_window(mss))).max(mss).max(least);
    }

    /// Collapses the window to one segment after a retransmission timeout. `first` means the first timeout of this
    /// recovery.
    pub(crate) fn timeout(&mut self, in_flight: u32, mss: u32, first: bool) {
        if first {
            self.ssthresh = self.decrease(in_flight).max(2 * mss);
        }
        self.window = mss;
        self.fraction = 0;
    }

    /// Limits the window to its initial size after an idle time longer than the timeout (RFC 5681, 4.1).
    pub(crate) fn idle(&mut self, mss: u32) {
        self.window = self.window.min(initial_window(mss));
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.restart();
        }
    }

    fn decrease(&mut self, in_flight: u32) -> u32 {
        match &mut self.algorithm {
            Algorithm::Reno => in_flight / 2,
            // RFC 9438, 4.6: reduce the window, or the bytes in flight if the application did not fill it.
            Algorithm::Cubic(cubic) => cubic.decrease(self.window.min(in_flight.max(self.window / 2))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    const MSS: u32 = 1460;

    /// Returns the progress by an acknowledgement of `acked` bytes.
    fn progress(acked: u32, in_flight: u32) -> Progress {
        Progress { acked, in_flight, una: Seq(0), nxt: Seq(1), rtt: MILLISECOND }
    }

    fn congestion(control: CongestionControl) -> Congestion {
        Congestion::new(control, MSS)
    }

    #[test]
    fn the_initial_window_is_rfc_6928s() {
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(536), 5_360);
        assert_eq!(initial_window(9000), 18_000);
    }

    #[test]
    fn slow_start_doubles_only_what_is_used() {
        let mut window = congestion(CongestionControl::Reno);
        window.acknowledged(Instant(0), progress(10 * MSS, 10 * MSS), MSS);
        assert_eq!(window.window(), 20 * MSS);
        window.acknowledged(Instant(0), progress(MSS, MSS), MSS);
        assert_eq!(window.window(), 20 * MSS, "one segment in flight does not test the window");
    }

    #[test]
    fn reno_halves_and_then_grows_a_segment_a_round_trip() {
        let mut window = congestion(CongestionControl::Reno);
        window.loss(40 * MSS, MSS);
        assert_eq!((window.window(), window.ssthresh()), (20 * MSS, 20 * MSS));
        for _ in 0..20 {
            window.acknowledged(Instant(0), progress(MSS, 20 * MSS), MSS);
        }
        assert!(window.window().abs_diff(21 * MSS) <= 2 * 20, "{}", window.window());
    }

    #[test]
    fn a_mark_reduces_to_one_segment_at_least() {
        let mut window = congestion(CongestionControl::Reno);
        window.marked(40 * MSS, MSS);
        assert_eq!((window.window(), window.ssthresh()), (20 * MSS, 20 * MSS));
        window.marked(2 * MSS, MSS);
        assert_eq!((window.window(), window.ssthresh()), (MSS, 2 * MSS));
        window.marked(MSS, MSS);
        assert_eq!((window.window(), window.ssthresh()), (MSS, 2 * MSS));
    }

    #[test]
    fn a_timeout_collapses_and_repeated_ones_keep_the_threshold() {
        let mut window = congestion(CongestionControl::Cubic);
        window.acknowledged(Instant(0), progress(10 * MSS, 10 * MSS), MSS);
        window.timeout(20 * MSS, MSS, true);
        assert_eq!((window.window(), window.ssthresh()), (MSS, 14 * MSS));
        window.timeout(MSS, MSS, false);
        assert_eq!((window.window(), window.ssthresh()), (MSS, 14 * MSS));
    }

    #[test]
    fn idle_time_falls_back_to_the_initial_window() {
        let mut window = congestion(CongestionControl::Cubic);
        window.acknowledged(Instant(0), progress(10 * MSS, 10 * MSS), MSS);
        window.idle(MSS);
        assert_eq!(window.window(), 10 * MSS);
    }
}
