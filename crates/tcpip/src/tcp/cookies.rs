//! SYN cookies: a connection's beginning kept by the peer (RFC 4987, section 3.6).
//!
//! When a listener's queue of half-open connections is full, the answer to a SYN is computed so that the ACK that completes
//! the handshake carries everything back, and nothing is stored. The 32 bits of the sequence number are
//!
//! | bits | what |
//! | --- | --- |
//! | 31..5 | keyed hash of the flow, the peer's initial sequence number and the fields below |
//! | 4..2 | which of eight segment sizes the peer announced, rounded down |
//! | 1..0 | the minute (64 s) it was made in; good for this one and the next |
//!
//! If the peer uses timestamps, the low six bits of ours carry its window scale and whether it may be sent SACK blocks; the
//! echo brings them back. Without timestamps neither is used.

use super::{options::Options, seq::Seq};
use crate::{
    flow::{Flow, Secret},
    time::{Instant, SECOND},
};

/// Segment sizes a cookie can express. The last two are those of a loopback-like and a jumbo-frame network.
const SIZES: [u16; 8] = [216, 536, 1220, 1360, 1440, 1460, 4312, 8960];

const TIMESTAMP_BITS: u32 = 6;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;

/// How long after the last cookie was sent cookies are still looked for, in nanoseconds.
pub(crate) const LIFETIME: u64 = 128 * SECOND;

/// What comes back with a good cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    pub mss: u16,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
}

/// Makes and checks cookies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cookies(Secret);

impl Cookies {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Secret::derive(seed, 3))
    }

    /// The sequence number to answer a SYN with.
    pub(crate) fn make(&self, now: Instant, flow: &Flow, peer: Seq, mss: u16) -> Seq {
        let size = SIZES.iter().rposition(|&size| size <= mss).unwrap_or(0) as u32;
        self.seal(minute(now), flow, peer, size)
    }

    /// Whether `cookie` answers a SYN of `peer`, and the segment size it carries.
    pub(crate) fn check(&self, now: Instant, flow: &Flow, peer: Seq, cookie: Seq) -> Option<u16> {
        let size = cookie.0 >> 2 & 7;
        let current = minute(now);
        [Some(current), current.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|minute| self.seal(minute, flow, peer, size) == cookie)
            .then(|| SIZES[size as usize])
    }

    fn seal(&self, minute: u64, flow: &Flow, peer: Seq, size: u32) -> Seq {
        let hash = self.0.hash((flow, peer.0, size, minute)) as u32;
        Seq(hash << 5 | size << 2 | (minute as u32 & 3))
    }
}

const fn minute(now: Instant) -> u64 {
    now.0 / (64 * SECOND)
}

/// The options of a SYN that a cookie can bring back: without timestamps only the segment size.
pub(crate) fn expressible(options: &Options, timestamps: bool) -> Options {
    match options.timestamp.filter(|_| timestamps) {
        Some(_) => *options,
        None => Options { mss: options.mss, ..Options::default() },
    }
}

/// Hides the options of a SYN in the low bits of our timestamp, moving it into the past rather than the future.
pub(crate) fn hide_options(timestamp: u32, options: &Options) -> u32 {
    let scale = options.window_scale.map_or(NO_SCALE, u32::from);
    let bits = scale | if options.sack_permitted { SACK } else { 0 };
    let mask = (1 << TIMESTAMP_BITS) - 1;
    let hidden = timestamp & !mask | bits;
    if hidden.wrapping_sub(timestamp).cast_signed() > 0 { hidden.wrapping_sub(1 << TIMESTAMP_BITS) } else { hidden }
}

/// Reads back what [`hide_options`] hid; without an echo there are no options.
pub(crate) fn reveal_options(mss: u16, echo: Option<u32>) -> Returned {
    let Some(echo) = echo else { return Returned { mss, window_scale: None, sack_permitted: false } };
    let scale = echo & 15;
    Returned { mss, window_scale: (scale != NO_SCALE).then_some(scale as u8), sack_permitted: echo & SACK != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            local_port: 80,
            remote_port: 1234,
        }
    }

    #[test]
    fn a_cookie_is_good_for_two_minutes_and_one_peer() {
        let cookies = Cookies::new(1);
        let made = Instant(640 * SECOND);
        let cookie = cookies.make(made, &flow(), Seq(77), 1448);
        assert_eq!(cookies.check(made, &flow(), Seq(77), cookie), Some(1440));
        assert_eq!(cookies.check(made.plus(64 * SECOND), &flow(), Seq(77), cookie), Some(1440));
        assert_eq!(cookies.check(made.plus(128 * SECOND), &flow(), Seq(77), cookie), None);
        assert_eq!(cookies.check(made, &flow(), Seq(78), cookie), None);
        assert_eq!(cookies.check(made, &Flow { remote_port: 1235, ..flow() }, Seq(77), cookie), None);
        assert_eq!(cookies.check(made, &flow(), Seq(77), cookie.plus(1)), None);
        assert_eq!(cookies.check(made, &flow(), Seq(77), cookies.make(made, &flow(), Seq(77), 1)), Some(216));
    }

    #[test]
    fn the_timestamp_carries_the_options_and_never_runs_ahead() {
        for timestamp in [0_u32, 5, 63, 64, 1_000_000, u32::MAX] {
            for (window_scale, sack_permitted) in [(None, false), (Some(14), true), (Some(0), true), (Some(7), false)] {
                let options = Options { window_scale, sack_permitted, ..Options::default() };
                let hidden = hide_options(timestamp, &options);
                assert!(timestamp.wrapping_sub(hidden) < 64 + 64);
                assert_eq!(reveal_options(1460, Some(hidden)), Returned { mss: 1460, window_scale, sack_permitted });
            }
        }
    }
}
