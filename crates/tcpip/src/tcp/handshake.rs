//! How a connection begins: SYN, SYN-ACK, and the options both sides agree on (RFC 9293, 3.5; RFC 7323; RFC 2018).
//!
//! An option is used if both SYNs carried it. The SYN is a segment like any other on the scoreboard, one sequence number
//! long, so the same timer retransmits it. Two SYNs that cross make one connection (simultaneous open).

use super::{
    connection::{Connection, Context, Origin, Owner, State, Timestamps},
    cookies::Returned,
    inbox::Inbox,
    isn,
    options::Options,
    receive::Reply,
    segment::{Flags, Header},
    seq::Seq,
    timers::Timer,
};
use crate::{
    config::Settings,
    error::SocketError,
    event::{Readiness, SocketId},
    flow::Flow,
    time::Instant,
};

/// What a peer that says nothing can take (RFC 9293, 3.7.1).
const DEFAULT_MSS: (u16, u16) = (536, 1220);
/// Less is not believed: tiny segments are a way to make us work.
const LEAST_MSS: u16 = 64;

/// Where a new connection's numbers start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub initial: Seq,
    pub timestamp_offset: u32,
    pub path_mtu: u16,
}

impl Connection {
    /// A connection the application asks for.
    pub(crate) fn active(settings: &Settings, flow: Flow, start: Start) -> Self {
        let Start { initial, timestamp_offset, path_mtu } = start;
        Self::new(settings, flow, initial, timestamp_offset, path_mtu, State::SynSent, Owner::Application)
    }

    /// A connection a peer's SYN to `listener` asks for.
    pub(crate) fn passive(
        settings: &Settings,
        flow: Flow,
        start: Start,
        listener: SocketId,
        syn: &Header,
        now: Instant,
    ) -> Self {
        let Start { initial, timestamp_offset, path_mtu } = start;
        let state = State::SynReceived { origin: Origin::Listener };
        let owner = Owner::HalfOpen(listener);
        let mut connection = Self::new(settings, flow, initial, timestamp_offset, path_mtu, state, owner);
        connection.take_syn(settings, syn, now);
        connection
    }

    /// A connection whose beginning came back in a cookie with `ack`.
    pub(crate) fn from_cookie(
        settings: &Settings,
        flow: Flow,
        start: Start,
        listener: SocketId,
        ack: &Header,
        returned: Returned,
        now: Instant,
    ) -> Self {
        let syn = Header {
            seq: ack.seq.minus(1),
            window: ack.window,
            options: Options {
                mss: Some(returned.mss),
                window_scale: returned.window_scale,
                sack_permitted: returned.sack_permitted,
                timestamp: ack.options.timestamp,
                ..Options::default()
            },
            ..Header::default()
        };
        let mut connection = Self::passive(settings, flow, start, listener, &syn, now);
        connection.outbox.nxt = start.initial.plus(1);
        connection.inbox.promise(connection.mss());
        connection
    }

    /// Whether this host asks for window scaling, and how: it does unless its buffers need none.
    pub(crate) fn offered_scale(settings: &Settings) -> u8 {
        Inbox::scale_for(settings.receive_buffer_limit as u32)
    }

    /// The options of the SYN, or of the answer to one.
    pub(crate) fn syn_options(&self, cx: &Context<'_>) -> Options {
        let answers = matches!(self.state, State::SynReceived { .. });
        let timestamp = super::options::Timestamp {
            value: isn::timestamp(cx.now, self.timestamp_offset),
            echo: self.timestamps.map_or(0, |timestamps| timestamps.recent),
        };
        Options {
            mss: Some(self.own_mss(cx.settings.mtu)),
            window_scale: (!answers || self.outbox.scaled()).then(|| Self::offered_scale(cx.settings)),
            sack_permitted: if answers { self.sack } else { cx.settings.sack },
            timestamp: if answers { self.timestamps.is_some() } else { cx.settings.timestamps }.then_some(timestamp),
            ..Options::default()
        }
    }

    /// The peer's SYN: numbers and options.
    fn take_syn(&mut self, settings: &Settings, syn: &Header, now: Instant) {
        let options = &syn.options;
        let default = if self.flow.local.is_ipv4() { DEFAULT_MSS.0 } else { DEFAULT_MSS.1 };
        self.peer_mss = options.mss.unwrap_or(default).max(LEAST_MSS);
        self.sack = options.sack_permitted && settings.sack;
        let timestamp = options.timestamp.filter(|_| settings.timestamps);
        self.timestamps = timestamp.map(|timestamp| Timestamps { recent: timestamp.value, recent_at: now });
        if let Some(scale) = options.window_scale {
            self.outbox.set_scale(scale);
            self.inbox.set_scale(Self::offered_scale(settings));
        }
        self.inbox.begin(syn.seq.plus(1));
        self.last_ack_sent = syn.seq.plus(1);
        self.outbox.update_window(syn.seq, syn.ack, syn.window, true);
    }

    /// SYN-SENT (RFC 9293, 3.10.7.3).
    pub(crate) fn receive_in_syn_sent(&mut self, cx: &mut Context<'_>, header: &Header) -> Reply {
        let acks = header.has(Flags::ACK);
        if acks && (header.ack.at_or_before(self.outbox.una) || header.ack.after(self.outbox.nxt)) {
            return if header.has(Flags::RST) { Reply::None } else { Reply::Reset };
        }
        if header.has(Flags::RST) {
            if acks {
                cx.counters.tcp_attempt_failures += 1;
                self.fail(SocketError::Refused);
            }
            return Reply::None;
        }
        if !header.has(Flags::SYN) {
            return Reply::None;
        }
        self.take_syn(cx.settings, header, cx.now);
        if acks {
            self.acknowledge_syn(cx, header.ack);
            self.establish(cx);
            self.ack.at_once();
        } else {
            self.state = State::SynReceived { origin: Origin::Simultaneous };
            if !self.scoreboard.is_empty() {
                self.scoreboard.mark_lost(0);
            }
        }
        Reply::None
    }

    /// Our SYN was acknowledged by `ack`.
    pub(crate) fn acknowledge_syn(&mut self, cx: &Context<'_>, ack: Seq) {
        let mut sample = None;
        self.scoreboard.acknowledge(ack, |syn| {
            if !syn.is_resent() {
                sample = Some(cx.now.nanos_since(syn.at));
            }
        });
        if let Some(rtt) = sample {
            self.rtt.sample(rtt);
            self.rtt.sample_least(cx.now, rtt);
        }
        self.outbox.acknowledge(ack);
    }

    /// The handshake is over.
    pub(crate) fn establish(&mut self, cx: &mut Context<'_>) {
        let syn_was_lost = self.rtt.backoff() > 0;
        self.rtt.established(syn_was_lost);
        self.congestion.begin(self.mss(), syn_was_lost);
        self.rack = super::rack::Rack::new(self.outbox.una);
        self.timer = Timer::Off;
        self.state = match self.outbox.fin {
            super::outbox::Fin::Open => State::Established,
            _ => State::FinWait1,
        };
        self.last_sent_at = cx.now;
        if let Some(prober) = &mut self.prober {
            prober.heard(cx.now);
        }
        self.edges |= Readiness::WRITABLE;
    }
}
