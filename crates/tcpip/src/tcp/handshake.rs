//! Connection setup: SYN, SYN-ACK and the negotiated options (RFC 9293, 3.5; RFC 7323; RFC 2018).
//!
//! An option is used if both SYNs carried it. The SYN is an ordinary segment on the scoreboard, one sequence number
//! long, so the retransmission timer covers it. Two SYNs that cross make one connection (simultaneous open).

use super::{
    connection::{Connection, Context, Origin, Owner, State, Timestamps},
    cookies::CookieOptions,
    ecn::Ecn,
    isn,
    options::Options,
    receive::Reply,
    receive_buffer::ReceiveBuffer,
    segment::{Flags, Header},
    seq::Seq,
    timer::Timer,
};
use crate::{
    TcpOptions,
    config::Settings,
    error::SocketError,
    event::{Readiness, SocketId},
    flow::Flow,
    time::Instant,
};

/// MSS of a peer that sends no MSS option: IPv4, IPv6 (RFC 9293, 3.7.1).
const DEFAULT_MSS: (u16, u16) = (536, 1220);
/// Lower bound of the peer's MSS. Tiny segments would be an attack on the CPU.
const MIN_PEER_MSS: u16 = 64;

/// Initial values of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialParameters {
    pub initial: Seq,
    pub timestamp_offset: u32,
    pub path_mtu: u16,
}

/// Listener of a connection, and the options that the connection inherits.
pub(crate) type Parent<'a> = (SocketId, &'a TcpOptions);

impl Connection {
    /// Creates a connection that the application opens.
    pub(crate) fn active(settings: &Settings, flow: Flow, start: InitialParameters) -> Self {
        Self::new(settings, flow, start, State::SynSent, Owner::Application)
    }

    /// Creates a connection from a peer's SYN to a listener.
    pub(crate) fn passive(
        settings: &Settings,
        flow: Flow,
        start: InitialParameters,
        (listener, options): Parent<'_>,
        syn: &Header,
        now: Instant,
    ) -> Self {
        let state = State::SynReceived { origin: Origin::Listener };
        let owner = Owner::HalfOpen(listener);
        let mut connection = Self::new(settings, flow, start, state, owner);
        connection.ecn = Ecn::passive(settings.ecn, syn);
        connection.inherit(now, settings, options);
        connection.apply_syn(settings, syn, now);
        connection
    }

    /// Creates a connection from a SYN cookie, which `ack` returned.
    pub(crate) fn from_cookie(
        settings: &Settings,
        flow: Flow,
        start: InitialParameters,
        parent: Parent<'_>,
        ack: &Header,
        cookie_options: CookieOptions,
        now: Instant,
    ) -> Self {
        let syn = Header {
            seq: ack.seq.minus(1),
            flags: Flags::SYN.with(Flags::ECE.with(Flags::CWR).when(cookie_options.ecn)),
            window: ack.window,
            options: Options {
                mss: Some(cookie_options.mss),
                window_scale: cookie_options.window_scale,
                sack_permitted: cookie_options.sack_permitted,
                timestamp: ack.options.timestamp,
                ..Options::default()
            },
            ..Header::default()
        };
        let mut connection = Self::passive(settings, flow, start, parent, &syn, now);
        connection.send_buffer.nxt = start.initial.plus(1);
        connection.receive_buffer.advertise_window(connection.mss());
        connection
    }

    /// Returns the window scale that this host offers.
    pub(crate) fn offered_scale(settings: &Settings) -> u8 {
        ReceiveBuffer::scale_for(settings.receive_buffer_limit as u32)
    }

    /// Returns the options of the SYN or SYN-ACK.
    pub(crate) fn syn_options(&self, cx: &Context<'_>) -> Options {
        let answers = matches!(self.state, State::SynReceived { .. });
        let timestamp = super::options::Timestamp {
            value: isn::timestamp(cx.now, self.timestamp_offset),
            echo: self.timestamps.map_or(0, |timestamps| timestamps.recent),
        };
        Options {
            mss: Some(self.own_mss(cx.settings.mtu)),
            window_scale: (!answers || self.send_buffer.scaled()).then(|| Self::offered_scale(cx.settings)),
            sack_permitted: if answers { self.sack } else { cx.settings.sack },
            timestamp: if answers { self.timestamps.is_some() } else { cx.settings.timestamps }.then_some(timestamp),
            ..Options::default()
        }
    }

    /// Applies the sequence number and options of the peer's SYN.
    fn apply_syn(&mut self, settings: &Settings, syn: &Header, now: Instant) {
        let options = &syn.options;
        let default = if self.flow.local.is_ipv4() { DEFAULT_MSS.0 } else { DEFAULT_MSS.1 };
        self.peer_mss = options.mss.unwrap_or(default).min(self.maximum_segment).max(MIN_PEER_MSS);
        self.sack = options.sack_permitted && settings.sack;
        let timestamp = options.timestamp.filter(|_| settings.timestamps);
        self.timestamps = timestamp.map(|timestamp| Timestamps { recent: timestamp.value, recent_at: now });
        if let Some(scale) = options.window_scale {
            self.send_buffer.set_scale(scale);
            self.receive_buffer.set_scale(Self::offered_scale(settings));
        }
        self.receive_buffer.start_at(syn.seq.plus(1));
        self.last_ack_sent = syn.seq.plus(1);
        self.send_buffer.update_window(syn.seq, syn.ack, syn.window, true);
    }

    /// Handles a segment in SYN-SENT (RFC 9293, 3.10.7.3).
    pub(crate) fn receive_in_syn_sent(&mut self, cx: &mut Context<'_>, header: &Header) -> Reply {
        let acks = header.has(Flags::ACK);
        if acks && (header.ack.at_or_before(self.send_buffer.una) || header.ack.after(self.send_buffer.nxt)) {
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
        self.ecn.receive_answer(header);
        self.apply_syn(cx.settings, header, cx.now);
        if acks {
            self.acknowledge_syn(cx, header.ack);
            self.establish(cx);
            self.ack.ack_now();
        } else {
            self.state = State::SynReceived { origin: Origin::Simultaneous };
            if !self.scoreboard.is_empty() {
                self.scoreboard.mark_lost(0);
            }
        }
        Reply::None
    }

    /// Handles `ack`, which acknowledges this host's SYN.
    pub(crate) fn acknowledge_syn(&mut self, cx: &Context<'_>, ack: Seq) {
        let mut sample = None;
        self.scoreboard.acknowledge(ack, |syn| {
            if !syn.was_retransmitted() {
                sample = Some(cx.now.nanos_since(syn.at));
            }
        });
        if let Some(rtt) = sample {
            self.rtt.sample(rtt);
            self.rtt.sample_min(cx.now, rtt);
        }
        self.send_buffer.acknowledge(ack);
    }

    /// Completes the handshake.
    pub(crate) fn establish(&mut self, cx: &mut Context<'_>) {
        let syn_was_lost = self.rtt.backoff() > 0;
        self.rtt.established(syn_was_lost);
        self.congestion.restart(self.mss(), syn_was_lost);
        self.rack = super::rack::Rack::new(self.send_buffer.una);
        self.timer = Timer::Off;
        self.state = match self.send_buffer.fin {
            super::send_buffer::Fin::Open => State::Established,
            _ => State::FinWait1,
        };
        self.last_sent_at = cx.now;
        if let Some(keepalive_timer) = &mut self.keepalive_timer {
            keepalive_timer.restart(cx.now);
        }
        cx.counters.tcp_ecn_connections += u64::from(self.ecn.is_agreed());
        self.edges |= Readiness::WRITABLE;
    }
}
