//! Send buffer: unacknowledged bytes and the peer's window (RFC 9293, 3.10.7.4 and 3.8.6.2.1).
//!
//! The ring holds the stream from `SND.UNA` on. A SYN before it and a FIN after it occupy a sequence number but no
//! byte. Nagle's algorithm and the sender's part of silly window avoidance decide whether a new segment is large
//! enough to be sent.

use super::seq::{Seq, SeqRange};
use crate::{
    ring::Ring,
    stack::{SendEnd, SendSide},
};

/// State of the stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    /// The application may write more.
    Open,
    /// The stream is complete; the FIN follows the last byte.
    Queued,
    /// The FIN was sent with this sequence number.
    Sent(Seq),
}

/// Reason why no new segment is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// All data was sent.
    NoData,
    /// The segment is small and data is in flight (Nagle's algorithm).
    Nagle,
    /// The segment is small and more data is expected (TCP_CORK, MSG_MORE).
    Corked,
    /// The peer's window is closed or too small.
    Window,
}

/// When a segment that is not full is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Small {
    /// When everything before it is acknowledged (Nagle's algorithm).
    WhenIdle,
    /// If it is the last one: TCP_NODELAY, or nothing is in flight.
    Last,
    /// Never; only full segments (TCP_CORK, MSG_MORE).
    Never,
    /// Always: a timer requested it, and the window may be too small for a full one.
    Force,
}

/// Bytes that a write may add to the unsent ones if those are below the low-water mark. A mark of a few bytes would
/// otherwise split each write.
const LOW_WATER_STEP: u32 = 64 << 10;

/// Sending half of a connection.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    ring: Ring,
    /// Sequence number of the ring's first byte.
    base: Seq,
    /// SND.UNA and SND.NXT.
    pub una: Seq,
    pub nxt: Seq,
    /// SND.WND in bytes, and the sequence number of the segment that carried it (SND.WL1).
    window: u32,
    window_seq: Seq,
    largest_window: u32,
    /// Sequence numbers that were acknowledged, without that of the SYN. Saturates.
    acknowledged: u32,
    /// Scale of the peer's window, if window scaling was negotiated.
    scale: Option<u8>,
    pub fin: Fin,
    limit: usize,
    /// TCP_NOTSENT_LOWAT: unsent bytes from which on writes are refused.
    low_water: u32,
    /// A write did not fit, so free room is an edge.
    write_refused: bool,
}

impl SendBuffer {
    /// Creates a buffer whose first sequence number, that of the SYN, is `initial`.
    pub(crate) fn new(initial: Seq, limit: usize) -> Self {
        Self {
            ring: Ring::default(),
            base: initial.plus(1),
            una: initial,
            nxt: initial,
            window: 0,
            window_seq: Seq(0),
            largest_window: 0,
            acknowledged: 0,
            scale: None,
            fin: Fin::Open,
            limit,
            low_water: u32::MAX,
            write_refused: false,
        }
    }

    pub(crate) fn set_scale(&mut self, scale: u8) {
        self.scale = Some(scale);
    }

    /// Returns whether window scaling was negotiated.
    pub(crate) const fn scaled(&self) -> bool {
        self.scale.is_some()
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn set_low_water(&mut self, bytes: u32) {
        self.low_water = bytes;
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.ring.capacity()
    }

    /// Returns how far before SND.UNA an acceptable ACK may be, in bytes: by the peer's largest window, but not before
    /// the SYN of this host.
    pub(crate) fn oldest_ack(&self) -> u32 {
        self.largest_window.min(self.acknowledged)
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    /// Appends as many of `bytes` as fit. Returns their number.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let unsent = self.unsent();
        let more = if unsent < self.low_water {
            self.low_water.max(unsent.saturating_add(LOW_WATER_STEP)) - unsent
        } else {
            0
        };
        let taken = bytes.len().min(self.limit.saturating_sub(self.ring.len())).min(more as usize);
        self.ring.push(&bytes[..taken]);
        self.write_refused |= taken < bytes.len();
        taken
    }

    /// Returns whether at least a third of the buffer is free and little waits to be sent, which makes the socket
    /// writable.
    pub(crate) fn has_room(&self) -> bool {
        self.limit.saturating_sub(self.ring.len()) * 3 >= self.limit && self.unsent() < self.low_water
    }

    /// Returns the sequence number after the last byte.
    fn end(&self) -> Seq {
        self.base.plus(self.ring.len() as u32)
    }

    /// Returns the number of bytes that were never sent.
    pub(crate) fn unsent(&self) -> u32 {
        self.end().distance(self.nxt.later(self.base)).max(0).cast_unsigned()
    }

    /// Returns whether there are bytes or a FIN that were never sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent() > 0 || self.fin == Fin::Queued
    }

    /// Returns whether the FIN was acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.fin, Fin::Sent(at) if self.una.after(at))
    }

    /// Returns a copy of the state, for another TCP to continue.
    pub(crate) fn export(&self) -> SendSide {
        let (end, unsent) = match self.fin {
            Fin::Open => (SendEnd::Open, self.unsent()),
            Fin::Queued => (SendEnd::Queued, self.unsent()),
            Fin::Sent(_) if self.is_finished() => (SendEnd::Acknowledged, 0),
            Fin::Sent(_) => (SendEnd::Sent, 0),
        };
        let sent = self.ring.len() - unsent as usize;
        SendSide {
            // An acknowledged FIN is left out, so that the number is that of the first byte or of the FIN.
            next: self.base.0,
            sent: self.ring.copy(0, sent),
            unsent: self.ring.copy(sent, unsent as usize),
            end,
            window: self.window,
            window_seq: self.window_seq.0,
            largest_window: self.largest_window,
            scale: self.scale,
            buffer: self.limit,
        }
    }

    /// Updates the send window from a segment that acknowledges `ack`, which is not before SND.UNA. An older segment
    /// than that of the current window is ignored. Returns whether the window changed. A segment that acknowledges
    /// more was sent later, even if its sequence number is lower, as in a retransmission. RFC 9293 compares the
    /// sequence number first, which would keep the old window and move it with SND.UNA beyond what the peer offered.
    /// A window that shrinks is accepted, because the peer may have run out of memory.
    pub(crate) fn update_window(&mut self, seq: Seq, ack: Seq, field: u16, is_syn: bool) -> bool {
        // The window of a SYN is never scaled (RFC 7323, section 2.2).
        let window = u32::from(field) << if is_syn { 0 } else { self.scale.unwrap_or(0) };
        if !is_syn && !ack.after(self.una) && seq.before(self.window_seq) {
            return false;
        }
        let changed = window != self.window;
        self.window = window;
        self.window_seq = seq;
        self.largest_window = self.largest_window.max(window);
        changed
    }

    /// Returns the room in the peer's window from `start` on, in bytes.
    pub(crate) fn room_from(&self, start: Seq) -> u32 {
        self.una.plus(self.window).distance(start).max(0).cast_unsigned()
    }

    /// Returns the sequence number of a segment without data: SND.NXT, or the window's right edge if the peer has
    /// shrunk the window. The peer would ignore an acknowledgement from beyond its window.
    pub(crate) fn acceptable_seq(&self) -> Seq {
        let edge = self.una.plus(self.window);
        // Scaling rounds the window down, which does not shrink it.
        let slack = 1 << self.scale.unwrap_or(0);
        if self.nxt.distance(edge) < slack { self.nxt } else { edge }
    }

    /// Removes everything before `una`. Returns whether a refused writer can continue.
    pub(crate) fn acknowledge(&mut self, una: Seq) -> bool {
        self.acknowledged =
            self.acknowledged.saturating_add(una.distance(self.una.later(self.base)).max(0).cast_unsigned());
        self.una = una;
        let bytes = una.distance(self.base).max(0).cast_unsigned() as usize;
        let bytes = bytes.min(self.ring.len());
        if bytes > 0 {
            self.ring.consume(bytes, false);
            self.base = self.base.plus(bytes as u32);
        }
        self.take_room_edge()
    }

    /// Returns whether a refused writer can continue. Returns true once.
    fn take_room_edge(&mut self) -> bool {
        let news = self.write_refused && self.has_room();
        self.write_refused &= !news;
        news
    }

    /// Returns the range of the next new segment, with at most `mss` bytes and the FIN if it fits. After the FIN was
    /// queued no more data follows, and small segments are sent.
    pub(crate) fn next_range(&self, mss: u32, small: Small) -> Result<SeqRange, Blocked> {
        let unsent = self.unsent();
        if unsent == 0 && self.fin != Fin::Queued {
            return Err(Blocked::NoData);
        }
        let usable = self.room_from(self.nxt);
        let data = unsent.min(mss).min(usable);
        let drains = data == unsent;
        let fin = drains && self.fin == Fin::Queued && usable > data;
        if data == 0 && !fin {
            return Err(Blocked::Window);
        }
        let range = SeqRange::new(self.nxt, self.nxt.plus(data + u32::from(fin)));
        let worthwhile = data == mss || data * 2 >= self.largest_window || small == Small::Force || fin;
        let small = if self.fin == Fin::Queued && small == Small::Never { Small::Last } else { small };
        match small {
            _ if worthwhile => Ok(range),
            _ if !drains => Err(Blocked::Window),
            Small::Last | Small::Force => Ok(range),
            Small::WhenIdle => Err(Blocked::Nagle),
            Small::Never => Err(Blocked::Corked),
        }
    }

    /// Records that new data was sent up to `end`. Returns whether a refused writer can continue: less than half of the
    /// low-water mark waits to be sent.
    pub(crate) fn sent(&mut self, end: Seq) -> bool {
        if self.fin == Fin::Queued && end == self.end().plus(1) {
            self.fin = Fin::Sent(self.end());
        }
        self.nxt = end;
        self.write_refused && self.unsent() * 2 < self.low_water && self.take_room_edge()
    }

    /// Returns the offset and length of `range` in the ring, whether it contains the FIN, and whether it ends the
    /// data.
    pub(crate) fn locate(&self, range: SeqRange) -> (usize, usize, bool, bool) {
        let start = range.start.later(self.base);
        let end = range.end.earlier(self.end());
        let len = end.distance(start).max(0) as usize;
        let fin = matches!(self.fin, Fin::Sent(at) if range.end.after(at));
        (start.since(self.base) as usize, len, fin, end == self.end())
    }

    /// Returns the bytes at an offset that [`SendBuffer::locate`] returned.
    pub(crate) fn slices(&self, offset: usize, len: usize) -> (&[u8], &[u8]) {
        self.ring.slices(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 100;

    fn send_buffer(window: u16) -> SendBuffer {
        let mut send_buffer = SendBuffer::new(Seq(u32::MAX), 1000);
        send_buffer.nxt = Seq(0);
        send_buffer.acknowledge(Seq(0));
        send_buffer.update_window(Seq(5), Seq(0), window, false);
        send_buffer
    }

    #[test]
    fn nagle_holds_small_segments_while_data_is_in_flight() {
        let mut send_buffer = send_buffer(1000);
        send_buffer.write(&[1; 30]);
        assert_eq!(send_buffer.next_range(MSS, Small::WhenIdle), Err(Blocked::Nagle));
        assert_eq!(send_buffer.next_range(MSS, Small::Never), Err(Blocked::Corked));
        assert!(send_buffer.next_range(MSS, Small::Last).is_ok(), "TCP_NODELAY, or idle");
        send_buffer.write(&[1; 70]);
        assert!(send_buffer.next_range(MSS, Small::WhenIdle).is_ok(), "full");
        assert!(send_buffer.next_range(MSS, Small::Never).is_ok(), "full");
    }

    #[test]
    fn a_small_window_is_not_filled_with_tiny_segments() {
        let mut send_buffer = send_buffer(1000);
        send_buffer.write(&[1; 500]);
        send_buffer.update_window(Seq(6), Seq(0), 40, false);
        assert_eq!(send_buffer.next_range(MSS, Small::Last), Err(Blocked::Window));
        assert_eq!(send_buffer.next_range(MSS, Small::Force).map(SeqRange::len), Ok(40), "the timer overrides");
        send_buffer.update_window(Seq(6), Seq(0), 0, false);
        assert_eq!(send_buffer.next_range(MSS, Small::Force), Err(Blocked::Window));
    }

    #[test]
    fn the_last_segment_carries_the_fin() {
        let mut send_buffer = send_buffer(1000);
        send_buffer.write(b"bye");
        send_buffer.fin = Fin::Queued;
        let range = send_buffer.next_range(MSS, Small::Never).unwrap();
        assert_eq!(range.len(), 4);
        send_buffer.sent(range.end);
        assert_eq!(send_buffer.locate(range), (0, 3, true, true));
        send_buffer.acknowledge(Seq(3));
        assert!(!send_buffer.is_finished());
        assert_eq!(send_buffer.locate(SeqRange::new(Seq(3), Seq(4))), (0, 0, true, true));
        send_buffer.acknowledge(Seq(4));
        assert!(send_buffer.is_finished() && !send_buffer.has_unsent());
    }

    #[test]
    fn an_old_segment_does_not_change_the_window() {
        let mut send_buffer = send_buffer(1000);
        assert!(!send_buffer.update_window(Seq(4), Seq(0), 1, false));
        assert_eq!(send_buffer.window(), 1000);
        send_buffer.nxt = Seq(100);
        assert!(send_buffer.update_window(Seq(4), Seq(1), 1, false), "a retransmission that acknowledges more");
        assert!(send_buffer.update_window(Seq(4), Seq(1), 0, false), "out of memory");
    }

    #[test]
    fn an_acknowledgement_comes_from_inside_the_window() {
        let mut send_buffer = send_buffer(1000);
        send_buffer.set_scale(4);
        send_buffer.nxt = Seq(500);
        assert_eq!(send_buffer.acceptable_seq(), Seq(500));
        send_buffer.update_window(Seq(6), Seq(0), 31, false);
        assert_eq!(send_buffer.acceptable_seq(), Seq(500), "4 bytes were rounded away");
        send_buffer.update_window(Seq(7), Seq(0), 30, false);
        assert_eq!(send_buffer.acceptable_seq(), Seq(480));
    }

    #[test]
    fn room_is_an_edge_only_after_a_refused_write() {
        let mut send_buffer = send_buffer(1000);
        assert_eq!(send_buffer.write(&[1; 600]), 600);
        send_buffer.nxt = Seq(600);
        assert!(!send_buffer.acknowledge(Seq(100)));
        assert_eq!(send_buffer.write(&[1; 900]), 500);
        assert!(!send_buffer.acknowledge(Seq(200)));
        assert!(send_buffer.acknowledge(Seq(600)));
        assert!(!send_buffer.acknowledge(Seq(600)));
    }
}
