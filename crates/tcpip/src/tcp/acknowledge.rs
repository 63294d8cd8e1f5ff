//! What the peer acknowledges, and what follows from it (RFC 9293, 3.10.7.4; RFC 6675; RFC 8985; RFC 5961, 5).
//!
//! An acknowledgement moves SND.UNA, brings SACK blocks, says how long the round trip was, and may show a loss. In this
//! order: is it plausible; the window; what arrived; what is lost; whether recovery begins or ends; how the congestion
//! window changes; the timer.

use super::{
    connection::{Connection, Context, Owner, State},
    isn,
    newreno::Recovery,
    options::Options,
    prr::Prr,
    rack::ProbeResult,
    segment::{Flags, Header},
    seq::{Seq, SeqRange},
    timers::Timer,
};
use crate::{event::Readiness, time::MILLISECOND};

/// What one acknowledgement brought.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    /// Bytes and segments newly acknowledged in sequence.
    bytes: u32,
    segments: u32,
    /// Bytes newly SACKed.
    sacked: u32,
    /// The peer reported a duplicate.
    duplicate: bool,
    /// Something that was sent more than once is among what was acknowledged.
    resent: bool,
    /// Round trips of the first and the last of the segments that were sent once.
    first_rtt: Option<u64>,
    last_rtt: Option<u64>,
}

/// A round trip longer than this that comes from timestamps is a peer's fancy.
const LONGEST_ECHO: u32 = 1 << 20;

impl Connection {
    /// Takes the acknowledgement of a segment with `payload` bytes. Whether the rest of the segment counts.
    pub(crate) fn receive_ack(&mut self, cx: &mut Context<'_>, header: &Header, payload: usize) -> bool {
        let (una, nxt) = (self.outbox.una, self.outbox.nxt);
        if header.ack.after(nxt) {
            self.challenge(cx);
            return false;
        }
        if header.ack.before(una) {
            // RFC 5961, 5.2: older than any the peer can have sent.
            if una.since(header.ack) > self.outbox.largest_window().max(self.mss()) {
                self.challenge(cx);
                return false;
            }
            return true;
        }
        let had_window = self.outbox.window();
        let window_changed = self.outbox.update_window(header.seq, header.ack, header.window, false);
        let (in_flight, outstanding) = (self.in_flight(), self.scoreboard.outstanding());
        let (recovering, sacked) = (self.recovery, self.scoreboard.sacked());
        let news = self.take_acknowledged(cx, header);
        if window_changed && had_window < self.outbox.window() && matches!(self.timer, Timer::Persist(_)) {
            self.timer = Timer::Off;
            self.rtt.forward_progress();
        }
        if outstanding == 0 {
            if matches!(self.timer, Timer::Persist(_)) && self.outbox.window() > 0 && !self.outbox.has_unsent() {
                self.timer = Timer::Off;
            }
            return true;
        }
        if had_window == 0 && self.outbox.window() > 0 && matches!(self.timer, Timer::Retransmit(_)) {
            // What was sent into the closed window was not taken; it is sent again soon, not when patience says.
            self.rtt.forward_progress();
            self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
        }
        if self.outbox.window() == 0 && self.owner != Owner::Nobody {
            // RFC 9293, 3.8.6.1: a window may stay closed as long as it is acknowledged, also one that closed over data.
            self.rtt.answered(cx.settings.retries);
        }
        let is_duplicate = news.bytes == 0 && payload == 0 && !window_changed && !header.has(Flags::FIN);
        if news.bytes > 0 {
            self.undo_if_spurious(cx, header, news.bytes);
        }
        let delivered = (news.bytes + self.scoreboard.sacked()).saturating_sub(sacked);
        let lost = self.find_losses(cx, header, news, is_duplicate, outstanding);
        if self.sack && matches!(self.recovery, Recovery::Fast { .. }) {
            let (in_flight, threshold, mss) = (self.in_flight(), self.congestion.threshold(), self.mss());
            let quota = self.prr.acknowledged(delivered, in_flight, threshold, mss, news.bytes > 0 && !lost);
            self.congestion.allow(in_flight, quota);
        }
        if news.bytes > 0 && !matches!(recovering, Recovery::Fast { .. }) {
            let rtt = self.rtt.smoothed().unwrap_or(0);
            let mss = self.mss();
            self.congestion.acknowledged(cx.now, news.bytes, in_flight, mss, rtt);
        }
        if news.bytes > 0 {
            self.advance_state(cx);
        }
        true
    }

    /// Moves SND.UNA and marks what was SACKed.
    fn take_acknowledged(&mut self, cx: &mut Context<'_>, header: &Header) -> News {
        let mut news = News::default();
        let now = cx.now;
        let old_una = self.outbox.una;
        let least = self.rtt.least();
        let rack = &mut self.rack;
        if header.ack.after(old_una) {
            news.bytes = header.ack.since(old_una);
            self.scoreboard.acknowledge(header.ack, |segment| {
                news.segments += 1;
                if segment.is_resent() {
                    news.resent = true;
                } else {
                    let rtt = now.nanos_since(segment.at);
                    news.first_rtt.get_or_insert(rtt);
                    news.last_rtt = Some(rtt);
                }
                rack.delivered(now, segment, least);
            });
            if self.outbox.acknowledge(header.ack) {
                self.edges |= Readiness::WRITABLE;
            }
            self.rtt.forward_progress();
        }
        if self.sack {
            self.take_blocks(cx, &header.options, header.ack, &mut news);
        }
        self.take_round_trip(cx, header, &news);
        news
    }

    fn take_blocks(&mut self, cx: &mut Context<'_>, options: &Options, ack: Seq, news: &mut News) {
        let blocks = options.sack;
        for (number, block) in blocks.iter().flatten().enumerate() {
            let inside = |outer: &SeqRange| block.start.at_or_after(outer.start) && block.end.at_or_before(outer.end);
            let duplicate = number == 0 && (block.end.at_or_before(ack) || blocks[1].as_ref().is_some_and(inside));
            if duplicate {
                news.duplicate = true;
                cx.counters.tcp_dsack_received += 1;
                self.rack.duplicate_reported(ack, self.outbox.nxt);
                continue;
            }
            let plausible = block.start.before(block.end)
                && block.start.at_or_after(ack)
                && block.end.at_or_before(self.outbox.nxt);
            if !plausible {
                cx.counters.tcp_sack_discards += 1;
                continue;
            }
            let (now, least) = (cx.now, self.rtt.least());
            let rack = &mut self.rack;
            self.scoreboard.sack(*block, |segment| {
                news.sacked += segment.len();
                rack.delivered(now, segment, least);
            });
        }
    }

    fn take_round_trip(&mut self, cx: &Context<'_>, header: &Header, news: &News) {
        let echoed = || {
            let timestamp = header.options.timestamp.filter(|_| self.timestamps.is_some() && news.bytes > 0)?;
            let age = isn::timestamp(cx.now, self.timestamp_offset).wrapping_sub(timestamp.echo);
            let most = self.rtt.plausible();
            (timestamp.echo != 0 && age > 0 && age < LONGEST_ECHO).then(|| (u64::from(age) * MILLISECOND).min(most))
        };
        // Karn: an acknowledgement that took a retransmission to come says nothing of the others it covers either.
        if let Some(rtt) = news.first_rtt.filter(|_| !news.resent).or_else(echoed) {
            self.rtt.sample(rtt);
        }
        if let Some(rtt) = news.last_rtt {
            self.rtt.sample_least(cx.now, rtt);
        }
    }

    /// Whether more was found to be lost.
    fn find_losses(
        &mut self,
        cx: &mut Context<'_>,
        header: &Header,
        news: News,
        is_duplicate: bool,
        outstanding: u32,
    ) -> bool {
        let una = self.outbox.una;
        let bare = news.bytes == 0 && news.sacked == 0;
        if self.rack.probe_acknowledged(header.ack, news.duplicate, bare) == ProbeResult::Repaired {
            cx.counters.tcp_loss_probe_recoveries += 1;
            if self.recovery.is_open() {
                self.congestion.loss(outstanding, self.mss());
            }
        }
        if !self.sack {
            if is_duplicate && self.reno.duplicate(una, self.recovery, &mut self.scoreboard) {
                cx.counters.tcp_reno_recoveries += 1;
                self.enter_recovery(outstanding);
            } else if news.bytes > 0 {
                self.reno.advanced(una, news.segments, self.recovery, &mut self.scoreboard);
            }
        }
        if self.recovery.ends_at(una) {
            if matches!(self.recovery, Recovery::Fast { .. }) {
                self.congestion.recovered();
            }
            self.recovery = Recovery::Open;
            self.undo = None;
            self.rack.recovered();
        }
        if news.bytes > 0 || news.sacked > 0 {
            self.rearm(cx);
        }
        self.sack && (news.bytes > 0 || news.sacked > 0) && self.detect_losses(cx)
    }

    /// RACK: what is lost by now, and when to look again. Whether anything more is.
    pub(crate) fn detect_losses(&mut self, cx: &mut Context<'_>) -> bool {
        let smoothed = self.rtt.smoothed().unwrap_or(0);
        let times = (self.rtt.least().unwrap_or(smoothed), smoothed);
        let outstanding = self.scoreboard.outstanding();
        let recovering = !self.recovery.is_open();
        let (lost, again) = self.rack.detect(cx.now, &mut self.scoreboard, recovering, times);
        if lost && self.recovery.is_open() {
            cx.counters.tcp_sack_recoveries += 1;
            self.enter_recovery(outstanding);
            self.rearm(cx);
        }
        // A round trip that a loss made long would have this timer come after the one it stands in for.
        if let Some(wait) = again
            && wait < self.rtt.timeout()
        {
            self.timer = Timer::Reorder(cx.now.plus(wait));
        }
        lost
    }

    fn enter_recovery(&mut self, outstanding: u32) {
        let mss = self.mss();
        self.remember_for_undo(false);
        self.congestion.loss(outstanding, mss);
        self.recovery = Recovery::Fast { point: self.outbox.nxt };
        self.prr = Prr::begin(self.scoreboard.outstanding() - self.scoreboard.sacked());
        self.recovery_begins = true;
        self.reno.remember(self.outbox.nxt);
    }

    /// Whether our FIN was acknowledged, and what that means.
    fn advance_state(&mut self, cx: &Context<'_>) {
        if !self.outbox.is_finished() {
            return;
        }
        match self.state {
            State::FinWait1 => {
                let orphan = self.owner == Owner::Nobody;
                let patience = crate::time::nanos(cx.settings.fin_wait_2);
                self.state = State::FinWait2 { until: orphan.then(|| cx.now.plus(patience)) };
                self.linger_until = None;
            }
            State::Closing => self.state = State::TimeWait,
            State::LastAck => self.finish(),
            _ => {}
        }
    }
}
