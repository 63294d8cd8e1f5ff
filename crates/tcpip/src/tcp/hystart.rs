//! HyStart++: the end of the first slow start before it causes losses (RFC 9406).
//!
//! Slow start doubles the window each round trip until a queue overflows, and then loses up to a window. A queue shows
//! before: the round trip grows while it fills. HyStart++ compares the minimum round trip of each round with that of the
//! round before. If it has grown by an eighth (at least 4 ms, at most 16 ms), the window grows at a quarter of the speed
//! (*conservative slow start*, CSS) for five rounds, and then congestion avoidance begins. If the round trip falls below
//! that of the beginning of CSS, the growth was jitter, and slow start continues.
//!
//! It is used in the first slow start only, as the RFC recommends: later ones end at a threshold. The RFC's limit L of
//! the growth for each acknowledgement is not applied. It bounds bursts of senders that do not pace, and would slow down
//! transfers to receivers that merge segments and acknowledge 64 KiB at once.

use super::seq::Seq;
use crate::time::MILLISECOND;

const MIN_RTT_THRESH: u64 = 4 * MILLISECOND;
const MAX_RTT_THRESH: u64 = 16 * MILLISECOND;
const MIN_RTT_DIVISOR: u64 = 8;
/// Samples of a round before its minimum counts.
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// Conservative slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Css {
    /// Minimum round trip at its beginning.
    baseline: u64,
    rounds: u8,
}

/// State of HyStart++, with the names of the RFC. Round trips are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HyStart {
    /// End of the current round: it ends when this is acknowledged.
    window_end: Option<Seq>,
    last_round_min: Option<u64>,
    current_round_min: Option<u64>,
    samples: u8,
    css: Option<Css>,
}

/// Growth of the window in slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// By the bytes that were acknowledged, divided by this.
    SlowStart { divisor: u32 },
    /// Slow start is over.
    Exit,
}

impl HyStart {
    /// Adds a round trip sample of the current round.
    pub(crate) fn sample(&mut self, rtt: u64) {
        self.samples = self.samples.saturating_add(1);
        self.current_round_min = Some(self.current_round_min.map_or(rtt, |least| least.min(rtt)));
    }

    /// Handles an acknowledgement up to `una`, while everything up to `nxt` was sent. Returns how the window grows.
    pub(crate) fn acknowledged(&mut self, una: Seq, nxt: Seq) -> Growth {
        self.compare();
        let ends = self.window_end.is_none_or(|end| una.at_or_after(end));
        if ends {
            if let Some(css) = &mut self.css {
                css.rounds += 1;
                if css.rounds > CSS_ROUNDS {
                    return Growth::Exit;
                }
            }
            self.window_end = Some(nxt);
            self.last_round_min = self.current_round_min.take();
            self.samples = 0;
        }
        Growth::SlowStart { divisor: if self.css.is_some() { CSS_GROWTH_DIVISOR } else { 1 } }
    }

    /// Compares the round with the one before, once there are enough samples.
    fn compare(&mut self) {
        let (Some(current), Some(last)) = (self.current_round_min, self.last_round_min) else { return };
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        match self.css {
            None => {
                let threshold = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if current >= last + threshold {
                    // The rest of this round is the first one of CSS.
                    self.css = Some(Css { baseline: current, rounds: 0 });
                }
            }
            Some(css) if current < css.baseline => self.css = None,
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a round with ten samples of `millis`. Returns the growth at its end.
    fn round(hystart: &mut HyStart, number: u32, millis: u64) -> Growth {
        let mut growth = Growth::Exit;
        for part in 1..=10 {
            hystart.sample(millis * MILLISECOND);
            growth = hystart.acknowledged(Seq(number * 100 + part * 10), Seq((number + 1) * 100 + part * 10));
        }
        growth
    }

    /// Runs the first rounds at 40 ms.
    fn started() -> HyStart {
        let mut hystart = HyStart::default();
        for number in 0..3 {
            assert_eq!(round(&mut hystart, number, 40), Growth::SlowStart { divisor: 1 });
        }
        hystart
    }

    #[test]
    fn a_round_trip_that_grows_ends_slow_start_after_five_slower_rounds() {
        let mut hystart = started();
        assert_eq!(round(&mut hystart, 3, 44), Growth::SlowStart { divisor: 1 }, "less than an eighth");
        let mut rounds = 0;
        let mut number = 4;
        while round(&mut hystart, number, 50) != Growth::Exit {
            (number, rounds) = (number + 1, rounds + 1);
        }
        assert!((5..=6).contains(&rounds), "{rounds}");
    }

    #[test]
    fn jitter_returns_to_slow_start() {
        let mut hystart = started();
        assert_eq!(round(&mut hystart, 3, 50), Growth::SlowStart { divisor: 4 });
        assert_eq!(round(&mut hystart, 4, 41), Growth::SlowStart { divisor: 1 });
    }

    #[test]
    fn few_samples_decide_nothing() {
        let mut hystart = started();
        for part in 1..6 {
            hystart.sample(90 * MILLISECOND);
            let growth = hystart.acknowledged(Seq(300 + part * 10), Seq(400));
            assert_eq!(growth, Growth::SlowStart { divisor: 1 });
        }
    }

    #[test]
    fn the_threshold_has_bounds() {
        for (before, after, slower) in [(1, 4, false), (1, 5, true), (400, 415, false), (400, 416, true)] {
            let mut hystart = HyStart::default();
            for number in 0..3 {
                round(&mut hystart, number, before);
            }
            let divisor = if slower { 4 } else { 1 };
            assert_eq!(round(&mut hystart, 3, after), Growth::SlowStart { divisor }, "{before} {after}");
        }
    }
}
