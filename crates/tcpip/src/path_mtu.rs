//! Path MTU cache by destination (RFC 1191, section 6.3; RFC 8201, section 5.2). A new connection starts with the
//! path MTU that an earlier one to the same host discovered.
//!
//! An entry comes from an ICMP error about a segment in flight, so an off-path attacker cannot fill the cache. It is
//! bounded anyway. Entries expire after ten minutes, because paths change.

use core::net::IpAddr;
use std::collections::HashMap;

use foldhash::quality::FixedState;

use crate::time::{Instant, SECOND};

/// Maximum number of destinations.
const MAX_ENTRIES: usize = 256;
/// Lifetime of an entry, as recommended by RFC 1191 and RFC 8201.
const LIFETIME: u64 = 600 * SECOND;

#[derive(Clone, Copy, Debug)]
struct Path {
    mtu: u16,
    since: Instant,
}

/// Path MTUs by destination.
#[derive(Debug)]
pub(crate) struct PathMtuCache(HashMap<IpAddr, Path, FixedState>);

impl PathMtuCache {
    pub(crate) fn new(seed: u64) -> Self {
        Self(HashMap::with_hasher(FixedState::with_seed(seed)))
    }

    /// Returns the path MTU to `destination`, if a valid entry exists.
    pub(crate) fn mtu(&self, now: Instant, destination: IpAddr) -> Option<u16> {
        let path = self.0.get(&destination)?;
        (now.nanos_since(path.since) < LIFETIME).then_some(path.mtu)
    }

    /// Lowers the path MTU to `destination` to `mtu`.
    pub(crate) fn learn(&mut self, now: Instant, destination: IpAddr, mtu: u16) {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&destination) {
            self.0.retain(|_, path| now.nanos_since(path.since) < LIFETIME);
            let oldest = self.0.iter().min_by_key(|(_, path)| path.since).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= MAX_ENTRIES) {
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
    fn the_lowest_mtu_is_used_for_ten_minutes() {
        let mut paths = PathMtuCache::new(1);
        paths.learn(Instant(0), host(1), 1300);
        paths.learn(Instant(SECOND), host(1), 1400);
        assert_eq!((paths.mtu(Instant(SECOND), host(1)), paths.mtu(Instant(SECOND), host(2))), (Some(1300), None));
        assert_eq!(paths.mtu(Instant(LIFETIME + SECOND), host(1)), None);
        paths.learn(Instant(LIFETIME + SECOND), host(1), 1400);
        assert_eq!(paths.mtu(Instant(LIFETIME + SECOND), host(1)), Some(1400));
    }

    #[test]
    fn the_oldest_entry_is_evicted() {
        let mut paths = PathMtuCache::new(1);
        for number in 0..=MAX_ENTRIES as u32 {
            paths.learn(Instant(number.into()), host(number), 1300);
        }
        let now = Instant(MAX_ENTRIES as u64);
        assert_eq!((paths.0.len(), paths.mtu(now, host(0)), paths.mtu(now, host(1))), (MAX_ENTRIES, None, Some(1300)));
    }
}
