//! One TCP connection: its state, and what the application does to it (RFC 9293).
//!
//! A connection is a plain value. Segments go in by `receive`, time by `handle_timeout`; segments come out of
//! `next_segment` until it has none, and `deadline` says when time matters again. Each policy is in a file of its own, and
//! this struct is where they meet:
//!
//! | policy | file | source |
//! | --- | --- | --- |
//! | beginning | `handshake` | RFC 9293 3.5, 7323, 6528; 4987 in `cookies` |
//! | what comes in | `receive`, `inbox` | RFC 9293 3.10.7, 5961, 2018, 2883 |
//! | acknowledging what came in | `ack` | RFC 9293 3.8.6.3, 5681 4.2 |
//! | what the peer acknowledges | `acknowledge`, `scoreboard`, `rack`, `newreno`, `undo` | RFC 6675, 8985, 6582, 4015 |
//! | how much may be out | `congestion`, `cubic`, `prr` | RFC 5681, 6928, 9438, 9937 |
//! | what goes out | `send`, `outbox` | RFC 9293 3.7.4, 3.8.6.2 |
//! | when time matters | `timers`, `rtt`, `keepalive` | RFC 6298, 8985, 9293 3.8.4 |
//! | the end | `time_wait` | RFC 9293 3.6, 1337, 6191 |

use super::{
    ack::AckPolicy,
    congestion::Congestion,
    inbox::Inbox,
    keepalive::Prober,
    newreno::{NewReno, Recovery},
    outbox::{Fin, Outbox},
    prr::Prr,
    rack::Rack,
    rtt::Rtt,
    scoreboard::Scoreboard,
    segment::HEADER,
    seq::Seq,
    timers::Timer,
    undo::Undo,
};
use crate::{
    config::Settings,
    counters::Counters,
    error::{IoError, SocketError},
    event::{Readiness, SocketId},
    flow::Flow,
    limiter::Limiter,
    time::{Instant, nanos},
};

/// The states of RFC 9293, 3.3.2, with what each needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived {
        origin: Origin,
    },
    Established,
    FinWait1,
    FinWait2 {
        /// Until when an application that is gone waits for the peer's FIN.
        until: Option<Instant>,
    },
    CloseWait,
    Closing,
    LastAck,
    /// Over, and to be remembered: the stack moves it to the table of such connections.
    TimeWait,
    Closed,
}

/// How a connection came to be half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// By a SYN to a listener.
    Listener,
    /// By two SYNs that crossed.
    Simultaneous,
}

/// Who has the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A listener, in whose count of half-open connections it is.
    HalfOpen(SocketId),
    /// A listener, in whose queue it waits to be accepted.
    Queued(SocketId),
    Application,
    /// The application closed it; it finishes alone.
    Nobody,
}

/// The timestamps of a connection that uses them (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    /// The peer's latest, TS.Recent, and when it came.
    pub recent: u32,
    pub recent_at: Instant,
}

/// A segment without new data that was asked for by a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The tail loss probe of RFC 8985.
    Loss,
    /// The zero-window probe of RFC 9293, 3.8.6.1, which also overrides silly window avoidance.
    Window,
    Keepalive,
}

/// What a call needs to know and may count beside the connection itself.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub settings: &'a Settings,
    pub counters: &'a mut Counters,
    pub challenges: &'a mut Limiter,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub flow: Flow,
    pub state: State,
    pub owner: Owner,
    /// News for the application since it was last told.
    pub edges: Readiness,
    pub error: Option<SocketError>,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub scoreboard: Scoreboard,
    pub rtt: Rtt,
    pub congestion: Congestion,
    pub recovery: Recovery,
    pub prr: Prr,
    pub undo: Option<Box<Undo>>,
    /// The first retransmission of a recovery is sent whatever the window says (RFC 6675, 5, step 4.3).
    pub recovery_begins: bool,
    pub reno: NewReno,
    pub rack: Rack,
    pub timer: Timer,
    pub probe: Option<Probe>,
    pub ack: AckPolicy,
    pub timestamps: Option<Timestamps>,
    pub timestamp_offset: u32,
    /// Whether both sides use SACK.
    pub sack: bool,
    pub nodelay: bool,
    pub shut_read: bool,
    /// `Some(0)`: closing means resetting.
    pub linger: Option<core::time::Duration>,
    /// When a lingering close gives up.
    pub linger_until: Option<Instant>,
    pub prober: Option<Box<Prober>>,
    /// The last RCV.NXT that was sent, for TS.Recent and for SYN retransmissions.
    pub last_ack_sent: Seq,
    pub last_sent_at: Instant,
    /// The largest segment the peer takes, and the largest packet the path does.
    pub peer_mss: u16,
    pub path_mtu: u16,
}

impl Connection {
    pub(crate) fn new(
        settings: &Settings,
        flow: Flow,
        initial: Seq,
        timestamp_offset: u32,
        path_mtu: u16,
        state: State,
        owner: Owner,
    ) -> Self {
        let own_mss = u32::from(path_mtu) - flow.ip_header() as u32 - HEADER as u32;
        Self {
            flow,
            state,
            owner,
            edges: Readiness::NONE,
            error: None,
            inbox: Inbox::new(Seq(0), settings.receive_buffer as u32, settings.receive_buffer_limit as u32),
            outbox: Outbox::new(initial, settings.send_buffer),
            scoreboard: Scoreboard::default(),
            rtt: Rtt::new(nanos(settings.minimum_rto)),
            congestion: Congestion::new(settings.congestion_control, own_mss),
            recovery: Recovery::Open,
            prr: Prr::default(),
            undo: None,
            recovery_begins: false,
            reno: NewReno::default(),
            rack: Rack::new(initial),
            timer: Timer::Off,
            probe: None,
            ack: AckPolicy::new(),
            timestamps: None,
            timestamp_offset,
            sack: false,
            nodelay: false,
            shut_read: false,
            linger: None,
            linger_until: None,
            prober: None,
            last_ack_sent: Seq(0),
            last_sent_at: Instant::ZERO,
            peer_mss: u16::MAX,
            path_mtu,
        }
    }

    /// Loads the parts that every segment needs, which lie in different cache lines.
    pub(crate) fn warm(&self) {
        let words = (self.outbox.una, self.inbox.next(), self.timer, self.rtt.backoff(), self.last_ack_sent);
        core::hint::black_box((words, self.congestion.window(), self.scoreboard.len(), self.flow.local_port));
    }

    /// The largest segment this host takes on this flow: what it announces.
    pub(crate) fn own_mss(&self, mtu: usize) -> u16 {
        (mtu - self.flow.ip_header() - HEADER) as u16
    }

    /// Payload bytes of a full segment.
    pub(crate) fn mss(&self) -> u32 {
        let path = u32::from(self.path_mtu) - self.flow.ip_header() as u32 - HEADER as u32;
        let options = if self.timestamps.is_some() { 12 } else { 0 };
        path.min(self.peer_mss.into()) - options
    }

    /// Bytes believed to be in the network.
    pub(crate) fn in_flight(&self) -> u32 {
        let in_flight = self.scoreboard.in_flight();
        if self.sack { in_flight } else { in_flight.saturating_sub(self.reno.delivered(self.mss())) }
    }

    /// Whether the handshake is over and the connection is not.
    pub(crate) const fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived { .. } | State::Closed)
    }

    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::TimeWait)
    }

    /// Whether the application may still write.
    const fn can_write(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait) && matches!(self.outbox.fin, Fin::Open)
    }

    /// The connection is over because of `error`.
    pub(crate) fn fail(&mut self, error: SocketError) {
        self.error = Some(error);
        self.finish();
        self.edges |= Readiness::ERROR;
    }

    /// The connection is over, and nothing remembers it.
    pub(crate) fn finish(&mut self) {
        self.state = State::Closed;
        self.timer = Timer::Off;
        self.scoreboard = Scoreboard::default();
        self.outbox = Outbox::new(self.outbox.nxt, self.outbox.limit());
        self.outbox.fin = Fin::Sent(self.outbox.nxt);
        self.edges |= Readiness::READABLE | Readiness::WRITABLE | Readiness::READ_CLOSED | Readiness::HANG_UP;
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let closed = self.is_closed();
        let failed = self.error.is_some();
        let ended = closed || self.shut_read || self.inbox.is_finished();
        let write_fails = closed || self.outbox.fin != Fin::Open;
        Readiness::READABLE.when(self.inbox.readable() > 0 || ended || failed)
            | Readiness::WRITABLE.when(self.can_write() && self.outbox.has_room() || write_fails || failed)
            | Readiness::READ_CLOSED.when(ended)
            | Readiness::HANG_UP.when(closed || ended && self.outbox.fin != Fin::Open)
            | Readiness::ERROR.when(failed)
    }

    /// Reads; 0 is the end of the stream.
    pub(crate) fn read(&mut self, to: &mut [u8], peek: bool) -> Result<usize, IoError> {
        if self.inbox.readable() > 0 {
            return Ok(self.inbox.read(to, peek));
        }
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        match self.state {
            State::SynSent | State::SynReceived { .. } => Err(IoError::NotConnected),
            _ if self.is_closed() || self.shut_read || self.inbox.is_finished() => Ok(0),
            _ => Err(IoError::WouldBlock),
        }
    }

    /// Writes what there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        match self.state {
            State::SynSent | State::SynReceived { .. } => Err(IoError::WouldBlock),
            _ if !self.can_write() => Err(IoError::BrokenPipe),
            _ => match self.outbox.write(bytes) {
                0 if !bytes.is_empty() => Err(IoError::WouldBlock),
                taken => Ok(taken),
            },
        }
    }

    /// The application will write no more: a FIN follows the last byte.
    pub(crate) fn shut_write(&mut self) {
        if self.outbox.fin != Fin::Open {
            return;
        }
        let next = match self.state {
            State::Established | State::SynReceived { .. } => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        // A half-open connection sends its FIN when the handshake is over; the state changes then.
        if !matches!(self.state, State::SynReceived { .. }) {
            self.state = next;
        }
        self.outbox.fin = Fin::Queued;
        self.edges |= Readiness::WRITABLE;
        if self.inbox.is_finished() || self.shut_read {
            self.edges |= Readiness::HANG_UP;
        }
    }

    /// The application is gone. Whether the peer must be reset, because data was not read or will not be waited for.
    pub(crate) fn close(&mut self, now: Instant, fin_wait_2: u64) -> bool {
        let unread = self.inbox.readable() > 0 && !self.is_closed();
        let impatient = self.linger.is_some_and(|linger| linger.is_zero());
        self.owner = Owner::Nobody;
        self.error = None;
        if self.state == State::SynSent {
            self.finish();
            return false;
        }
        if unread || impatient {
            return !self.is_closed();
        }
        self.linger_until = self.linger.map(|linger| now + linger);
        if let State::FinWait2 { until } = &mut self.state {
            *until = Some(now.plus(fin_wait_2));
        }
        self.shut_write();
        false
    }

    /// Sizes of what this connection holds beside itself, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.inbox.memory()
            + self.outbox.memory()
            + self.scoreboard.memory()
            + self.undo.as_ref().map_or(0, |_| size_of::<Undo>())
            + self.prober.as_ref().map_or(0, |_| size_of::<Prober>())
    }

    /// Whether the peer should be told of a window that opened since.
    pub(crate) fn window_opened(&mut self) {
        if self.is_synchronized() && !self.is_closed() && self.inbox.is_update_worthwhile(self.mss()) {
            self.ack.at_once();
        }
    }

    /// The path takes no packets longer than `mtu`.
    pub(crate) fn lower_path_mtu(&mut self, mtu: u16) -> bool {
        if mtu >= self.path_mtu {
            return false;
        }
        self.path_mtu = mtu;
        // What was in flight in longer segments never arrived: send it again, in shorter ones.
        let mss = self.mss();
        for index in 0..self.scoreboard.len() {
            if self.scoreboard.get(index).is_some_and(|segment| segment.len() > mss) {
                self.scoreboard.mark_lost(index);
            }
        }
        true
    }
}
