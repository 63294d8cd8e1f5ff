//! Reassembly of UDP datagrams that arrive in fragments (RFC 791, 3.2; RFC 8200, 4.5; RFC 5722).
//!
//! Anyone can send first parts whose rest never comes, so everything is bounded: the datagrams, their bytes, their parts,
//! and the time that they wait. The oldest datagram gives way to a new one. Fragments that overlap are an attack on hosts and
//! firewalls that inspect them; they end their datagram, and what follows of it is dropped too (RFC 5722). A copy of a fragment is
//! ignored. A datagram that waits for too long is removed when the next fragment arrives, without an ICMP error.

use core::net::IpAddr;
use std::collections::VecDeque;

use crate::{
    fragment::Fragment,
    time::{Instant, SECOND},
};

/// How long a datagram waits for its rest. RFC 8200 allows 60 seconds; operating systems wait 30.
const LIFETIME: u64 = 30 * SECOND;
/// Limits of the datagrams that wait, and of the bytes of all of them.
const MAX_DATAGRAMS: usize = 64;
const MAX_BYTES: usize = 1 << 20;
/// Limit of the parts of one datagram: 64 KiB over a path whose MTU is 576.
const MAX_PARTS: usize = 128;
/// Longest datagram.
const MAX_LEN: usize = 65_535;
/// Bytes that each part counts in addition to its data.
const OVERHEAD: usize = 64;

/// What identifies a datagram beside its protocol, which is UDP.
pub(crate) type Key = (IpAddr, IpAddr, u32);

/// Datagram that waits for its rest.
#[derive(Debug)]
struct Incomplete {
    key: Key,
    expires_at: Instant,
    /// Offset and data of each part, in the order of the offsets.
    parts: Vec<(usize, Box<[u8]>)>,
    /// Length, once the last part arrived.
    len: Option<usize>,
    /// Fragments overlapped, or there were too many.
    is_refused: bool,
}

/// Result of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was stored.
    Waits,
    /// It was dropped, and with it what its datagram had.
    Dropped,
    /// It completed this datagram.
    Complete(Vec<u8>),
}

/// Datagrams that wait for their rest, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    datagrams: VecDeque<Incomplete>,
    bytes: usize,
}

impl Reassembly {
    /// Adds a fragment of the datagram `key`.
    pub(crate) fn insert(&mut self, now: Instant, key: Key, fragment: Fragment, data: &[u8]) -> Outcome {
        self.expire(now);
        let end = usize::from(fragment.offset) + data.len();
        if data.is_empty() || end > MAX_LEN || fragment.more && !data.len().is_multiple_of(8) {
            return Outcome::Dropped;
        }
        self.make_room(key, data.len() + OVERHEAD);
        let index = self.datagrams.iter().position(|datagram| datagram.key == key).unwrap_or_else(|| {
            let expires_at = now.plus(LIFETIME);
            self.datagrams.push_back(Incomplete { key, expires_at, parts: Vec::new(), len: None, is_refused: false });
            self.datagrams.len() - 1
        });
        let datagram = &mut self.datagrams[index];
        let before = datagram.bytes();
        datagram.add(fragment, data);
        self.bytes = self.bytes + datagram.bytes() - before;
        if datagram.is_refused {
            return Outcome::Dropped;
        }
        if !datagram.is_complete() {
            return Outcome::Waits;
        }
        self.bytes -= datagram.bytes();
        let complete = self.datagrams.remove(index).map(|datagram| datagram.join()).unwrap_or_default();
        Outcome::Complete(complete)
    }

    fn expire(&mut self, now: Instant) {
        while self.datagrams.front().is_some_and(|oldest| oldest.expires_at <= now) {
            self.remove_oldest();
        }
    }

    /// Removes the oldest datagrams, until `more` bytes fit. The datagram `key` may be among them.
    fn make_room(&mut self, key: Key, more: usize) {
        let is_new = self.datagrams.iter().all(|datagram| datagram.key != key);
        while !self.datagrams.is_empty()
            && (self.bytes + more > MAX_BYTES || is_new && self.datagrams.len() >= MAX_DATAGRAMS)
        {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some(oldest) = self.datagrams.pop_front() {
            self.bytes -= oldest.bytes();
        }
    }

    #[cfg(test)]
    fn audit(&self) {
        assert_eq!(self.bytes, self.datagrams.iter().map(Incomplete::bytes).sum::<usize>());
        assert!(self.bytes <= MAX_BYTES + MAX_LEN && self.datagrams.len() <= MAX_DATAGRAMS);
    }
}

impl Incomplete {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, data)| data.len() + OVERHEAD).sum()
    }

    fn add(&mut self, fragment: Fragment, data: &[u8]) {
        let (start, end) = (usize::from(fragment.offset), usize::from(fragment.offset) + data.len());
        if self.is_refused || self.parts.iter().any(|(offset, part)| *offset == start && **part == *data) {
            return;
        }
        let overlaps = self.parts.iter().any(|(offset, part)| start < offset + part.len() && *offset < end);
        let len = if fragment.more { self.len } else { Some(end) };
        let highest = self.parts.last().map_or(end, |(offset, part)| end.max(offset + part.len()));
        let contradicts = len.is_some_and(|len| highest > len || self.len.is_some_and(|known| known != len));
        if overlaps || contradicts || self.parts.len() >= MAX_PARTS {
            self.is_refused = true;
            self.parts = Vec::new();
            return;
        }
        self.len = len;
        let at = self.parts.partition_point(|(offset, _)| *offset < start);
        self.parts.insert(at, (start, data.into()));
    }

    /// Returns whether all parts are there. They do not overlap, so their sum tells.
    fn is_complete(&self) -> bool {
        self.len == Some(self.parts.iter().map(|(_, data)| data.len()).sum())
    }

    fn join(self) -> Vec<u8> {
        self.parts.iter().flat_map(|(_, data)| data.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u32) -> Key {
        ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), id)
    }

    fn part(offset: u16, more: bool) -> Fragment {
        Fragment { id: 0, offset, more }
    }

    #[test]
    fn parts_are_joined_in_any_order() {
        let data: Vec<u8> = (0..20).collect();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut reassembly = Reassembly::default();
            for (number, index) in order.into_iter().enumerate() {
                let (from, to) = (index * 8, (index * 8 + 8).min(20));
                let fragment = part(from as u16, to < 20);
                // Each one twice.
                let outcome = reassembly.insert(Instant(0), key(1), fragment, &data[from..to]);
                if number < 2 {
                    assert_eq!(outcome, Outcome::Waits);
                    assert_eq!(reassembly.insert(Instant(0), key(1), fragment, &data[from..to]), Outcome::Waits);
                } else {
                    assert_eq!(outcome, Outcome::Complete(data.clone()));
                }
                reassembly.audit();
            }
            assert_eq!((reassembly.bytes, reassembly.datagrams.len()), (0, 0));
        }
    }

    #[test]
    fn overlapping_parts_end_their_datagram() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.insert(Instant(0), key(1), part(0, true), &[1; 16]), Outcome::Waits);
        assert_eq!(reassembly.insert(Instant(0), key(1), part(8, false), &[2; 16]), Outcome::Dropped);
        assert_eq!(reassembly.insert(Instant(0), key(1), part(16, false), &[2; 8]), Outcome::Dropped, "what follows");
        assert_eq!(reassembly.insert(Instant(0), key(2), part(0, true), &[1; 16]), Outcome::Waits);
        assert_eq!(reassembly.insert(Instant(0), key(2), part(0, true), &[7; 16]), Outcome::Dropped, "other bytes");
        assert_eq!(reassembly.insert(Instant(0), key(3), part(32, true), &[1; 8]), Outcome::Waits);
        assert_eq!(reassembly.insert(Instant(0), key(3), part(8, false), &[1; 8]), Outcome::Dropped, "beyond the end");
        reassembly.audit();
    }

    #[test]
    fn malformed_parts_are_dropped() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.insert(Instant(0), key(1), part(0, true), &[1; 15]), Outcome::Dropped);
        assert_eq!(reassembly.insert(Instant(0), key(1), part(0, true), &[]), Outcome::Dropped);
        assert_eq!(reassembly.insert(Instant(0), key(1), part(65_528, false), &[1; 8]), Outcome::Dropped);
        assert!(reassembly.datagrams.is_empty());
    }

    #[test]
    fn a_flood_of_first_parts_is_bounded_and_expires() {
        let mut reassembly = Reassembly::default();
        for id in 0..1000 {
            assert_eq!(reassembly.insert(Instant(0), key(id), part(0, true), &[1; 32_000]), Outcome::Waits);
            reassembly.audit();
        }
        for at in (0..10_000).step_by(16) {
            reassembly.insert(Instant(1), key(7777), part(at, true), &[1; 8]);
            reassembly.audit();
        }
        reassembly.insert(Instant(LIFETIME + 1), key(1), part(0, true), &[1; 8]);
        assert_eq!((reassembly.datagrams.len(), reassembly.bytes), (1, 8 + OVERHEAD));
    }
}
