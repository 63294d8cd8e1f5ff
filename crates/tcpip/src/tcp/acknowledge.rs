//! Processing of acknowledgements (RFC 9293, 3.10.7.4; RFC 6675; RFC 8985).
//!
//! An acknowledgement advances SND.UNA, carries SACK blocks, measures the round trip and may reveal a loss. The steps
//! are: update the send window, mark what arrived, find losses, start or end a recovery, update the congestion window,
//! set the timer.

use super::{
    congestion::Progress,
    connection::{Connection, Context, Owner, State},
    frto::{Evidence, Frto},
    isn,
    newreno::Recovery,
    options::Options,
    prr::Prr,
    rack::ProbeResult,
    segment::{Flags, Header},
    send_buffer::Small,
    seq::{Seq, SeqRange},
    timer::Timer,
    undo::Undo,
};
use crate::{event::Readiness, time::MILLISECOND};

/// What one acknowledgement reported.
#[derive(Clone, Copy, Debug, Default)]
struct AckSummary {
    /// Bytes and segments newly acknowledged in sequence.
    bytes: u32,
    segments: u32,
    /// Bytes newly SACKed.
    sacked: u32,
    /// The peer reported a duplicate segment.
    duplicate: bool,
    /// A retransmitted segment is among the acknowledged ones.
    retransmitted: bool,
    /// A segment that was sent before the last timeout and not repeated is among the acknowledged or SACKed ones.
    original: bool,
    /// Round trips of the first and the last acknowledged segment that was sent only once, in nanoseconds.
    first_rtt: Option<u64>,
    last_rtt: Option<u64>,
}

/// Longest plausible age of an echoed timestamp, in milliseconds.
const MAX_ECHO_AGE: u32 = 1 << 20;

impl Connection {
    /// Processes the acknowledgement of a segment with `payload` bytes. The caller has checked that it is acceptable.
    pub(crate) fn receive_ack(&mut self, cx: &mut Context<'_>, header: &Header, payload: usize) {
        if header.ack.before(self.send_buffer.una) {
            self.receive_old_ack(cx, header);
            return;
        }
        self.stall.answered();
        let had_window = self.send_buffer.window();
        let window_changed = self.send_buffer.update_window(header.seq, header.ack, header.window, false);
        let (in_flight, outstanding) = (self.in_flight(), self.scoreboard.outstanding());
        let (recovering, sacked) = (self.recovery, self.scoreboard.sacked());
        let summary = self.process_acknowledged(cx, header);
        if window_changed && had_window < self.send_buffer.window() && matches!(self.timer, Timer::Persist(_)) {
            self.timer = Timer::Off;
            self.rtt.reset_backoff();
            self.stall.ended();
        }
        self.undo_if_all_duplicates(cx, summary);
        if outstanding == 0 {
            if matches!(self.timer, Timer::Persist(_))
                && self.send_buffer.window() > 0
                && !self.send_buffer.has_unsent()
            {
                self.timer = Timer::Off;
            }
            return;
        }
        if had_window == 0 && self.send_buffer.window() > 0 && matches!(self.timer, Timer::Retransmit(_)) {
            // The peer discarded what was sent into the closed window. It is retransmitted soon rather than after the
            // backoff.
            self.rtt.reset_backoff();
            self.stall.ended();
            self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
        }
        if self.send_buffer.window() == 0 && self.owner != Owner::Orphan {
            // A window may stay closed as long as the peer acknowledges, even if it closed over data (RFC 9293,
            // 3.8.6.1).
            self.rtt.cap_backoff(cx.settings.retries);
        }
        let is_duplicate = summary.bytes == 0 && payload == 0 && !window_changed && !header.has(Flags::FIN);
        if summary.bytes > 0 {
            self.undo_if_spurious(cx, header, summary.bytes);
        }
        self.undo_if_originals_arrive(cx, summary);
        let congested = self.ecn.receive_ack(header, self.send_buffer.una);
        let delivered = (summary.bytes + self.scoreboard.sacked()).saturating_sub(sacked);
        let lost = self.find_losses(cx, header, summary, is_duplicate, outstanding);
        if congested && self.recovery.is_open() {
            cx.counters.tcp_ecn_reductions += 1;
            self.congestion.marked(outstanding, self.mss());
            // The reduction stays, even if the last loss proves spurious.
            self.undo = None;
            self.ecn.reduced(self.send_buffer.nxt);
        }
        self.limit_recovery(delivered, summary.bytes > 0 && !lost);
        if summary.bytes > 0 && !matches!(recovering, Recovery::Fast { .. }) && !self.ecn.has_echo(header) {
            let (una, nxt) = (self.send_buffer.una, self.send_buffer.nxt);
            let rtt = self.rtt.srtt().unwrap_or(0);
            let mss = self.mss();
            let progress = Progress { acked: summary.bytes, in_flight, una, nxt, rtt };
            self.congestion.acknowledged(cx.now, progress, mss);
        }
        if summary.bytes > 0 {
            self.advance_state(cx);
        }
    }

    /// Uses the SACK blocks of an acknowledgement that another one has overtaken (RFC 6675, 5).
    fn receive_old_ack(&mut self, cx: &mut Context<'_>, header: &Header) {
        if !self.sack || header.options.sack.is_empty() || self.scoreboard.is_empty() {
            return;
        }
        let (outstanding, sacked) = (self.scoreboard.outstanding(), self.scoreboard.sacked());
        let mut summary = AckSummary::default();
        self.process_sack_blocks(cx, &header.options, header.ack, &mut summary);
        self.find_losses(cx, header, summary, false, outstanding);
        self.limit_recovery(self.scoreboard.sacked().saturating_sub(sacked), false);
    }

    /// Sets the congestion window during a recovery, after `delivered` bytes were reported. `safe_ack` means that the
    /// acknowledgement advanced SND.UNA and revealed no further loss.
    pub(crate) fn limit_recovery(&mut self, delivered: u32, safe_ack: bool) {
        if self.sack && matches!(self.recovery, Recovery::Fast { .. }) {
            let (in_flight, ssthresh, mss) = (self.in_flight(), self.congestion.ssthresh(), self.mss());
            let quota = self.prr.acknowledged(delivered, in_flight, ssthresh, mss, safe_ack);
            self.congestion.set_in_recovery(in_flight, quota);
        }
    }

    /// Advances SND.UNA, marks SACKed segments and samples the round trip.
    fn process_acknowledged(&mut self, cx: &mut Context<'_>, header: &Header) -> AckSummary {
        let mut summary = AckSummary::default();
        let now = cx.now;
        let old_una = self.send_buffer.una;
        let min_rtt = self.rtt.min_rtt();
        let timed_out_at = self.timeout_point();
        let rack = &mut self.rack;
        if header.ack.after(old_una) {
            summary.bytes = header.ack.since(old_una);
            self.scoreboard.acknowledge(header.ack, |segment| {
                summary.segments += 1;
                if segment.was_retransmitted() {
                    summary.retransmitted = true;
                } else {
                    let rtt = now.nanos_since(segment.at);
                    summary.first_rtt.get_or_insert(rtt);
                    summary.last_rtt = Some(rtt);
                    summary.original |= timed_out_at.is_some_and(|point| segment.end.at_or_before(point));
                }
                rack.delivered(now, segment, min_rtt);
            });
            if self.send_buffer.acknowledge(header.ack) {
                self.edges |= Readiness::WRITABLE;
            }
            self.rtt.reset_backoff();
            self.stall.ended();
        }
        if self.sack {
            self.process_sack_blocks(cx, &header.options, header.ack, &mut summary);
        }
        self.sample_rtt(cx, header, &summary);
        summary
    }

    fn process_sack_blocks(&mut self, cx: &mut Context<'_>, options: &Options, ack: Seq, summary: &mut AckSummary) {
        let blocks = options.sack.as_slice();
        let (una, nxt) = (self.send_buffer.una, self.send_buffer.nxt);
        for (number, block) in blocks.iter().enumerate() {
            let was_sent_after = |oldest: Seq| {
                let (start, end) = (block.start.since(oldest), block.end.since(oldest));
                start < end && end <= nxt.since(oldest)
            };
            let inside = |outer: &SeqRange| block.start.at_or_after(outer.start) && block.end.at_or_before(outer.end);
            let duplicate = number == 0 && (block.end.at_or_before(ack) || blocks.get(1).is_some_and(inside));
            if !was_sent_after(if duplicate { una.minus(self.send_buffer.oldest_ack()) } else { ack }) {
                cx.counters.tcp_sack_discards += 1;
                continue;
            }
            if duplicate {
                summary.duplicate = true;
                cx.counters.tcp_dsack_received += 1;
                self.rack.dsack_received(ack, nxt);
                if let Some(undo) = &mut self.undo {
                    undo.record_duplicate(*block);
                }
                continue;
            }
            // The start may have been acknowledged since, if this acknowledgement is old.
            let block = SeqRange::new(block.start.later(una), block.end);
            if block.end.at_or_before(block.start) {
                continue;
            }
            let (now, min_rtt, timed_out_at) = (cx.now, self.rtt.min_rtt(), self.timeout_point());
            let rack = &mut self.rack;
            self.scoreboard.sack(block, |segment| {
                summary.sacked += segment.len();
                summary.original |=
                    !segment.was_retransmitted() && timed_out_at.is_some_and(|point| segment.end.at_or_before(point));
                rack.delivered(now, segment, min_rtt);
            });
        }
    }

    fn sample_rtt(&mut self, cx: &Context<'_>, header: &Header, summary: &AckSummary) {
        let echoed = || {
            let timestamp = header.options.timestamp.filter(|_| self.timestamps.is_some() && summary.bytes > 0)?;
            let age = isn::timestamp(cx.now, self.timestamp_offset).wrapping_sub(timestamp.echo);
            let most = self.rtt.max_plausible_sample();
            (timestamp.echo != 0 && age > 0 && age < MAX_ECHO_AGE).then(|| (u64::from(age) * MILLISECOND).min(most))
        };
        // Karn's rule: if a retransmission was needed for this ACK, the other segments that it covers give no sample
        // either.
        if let Some(rtt) = summary.first_rtt.filter(|_| !summary.retransmitted).or_else(echoed) {
            self.rtt.sample(rtt);
        }
        if let Some(rtt) = summary.last_rtt {
            self.rtt.sample_min(cx.now, rtt);
            self.congestion.sample(rtt);
        }
    }

    /// Finds losses, and starts or ends a recovery. Returns whether RACK marked more segments as lost.
    fn find_losses(
        &mut self,
        cx: &mut Context<'_>,
        header: &Header,
        summary: AckSummary,
        is_duplicate: bool,
        outstanding: u32,
    ) -> bool {
        let una = self.send_buffer.una;
        let bare = summary.bytes == 0 && summary.sacked == 0;
        if self.rack.probe_acknowledged(header.ack, summary.duplicate, bare) == ProbeResult::Repaired {
            cx.counters.tcp_loss_probe_recoveries += 1;
            if self.recovery.is_open() {
                self.reduce_window(outstanding);
            }
        }
        if !self.sack {
            if is_duplicate && self.reno.duplicate_ack(una, self.recovery, &mut self.scoreboard) {
                cx.counters.tcp_reno_recoveries += 1;
                self.enter_recovery(outstanding);
            } else if summary.bytes > 0 {
                self.reno.ack_advanced(una, summary.segments, self.recovery, &mut self.scoreboard);
            }
        }
        if self.recovery.ends_at(una) {
            if matches!(self.recovery, Recovery::Fast { .. }) {
                self.congestion.recovered();
            }
            self.recovery = Recovery::Open;
            self.frto = Frto::Off;
            self.rack.recovered();
        }
        if summary.bytes > 0 || summary.sacked > 0 {
            self.rearm(cx);
        }
        self.sack && (summary.bytes > 0 || summary.sacked > 0) && self.detect_losses(cx)
    }

    /// Marks what RACK considers lost, and arms the reordering timer. Returns whether a segment was marked.
    pub(crate) fn detect_losses(&mut self, cx: &mut Context<'_>) -> bool {
        let smoothed = self.rtt.srtt().unwrap_or(0);
        let times = (self.rtt.min_rtt().unwrap_or(smoothed), smoothed);
        let outstanding = self.scoreboard.outstanding();
        let recovering = !self.recovery.is_open();
        let (lost, again) = self.rack.detect(cx.now, &mut self.scoreboard, recovering, times);
        if lost && self.recovery.is_open() {
            cx.counters.tcp_sack_recoveries += 1;
            self.enter_recovery(outstanding);
            self.rearm(cx);
        }
        // After a loss the round trip may be so long that this timer would fire after the one it replaces.
        if let Some(wait) = again
            && wait < self.rtt.timeout()
        {
            self.timer = Timer::Reorder(cx.now.plus(wait));
        }
        lost
    }

    fn enter_recovery(&mut self, outstanding: u32) {
        self.save_for_undo(false);
        self.reduce_window(outstanding);
        self.recovery = Recovery::Fast { point: self.send_buffer.nxt };
        self.prr = Prr::new(self.scoreboard.outstanding() - self.scoreboard.sacked());
        self.recovery_begins = true;
        self.reno.set_recovery_point(self.send_buffer.nxt);
    }

    /// Reduces the congestion window after a loss, unless an ECN mark has reduced it for this window of data.
    fn reduce_window(&mut self, outstanding: u32) {
        if !self.ecn.is_reduced(self.send_buffer.una) {
            self.congestion.loss(outstanding, self.mss());
        }
        self.ecn.reduced(self.send_buffer.nxt);
    }

    /// Saves the state at the start of a recovery.
    pub(crate) fn save_for_undo(&mut self, by_timer: bool) {
        if (self.timestamps.is_some() || self.sack) && self.recovery.is_open() {
            let (una, nxt) = (self.send_buffer.una, self.send_buffer.nxt);
            self.undo = Some(Box::new(Undo::new(self.congestion, by_timer, una, nxt)));
        }
    }

    /// Returns the end of what was sent before the last timeout, during the recovery from it.
    fn timeout_point(&self) -> Option<Seq> {
        match self.recovery {
            Recovery::Timeout { point } => Some(point),
            _ => None,
        }
    }

    /// Undoes the recovery if `header`, which acknowledges `bytes`, echoes a timestamp that proves that the first
    /// retransmission was spurious.
    fn undo_if_spurious(&mut self, cx: &mut Context<'_>, header: &Header, bytes: u32) {
        if self.timestamps.is_none() || self.recovery.is_open() {
            return;
        }
        let Some(echo) = self.undo.as_mut().and_then(|undo| undo.take_spurious_echo(header)) else { return };
        let took = isn::timestamp(cx.now, self.timestamp_offset).wrapping_sub(echo);
        self.undo(cx, bytes, Some(u64::from(took) * MILLISECOND));
    }

    /// Undoes the last recovery if the peer reported everything that was retransmitted as a duplicate (RFC 3708).
    fn undo_if_all_duplicates(&mut self, cx: &mut Context<'_>, summary: AckSummary) {
        if summary.duplicate && self.undo.as_deref().is_some_and(Undo::all_duplicates) {
            self.undo(cx, summary.bytes, None);
        }
    }

    /// Undoes the recovery after a timeout if F-RTO finds that originals still arrive (RFC 5682).
    fn undo_if_originals_arrive(&mut self, cx: &mut Context<'_>, summary: AckSummary) {
        if self.frto == Frto::Off {
            return;
        }
        let evidence = Evidence {
            advances: summary.bytes > 0,
            completes: self.recovery.ends_at(self.send_buffer.una),
            original: summary.original,
            sacks: summary.sacked > 0,
            can_send: self.send_buffer.next_range(self.mss(), Small::Last).is_ok(),
        };
        if self.frto.acknowledged(evidence) {
            self.undo(cx, summary.bytes, None);
        }
    }

    /// Restores the state before the last recovery. The acknowledgement that proves it spurious acknowledges `bytes`, and was
    /// on its way for `took` nanoseconds, if that is known.
    fn undo(&mut self, cx: &mut Context<'_>, bytes: u32, took: Option<u64>) {
        let Some(undo) = self.undo.take() else { return };
        cx.counters.tcp_undone += 1;
        self.frto = Frto::Off;
        let window = if self.recovery.is_open() { self.congestion.window() } else { 0 };
        self.recovery = Recovery::Open;
        self.recovery_begins = false;
        self.scoreboard.clear_losses();
        self.congestion = undo.congestion;
        self.congestion.restore(self.in_flight(), bytes, self.mss(), window);
        if undo.by_timer
            && let Some(took) = took
        {
            // Limited, because a peer that never updates its echo would cause timeouts of minutes.
            self.rtt.restart(took.min(self.rtt.max_plausible_sample()));
        }
        self.rearm(cx);
    }

    /// Changes the state if the FIN was acknowledged.
    fn advance_state(&mut self, cx: &Context<'_>) {
        if !self.send_buffer.is_finished() {
            return;
        }
        self.edges |= Readiness::DRAINED;
        match self.state {
            State::FinWait1 => {
                let orphan = self.owner == Owner::Orphan;
                let fin_wait_2 = crate::time::nanos(cx.settings.fin_wait_2);
                self.state = State::FinWait2 { until: orphan.then(|| cx.now.plus(fin_wait_2)) };
                self.linger_until = None;
            }
            State::Closing => self.state = State::TimeWait,
            State::LastAck => self.finish(),
            _ => {}
        }
    }
}
