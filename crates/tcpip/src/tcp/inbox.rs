//! What came in: reassembly, the window, and what SACK says of it (RFC 9293, 3.10.7.4; RFC 2018; RFC 2883).
//!
//! Bytes are put at their place in one ring: the sequence at the front, islands behind it. The islands' borders are kept
//! in the order of the last change, which is the order RFC 2018 wants the blocks in, and there are at most so many.
//!
//! The window's right edge never moves left, and moves right only in worthwhile steps (the receiver's half of silly
//! window avoidance, RFC 9293, 3.8.6.2.2). The buffer grows when the application read more than half of it within a round
//! trip: then the window, not the application, is what holds the sender back.

use super::seq::{Seq, SeqRange};
use crate::{gro::Payload, ring::Ring, tcp::options::SACK_BLOCKS, time::Instant};

/// Islands at most; what would need another one is dropped.
const ISLANDS: usize = 128;

/// What became of a segment's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Bytes that the sequence grew by.
    pub in_order: u32,
    /// It lies behind a gap.
    pub out_of_order: bool,
    /// It filled (part of) a gap.
    pub filled: bool,
    /// All of it was there already.
    pub duplicate: bool,
    /// It was dropped for want of room for another island.
    pub refused: bool,
}

/// Measures how fast the application reads.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    since: Instant,
    read: u64,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Inbox {
    ring: Ring,
    /// RCV.NXT.
    next: Seq,
    /// The right edge of the window the peer was told.
    edge: Seq,
    islands: Vec<SeqRange>,
    /// Where the peer's data ends.
    fin: Option<Seq>,
    duplicate: Option<SeqRange>,
    limit: u32,
    maximum: u32,
    scale: u8,
    read: u64,
    pace: Pace,
}

impl Inbox {
    /// Receives from `next` on, with a buffer of `limit` bytes that may grow to `maximum`.
    pub(crate) fn new(next: Seq, limit: u32, maximum: u32) -> Self {
        Self {
            ring: Ring::default(),
            next,
            edge: next,
            islands: Vec::new(),
            fin: None,
            duplicate: None,
            limit,
            maximum,
            scale: 0,
            read: 0,
            pace: Pace::default(),
        }
    }

    /// The shift that can express the largest window.
    pub(crate) fn scale_for(maximum: u32) -> u8 {
        (0..14).find(|&shift| maximum >> shift <= 0xffff).unwrap_or(14)
    }

    /// The peer accepts windows shifted by `scale`.
    pub(crate) fn set_scale(&mut self, scale: u8) {
        self.scale = scale;
    }

    /// The numbers start here: the peer's SYN came. It knows, or will know, the window of our SYN.
    pub(crate) fn begin(&mut self, next: Seq) {
        self.next = next;
        self.edge = next.plus(self.syn_window().into());
    }

    /// The window field of a SYN, which is never scaled (RFC 7323, section 2.2).
    pub(crate) fn syn_window(&self) -> u16 {
        self.limit.min(0xffff) as u16
    }

    pub(crate) const fn next(&self) -> Seq {
        self.next
    }

    pub(crate) fn readable(&self) -> usize {
        self.ring.len()
    }

    /// Whether the peer's FIN and everything before it came.
    pub(crate) fn is_finished(&self) -> bool {
        // The FIN takes a number of its own.
        self.fin.is_some_and(|fin| self.next.after(fin))
    }

    /// The window the peer was told of, from RCV.NXT on.
    pub(crate) fn window(&self) -> u32 {
        self.edge.distance(self.next).max(0).cast_unsigned()
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> usize {
        self.ring.capacity() + self.islands.capacity() * size_of::<SeqRange>()
    }

    #[cfg(test)]
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the buffer size; what the peer was promised already stays promised.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.maximum = limit;
    }

    /// Takes `payload` at `start`, which the caller checked to overlap the window.
    pub(crate) fn arrive(&mut self, start: Seq, payload: &Payload<'_>) -> Arrival {
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
        let covered = self
            .islands
            .iter()
            .find(|island| island.start.at_or_before(wanted.start) && island.end.at_or_after(wanted.end));
        if covered.is_some() {
            self.duplicate = Some(whole);
            return Arrival { out_of_order: true, duplicate: true, ..Arrival::default() };
        }
        let is_next = wanted.start == self.next;
        if !is_next && self.islands.len() >= ISLANDS && !self.islands.iter().any(|island| island.touches(wanted)) {
            return Arrival { refused: true, ..Arrival::default() };
        }
        self.store(wanted, payload, wanted.start.since(start) as usize);
        if is_next { self.advance(wanted.end) } else { self.add_island(wanted) }
    }

    fn store(&mut self, range: SeqRange, payload: &Payload<'_>, skip: usize) {
        let mut offset = self.ring.len() + range.start.since(self.next) as usize;
        payload.pieces_from(skip, range.end.since(range.start) as usize, |piece| {
            self.ring.write_at(offset, piece);
            offset += piece.len();
        });
    }

    /// The sequence grew to `end`, and takes in the islands it reaches.
    fn advance(&mut self, mut end: Seq) -> Arrival {
        let filled = !self.islands.is_empty();
        while let Some(index) = self.islands.iter().position(|island| island.start.at_or_before(end)) {
            end = end.later(self.islands.swap_remove(index).end);
        }
        if self.islands.is_empty() {
            self.islands = Vec::new();
        }
        let in_order = end.since(self.next);
        self.ring.extend(in_order as usize);
        self.next = end;
        Arrival { in_order, filled, ..Arrival::default() }
    }

    fn add_island(&mut self, mut island: SeqRange) -> Arrival {
        self.islands.retain(|other| {
            let touches = island.touches(*other);
            if touches {
                island = SeqRange::new(island.start.earlier(other.start), island.end.later(other.end));
            }
            !touches
        });
        self.islands.insert(0, island);
        Arrival { out_of_order: true, ..Arrival::default() }
    }

    /// The peer's data ends at `at`. Returns whether all of it is there, for the first time. An end that lies before
    /// what was received already is a lie, and ignored.
    pub(crate) fn finish(&mut self, at: Seq) -> bool {
        if at.before(self.next) || self.islands.iter().any(|island| island.end.after(at)) {
            return false;
        }
        let fin = *self.fin.get_or_insert(at);
        if self.next != fin {
            return false;
        }
        self.next = fin.plus(1);
        true
    }

    /// Like [`Inbox::finish`] for a FIN that came earlier.
    pub(crate) fn finish_if_known(&mut self) -> bool {
        self.fin.is_some_and(|fin| self.finish(fin))
    }

    /// Copies what is readable into `to`; takes it away unless `peek`.
    pub(crate) fn read(&mut self, to: &mut [u8], peek: bool) -> usize {
        let bytes = self.ring.peek(to);
        if !peek {
            self.ring.consume(bytes, !self.islands.is_empty());
            self.read += bytes as u64;
        }
        bytes
    }

    /// The window field to send, and the promise that goes with it.
    pub(crate) fn promise(&mut self, mss: u32) -> u16 {
        self.edge = self.worthwhile_edge(mss);
        self.promised()
    }

    /// The window field that repeats what was promised.
    pub(crate) fn promised(&self) -> u16 {
        (self.window() >> self.scale).min(0xffff) as u16
    }

    /// Whether the peer should be told of a window that opened: it was promised little, and could be promised much more.
    pub(crate) fn is_update_worthwhile(&self, mss: u32) -> bool {
        let edge = self.worthwhile_edge(mss);
        let gain = edge.since(self.edge);
        gain > 0 && (gain >= 2 * mss || gain >= self.limit / 2) && self.window() < self.limit / 2
    }

    fn worthwhile_edge(&self, mss: u32) -> Seq {
        let free = self.limit.saturating_sub(self.ring.len() as u32);
        // Only what the field can say is promised.
        let free = (free >> self.scale).min(0xffff) << self.scale;
        let edge = self.next.plus(free).later(self.edge);
        let gain = edge.since(self.edge);
        if gain >= mss.min(self.limit / 2) || self.window() >= mss { edge } else { self.edge }
    }

    /// The SACK blocks to send: a duplicate first (RFC 2883), then islands, the last changed first.
    pub(crate) fn blocks(&mut self, room: usize) -> [Option<SeqRange>; SACK_BLOCKS] {
        let mut blocks = [None; SACK_BLOCKS];
        if room == 0 {
            return blocks;
        }
        let all = self.duplicate.take().into_iter().chain(self.islands.iter().copied());
        for (slot, block) in blocks.iter_mut().take(room).zip(all) {
            *slot = Some(block);
        }
        blocks
    }

    /// How many blocks there are to send.
    pub(crate) fn block_count(&self) -> usize {
        (usize::from(self.duplicate.is_some()) + self.islands.len()).min(SACK_BLOCKS)
    }

    /// A segment came that is outside the window; if its bytes are old, they are a duplicate to report.
    pub(crate) fn note_duplicate(&mut self, range: SeqRange) {
        if range.end.at_or_before(self.next) {
            self.duplicate = Some(range);
        }
    }

    pub(crate) const fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// Lets the buffer grow if the application read more than half of it within a round trip.
    pub(crate) fn tune(&mut self, now: Instant, rtt: u64) {
        if now.nanos_since(self.pace.since) < rtt {
            return;
        }
        let doubled = 2 * (self.read - self.pace.read);
        if doubled > u64::from(self.limit) && self.pace.since != Instant::ZERO {
            self.limit = u32::try_from(doubled).unwrap_or(u32::MAX).min(self.maximum).max(self.limit);
        }
        self.pace = Pace { since: now, read: self.read };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox() -> Inbox {
        let mut inbox = Inbox::new(Seq(u32::MAX - 10), 4096, 8192);
        inbox.promise(100);
        inbox
    }

    fn arrive(inbox: &mut Inbox, offset: u32, bytes: &[u8]) -> Arrival {
        inbox.arrive(Seq(u32::MAX - 10).plus(offset), &Payload::single(bytes))
    }

    fn read(inbox: &mut Inbox) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let len = inbox.read(&mut bytes, false);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn islands_join_and_blocks_name_the_latest_first() {
        let mut inbox = inbox();
        assert!(arrive(&mut inbox, 10, b"klmno").out_of_order);
        assert!(arrive(&mut inbox, 20, b"uv").out_of_order);
        assert!(arrive(&mut inbox, 15, b"pq").out_of_order);
        let at = |offset| Seq(u32::MAX - 10).plus(offset);
        assert_eq!(inbox.blocks(3), [Some(SeqRange::new(at(10), at(17))), Some(SeqRange::new(at(20), at(22))), None]);
        let arrival = arrive(&mut inbox, 0, b"abcdefghijk");
        assert_eq!((arrival.in_order, arrival.filled), (17, true));
        assert_eq!(read(&mut inbox), b"abcdefghijklmnopq");
        assert_eq!(arrive(&mut inbox, 17, b"rst").in_order, 5);
        assert_eq!(read(&mut inbox), b"rstuv");
        assert_eq!(inbox.memory(), 0);
    }

    #[test]
    fn duplicates_are_reported_first() {
        let mut inbox = inbox();
        arrive(&mut inbox, 0, b"abc");
        assert!(arrive(&mut inbox, 0, b"ab").duplicate);
        let at = |offset| Seq(u32::MAX - 10).plus(offset);
        assert_eq!(inbox.blocks(3)[0], Some(SeqRange::new(at(0), at(2))));
        assert_eq!(inbox.blocks(3)[0], None, "once");
        assert_eq!(arrive(&mut inbox, 2, b"cd").in_order, 1);
        assert_eq!(read(&mut inbox), b"abcd");
    }

    #[test]
    fn the_window_is_kept_and_not_silly() {
        let mut inbox = inbox();
        assert_eq!(inbox.window(), 4096);
        assert_eq!(arrive(&mut inbox, 0, &[7; 5000]).in_order, 4096, "cut at the promised edge");
        assert_eq!(inbox.promise(100), 0);
        inbox.read(&mut [0; 50], false);
        assert_eq!(inbox.promise(100), 0, "50 bytes are not worth telling");
        inbox.read(&mut [0; 2500], false);
        assert!(inbox.is_update_worthwhile(100));
        assert_eq!(inbox.promise(100), 2550);
    }

    #[test]
    fn a_fin_waits_for_what_is_missing() {
        let mut inbox = inbox();
        let at = |offset| Seq(u32::MAX - 10).plus(offset);
        assert!(!inbox.finish(at(3)));
        arrive(&mut inbox, 0, b"abc");
        assert!(inbox.finish_if_known() && inbox.is_finished());
        assert_eq!(inbox.next(), at(4));
        assert!(!inbox.finish(at(3)), "again");
    }

    #[test]
    fn islands_are_bounded() {
        let mut inbox = inbox();
        for number in 1..=ISLANDS as u32 {
            assert!(!arrive(&mut inbox, number * 4, b"x").refused);
        }
        assert!(arrive(&mut inbox, 4000, b"x").refused);
        assert!(!arrive(&mut inbox, 0, b"ab").refused);
    }

    #[test]
    fn the_buffer_grows_only_for_a_reader_that_keeps_up() {
        let mut inbox = inbox();
        inbox.tune(Instant(1), 10);
        inbox.tune(Instant(20), 10);
        assert_eq!(inbox.limit(), 4096);
        arrive(&mut inbox, 0, &[1; 4000]);
        inbox.read(&mut [0; 4000], false);
        inbox.tune(Instant(40), 10);
        assert_eq!(inbox.limit(), 8000);
    }
}
