//! A segment arrives (RFC 9293, 3.10.7; RFC 7323, 5; RFC 5961).
//!
//! The checks are in the RFC's order: PAWS, sequence number, RST, SYN, ACK, data, FIN. What a spoofer could send is never
//! believed at once: a RST must have exactly the expected number, a SYN in a connection never ends it, and an ACK must be
//! of something that was sent; else a *challenge ACK* makes a real peer show itself. Challenges are rate limited over all
//! connections, and answers to unacceptable segments without data per connection.

use super::{
    connection::{Connection, Context, Origin, Owner, State},
    segment::{Flags, Header},
};
use crate::{error::SocketError, event::Readiness, gro::Payload, time::SECOND};

/// After this long without a segment the peer's timestamp clock may have wrapped (RFC 7323, 5.5).
const PAWS_EXPIRY: u64 = 24 * 24 * 3600 * SECOND;

/// Ticks of the peer's clock that a segment may be older than the latest: one that a retransmission overtook is not an old
/// one, and clocks tick in milliseconds.
const PAWS_REORDERING: i32 = 1;

/// What the stack must answer beside what `next_segment` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    None,
    /// A reset that refuses this very segment.
    Reset,
    /// A reset that ends the connection, from its own numbers.
    Abort,
}

impl Connection {
    /// Takes a segment, or a merged run of them.
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
        self.take_timestamp(cx, &header);
        if let State::SynReceived { .. } = self.state {
            if header.ack.at_or_before(self.outbox.una) || header.ack.after(self.outbox.nxt) {
                return Reply::Reset;
            }
            self.acknowledge_syn(cx, header.ack);
            self.outbox.update_window(header.seq, header.ack, header.window, false);
            self.establish(cx);
        }
        if let Some(prober) = &mut self.prober {
            prober.heard(cx.now);
        }
        if !self.receive_ack(cx, &header, payload.len()) || self.is_closed() {
            return Reply::None;
        }
        self.receive_data(cx, &header, payload)
    }

    /// The SYN comes again while half open: our answer was lost, or the SYNs crossed and this is its answer, of which
    /// the SYN is known already.
    fn receive_syn_again(&mut self, header: &mut Header) -> Option<Reply> {
        let half_open = matches!(self.state, State::SynReceived { .. });
        if !half_open || !header.has(Flags::SYN) || header.seq.plus(1) != self.inbox.next() {
            return None;
        }
        if header.has(Flags::ACK) {
            header.flags = header.flags.without(Flags::SYN);
            header.seq = header.seq.plus(1);
            return None;
        }
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
        // RFC 7323, 3.2: once agreed on, every segment carries one; one without is dropped.
        let Some(timestamp) = header.options.timestamp else { return false };
        let behind = timestamps.recent.wrapping_sub(timestamp.value).cast_signed();
        behind <= PAWS_REORDERING || cx.now.nanos_since(timestamps.recent_at) > PAWS_EXPIRY
    }

    /// The segment overlaps the window, or is empty and in it. Its right edge counts: a peer whose data fills the window
    /// sends its bare acknowledgements from there, and while a hole keeps the window where it is they must be heard.
    fn is_acceptable(&self, header: &Header, payload: usize) -> bool {
        let (next, range) = (self.inbox.next(), header.range(payload));
        let begins_inside = range.start.at_or_before(next.plus(self.inbox.window()));
        begins_inside && (range.end.after(next) || range.start == next)
    }

    fn answer_unacceptable(&mut self, cx: &mut Context<'_>, header: &Header, payload: &Payload<'_>) {
        if header.has(Flags::RST) {
            return;
        }
        if header.has(Flags::SYN) {
            self.challenge(cx);
        } else if payload.len() > 0 {
            // A retransmission of what is here already: its sender must learn, and no loop comes of data. If it is of the
            // last that was acknowledged, that acknowledgement was lost: the echo must be of the retransmission, or its
            // sender takes the time until then for the path's.
            if header.range(payload.len()).end == self.last_ack_sent {
                self.take_timestamp(cx, header);
            }
            self.inbox.note_duplicate(header.range(payload.len()));
            cx.counters.tcp_dsack_sent += u64::from(self.sack && self.inbox.has_duplicate());
            self.ack.at_once();
        } else if header.has(Flags::FIN) || self.ack.may_answer_invalid(cx.now) {
            self.ack.at_once();
        } else {
            cx.counters.tcp_acks_skipped += 1;
        }
    }

    /// RFC 5961: acknowledges, so that a real peer can show that it means it.
    pub(crate) fn challenge(&mut self, cx: &mut Context<'_>) {
        if cx.challenges.take(cx.now) {
            cx.counters.tcp_challenge_acks += 1;
            self.ack.at_once();
        } else {
            cx.counters.tcp_acks_skipped += 1;
        }
    }

    fn receive_reset(&mut self, cx: &mut Context<'_>, header: &Header) {
        if header.seq != self.inbox.next() {
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

    /// TS.Recent follows segments that begin at or before what was last acknowledged (RFC 7323, 4.3).
    fn take_timestamp(&mut self, cx: &Context<'_>, header: &Header) {
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
            if self.owner == Owner::Nobody && end.after(self.inbox.next()) {
                cx.counters.tcp_aborted_on_data += 1;
                return Reply::Abort;
            }
            self.take_payload(cx, header, payload);
        }
        let finished = if header.has(Flags::FIN) {
            self.ack.at_once();
            self.inbox.finish(end)
        } else {
            self.inbox.finish_if_known()
        };
        if finished {
            self.receive_fin();
        }
        Reply::None
    }

    fn take_payload(&mut self, cx: &mut Context<'_>, header: &Header, payload: &Payload<'_>) {
        let arrival = self.inbox.arrive(header.seq, payload);
        let counters = &mut cx.counters;
        counters.tcp_out_of_order_queued += u64::from(arrival.out_of_order);
        counters.tcp_out_of_order_drops += u64::from(arrival.refused);
        counters.tcp_dsack_sent += u64::from(self.sack && self.inbox.has_duplicate());
        if arrival.in_order > 0 {
            self.edges |= Readiness::READABLE;
            self.inbox.tune(cx.now, self.rtt.smoothed().unwrap_or(SECOND / 10));
        }
        if arrival.filled {
            self.ack.quick_again();
        } else if arrival.out_of_order || arrival.duplicate || arrival.refused || self.inbox.has_duplicate() {
            self.ack.at_once();
        } else {
            let mss = self.mss();
            self.ack.in_order(cx.now, arrival.in_order, mss, crate::time::nanos(cx.settings.delayed_ack));
        }
    }

    /// The peer's FIN, with everything before it.
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
        self.ack.at_once();
    }
}
