//! What goes out: the bytes not acknowledged yet, and the peer's window (RFC 9293, 3.10.7.4 and 3.8.6.2.1).
//!
//! The ring holds the stream from `SND.UNA` on. A SYN before it and a FIN after it take a sequence number each but no
//! byte. Whether there is enough to make a segment worth sending is decided here: Nagle's rule, and the sender's half
//! of silly window avoidance.

use super::seq::{Seq, SeqRange};
use crate::ring::Ring;

/// Whether the stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    /// More may be written.
    Open,
    /// Nothing more will be written; the FIN follows the last byte.
    Queued,
    /// It went out with this number.
    Sent(Seq),
}

/// Why nothing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// There is nothing.
    Nothing,
    /// Too little, while data is in flight (Nagle).
    Small,
    /// The peer's window is closed, or too small to be worth it.
    Window,
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    ring: Ring,
    /// The number of the ring's first byte.
    base: Seq,
    /// SND.UNA and SND.NXT.
    pub una: Seq,
    pub nxt: Seq,
    /// SND.WND in bytes, and the number of the segment it came with (WL1).
    window: u32,
    updated_by: Seq,
    largest_window: u32,
    /// The shift of the peer's window, if scaling was agreed on.
    scale: Option<u8>,
    pub fin: Fin,
    limit: usize,
    /// A write was refused for want of room; the next room is news.
    refused: bool,
}

impl Outbox {
    /// Sends from the SYN `initial` on.
    pub(crate) fn new(initial: Seq, limit: usize) -> Self {
        Self {
            ring: Ring::default(),
            base: initial.plus(1),
            una: initial,
            nxt: initial,
            window: 0,
            updated_by: Seq(0),
            largest_window: 0,
            scale: None,
            fin: Fin::Open,
            limit,
            refused: false,
        }
    }

    pub(crate) fn set_scale(&mut self, scale: u8) {
        self.scale = Some(scale);
    }

    /// Whether both sides scale their windows.
    pub(crate) const fn scaled(&self) -> bool {
        self.scale.is_some()
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> usize {
        self.ring.capacity()
    }

    pub(crate) const fn largest_window(&self) -> u32 {
        self.largest_window
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    /// Takes what fits of `bytes`; how much that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.limit.saturating_sub(self.ring.len()));
        self.ring.push(&bytes[..taken]);
        self.refused |= taken < bytes.len();
        taken
    }

    /// Whether enough room is free to call it writable: a third.
    pub(crate) fn has_room(&self) -> bool {
        self.limit.saturating_sub(self.ring.len()) * 3 >= self.limit
    }

    /// The number after the last byte.
    fn end(&self) -> Seq {
        self.base.plus(self.ring.len() as u32)
    }

    /// Bytes that were never sent.
    pub(crate) fn unsent(&self) -> u32 {
        self.end().distance(self.nxt.later(self.base)).max(0).cast_unsigned()
    }

    /// Whether anything, FIN included, was never sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent() > 0 || self.fin == Fin::Queued
    }

    /// Whether the FIN was acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.fin, Fin::Sent(at) if self.una.after(at))
    }

    /// Takes the window of a segment that acknowledges `ack`, which is not before SND.UNA, unless it is older than the one
    /// that is known. Whether it changed. A segment that acknowledges more was sent later, also if its number is lower, as a
    /// retransmission's is: RFC 9293's rule, which goes by the number first, would keep the old window and move it along with
    /// SND.UNA, past what the peer ever offered. A window that shrinks is believed: a peer that ran out of memory means it.
    pub(crate) fn update_window(&mut self, seq: Seq, ack: Seq, field: u16, is_syn: bool) -> bool {
        // The window of a SYN is never scaled (RFC 7323, section 2.2).
        let window = u32::from(field) << if is_syn { 0 } else { self.scale.unwrap_or(0) };
        if !is_syn && !ack.after(self.una) && seq.before(self.updated_by) {
            return false;
        }
        let changed = window != self.window;
        self.window = window;
        self.updated_by = seq;
        self.largest_window = self.largest_window.max(window);
        changed
    }

    /// Bytes that the peer's window has room for from `start` on.
    pub(crate) fn room_from(&self, start: Seq) -> u32 {
        self.una.plus(self.window).distance(start).max(0).cast_unsigned()
    }

    /// The number of a segment without data: SND.NXT, unless the peer took back what it offered. Then it would ignore, as
    /// out of its window, an acknowledgement from there.
    pub(crate) fn acceptable(&self) -> Seq {
        let edge = self.una.plus(self.window);
        // What scaling rounded away was not taken back.
        let slack = 1 << self.scale.unwrap_or(0);
        if self.nxt.distance(edge) < slack { self.nxt } else { edge }
    }

    /// Everything before `una` arrived. Whether a refused writer can go on.
    pub(crate) fn acknowledge(&mut self, una: Seq) -> bool {
        self.una = una;
        let bytes = una.distance(self.base).max(0).cast_unsigned() as usize;
        let bytes = bytes.min(self.ring.len());
        if bytes > 0 {
            self.ring.consume(bytes, false);
            self.base = self.base.plus(bytes as u32);
        }
        let news = self.refused && self.has_room();
        self.refused &= !news;
        news
    }

    /// The next new segment of at most `mss` bytes, with the FIN if it fits: its range.
    pub(crate) fn next_new(&self, mss: u32, nodelay: bool, idle: bool, force: bool) -> Result<SeqRange, Held> {
        let unsent = self.unsent();
        if unsent == 0 && self.fin != Fin::Queued {
            return Err(Held::Nothing);
        }
        let usable = self.room_from(self.nxt);
        let data = unsent.min(mss).min(usable);
        let drains = data == unsent;
        let fin = drains && self.fin == Fin::Queued && usable > data;
        if data == 0 && !fin {
            return Err(Held::Window);
        }
        let range = SeqRange::new(self.nxt, self.nxt.plus(data + u32::from(fin)));
        let worthwhile = data == mss || data * 2 >= self.largest_window || force || fin;
        if worthwhile || drains && (nodelay || idle) {
            return Ok(range);
        }
        Err(if drains { Held::Small } else { Held::Window })
    }

    /// New data was sent up to `end`.
    pub(crate) fn sent(&mut self, end: Seq) {
        if self.fin == Fin::Queued && end == self.end().plus(1) {
            self.fin = Fin::Sent(self.end());
        }
        self.nxt = end;
    }

    /// The bytes of `range` as offset and length in the ring, whether the FIN is in it, and whether it ends the data.
    pub(crate) fn locate(&self, range: SeqRange) -> (usize, usize, bool, bool) {
        let start = range.start.later(self.base);
        let end = range.end.earlier(self.end());
        let len = end.distance(start).max(0) as usize;
        let fin = matches!(self.fin, Fin::Sent(at) if range.end.after(at));
        (start.since(self.base) as usize, len, fin, end == self.end())
    }

    /// The bytes [`Outbox::locate`] found.
    pub(crate) fn slices(&self, offset: usize, len: usize) -> (&[u8], &[u8]) {
        self.ring.slices(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 100;

    fn outbox(window: u16) -> Outbox {
        let mut outbox = Outbox::new(Seq(u32::MAX), 1000);
        outbox.nxt = Seq(0);
        outbox.acknowledge(Seq(0));
        outbox.update_window(Seq(5), Seq(0), window, false);
        outbox
    }

    #[test]
    fn nagle_holds_small_segments_while_data_is_in_flight() {
        let mut outbox = outbox(1000);
        outbox.write(&[1; 30]);
        assert_eq!(outbox.next_new(MSS, false, false, false), Err(Held::Small));
        assert!(outbox.next_new(MSS, true, false, false).is_ok(), "TCP_NODELAY");
        assert!(outbox.next_new(MSS, false, true, false).is_ok(), "idle");
        outbox.write(&[1; 70]);
        assert!(outbox.next_new(MSS, false, false, false).is_ok(), "full");
    }

    #[test]
    fn a_small_window_is_not_filled_with_crumbs() {
        let mut outbox = outbox(1000);
        outbox.write(&[1; 500]);
        outbox.update_window(Seq(6), Seq(0), 40, false);
        assert_eq!(outbox.next_new(MSS, true, true, false), Err(Held::Window));
        assert_eq!(outbox.next_new(MSS, true, true, true).map(SeqRange::len), Ok(40), "the timer overrides");
        outbox.update_window(Seq(6), Seq(0), 0, false);
        assert_eq!(outbox.next_new(MSS, true, true, true), Err(Held::Window));
    }

    #[test]
    fn the_fin_rides_on_the_last_segment_and_is_acknowledged_after_it() {
        let mut outbox = outbox(1000);
        outbox.write(b"bye");
        outbox.fin = Fin::Queued;
        let range = outbox.next_new(MSS, false, false, false).unwrap();
        assert_eq!(range.len(), 4);
        outbox.sent(range.end);
        assert_eq!(outbox.locate(range), (0, 3, true, true));
        outbox.acknowledge(Seq(3));
        assert!(!outbox.is_finished());
        assert_eq!(outbox.locate(SeqRange::new(Seq(3), Seq(4))), (0, 0, true, true));
        outbox.acknowledge(Seq(4));
        assert!(outbox.is_finished() && !outbox.has_unsent());
    }

    #[test]
    fn an_old_segment_does_not_change_the_window() {
        let mut outbox = outbox(1000);
        assert!(!outbox.update_window(Seq(4), Seq(0), 1, false));
        assert_eq!(outbox.window(), 1000);
        outbox.nxt = Seq(100);
        assert!(outbox.update_window(Seq(4), Seq(1), 1, false), "a retransmission that acknowledges more");
        assert!(outbox.update_window(Seq(4), Seq(1), 0, false), "out of memory");
    }

    #[test]
    fn an_acknowledgement_comes_from_inside_the_window() {
        let mut outbox = outbox(1000);
        outbox.set_scale(4);
        outbox.nxt = Seq(500);
        assert_eq!(outbox.acceptable(), Seq(500));
        outbox.update_window(Seq(6), Seq(0), 31, false);
        assert_eq!(outbox.acceptable(), Seq(500), "4 bytes were rounded away");
        outbox.update_window(Seq(7), Seq(0), 30, false);
        assert_eq!(outbox.acceptable(), Seq(480));
    }

    #[test]
    fn room_is_news_only_to_who_was_refused() {
        let mut outbox = outbox(1000);
        assert_eq!(outbox.write(&[1; 600]), 600);
        outbox.nxt = Seq(600);
        assert!(!outbox.acknowledge(Seq(100)));
        assert_eq!(outbox.write(&[1; 900]), 500);
        assert!(!outbox.acknowledge(Seq(200)));
        assert!(outbox.acknowledge(Seq(600)));
        assert!(!outbox.acknowledge(Seq(600)));
    }
}
