//! CUBIC congestion control in integers (RFC 9438).
//!
//! After a loss at window `W_max` the window is reduced to 0.7 of it and then follows `W(t) = C * (t - K)^3 + W_max`,
//! with `C = 0.4` segments per second cubed and `K` chosen so that `W(0)` is the reduced window. The window grows
//! fast towards `W_max`, slowly around it, and fast beyond it. If a Reno flow would have grown more (short round
//! trips), its window is used instead. Windows are in bytes and times in milliseconds, so `C` is `0.4 * MSS / 10^9`
//! bytes per cubic millisecond.

use crate::time::{Instant, MILLISECOND};

/// Multiplicative decrease: 0.7.
const BETA: (u64, u64) = (7, 10);
/// `3 * (1 - beta) / (1 + beta)`: additive increase of a Reno flow with this decrease (RFC 9438, 4.3).
const ALPHA: (u64, u64) = (9, 17);
/// Fractional bits of the Reno window.
const FRACTION: u32 = 8;

/// Growth since a loss, or since the first congestion avoidance of the connection.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Milliseconds from `start` until the curve reaches `origin`.
    k: u64,
    origin: u32,
    /// Window of a Reno flow, in bytes shifted left by `FRACTION`.
    reno: u64,
}

/// State of CUBIC. Windows are in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cubic {
    /// Window before the last decrease, reduced by fast convergence.
    w_max: u32,
    /// Window before the last decrease.
    prior: u32,
    epoch: Option<Epoch>,
}

impl Cubic {
    /// Returns the window after a congestion event at `window`.
    pub(crate) fn decrease(&mut self, window: u32) -> u32 {
        self.epoch = None;
        self.prior = window;
        // Fast convergence: a flow that did not reach its previous maximum releases bandwidth to others (RFC 9438,
        // 4.7).
        self.w_max = if window < self.w_max { (u64::from(window) * (10 + BETA.0) / 20) as u32 } else { window };
        (u64::from(window) * BETA.0 / BETA.1) as u32
    }

    /// Restarts the curve after idle time (RFC 9438, 5.8).
    pub(crate) fn restart(&mut self) {
        self.epoch = None;
    }

    /// Returns the growth of the window in congestion avoidance after `acked` bytes were acknowledged. The result is
    /// in bytes times `window`, so that rounding loses nothing.
    pub(crate) fn increase(&mut self, now: Instant, window: u32, acked: u32, mss: u32, rtt: u64) -> u64 {
        let epoch = self.epoch.get_or_insert_with(|| Epoch::begin(now, window, self.w_max, mss));
        let alpha = if epoch.reno >> FRACTION >= u64::from(self.prior) { (1, 1) } else { ALPHA };
        epoch.reno += ((u64::from(acked) * u64::from(mss)) << FRACTION) * alpha.0 / alpha.1 / u64::from(window.max(1));
        let elapsed = now.nanos_since(epoch.start) / MILLISECOND;
        let cubic = epoch.window(elapsed, mss);
        let reno = epoch.reno >> FRACTION;
        let target = if cubic < reno {
            // Use Reno's window at once.
            return reno.saturating_sub(window.into()) * u64::from(window);
        } else {
            epoch.window(elapsed + rtt / MILLISECOND, mss).clamp(window.into(), u64::from(window) * 3 / 2)
        };
        (target - u64::from(window)) * u64::from(acked)
    }
}

impl Epoch {
    fn begin(now: Instant, window: u32, w_max: u32, mss: u32) -> Self {
        let missing = u64::from(w_max.saturating_sub(window));
        let k = cube_root(missing * 2_500_000_000 / u64::from(mss.max(1)));
        Self { start: now, k, origin: w_max.max(window), reno: u64::from(window) << FRACTION }
    }

    /// Returns `W_cubic(t)` in bytes, for `t` in milliseconds.
    fn window(&self, t: u64, mss: u32) -> u64 {
        let offset = u128::from(t.abs_diff(self.k).min(1 << 24));
        let change = (offset * offset * offset * u128::from(mss) * 4 / 10 / 1_000_000_000) as u64;
        let origin = u64::from(self.origin);
        if t < self.k { origin.saturating_sub(change) } else { origin + change }
    }
}

/// Returns the integer cube root, rounded down.
fn cube_root(value: u64) -> u64 {
    let mut root = 0_u64;
    for bit in (0..22).rev() {
        let candidate = root | 1 << bit;
        if candidate.pow(3) <= value {
            root = candidate;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND;

    const MSS: u32 = 1000;

    #[test]
    fn cube_roots_are_rounded_down() {
        for root in [0_u64, 1, 2, 1_000, 2_000_000] {
            assert_eq!(cube_root(root.pow(3)), root);
            assert_eq!(cube_root(root.pow(3) + 1), root.max(1));
        }
    }

    #[test]
    fn a_loss_reduces_to_seven_tenths_and_a_second_one_converges_fast() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.decrease(100 * MSS), 70 * MSS);
        assert_eq!(cubic.w_max, 100 * MSS);
        assert_eq!(cubic.decrease(80 * MSS), 56 * MSS);
        assert_eq!(cubic.w_max, 68 * MSS);
    }

    /// Acknowledges everything in flight once a round trip, on a path too long for Reno to matter.
    fn grow(cubic: &mut Cubic, mut window: u32, seconds: u64, rtt: u64) -> u32 {
        let mut now = Instant(0);
        while now.0 < seconds * SECOND {
            let growth = cubic.increase(now, window, window, MSS, rtt);
            window += (growth / u64::from(window)) as u32;
            now = now.plus(rtt);
        }
        window
    }

    #[test]
    fn the_curve_returns_to_the_old_window_after_k_seconds() {
        let mut cubic = Cubic::default();
        let window = cubic.decrease(1_000 * MSS);
        // K = cbrt(300 / 0.4) = 9.08 s.
        let rtt = SECOND / 5;
        let early = grow(&mut cubic.clone(), window, 4, rtt);
        let at_k = grow(&mut cubic.clone(), window, 9, rtt);
        let later = grow(&mut cubic, window, 15, rtt);
        assert!(early > 930 * MSS && early < 980 * MSS, "concave: {early}");
        assert!(at_k.abs_diff(1_000 * MSS) < 5 * MSS, "flat: {at_k}");
        assert!(later > 1_060 * MSS && later < 1_110 * MSS, "convex: {later}");
    }

    #[test]
    fn on_a_short_path_it_grows_as_reno_does() {
        let mut cubic = Cubic::default();
        let window = cubic.decrease(10 * MSS);
        // With 1 ms there are a thousand round trips, which add 9/17 of a segment each, and later one.
        let grown = grow(&mut cubic, window, 1, MILLISECOND);
        assert!(grown > 900 * MSS && grown < 1_100 * MSS, "{grown}");
    }
}
