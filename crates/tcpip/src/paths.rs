//! The largest packets that paths take, by destination (RFC 1191, 6.3; RFC 8201, 5.2): what one connection learnt, the next
//! one to the same host begins with.
//!
//! Only sizes that a router named for a segment in flight come in here, so nobody can fill it at will; it is bounded all the
//! same. After ten minutes a size is forgotten, since paths change.

use core::net::IpAddr;
use std::collections::HashMap;

use foldhash::quality::FixedState;

use crate::time::{Instant, SECOND};

/// Destinations at most.
const MOST: usize = 256;
/// How long a size is believed (RFC 1191 and RFC 8201 recommend this).
const LIFETIME: u64 = 600 * SECOND;

#[derive(Clone, Copy, Debug)]
struct Path {
    mtu: u16,
    since: Instant,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Paths(HashMap<IpAddr, Path, FixedState>);

impl Paths {
    pub(crate) fn new(seed: u64) -> Self {
        Self(HashMap::with_hasher(FixedState::with_seed(seed)))
    }

    /// The largest packet to `destination`, if it is known to be less than what the link takes.
    pub(crate) fn mtu(&self, now: Instant, destination: IpAddr) -> Option<u16> {
        let path = self.0.get(&destination)?;
        (now.nanos_since(path.since) < LIFETIME).then_some(path.mtu)
    }

    /// The path to `destination` takes no packets longer than `mtu`.
    pub(crate) fn learn(&mut self, now: Instant, destination: IpAddr, mtu: u16) {
        if self.0.len() >= MOST && !self.0.contains_key(&destination) {
            self.0.retain(|_, path| now.nanos_since(path.since) < LIFETIME);
            let oldest = self.0.iter().min_by_key(|(_, path)| path.since).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= MOST) {
                self.0.remove(&oldest);
            }
        }
        let known = self.mtu(now, destination).unwrap_or(u16::MAX);
        self.0.insert(destination, Path { mtu: mtu.min(known), since: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn the_least_is_remembered_for_ten_minutes() {
        let mut paths = Paths::new(1);
        paths.learn(Instant(0), host(1), 1300);
        paths.learn(Instant(SECOND), host(1), 1400);
        assert_eq!((paths.mtu(Instant(SECOND), host(1)), paths.mtu(Instant(SECOND), host(2))), (Some(1300), None));
        assert_eq!(paths.mtu(Instant(LIFETIME + SECOND), host(1)), None);
        paths.learn(Instant(LIFETIME + SECOND), host(1), 1400);
        assert_eq!(paths.mtu(Instant(LIFETIME + SECOND), host(1)), Some(1400));
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut paths = Paths::new(1);
        for number in 0..=MOST as u32 {
            paths.learn(Instant(number.into()), host(number), 1300);
        }
        let now = Instant(MOST as u64);
        assert_eq!((paths.0.len(), paths.mtu(now, host(0)), paths.mtu(now, host(1))), (MOST, None, Some(1300)));
    }
}
