//! State of a connection as TCP_INFO reports it.

use core::time::Duration;

use super::{Entry, Socket, SocketState, Stack, listing};
use crate::{error::IoError, event::SocketId, tcp::newreno::Recovery};

/// State of a connection, with the fields of `tcp_info` (`tcp(7)`) that this stack has. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// State.
    pub state: SocketState,
    /// Whether losses are being recovered, and whether a timeout started that.
    pub recovers: bool,
    /// See `recovers`.
    pub after_timeout: bool,
    /// Consecutive timeouts.
    pub backoff: u8,
    /// Whether both sides use timestamps, SACK and window scaling.
    pub timestamps: bool,
    /// See `timestamps`.
    pub sack: bool,
    /// See `timestamps`.
    pub window_scaling: bool,
    /// Retransmission timeout.
    pub retransmission_timeout: Duration,
    /// Smoothed round trip, after the first sample.
    pub round_trip: Option<Duration>,
    /// Mean deviation of the round trip.
    pub round_trip_deviation: Option<Duration>,
    /// Minimum round trip of the last minutes.
    pub minimum_round_trip: Option<Duration>,
    /// Payload of a full segment (TCP_MAXSEG of a connection).
    pub segment_size: u32,
    /// MSS that this host announced, without the bytes of the timestamp option.
    pub announced_segment_size: u32,
    /// Path MTU.
    pub path_mtu: u32,
    /// Congestion window.
    pub congestion_window: u32,
    /// Slow start threshold, after the first loss.
    pub slow_start_threshold: Option<u32>,
    /// Segments that were sent and not acknowledged.
    pub unacknowledged_segments: u32,
    /// Segments among them that were SACKed.
    pub sacked_segments: u32,
    /// Bytes that were written and not sent.
    pub unsent: u32,
    /// Window that the peer announced.
    pub peer_window: u32,
    /// Window that this host announced.
    pub own_window: u32,
}

impl Stack {
    /// Returns the state of a connection (TCP_INFO).
    ///
    /// # Errors
    ///
    /// The id is stale or not a connection.
    pub fn tcp_info(&self, id: SocketId) -> Result<TcpInfo, IoError> {
        let Entry { socket: Socket::Stream(connection), .. } = self.entry(id)? else { return Err(IoError::WrongKind) };
        let ssthresh = connection.congestion.ssthresh();
        let mtu = self.config().settings().mtu;
        let span = Duration::from_nanos;
        Ok(TcpInfo {
            state: listing::state(connection),
            recovers: !connection.recovery.is_open(),
            after_timeout: matches!(connection.recovery, Recovery::Timeout { .. }),
            backoff: connection.rtt.backoff(),
            timestamps: connection.timestamps.is_some(),
            sack: connection.sack,
            window_scaling: connection.send_buffer.scaled(),
            retransmission_timeout: span(connection.rtt.timeout()),
            round_trip: connection.rtt.srtt().map(span),
            round_trip_deviation: connection.rtt.rttvar().map(span),
            minimum_round_trip: connection.rtt.min_rtt().map(span),
            segment_size: connection.mss(),
            announced_segment_size: u32::from(connection.own_mss(mtu)) - connection.timestamp_len(),
            path_mtu: connection.path_mtu.into(),
            congestion_window: connection.congestion.window(),
            slow_start_threshold: (ssthresh != u32::MAX).then_some(ssthresh),
            unacknowledged_segments: connection.scoreboard.len() as u32,
            sacked_segments: connection.scoreboard.sacked_segments(),
            unsent: connection.send_buffer.unsent(),
            peer_window: connection.send_buffer.window(),
            own_window: connection.receive_buffer.window(),
        })
    }
}
