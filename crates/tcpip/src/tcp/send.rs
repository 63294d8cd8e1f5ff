//! The next segment to send (RFC 9293, 3.8; RFC 6675, 4).
//!
//! In this order: a SYN; what is lost; a probe a timer asked for; new data, if the congestion window and the peer's window
//! leave room and the segment is worth it; a bare acknowledgement. Every segment carries an acknowledgement, so whatever
//! is sent settles what was owed.

use super::{
    connection::{Connection, Context, Probe, State},
    isn,
    options::{Options, Timestamp, sack_len, sack_room},
    outbox::{Fin, Held},
    segment::{Flags, Header},
    seq::{Seq, SeqRange},
    timers::Timer,
};

/// Segments in flight at most, for each full one that the congestion window allows: a window in bytes would let a
/// writer of single bytes send thousands.
const CROWD: u32 = 8;

/// A segment to write: its header, and its payload as offset and length in the outbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub header: Header,
    pub offset: usize,
    pub len: usize,
}

impl Connection {
    /// The next segment, if there is one to send now.
    pub(crate) fn next_segment(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        match self.state {
            State::Closed | State::TimeWait => None,
            State::SynSent => self.next_syn(cx),
            State::SynReceived { .. } => self.next_syn(cx).or_else(|| self.next_ack(cx)),
            _ => self
                .next_retransmission(cx)
                .or_else(|| self.next_probe(cx))
                .or_else(|| self.next_data(cx))
                .or_else(|| self.next_ack(cx)),
        }
    }

    fn next_syn(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if self.scoreboard.is_empty() {
            let syn = SeqRange::new(self.outbox.una, self.outbox.una.plus(1));
            self.scoreboard.push(syn, cx.now);
            self.outbox.nxt = syn.end;
            cx.counters.tcp_out_segments += 1;
            self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
        } else {
            let index = self.scoreboard.first_waiting()?;
            self.scoreboard.resent(index, cx.now);
            cx.counters.tcp_retransmitted_segments += 1;
        }
        let answers = matches!(self.state, State::SynReceived { .. });
        let header = Header {
            seq: self.outbox.una,
            ack: self.inbox.next(),
            flags: Flags::SYN.with(Flags::ACK.when(answers)),
            window: self.inbox.syn_window(),
            options: self.syn_options(cx),
        };
        self.ack.sent(false);
        Some(Outgoing { header, offset: 0, len: 0 })
    }

    /// Lost segments, the first one first.
    fn next_retransmission(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if !self.scoreboard.has_waiting() {
            return None;
        }
        let index = self.scoreboard.first_waiting()?;
        let start = self.scoreboard.get(index)?.start;
        let room = self.outbox.room_from(start);
        if room == 0 && start != self.outbox.una {
            return None;
        }
        // The window may have shrunk: what ends beyond it is not acceptable as a whole. The first segment is the probe.
        self.scoreboard.split(index, if room == 0 { self.mss() } else { room.min(self.mss()) });
        let segment = *self.scoreboard.get(index)?;
        let in_flight = self.in_flight();
        let begins = core::mem::take(&mut self.recovery_begins);
        if in_flight > 0 && !begins && in_flight + segment.len() > self.congestion.window() {
            return None;
        }
        self.scoreboard.resent(index, cx.now);
        self.arm_after_sending(cx);
        Some(self.retransmission(cx, SeqRange::new(segment.start, segment.end)))
    }

    fn retransmission(&mut self, cx: &mut Context<'_>, range: SeqRange) -> Outgoing {
        cx.counters.tcp_retransmitted_segments += 1;
        self.stamp_for_undo(cx);
        self.data_segment(cx, range)
    }

    fn next_probe(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        match self.probe.take()? {
            Probe::Loss => self.loss_probe(cx),
            Probe::Window => {
                cx.counters.tcp_window_probes += 1;
                let small = self.outbox.next_new(self.new_segment(), self.nodelay, true, true).ok();
                Some(match small {
                    Some(range) => self.send_new(cx, range),
                    None => self.old_segment(cx),
                })
            }
            Probe::Keepalive => {
                cx.counters.tcp_keepalives += 1;
                Some(self.old_segment(cx))
            }
        }
    }

    /// New data if there is any, whatever the congestion window says, else the last segment again (RFC 8985, 7.3).
    fn loss_probe(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        let last = *self.scoreboard.last()?;
        let new = self.outbox.next_new(self.new_segment(), true, true, true).ok();
        if new.is_none() && self.outbox.room_from(last.start) < last.len() {
            // The window shrank: it would not be taken, and nothing learnt. The timer goes on.
            return None;
        }
        cx.counters.tcp_loss_probes += 1;
        let outgoing = if let Some(range) = new {
            let outgoing = self.send_new(cx, range);
            self.rack.probed(self.outbox.nxt, false);
            outgoing
        } else {
            let bytes = last.len().saturating_sub(self.mss());
            let index = self.scoreboard.len() - 1;
            self.scoreboard.split(index, bytes);
            let index = self.scoreboard.len() - 1;
            let last = *self.scoreboard.get(index)?;
            self.scoreboard.resent(index, cx.now);
            self.rack.probed(self.outbox.nxt, true);
            self.retransmission(cx, SeqRange::new(last.start, last.end))
        };
        self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
        Some(outgoing)
    }

    fn next_data(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if !self.outbox.has_unsent() || self.scoreboard.has_waiting() || self.is_crowded() {
            return None;
        }
        let idle = self.outbox.una == self.outbox.nxt;
        if idle && cx.now.nanos_since(self.last_sent_at) > self.rtt.timeout() {
            self.congestion.idle(self.mss());
        }
        match self.outbox.next_new(self.new_segment(), self.nodelay, idle, false) {
            Ok(range) => {
                let in_flight = self.in_flight();
                let fits = in_flight + range.end.since(range.start) <= self.congestion.window();
                (fits || in_flight == 0).then(|| self.send_new(cx, range))
            }
            Err(Held::Window) => {
                if idle && !matches!(self.timer, Timer::Persist(_)) {
                    self.timer = Timer::Persist(cx.now.plus(self.rtt.timeout()));
                }
                None
            }
            Err(Held::Nothing | Held::Small) => None,
        }
    }

    /// Whether so many small segments are in flight that the window, which counts bytes, means little.
    fn is_crowded(&self) -> bool {
        self.scoreboard.len() as u32 >= CROWD * (self.congestion.window() / self.mss() + 2)
    }

    fn send_new(&mut self, cx: &mut Context<'_>, range: SeqRange) -> Outgoing {
        self.scoreboard.push(range, cx.now);
        self.outbox.sent(range.end);
        self.last_sent_at = cx.now;
        cx.counters.tcp_out_segments += 1;
        self.arm_after_sending(cx);
        self.data_segment(cx, range)
    }

    fn data_segment(&mut self, cx: &Context<'_>, range: SeqRange) -> Outgoing {
        let (offset, len, fin, drains) = self.outbox.locate(range);
        let flags = Flags::FIN.when(fin).with(Flags::PSH.when(drains && len > 0));
        self.prr.sent(len as u32);
        let header = self.header(cx, range.start, flags, len);
        Outgoing { header, offset, len }
    }

    fn next_ack(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if !self.ack.is_due() {
            return None;
        }
        cx.counters.tcp_out_segments += 1;
        let seq = self.outbox.acceptable();
        Some(Outgoing { header: self.header(cx, seq, Flags::default(), 0), offset: 0, len: 0 })
    }

    /// A segment that is no longer acceptable, which the peer must answer. It may ignore everything else in it, so what
    /// is owed stays owed, and no window is promised that was not promised before.
    fn old_segment(&mut self, cx: &mut Context<'_>) -> Outgoing {
        cx.counters.tcp_out_segments += 1;
        let header = Header {
            seq: self.outbox.una.minus(1),
            ack: self.inbox.next(),
            flags: Flags::ACK,
            window: self.inbox.promised(),
            options: Options { timestamp: self.timestamp(cx), ..Options::default() },
        };
        Outgoing { header, offset: 0, len: 0 }
    }

    fn timestamp(&self, cx: &Context<'_>) -> Option<Timestamp> {
        self.timestamps.map(|timestamps| Timestamp {
            value: isn::timestamp(cx.now, self.timestamp_offset),
            echo: timestamps.recent,
        })
    }

    /// Payload bytes of a full segment that also carries the blocks there are to tell: data goes both ways, and a peer that
    /// sends and recovers at the same time must hear of what arrived (RFC 2018, 4).
    fn new_segment(&self) -> u32 {
        let blocks = if self.sack { self.inbox.block_count() } else { 0 };
        self.mss() - sack_len(blocks) as u32
    }

    /// The header of whatever is sent now, with `len` bytes of payload; settles the acknowledgement that was owed.
    fn header(&mut self, cx: &Context<'_>, seq: Seq, flags: Flags, len: usize) -> Header {
        let timestamp = self.timestamp(cx);
        let mss = self.mss();
        // A retransmission was cut before there were blocks to tell, and may leave them no room.
        let room = sack_room((mss as usize).saturating_sub(len));
        let room = if self.sack { room } else { 0 };
        let window = self.inbox.promise(mss);
        self.ack.sent(len > 0);
        self.last_ack_sent = self.inbox.next();
        let sack = self.inbox.blocks(room);
        Header {
            seq,
            ack: self.inbox.next(),
            flags: flags.with(Flags::ACK),
            window,
            options: Options { timestamp, sack, ..Options::default() },
        }
    }

    /// A reset that the peer will believe.
    pub(crate) fn reset(&self, cx: &Context<'_>) -> Header {
        let timestamp = self.timestamp(cx);
        Header {
            seq: self.outbox.acceptable(),
            ack: self.inbox.next(),
            flags: Flags::RST.with(Flags::ACK),
            window: 0,
            options: Options { timestamp, ..Options::default() },
        }
    }

    /// Whether the connection must be asked for segments again soon.
    pub(crate) fn wants_to_send(&self) -> bool {
        let syn = matches!(self.state, State::SynSent | State::SynReceived { .. }) && self.scoreboard.is_empty();
        syn || self.ack.is_due()
            || self.probe.is_some()
            || self.scoreboard.has_waiting()
            || self.outbox.unsent() > 0
            || self.outbox.fin == Fin::Queued
    }
}
