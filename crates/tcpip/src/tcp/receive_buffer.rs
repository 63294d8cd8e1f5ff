//! Receive buffer: reassembly, the receive window and SACK blocks (RFC 9293, 3.10.7.4; RFC 2018; RFC 2883).
//!
//! One ring holds the bytes at their final positions: in-order bytes at the front, out-of-order ranges beyond them.
//! The bounds of these ranges are in the order of their last change, in which RFC 2018 requires the blocks to be
//! sent. Their number is bounded.
//!
//! The window's right edge never moves left. It moves right only in large steps (the receiver's part of silly window
//! avoidance, RFC 9293, 3.8.6.2.2). The buffer grows if the application read more than half of it within a round
//! trip, because the window then limits the sender.

use super::seq::{Seq, SeqRange};
use crate::{gro::Payload, ring::Ring, stack::ReceiveSide, tcp::sack::SackBlocks, time::Instant};

/// Maximum number of out-of-order ranges. A segment that needs another one is dropped.
const MAX_RANGES: usize = 128;

/// Result of inserting a segment's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Bytes by which the in-order data grew.
    pub in_order: u32,
    /// The payload lies beyond a gap.
    pub out_of_order: bool,
    /// The payload filled at least a part of a gap.
    pub filled: bool,
    /// All bytes were received before.
    pub duplicate: bool,
    /// The payload was dropped: it is beyond the window, or there are too many ranges.
    pub refused: bool,
}

/// Bytes that the application had read at a point in time.
#[derive(Clone, Copy, Debug, Default)]
struct ReadRate {
    since: Instant,
    read: u64,
}

/// Receiving half of a connection.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    ring: Ring,
    /// RCV.NXT.
    next: Seq,
    /// Right edge of the advertised window.
    window_edge: Seq,
    ranges: Vec<SeqRange>,
    /// Sequence number of the peer's FIN.
    fin: Option<Seq>,
    duplicate: Option<SeqRange>,
    limit: u32,
    maximum: u32,
    scale: u8,
    read: u64,
    read_rate: ReadRate,
}

impl ReceiveBuffer {
    /// Creates a buffer of `limit` bytes that may grow to `maximum`, for data from `next` on.
    pub(crate) fn new(next: Seq, limit: u32, maximum: u32) -> Self {
        Self {
            ring: Ring::default(),
            next,
            window_edge: next,
            ranges: Vec::new(),
            fin: None,
            duplicate: None,
            limit,
            maximum,
            scale: 0,
            read: 0,
            read_rate: ReadRate::default(),
        }
    }

    /// Returns the smallest window scale that can express `maximum`.
    pub(crate) fn scale_for(maximum: u32) -> u8 {
        (0..14).find(|&shift| maximum >> shift <= 0xffff).unwrap_or(14)
    }

    /// Sets the negotiated window scale.
    pub(crate) fn set_scale(&mut self, scale: u8) {
        self.scale = scale;
    }

    /// Sets RCV.NXT from the peer's SYN. The advertised window is that of this host's SYN.
    pub(crate) fn start_at(&mut self, next: Seq) {
        self.next = next;
        self.window_edge = next.plus(self.syn_window().into());
    }

    /// Returns the window field of a SYN, which is never scaled (RFC 7323, section 2.2).
    pub(crate) fn syn_window(&self) -> u16 {
        self.limit.min(0xffff) as u16
    }

    pub(crate) const fn next(&self) -> Seq {
        self.next
    }

    pub(crate) fn readable(&self) -> usize {
        self.ring.len()
    }

    /// Returns whether the peer's FIN and everything before it were received.
    pub(crate) fn is_finished(&self) -> bool {
        // The FIN takes one sequence number.
        self.fin.is_some_and(|fin| self.next.after(fin))
    }

    /// Returns the advertised window, counted from RCV.NXT.
    pub(crate) fn window(&self) -> u32 {
        self.window_edge.distance(self.next).max(0).cast_unsigned()
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.ring.capacity() + self.ranges.capacity() * size_of::<SeqRange>()
    }

    #[cfg(test)]
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns a copy of the state, for another TCP to continue.
    pub(crate) fn export(&self) -> ReceiveSide {
        let next = self.next.minus(u32::from(self.is_finished()));
        let copy = |range: &SeqRange| {
            let offset = self.ring.len() + range.start.since(self.next) as usize;
            (range.start.0, self.ring.copy(offset, range.end.since(range.start) as usize))
        };
        let mut islands: Vec<_> = self.ranges.iter().map(copy).collect();
        islands.sort_by_key(|(start, _)| start.wrapping_sub(next.0));
        ReceiveSide {
            next: next.0,
            unread: self.ring.copy(0, self.ring.len()),
            islands,
            fin: self.fin.map(|fin| fin.0),
            window: self.window(),
            scale: self.scale,
            buffer: self.limit,
            is_shut: false,
        }
    }

    /// Sets the buffer size. The advertised window does not shrink.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.maximum = limit;
    }

    /// Inserts `payload` at `start`. The caller has checked that it overlaps the window.
    pub(crate) fn insert(&mut self, start: Seq, payload: &Payload<'_>) -> Arrival {
        let whole = SeqRange::new(start, start.plus(payload.len() as u32));
        let room = self.fin.map_or(self.next.plus(self.window()), |fin| fin.earlier(self.next.plus(self.window())));
        let wanted = SeqRange::new(start.later(self.next), whole.end.earlier(room));
        if wanted.end.at_or_before(wanted.start) {
            if whole.end.at_or_before(self.next) {
                self.duplicate = Some(whole);
                return Arrival { duplicate: true, ..Arrival::default() };
            }
            return Arrival { refused: true, ..Arrival::default() };
        }
        if start.before(self.next) {
            self.duplicate = Some(SeqRange::new(start, self.next));
        }
        let overlap = self.first_overlap(wanted);
        if start.at_or_after(self.next) && overlap.is_some() {
            self.duplicate = overlap;
        }
        if overlap == Some(wanted) {
            // The second block to send is the range that contains the duplicate (RFC 2883, section 4).
            self.add_range(wanted);
            return Arrival { out_of_order: true, duplicate: true, ..Arrival::default() };
        }
        let is_next = wanted.start == self.next;
        if !is_next && self.ranges.len() >= MAX_RANGES && !self.ranges.iter().any(|range| range.touches(wanted)) {
            return Arrival { refused: true, ..Arrival::default() };
        }
        self.store(wanted, payload, wanted.start.since(start) as usize);
        if is_next { self.advance(wanted.end) } else { self.add_range(wanted) }
    }

    /// Returns the first part of `wanted` that was received out of order.
    fn first_overlap(&self, wanted: SeqRange) -> Option<SeqRange> {
        let overlap = |range: &SeqRange| SeqRange::new(range.start.later(wanted.start), range.end.earlier(wanted.end));
        let overlaps = self.ranges.iter().map(overlap).filter(|part| part.start.before(part.end));
        overlaps.min_by_key(|part| part.start.since(wanted.start))
    }

    fn store(&mut self, range: SeqRange, payload: &Payload<'_>, skip: usize) {
        let mut offset = self.ring.len() + range.start.since(self.next) as usize;
        self.ring.reserve(offset + range.len() as usize);
        payload.pieces_from(skip, range.len() as usize, |piece| {
            self.ring.write_at(offset, piece);
            offset += piece.len();
        });
    }

    /// Extends the in-order data to `end`, and over the ranges that it reaches.
    fn advance(&mut self, mut end: Seq) -> Arrival {
        let filled = !self.ranges.is_empty();
        while let Some(index) = self.ranges.iter().position(|range| range.start.at_or_before(end)) {
            end = end.later(self.ranges.swap_remove(index).end);
        }
        if self.ranges.is_empty() {
            self.ranges = Vec::new();
        }
        let in_order = end.since(self.next);
        self.ring.extend(in_order as usize);
        self.next = end;
        Arrival { in_order, filled, ..Arrival::default() }
    }

    fn add_range(&mut self, mut range: SeqRange) -> Arrival {
        self.ranges.retain(|other| {
            let touches = range.touches(*other);
            if touches {
                range = SeqRange::new(range.start.earlier(other.start), range.end.later(other.end));
            }
            !touches
        });
        self.ranges.insert(0, range);
        Arrival { out_of_order: true, ..Arrival::default() }
    }

    /// Sets the sequence number of the peer's FIN. Returns true once, when everything before it was received. A FIN
    /// before data that was received is ignored.
    pub(crate) fn finish(&mut self, at: Seq) -> bool {
        if at.before(self.next) || self.ranges.iter().any(|range| range.end.after(at)) {
            return false;
        }
        let fin = *self.fin.get_or_insert(at);
        if self.next != fin {
            return false;
        }
        self.next = fin.plus(1);
        true
    }

    /// Like [`ReceiveBuffer::finish`], for a FIN that arrived earlier.
    pub(crate) fn finish_if_known(&mut self) -> bool {
        self.fin.is_some_and(|fin| self.finish(fin))
    }

    /// Copies in-order bytes into `to` and consumes them, unless `peek` is set.
    pub(crate) fn read(&mut self, to: &mut [u8], peek: bool) -> usize {
        let bytes = self.ring.peek(to);
        if !peek {
            self.ring.consume(bytes, !self.ranges.is_empty());
            self.read += bytes as u64;
        }
        bytes
    }

    /// Advances the advertised window, and returns the window field to send.
    pub(crate) fn advertise_window(&mut self, mss: u32) -> u16 {
        self.window_edge = self.next_window_edge(mss);
        self.advertised_window()
    }

    /// Returns the window field of the window that was advertised last.
    pub(crate) fn advertised_window(&self) -> u16 {
        (self.window() >> self.scale).min(0xffff) as u16
    }

    /// Returns whether to send a window update: less than half of the buffer is advertised, and much more is free.
    pub(crate) fn should_update_window(&self, mss: u32) -> bool {
        let edge = self.next_window_edge(mss);
        let gain = edge.since(self.window_edge);
        gain > 0 && (gain >= 2 * mss || gain >= self.limit / 2) && self.window() < self.limit / 2
    }

    fn next_window_edge(&self, mss: u32) -> Seq {
        let free = self.limit.saturating_sub(self.ring.len() as u32);
        // The window field expresses only multiples of the scale.
        let free = (free >> self.scale).min(0xffff) << self.scale;
        let edge = self.next.plus(free).later(self.window_edge);
        let gain = edge.since(self.window_edge);
        if gain >= mss.min(self.limit / 2) || self.window() >= mss { edge } else { self.window_edge }
    }

    /// Returns the SACK blocks to send: a duplicate first (RFC 2883), then the ranges, the last changed first.
    pub(crate) fn sack_blocks(&mut self, room: usize) -> SackBlocks {
        if room == 0 {
            return SackBlocks::default();
        }
        self.duplicate.take().into_iter().chain(self.ranges.iter().copied()).take(room).collect()
    }

    /// Returns the number of SACK blocks to send, if there is room for all.
    pub(crate) fn sack_block_count(&self) -> usize {
        usize::from(self.duplicate.is_some()) + self.ranges.len()
    }

    /// Records a segment outside the window as a duplicate if its bytes were received before.
    pub(crate) fn record_duplicate(&mut self, range: SeqRange) {
        if range.end.at_or_before(self.next) {
            self.duplicate = Some(range);
        }
    }

    pub(crate) const fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// Grows the buffer if the application read more than half of it within a round trip.
    pub(crate) fn autotune(&mut self, now: Instant, rtt: u64) {
        if now.nanos_since(self.read_rate.since) < rtt {
            return;
        }
        let doubled = 2 * (self.read - self.read_rate.read);
        if doubled > u64::from(self.limit) && self.read_rate.since != Instant::ZERO {
            self.limit = u32::try_from(doubled).unwrap_or(u32::MAX).min(self.maximum).max(self.limit);
        }
        self.read_rate = ReadRate { since: now, read: self.read };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive_buffer() -> ReceiveBuffer {
        let mut receive_buffer = ReceiveBuffer::new(Seq(u32::MAX - 10), 4096, 8192);
        receive_buffer.advertise_window(100);
        receive_buffer
    }

    fn arrive(receive_buffer: &mut ReceiveBuffer, offset: u32, bytes: &[u8]) -> Arrival {
        receive_buffer.insert(Seq(u32::MAX - 10).plus(offset), &Payload::single(bytes))
    }

    fn read(receive_buffer: &mut ReceiveBuffer) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let len = receive_buffer.read(&mut bytes, false);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn ranges_merge_and_blocks_are_in_the_order_of_the_last_change() {
        let mut receive_buffer = receive_buffer();
        assert!(arrive(&mut receive_buffer, 10, b"klmno").out_of_order);
        assert!(arrive(&mut receive_buffer, 20, b"uv").out_of_order);
        assert!(arrive(&mut receive_buffer, 15, b"pq").out_of_order);
        let at = |offset| Seq(u32::MAX - 10).plus(offset);
        assert_eq!(
            receive_buffer.sack_blocks(3).as_slice(),
            [SeqRange::new(at(10), at(17)), SeqRange::new(at(20), at(22))]
        );
        let arrival = arrive(&mut receive_buffer, 0, b"abcdefghijk");
        assert_eq!((arrival.in_order, arrival.filled), (17, true));
        assert_eq!(read(&mut receive_buffer), b"abcdefghijklmnopq");
        assert_eq!(arrive(&mut receive_buffer, 17, b"rst").in_order, 5);
        assert_eq!(read(&mut receive_buffer), b"rstuv");
        assert_eq!(receive_buffer.memory(), 0);
    }

    #[test]
    fn duplicates_are_reported_first() {
        let mut receive_buffer = receive_buffer();
        arrive(&mut receive_buffer, 0, b"abc");
        assert!(arrive(&mut receive_buffer, 0, b"ab").duplicate);
        let at = |offset| Seq(u32::MAX - 10).plus(offset);
        assert_eq!(receive_buffer.sack_blocks(3).as_slice(), [SeqRange::new(at(0), at(2))]);
        assert!(receive_buffer.sack_blocks(3).is_empty(), "once");
        assert_eq!(arrive(&mut receive_buffer, 2, b"cd").in_order, 1);
        assert_eq!(read(&mut receive_buffer), b"abcd");
    }

    #[test]
    fn the_window_does_not_shrink_and_opens_in_large_steps() {
        let mut receive_buffer = receive_buffer();
        assert_eq!(receive_buffer.window(), 4096);
        assert_eq!(arrive(&mut receive_buffer, 0, &[7; 5000]).in_order, 4096, "cut at the advertised edge");
        assert_eq!(receive_buffer.advertise_window(100), 0);
        receive_buffer.read(&mut [0; 50], false);
        assert_eq!(receive_buffer.advertise_window(100), 0, "50 bytes are not worth an update");
        receive_buffer.read(&mut [0; 2500], false);
        assert!(receive_buffer.should_update_window(100));
        assert_eq!(receive_buffer.advertise_window(100), 2550);
    }

    #[test]
    fn a_fin_waits_for_missing_data() {
        let mut receive_buffer = receive_buffer();
        let at = |offset| Seq(u32::MAX - 10).plus(offset);
        assert!(!receive_buffer.finish(at(3)));
        arrive(&mut receive_buffer, 0, b"abc");
        assert!(receive_buffer.finish_if_known() && receive_buffer.is_finished());
        assert_eq!(receive_buffer.next(), at(4));
        assert!(!receive_buffer.finish(at(3)), "again");
    }

    #[test]
    fn ranges_are_bounded() {
        let mut receive_buffer = receive_buffer();
        for number in 1..=MAX_RANGES as u32 {
            assert!(!arrive(&mut receive_buffer, number * 4, b"x").refused);
        }
        assert!(arrive(&mut receive_buffer, 4000, b"x").refused);
        assert!(!arrive(&mut receive_buffer, 0, b"ab").refused);
    }

    #[test]
    fn the_buffer_grows_only_for_a_reader_that_keeps_up() {
        let mut receive_buffer = receive_buffer();
        receive_buffer.autotune(Instant(1), 10);
        receive_buffer.autotune(Instant(20), 10);
        assert_eq!(receive_buffer.limit(), 4096);
        arrive(&mut receive_buffer, 0, &[1; 4000]);
        receive_buffer.read(&mut [0; 4000], false);
        receive_buffer.autotune(Instant(40), 10);
        assert_eq!(receive_buffer.limit(), 8000);
    }
}
