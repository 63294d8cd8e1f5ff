//! TCP connection: its state and the application's operations (RFC 9293).
//!
//! A connection is a plain value. `receive` takes segments and `handle_timeout` takes time. `next_segment` returns
//! the segments to send, and `deadline` the time of the next `handle_timeout`. Each policy has its own file, and this
//! struct combines them:
//!
//! | policy | file | source |
//! | --- | --- | --- |
//! | handshake | `handshake`, `isn`, `cookies` | RFC 9293 3.5, 7323, 6528, 4987 |
//! | input, reassembly and receive window | `receive`, `receive_buffer` | RFC 9293 3.10.7, 5961, 2018, 2883 |
//! | acknowledgements to the peer | `ack` | RFC 9293 3.8.6.3, 5681 4.2 |
//! | acknowledgements from the peer | `acknowledge`, `sack`, `scoreboard`, `rack`, `newreno`, `frto`, `undo` | RFC 6675, 8985, 6582, 5682, 4015 |
//! | congestion window | `congestion`, `cubic`, `hystart`, `prr` | RFC 5681, 6928, 9438, 9406, 9937 |
//! | explicit congestion notification | `ecn` | RFC 3168, 8311 |
//! | output and send window | `send`, `send_buffer` | RFC 9293 3.7.4, 3.8.6.2 |
//! | timers | `timeout`, `timer`, `rtt`, `stall`, `keepalive` | RFC 6298, 8985, 5482, 9293 3.8.4 |
//! | TIME-WAIT | `time_wait` | RFC 9293 3.6, 1337, 6191 |

use super::{
    ack::AckPolicy,
    congestion::Congestion,
    ecn::Ecn,
    frto::Frto,
    handshake::InitialParameters,
    keepalive::KeepaliveTimer,
    newreno::{NewReno, Recovery},
    prr::Prr,
    rack::Rack,
    receive_buffer::ReceiveBuffer,
    rtt::Rtt,
    scoreboard::Scoreboard,
    segment::HEADER_LEN,
    send_buffer::{Fin, SendBuffer},
    seq::Seq,
    stall::Stall,
    timer::Timer,
    undo::Undo,
};
use crate::{
    config::Settings,
    counters::Counters,
    error::{IoError, SocketError},
    event::{Readiness, SocketId},
    flow::{Flow, Secret},
    limiter::ChallengeBudget,
    neighbor::NeighborId,
    time::{Instant, nanos},
};

/// States of RFC 9293, section 3.3.2, with the data that only one state needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived {
        origin: Origin,
    },
    Established,
    FinWait1,
    FinWait2 {
        /// End of the wait for the peer's FIN, if the application has closed the connection.
        until: Option<Instant>,
    },
    CloseWait,
    Closing,
    LastAck,
    /// The stack moves the connection to the TIME-WAIT table.
    TimeWait,
    Closed,
}

/// How a connection became half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A SYN arrived for a listener.
    Listener,
    /// Two SYNs crossed (simultaneous open).
    Simultaneous,
}

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A listener that counts it as half open.
    HalfOpen(SocketId),
    /// A listener that has it in its accept queue.
    Queued(SocketId),
    Application,
    /// None: the application closed the connection, which finishes by itself.
    Orphan,
}

/// Timestamp state of a connection that uses the option (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    /// Latest timestamp of the peer (TS.Recent) and its arrival.
    pub recent: u32,
    pub recent_at: Instant,
}

/// Segment that a timer requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Tail loss probe (RFC 8985).
    Loss,
    /// Zero-window probe (RFC 9293, 3.8.6.1). It also overrides silly window avoidance.
    Window,
    /// Small segment that was held back for too long (TCP_CORK, MSG_MORE).
    Corked,
    Keepalive,
}

/// Parameters of a call: time, settings, counters and the secret of random budgets.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub settings: &'a Settings,
    pub counters: &'a mut Counters,
    pub budgets: &'a Secret,
}

/// TCP connection.
///
/// The order of the fields is that in memory (`repr(C)`). The fields that every segment needs are at the front, so that
/// it loads few cache lines: with thousands of connections these loads are the largest cost of a segment.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Connection {
    pub state: State,
    pub timer: Timer,
    pub owner: Owner,
    pub flow: Flow,
    /// Maximum segment size that the peer accepts, and path MTU.
    pub peer_mss: u16,
    pub path_mtu: u16,
    /// Changes since the last event, for the application.
    pub edges: Readiness,
    pub error: Option<SocketError>,
    pub probe: Option<Probe>,
    /// IP_TOS or IPV6_TCLASS, without the ECN field.
    pub traffic_class: u8,
    /// Whether both sides use SACK.
    pub sack: bool,
    pub nodelay: bool,
    /// TCP_CORK.
    pub cork: bool,
    /// The last write announced more data (MSG_MORE).
    pub more: bool,
    /// Everything that was written is sent, although the socket is corked.
    pub push: bool,
    pub shut_read: bool,
    /// The first retransmission of a recovery ignores the congestion window (RFC 6675, 5, step 4.3).
    pub recovery_begins: bool,
    pub frto: Frto,
    pub recovery: Recovery,
    pub ecn: Ecn,
    pub timestamp_offset: u32,
    /// Last RCV.NXT that was sent, for TS.Recent (RFC 7323, 4.3).
    pub last_ack_sent: Seq,
    /// Entry of the next hop, once the stack has found it.
    pub neighbor: NeighborId,
    pub timestamps: Option<Timestamps>,
    pub keepalive_timer: Option<Box<KeepaliveTimer>>,
    pub receive_buffer: ReceiveBuffer,
    pub ack: AckPolicy,
    pub last_sent_at: Instant,
    pub send_buffer: SendBuffer,
    pub scoreboard: Scoreboard,
    pub rtt: Rtt,
    pub stall: Stall,
    pub rack: Rack,
    pub congestion: Congestion,
    // The rest is for losses, options and the ends of connections.
    pub prr: Prr,
    pub reno: NewReno,
    pub undo: Option<Box<Undo>>,
    pub challenges: ChallengeBudget,
    /// TCP_USER_TIMEOUT.
    pub user_timeout: Option<core::time::Duration>,
    /// TCP_MAXSEG.
    pub maximum_segment: u16,
    /// TCP_SYNCNT.
    pub syn_retries: Option<u8>,
    /// End of TCP_DEFER_ACCEPT, of a half-open connection.
    pub defer_until: Option<Instant>,
    /// SO_LINGER. `Some(0)` resets the connection when it is closed.
    pub linger: Option<core::time::Duration>,
    /// When a lingering connection, which the application has closed, is reset.
    pub linger_until: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(settings: &Settings, flow: Flow, start: InitialParameters, state: State, owner: Owner) -> Self {
        let InitialParameters { initial, timestamp_offset, path_mtu } = start;
        let own_mss = u32::from(path_mtu) - flow.ip_header() as u32 - HEADER_LEN as u32;
        Self {
            flow,
            neighbor: NeighborId::default(),
            state,
            owner,
            edges: Readiness::NONE,
            error: None,
            receive_buffer: ReceiveBuffer::new(
                Seq(0),
                settings.receive_buffer as u32,
                settings.receive_buffer_limit as u32,
            ),
            send_buffer: SendBuffer::new(initial, settings.send_buffer),
            scoreboard: Scoreboard::default(),
            rtt: Rtt::new(nanos(settings.minimum_rto)),
            congestion: Congestion::new(settings.congestion_control, own_mss),
            recovery: Recovery::Open,
            prr: Prr::default(),
            ecn: Ecn::active(settings.ecn),
            undo: None,
            frto: Frto::default(),
            recovery_begins: false,
            reno: NewReno::default(),
            rack: Rack::new(initial),
            timer: Timer::Off,
            stall: Stall::default(),
            probe: None,
            ack: AckPolicy::new(),
            challenges: ChallengeBudget::default(),
            timestamps: None,
            timestamp_offset,
            sack: false,
            nodelay: false,
            cork: false,
            more: false,
            push: false,
            user_timeout: None,
            maximum_segment: u16::MAX,
            traffic_class: 0,
            syn_retries: None,
            defer_until: None,
            shut_read: false,
            linger: None,
            linger_until: None,
            keepalive_timer: None,
            last_ack_sent: Seq(0),
            last_sent_at: Instant::ZERO,
            peer_mss: u16::MAX,
            path_mtu,
        }
    }

    /// Loads the cache lines that every segment needs at once, so that the loads overlap.
    pub(crate) fn prefetch(&self) {
        let front = (self.path_mtu, self.last_ack_sent, self.receive_buffer.next(), self.ack.is_due());
        let middle = (self.last_sent_at, self.send_buffer.una, self.scoreboard.sacked(), self.rtt.backoff());
        core::hint::black_box((front, middle, self.rack.is_probing(), self.congestion.window()));
    }

    /// Returns the MSS that this host announces.
    pub(crate) fn own_mss(&self, mtu: usize) -> u16 {
        ((mtu - self.flow.ip_header() - HEADER_LEN) as u16).min(self.maximum_segment)
    }

    /// Returns the payload length of a full segment.
    pub(crate) fn mss(&self) -> u32 {
        let path = u32::from(self.path_mtu) - self.flow.ip_header() as u32 - HEADER_LEN as u32;
        path.min(self.peer_mss.into()) - self.timestamp_len()
    }

    /// Returns the length of the timestamp option with its padding, if it is used.
    pub(crate) const fn timestamp_len(&self) -> u32 {
        if self.timestamps.is_some() { 12 } else { 0 }
    }

    /// Returns the estimated number of bytes in the network.
    pub(crate) fn in_flight(&self) -> u32 {
        let in_flight = self.scoreboard.in_flight();
        if self.sack { in_flight } else { in_flight.saturating_sub(self.reno.delivered(self.mss())) }
    }

    /// Returns whether the handshake is over and the connection is not closed.
    pub(crate) const fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived { .. } | State::Closed)
    }

    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::TimeWait)
    }

    /// Returns whether the application may write.
    const fn can_write(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait) && matches!(self.send_buffer.fin, Fin::Open)
    }

    /// Closes the connection because of `error`.
    pub(crate) fn fail(&mut self, error: SocketError) {
        self.error = Some(error);
        self.finish();
        self.edges |= Readiness::ERROR;
    }

    /// Closes the connection without TIME-WAIT.
    pub(crate) fn finish(&mut self) {
        self.state = State::Closed;
        self.timer = Timer::Off;
        self.scoreboard = Scoreboard::default();
        self.send_buffer = SendBuffer::new(self.send_buffer.nxt, self.send_buffer.limit());
        self.send_buffer.fin = Fin::Sent(self.send_buffer.nxt);
        self.edges |= Readiness::READABLE | Readiness::WRITABLE | Readiness::READ_CLOSED | Readiness::HANG_UP;
        self.edges |= Readiness::DRAINED;
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let closed = self.is_closed();
        let failed = self.error.is_some();
        let ended = closed || self.shut_read || self.receive_buffer.is_finished();
        let write_fails = closed || self.send_buffer.fin != Fin::Open;
        Readiness::READABLE.when(self.receive_buffer.readable() > 0 || ended || failed)
            | Readiness::WRITABLE.when(self.can_write() && self.send_buffer.has_room() || write_fails || failed)
            | Readiness::READ_CLOSED.when(ended)
            | Readiness::HANG_UP.when(closed || ended && self.send_buffer.fin != Fin::Open)
            | Readiness::ERROR.when(failed)
            | Readiness::DRAINED.when(closed || self.send_buffer.is_finished())
    }

    /// Reads data. Returns 0 at the end of the stream.
    pub(crate) fn read(&mut self, to: &mut [u8], peek: bool) -> Result<usize, IoError> {
        if self.receive_buffer.readable() > 0 {
            return Ok(self.receive_buffer.read(to, peek));
        }
        if self.receive_buffer.is_finished() {
            // The stream is complete, even if a reset came after its end.
            return Ok(0);
        }
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        match self.state {
            State::SynSent | State::SynReceived { .. } => Err(IoError::NotConnected),
            _ if self.is_closed() || self.shut_read => Ok(0),
            _ => Err(IoError::WouldBlock),
        }
    }

    /// Writes as many bytes as fit. If `more` follows, a small segment waits for it (MSG_MORE).
    pub(crate) fn write(&mut self, bytes: &[u8], more: bool) -> Result<usize, IoError> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        self.push &= self.send_buffer.unsent() > 0;
        match self.state {
            State::SynSent | State::SynReceived { .. } => Err(IoError::WouldBlock),
            _ if !self.can_write() => Err(IoError::BrokenPipe),
            _ => match self.send_buffer.write(bytes) {
                0 if !bytes.is_empty() => Err(IoError::WouldBlock),
                taken => {
                    self.more = more;
                    Ok(taken)
                }
            },
        }
    }

    /// Closes the sending direction: a FIN follows the last byte.
    pub(crate) fn shut_write(&mut self) {
        if self.send_buffer.fin != Fin::Open {
            return;
        }
        let next = match self.state {
            State::Established | State::SynReceived { .. } => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        // A half-open connection sends its FIN after the handshake, and changes its state then.
        if !matches!(self.state, State::SynReceived { .. }) {
            self.state = next;
        }
        self.send_buffer.fin = Fin::Queued;
        self.edges |= Readiness::WRITABLE;
        if self.receive_buffer.is_finished() || self.shut_read {
            self.edges |= Readiness::HANG_UP;
        }
    }

    /// Closes the connection for the application. Returns whether it must be reset: there is unread data, or the
    /// linger time is zero.
    pub(crate) fn close(&mut self, now: Instant, fin_wait_2: u64) -> bool {
        let unread = self.receive_buffer.readable() > 0 && !self.is_closed();
        let aborts = self.linger.is_some_and(|linger| linger.is_zero());
        self.owner = Owner::Orphan;
        self.error = None;
        if self.state == State::SynSent {
            self.finish();
            return false;
        }
        if unread || aborts {
            return !self.is_closed();
        }
        self.linger_until = self.linger.map(|linger| now + linger);
        if let State::FinWait2 { until } = &mut self.state {
            *until = Some(now.plus(fin_wait_2));
        }
        self.shut_write();
        false
    }

    /// Returns the memory of the buffers and boxes in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.receive_buffer.memory()
            + self.send_buffer.memory()
            + self.scoreboard.memory()
            + self.undo.as_ref().map_or(0, |_| size_of::<Undo>())
            + self.keepalive_timer.as_ref().map_or(0, |_| size_of::<KeepaliveTimer>())
    }

    /// Sends a window update if the window has opened enough.
    pub(crate) fn update_peer_window(&mut self) {
        if self.is_synchronized() && !self.is_closed() && self.receive_buffer.should_update_window(self.mss()) {
            self.ack.ack_now();
        }
    }

    /// Lowers the path MTU to `mtu`. Returns whether it was larger before.
    pub(crate) fn lower_path_mtu(&mut self, mtu: u16) -> bool {
        if mtu >= self.path_mtu {
            return false;
        }
        self.path_mtu = mtu;
        // Longer segments in flight did not arrive. They are retransmitted in smaller ones.
        let mss = self.mss();
        for index in 0..self.scoreboard.len() {
            if self.scoreboard.get(index).is_some_and(|segment| segment.len() > mss) {
                self.scoreboard.mark_lost(index);
            }
        }
        true
    }
}
