//! SYN cookies: the state of a half-open connection, encoded in the SYN-ACK (RFC 4987, section 3.6).
//!
//! When a listener has too many half-open connections, the SYN-ACK is computed so that the final ACK of the handshake
//! returns all needed state, and nothing is stored. The 32 bits of the sequence number are
//!
//! | bits | content |
//! | --- | --- |
//! | 31..5 | keyed hash of the flow, the peer's initial sequence number and the fields below |
//! | 4..2 | index of the peer's MSS among eight sizes, rounded down |
//! | 1..0 | period of 64 s in which it was made; valid in this period and the next |
//!
//! If the peer uses timestamps, the low six bits of the SYN-ACK's timestamp encode its window scale, whether it permits
//! SACK, and whether both use ECN, and its echo returns them. Without timestamps none of them is used.

use super::{
    options::Options,
    segment::{Flags, Header},
    seq::Seq,
};
use crate::{
    flow::{Flow, Secret},
    time::{Instant, SECOND},
};

/// Segment sizes that a cookie can encode, including those of very large MTUs and jumbo frames.
const SIZES: [u16; 8] = [216, 536, 1220, 1360, 1440, 1460, 4312, 8960];

const TIMESTAMP_BITS: u32 = 6;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// How long after the last cookie was sent an ACK may carry one, in nanoseconds.
pub(crate) const LIFETIME: u64 = 128 * SECOND;

/// SYN options and the use of ECN that a valid cookie returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CookieOptions {
    pub mss: u16,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub ecn: bool,
}

/// Generator and verifier of cookies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cookies(Secret);

impl Cookies {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Secret::derive(seed, 3))
    }

    /// Returns the sequence number of the SYN-ACK.
    pub(crate) fn make(&self, now: Instant, flow: &Flow, peer: Seq, mss: u16) -> Seq {
        let size = SIZES.iter().rposition(|&size| size <= mss).unwrap_or(0) as u32;
        self.seal(period(now), flow, peer, size)
    }

    /// Verifies `cookie`, the answer to a SYN with sequence number `peer`. Returns the encoded segment size if it is
    /// valid.
    pub(crate) fn check(&self, now: Instant, flow: &Flow, peer: Seq, cookie: Seq) -> Option<u16> {
        let size = cookie.0 >> 2 & 7;
        let current = period(now);
        [Some(current), current.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|period| self.seal(period, flow, peer, size) == cookie)
            .then(|| SIZES[size as usize])
    }

    fn seal(&self, period: u64, flow: &Flow, peer: Seq, size: u32) -> Seq {
        let hash = self.0.hash((flow, peer.0, size, period)) as u32;
        Seq(hash << 5 | size << 2 | (period as u32 & 3))
    }
}

const fn period(now: Instant) -> u64 {
    now.0 / (64 * SECOND)
}

/// Returns what a cookie can encode of a SYN: all if timestamps are used, else only the MSS.
pub(crate) fn encodable_syn(syn: &Header, timestamps: bool) -> Header {
    match syn.options.timestamp.filter(|_| timestamps) {
        Some(_) => *syn,
        None => Header {
            flags: syn.flags.without(Flags::ECE.with(Flags::CWR)),
            options: Options { mss: syn.options.mss, ..Options::default() },
            ..*syn
        },
    }
}

/// Encodes SYN options and the use of ECN in the low bits of a timestamp. The result is never later than `timestamp`.
pub(crate) fn encode_options(timestamp: u32, options: &Options, ecn: bool) -> u32 {
    let scale = options.window_scale.map_or(NO_SCALE, u32::from);
    let bits = scale | if options.sack_permitted { SACK } else { 0 } | if ecn { ECN } else { 0 };
    let mask = (1 << TIMESTAMP_BITS) - 1;
    let hidden = timestamp & !mask | bits;
    if hidden.wrapping_sub(timestamp).cast_signed() > 0 { hidden.wrapping_sub(1 << TIMESTAMP_BITS) } else { hidden }
}

/// Decodes the options that [`encode_options`] encoded. Without an echo there are none.
pub(crate) fn decode_options(mss: u16, echo: Option<u32>) -> CookieOptions {
    let Some(echo) = echo else { return CookieOptions { mss, window_scale: None, sack_permitted: false, ecn: false } };
    let scale = echo & 15;
    CookieOptions {
        mss,
        window_scale: (scale != NO_SCALE).then_some(scale as u8),
        sack_permitted: echo & SACK != 0,
        ecn: echo & ECN != 0,
    }
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
    fn a_cookie_is_valid_for_two_periods_and_one_peer() {
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
    fn the_timestamp_encodes_the_options_and_is_never_later() {
        for timestamp in [0_u32, 5, 63, 64, 1_000_000, u32::MAX] {
            for (window_scale, sack_permitted, ecn) in
                [(None, false, true), (Some(14), true, true), (Some(0), true, false), (Some(7), false, false)]
            {
                let options = Options { window_scale, sack_permitted, ..Options::default() };
                let hidden = encode_options(timestamp, &options, ecn);
                assert!(timestamp.wrapping_sub(hidden) < 64 + 64);
                assert_eq!(
                    decode_options(1460, Some(hidden)),
                    CookieOptions { mss: 1460, window_scale, sack_permitted, ecn }
                );
            }
        }
    }
}
