//! Choice of the next segment to send (RFC 9293, 3.8; RFC 6675, 4).
//!
//! In order of priority: a SYN; a retransmission; a probe that a timer requested; new data, if both windows have room
//! and the segment is large enough; a bare acknowledgement. Every segment carries an acknowledgement.

use super::{
    connection::{Connection, Context, Probe, State},
    isn,
    options::{Options, Timestamp},
    sack::{self, SackBlocks},
    segment::{Flags, Header},
    send_buffer::{Blocked, Fin, Small},
    seq::{Seq, SeqRange},
    timer::Timer,
};
use crate::{event::Readiness, time::MILLISECOND};

/// Maximum number of segments in flight for each full segment of the congestion window. The window counts bytes, so
/// an application that writes single bytes could otherwise send thousands of segments.
const SEGMENTS_PER_MSS: u32 = 8;
/// Longest time for which TCP_CORK and MSG_MORE hold back a small segment, while nothing is in flight (`tcp(7)`).
const CORK_LIMIT: u64 = 200 * MILLISECOND;

/// Segment to write: its header, and the offset and length of its payload in the send buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub header: Header,
    pub offset: usize,
    pub len: usize,
}

impl Connection {
    /// Returns the next segment, if one can be sent now.
    pub(crate) fn next_segment(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        match self.state {
            State::Closed | State::TimeWait => None,
            State::SynSent => self.next_syn(cx),
            State::SynReceived { .. } => self.next_syn(cx).or_else(|| self.next_ack(cx)),
            _ => {
                if self.may_repair()
                    && let Some(outgoing) = self.next_repair(cx)
                {
                    return Some(outgoing);
                }
                match self.next_data(cx) {
                    Some(range) => Some(self.send_data(cx, range)),
                    None => self.next_ack(cx),
                }
            }
        }
    }

    /// Returns whether a retransmission or a probe may be next.
    fn may_repair(&self) -> bool {
        self.scoreboard.has_retransmissions() || self.probe.is_some() || self.frto.wants_new_segment()
    }

    #[cold]
    fn next_repair(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        self.next_frto_segment(cx).or_else(|| self.next_retransmission(cx)).or_else(|| self.next_probe(cx))
    }

    fn next_syn(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if self.scoreboard.is_empty() {
            let syn = SeqRange::new(self.send_buffer.una, self.send_buffer.una.plus(1));
            self.scoreboard.push(syn, cx.now);
            self.send_buffer.nxt = syn.end;
            cx.counters.tcp_out_segments += 1;
            self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
        } else {
            let index = self.scoreboard.first_to_retransmit()?;
            self.scoreboard.mark_retransmitted(index, cx.now);
            cx.counters.tcp_retransmitted_segments += 1;
            cx.counters.tcp_ecn_fallbacks += u64::from(self.ecn.fall_back());
        }
        let answers = matches!(self.state, State::SynReceived { .. });
        let header = Header {
            seq: self.send_buffer.una,
            ack: self.receive_buffer.next(),
            flags: Flags::SYN.with(Flags::ACK.when(answers)).with(self.ecn.syn_flags(answers)),
            window: self.receive_buffer.syn_window(),
            options: self.syn_options(cx),
            ..Header::default()
        };
        self.ack.sent(false);
        Some(Outgoing { header, offset: 0, len: 0 })
    }

    /// Returns new data that is sent after a timeout instead of a retransmission (RFC 5682).
    fn next_frto_segment(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if !self.frto.wants_new_segment() {
            return None;
        }
        let range = self.send_buffer.next_range(self.new_segment_size(), Small::Last).ok();
        self.frto.new_segment(range.is_some());
        range.map(|range| self.send_new(cx, range))
    }

    /// Returns the first lost segment.
    fn next_retransmission(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if !self.scoreboard.has_retransmissions() || self.frto.holds_retransmissions() {
            return None;
        }
        let index = self.scoreboard.first_to_retransmit()?;
        let start = self.scoreboard.get(index)?.start;
        let room = self.send_buffer.room_from(start);
        if room == 0 && start != self.send_buffer.una {
            return None;
        }
        // The window may have shrunk; the peer rejects a segment that ends beyond it. The first segment serves as a
        // probe.
        self.scoreboard.split(index, if room == 0 { self.mss() } else { room.min(self.mss()) });
        let segment = *self.scoreboard.get(index)?;
        let in_flight = self.in_flight();
        let begins = core::mem::take(&mut self.recovery_begins);
        if in_flight > 0 && !begins && in_flight + segment.len() > self.congestion.window() {
            return None;
        }
        self.scoreboard.mark_retransmitted(index, cx.now);
        self.arm_after_sending(cx);
        Some(self.retransmission(cx, SeqRange::new(segment.start, segment.end)))
    }

    fn retransmission(&mut self, cx: &mut Context<'_>, range: SeqRange) -> Outgoing {
        cx.counters.tcp_retransmitted_segments += 1;
        if let Some(undo) = &mut self.undo {
            undo.record_retransmission(isn::timestamp(cx.now, self.timestamp_offset), range.len());
        }
        self.data_segment(cx, range)
    }

    fn next_probe(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        match self.probe.take()? {
            Probe::Loss => self.loss_probe(cx),
            Probe::Window => {
                cx.counters.tcp_window_probes += 1;
                let small = self.send_buffer.next_range(self.new_segment_size(), Small::Force).ok();
                Some(match small {
                    Some(range) => self.send_new(cx, range),
                    None => self.acknowledged_segment(cx),
                })
            }
            Probe::Corked => {
                let range = self.send_buffer.next_range(self.new_segment_size(), Small::Force).ok()?;
                Some(self.send_new(cx, range))
            }
            Probe::Keepalive => {
                cx.counters.tcp_keepalives += 1;
                Some(self.acknowledged_segment(cx))
            }
        }
    }

    /// Returns new data regardless of the congestion window, or else the last segment again (RFC 8985, 7.3).
    fn loss_probe(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        let last = *self.scoreboard.last()?;
        let new = self.send_buffer.next_range(self.new_segment_size(), Small::Force).ok();
        if new.is_none() && self.send_buffer.room_from(last.start) < last.len() {
            // The window shrank, so the peer would drop the probe. The timer keeps running.
            return None;
        }
        cx.counters.tcp_loss_probes += 1;
        let outgoing = if let Some(range) = new {
            let outgoing = self.send_data(cx, range);
            self.rack.probed(self.send_buffer.nxt, false);
            outgoing
        } else {
            let bytes = last.len().saturating_sub(self.mss());
            let index = self.scoreboard.len() - 1;
            self.scoreboard.split(index, bytes);
            let index = self.scoreboard.len() - 1;
            let last = *self.scoreboard.get(index)?;
            self.scoreboard.mark_retransmitted(index, cx.now);
            self.rack.probed(self.send_buffer.nxt, true);
            self.retransmission(cx, SeqRange::new(last.start, last.end))
        };
        self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
        Some(outgoing)
    }

    /// Returns the range of the next new segment.
    fn next_data(&mut self, cx: &mut Context<'_>) -> Option<SeqRange> {
        if !self.send_buffer.has_unsent() || self.scoreboard.has_retransmissions() || self.has_too_many_segments() {
            return None;
        }
        let idle = self.send_buffer.una == self.send_buffer.nxt;
        if idle && cx.now.nanos_since(self.last_sent_at) > self.rtt.timeout() {
            self.congestion.idle(self.mss());
        }
        let small = self.small_segments(idle);
        match self.send_buffer.next_range(self.new_segment_size(), small) {
            Ok(range) => {
                let in_flight = self.in_flight();
                let fits = in_flight + range.end.since(range.start) <= self.congestion.window();
                (fits || in_flight == 0).then_some(range)
            }
            Err(Blocked::Window) => {
                if idle && !matches!(self.timer, Timer::Persist(_)) {
                    self.timer = Timer::Persist(cx.now.plus(self.rtt.timeout()));
                }
                None
            }
            Err(Blocked::Corked) => {
                if idle && matches!(self.timer, Timer::Off) {
                    self.timer = Timer::Corked(cx.now.plus(CORK_LIMIT));
                }
                None
            }
            Err(Blocked::NoData | Blocked::Nagle) => None,
        }
    }

    /// Returns when a segment that is not full is sent. `idle` means that nothing is in flight.
    fn small_segments(&self, idle: bool) -> Small {
        if (self.cork || self.more) && !self.push {
            Small::Never
        } else if self.nodelay || self.push || idle {
            Small::Last
        } else {
            Small::WhenIdle
        }
    }

    /// Returns whether more small segments are in flight than [`SEGMENTS_PER_MSS`] allows.
    fn has_too_many_segments(&self) -> bool {
        let segments = self.scoreboard.len() as u32;
        segments >= 2 * SEGMENTS_PER_MSS && segments >= SEGMENTS_PER_MSS * (self.congestion.window() / self.mss() + 2)
    }

    /// Returns new data, which routers may mark instead of dropping it.
    fn send_data(&mut self, cx: &mut Context<'_>, range: SeqRange) -> Outgoing {
        let mut outgoing = self.send_new(cx, range);
        if outgoing.len > 0 {
            self.ecn.mark_new_data(&mut outgoing.header);
        }
        outgoing
    }

    fn send_new(&mut self, cx: &mut Context<'_>, range: SeqRange) -> Outgoing {
        self.scoreboard.push(range, cx.now);
        if self.send_buffer.sent(range.end) {
            self.edges |= Readiness::WRITABLE;
        }
        self.last_sent_at = cx.now;
        cx.counters.tcp_out_segments += 1;
        self.arm_after_sending(cx);
        self.data_segment(cx, range)
    }

    fn data_segment(&mut self, cx: &Context<'_>, range: SeqRange) -> Outgoing {
        let (offset, len, fin, drains) = self.send_buffer.locate(range);
        let flags = Flags::FIN.when(fin).with(Flags::PSH.when(drains && len > 0));
        if !self.recovery.is_open() {
            self.prr.sent(len as u32);
        }
        let header = self.header(cx, range.start, flags, len);
        Outgoing { header, offset, len }
    }

    fn next_ack(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        if !self.ack.is_due() {
            return None;
        }
        cx.counters.tcp_out_segments += 1;
        let seq = self.send_buffer.acceptable_seq();
        Some(Outgoing { header: self.header(cx, seq, Flags::default(), 0), offset: 0, len: 0 })
    }

    /// Returns a segment before SND.UNA, which the peer must answer. The peer may ignore its other fields, so the
    /// pending acknowledgement stays pending and the advertised window does not change.
    fn acknowledged_segment(&mut self, cx: &mut Context<'_>) -> Outgoing {
        cx.counters.tcp_out_segments += 1;
        let header = Header {
            seq: self.send_buffer.una.minus(1),
            ack: self.receive_buffer.next(),
            flags: Flags::ACK.with(self.ecn.echo_flag()),
            window: self.receive_buffer.advertised_window(),
            options: Options { timestamp: self.timestamp(cx), ..Options::default() },
            ..Header::default()
        };
        Outgoing { header, offset: 0, len: 0 }
    }

    fn timestamp(&self, cx: &Context<'_>) -> Option<Timestamp> {
        self.timestamps.map(|timestamps| Timestamp {
            value: isn::timestamp(cx.now, self.timestamp_offset),
            echo: timestamps.recent,
        })
    }

    /// Returns the payload length of a full segment that also carries the pending SACK blocks. A peer that sends and
    /// recovers at the same time needs them on data segments (RFC 2018, 4).
    fn new_segment_size(&self) -> u32 {
        let blocks = if self.sack { self.receive_buffer.sack_block_count() } else { 0 };
        let mss = self.mss();
        if blocks == 0 {
            return mss;
        }
        mss - sack::option_len(blocks.min(sack::room(mss as usize, self.timestamps.is_some()))) as u32
    }

    /// Builds the header of a segment with `len` payload bytes, and clears the pending acknowledgement.
    fn header(&mut self, cx: &Context<'_>, seq: Seq, flags: Flags, len: usize) -> Header {
        let timestamp = self.timestamp(cx);
        let mss = self.mss();
        let window = self.receive_buffer.advertise_window(mss);
        self.ack.sent(len > 0);
        self.last_ack_sent = self.receive_buffer.next();
        let sack = if self.sack && self.receive_buffer.sack_block_count() > 0 {
            // A retransmission has its original size, which may leave no room for SACK blocks.
            let room = sack::room((mss as usize).saturating_sub(len), timestamp.is_some());
            self.receive_buffer.sack_blocks(room)
        } else {
            SackBlocks::default()
        };
        Header {
            seq,
            ack: self.receive_buffer.next(),
            flags: flags.with(Flags::ACK).with(self.ecn.echo_flag()),
            window,
            options: Options { timestamp, sack, ..Options::default() },
            ..Header::default()
        }
    }

    /// Builds a reset with a sequence number that the peer accepts.
    pub(crate) fn reset(&self, cx: &Context<'_>) -> Header {
        let timestamp = self.timestamp(cx);
        Header {
            seq: self.send_buffer.acceptable_seq(),
            ack: self.receive_buffer.next(),
            flags: Flags::RST.with(Flags::ACK),
            window: 0,
            options: Options { timestamp, ..Options::default() },
            ..Header::default()
        }
    }

    /// Returns whether the handshake has begun without a segment of ours.
    pub(crate) fn has_unsent_syn(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived { .. }) && self.scoreboard.is_empty()
    }

    /// Returns whether `next_segment` may return a segment.
    pub(crate) fn has_output(&self) -> bool {
        self.has_unsent_syn()
            || self.ack.is_due()
            || self.probe.is_some()
            || self.scoreboard.has_retransmissions()
            || self.send_buffer.unsent() > 0
            || self.send_buffer.fin == Fin::Queued
    }
}
