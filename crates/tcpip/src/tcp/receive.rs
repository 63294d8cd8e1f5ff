//! Processing of incoming segments (RFC 9293, 3.10.7; RFC 7323, 5; RFC 5961).
//!
//! The checks are in the RFC's order: PAWS, sequence number, RST, SYN, ACK, data, FIN. Spoofed segments must not have
//! an effect: an RST needs exactly the expected sequence number, a SYN never ends a connection, and an ACK must be of
//! something that was sent. Any other such segment is answered with a *challenge ACK*. Challenge ACKs and answers to
//! unacceptable segments without data have a limit per connection, and none that connections share.

use super::{
    connection::{Connection, Context, Origin, Owner, State},
    segment::{Flags, Header},
    seq::Seq,
};
use crate::{error::SocketError, event::Readiness, gro::Payload, time::SECOND};

/// Idle time after which the peer's timestamp clock may have wrapped (RFC 7323, 5.5).
const PAWS_EXPIRY: u64 = 24 * 24 * 3600 * SECOND;

/// Ticks by which a timestamp may be older than the latest: a retransmission that overtook a segment may have been
/// sent a millisecond, a tick, later.
const PAWS_REORDERING: i32 = 1;

/// Answer that the stack must send in addition to `next_segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    None,
    /// Reset that rejects the segment.
    Reset,
    /// Reset that closes the connection, with the connection's sequence numbers.
    Abort,
}

impl Connection {
    /// Processes a segment or a merged run.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, header: &Header, payload: &Payload<'_>) -> Reply {
        if self.is_closed() {
            return Reply::None;
        }
        if self.state == State::SynSent {
            return self.receive_in_syn_sent(cx, header);
        }
        let mut header = *header;
        if let Some(reply) = self.receive_syn_again(&mut header) {
            return reply;
        }
        if !self.passes_paws(cx, &header) {
            cx.counters.tcp_paws_rejected += 1;
            self.answer_unacceptable(cx, &header, payload);
            return Reply::None;
        }
        if !self.is_acceptable(&header, payload.len()) {
            self.answer_unacceptable(cx, &header, payload);
            return Reply::None;
        }
        if header.has(Flags::RST) {
            self.receive_reset(cx, &header);
            return Reply::None;
        }
        if header.has(Flags::SYN) {
            self.challenge(cx);
            return Reply::None;
        }
        if !header.has(Flags::ACK) {
            return Reply::None;
        }
        if let State::SynReceived { .. } = self.state {
            if header.ack.at_or_before(self.send_buffer.una) || header.ack.after(self.send_buffer.nxt) {
                return Reply::Reset;
            }
            self.acknowledge_syn(cx, header.ack);
            self.send_buffer.update_window(header.seq, header.ack, header.window, false);
            self.establish(cx);
        }
        // Nothing of a segment counts before its ACK was found acceptable, not even its timestamp (RFC 5961, 5).
        if !self.is_acceptable_ack(header.ack) {
            self.challenge(cx);
            return Reply::None;
        }
        self.update_timestamp(cx, &header);
        if let Some(keepalive_timer) = &mut self.keepalive_timer {
            keepalive_timer.restart(cx.now);
        }
        self.receive_ack(cx, &header, payload.len());
        if self.is_closed() {
            return Reply::None;
        }
        self.receive_data(cx, &header, payload)
    }

    /// Handles a repeated SYN of a half-open connection. Either the SYN-ACK was lost, or the SYNs crossed and this is
    /// the peer's SYN-ACK, whose SYN was processed already.
    fn receive_syn_again(&mut self, header: &mut Header) -> Option<Reply> {
        let half_open = matches!(self.state, State::SynReceived { .. });
        if !half_open || !header.has(Flags::SYN) || header.seq.plus(1) != self.receive_buffer.next() {
            return None;
        }
        if header.has(Flags::ACK) {
            header.flags = header.flags.without(Flags::SYN);
            header.seq = header.seq.plus(1);
            return None;
        }
        self.ecn.receive_syn_again(header);
        if !self.scoreboard.is_empty() {
            self.scoreboard.mark_lost(0);
        }
        Some(Reply::None)
    }

    fn passes_paws(&self, cx: &Context<'_>, header: &Header) -> bool {
        let Some(timestamps) = self.timestamps else { return true };
        if header.has(Flags::RST) {
            return true;
        }
        // RFC 7323, 3.2: once negotiated, every segment carries a timestamp; one without is dropped.
        let Some(timestamp) = header.options.timestamp else { return false };
        let behind = timestamps.recent.wrapping_sub(timestamp.value).cast_signed();
        behind <= PAWS_REORDERING || cx.now.nanos_since(timestamps.recent_at) > PAWS_EXPIRY
    }

    /// Returns whether the segment overlaps the window, or is empty and inside it. The right edge counts as inside: a
    /// peer whose data fills the window sends its bare ACKs from there, and they must be processed while a gap stops
    /// the window. For a reset it is outside, unless the window is closed (RFC 9293, 3.10.7.4).
    fn is_acceptable(&self, header: &Header, payload: usize) -> bool {
        let (next, range) = (self.receive_buffer.next(), header.range(payload));
        let edge = next.plus(self.receive_buffer.window());
        let begins_inside = range.start.before(edge) || range.start == edge && !header.has(Flags::RST);
        begins_inside && range.end.after(next) || range.start == next
    }

    /// Returns whether the peer can have sent `ack`: it acknowledges nothing that was not sent, and is not older than
    /// any ACK of this connection that may still be in the network (RFC 5961, 5.2).
    fn is_acceptable_ack(&self, ack: Seq) -> bool {
        let una = self.send_buffer.una;
        ack.at_or_before(self.send_buffer.nxt)
            && (ack.at_or_after(una) || una.since(ack) <= self.send_buffer.oldest_ack())
    }

    fn answer_unacceptable(&mut self, cx: &mut Context<'_>, header: &Header, payload: &Payload<'_>) {
        if header.has(Flags::RST) {
            return;
        }
        if header.has(Flags::SYN) {
            self.challenge(cx);
        } else if payload.len() > 0 {
            // This retransmits data that was received. It is acknowledged, which cannot cause a loop because it has
            // data. If it is the last segment that was acknowledged, that acknowledgement was lost. The ACK must then
            // echo the timestamp of the retransmission, or the sender would take too long a round trip.
            if header.range(payload.len()).end == self.last_ack_sent
                && header.has(Flags::ACK)
                && self.is_acceptable_ack(header.ack)
            {
                self.update_timestamp(cx, header);
            }
            self.receive_buffer.record_duplicate(header.range(payload.len()));
            cx.counters.tcp_dsack_sent += u64::from(self.sack && self.receive_buffer.has_duplicate());
            self.ack.ack_now();
        } else if header.has(Flags::FIN) || self.ack.may_answer_invalid(cx.now) {
            self.ack.ack_now();
        } else {
            cx.counters.tcp_acks_skipped += 1;
        }
    }

    /// Sends a challenge ACK (RFC 5961), to which a genuine peer reacts.
    pub(crate) fn challenge(&mut self, cx: &mut Context<'_>) {
        if self.challenges.take(cx.now, cx.settings.challenge_rate, &self.flow, cx.budgets) {
            cx.counters.tcp_challenge_acks += 1;
            self.ack.ack_now();
        } else {
            cx.counters.tcp_acks_skipped += 1;
        }
    }

    fn receive_reset(&mut self, cx: &mut Context<'_>, header: &Header) {
        if header.seq != self.receive_buffer.next() {
            self.challenge(cx);
            return;
        }
        match self.state {
            State::SynReceived { origin: Origin::Listener } => {
                cx.counters.tcp_attempt_failures += 1;
                self.finish();
            }
            State::SynReceived { origin: Origin::Simultaneous } => {
                cx.counters.tcp_attempt_failures += 1;
                self.fail(SocketError::Refused);
            }
            _ => {
                cx.counters.tcp_established_resets += 1;
                self.fail(SocketError::Reset);
            }
        }
    }

    /// Updates TS.Recent from segments that start at or before the last acknowledged byte (RFC 7323, 4.3).
    fn update_timestamp(&mut self, cx: &Context<'_>, header: &Header) {
        if let (Some(timestamps), Some(timestamp)) = (&mut self.timestamps, header.options.timestamp)
            && header.seq.at_or_before(self.last_ack_sent)
            && (timestamp.value.wrapping_sub(timestamps.recent).cast_signed() >= 0
                || cx.now.nanos_since(timestamps.recent_at) > PAWS_EXPIRY)
        {
            timestamps.recent = timestamp.value;
            timestamps.recent_at = cx.now;
        }
    }

    fn receive_data(&mut self, cx: &mut Context<'_>, header: &Header, payload: &Payload<'_>) -> Reply {
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2 { .. }) {
            return Reply::None;
        }
        let end = header.seq.plus(payload.len() as u32);
        if payload.len() > 0 {
            if self.owner == Owner::Orphan && end.after(self.receive_buffer.next()) {
                cx.counters.tcp_aborted_on_data += 1;
                return Reply::Abort;
            }
            self.receive_payload(cx, header, payload);
        }
        let finished = if header.has(Flags::FIN) {
            self.ack.ack_now();
            self.receive_buffer.finish(end)
        } else {
            self.receive_buffer.finish_if_known()
        };
        if (payload.len() > 0 || header.has(Flags::FIN)) && self.ecn.receive_data(header) {
            self.ack.ack_now();
        }
        if finished {
            self.receive_fin();
        }
        Reply::None
    }

    fn receive_payload(&mut self, cx: &mut Context<'_>, header: &Header, payload: &Payload<'_>) {
        let arrival = self.receive_buffer.insert(header.seq, payload);
        let counters = &mut cx.counters;
        counters.tcp_out_of_order_queued += u64::from(arrival.out_of_order);
        counters.tcp_out_of_order_drops += u64::from(arrival.refused);
        counters.tcp_dsack_sent += u64::from(self.sack && self.receive_buffer.has_duplicate());
        if arrival.in_order > 0 {
            self.edges |= Readiness::READABLE;
            self.receive_buffer.autotune(cx.now, self.rtt.srtt().unwrap_or(SECOND / 10));
        }
        if arrival.filled {
            self.ack.enter_quick_mode();
        } else if arrival.out_of_order || arrival.duplicate || arrival.refused || self.receive_buffer.has_duplicate() {
            self.ack.ack_now();
        } else {
            let mss = self.mss();
            self.ack.in_order(cx.now, arrival.in_order, mss, crate::time::nanos(cx.settings.delayed_ack));
        }
    }

    /// Handles the peer's FIN after all data before it.
    fn receive_fin(&mut self) {
        self.edges |= Readiness::READABLE | Readiness::READ_CLOSED;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => {
                self.state = State::Closing;
                self.edges |= Readiness::HANG_UP;
            }
            State::FinWait2 { .. } => {
                self.state = State::TimeWait;
                self.edges |= Readiness::HANG_UP;
            }
            _ => {}
        }
        self.ack.ack_now();
    }
}
