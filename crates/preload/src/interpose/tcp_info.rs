//! TCP_INFO of a datapath connection.
//!
//! The kernel socket's answer is that of an unconnected socket. The fields that the datapath has replace its own; the others
//! (times of the last segment, totals of bytes and segments, pacing) keep the value of a new connection.

use std::time::Duration;

use abey_datapath::{SocketState, TcpInfo};

use super::socket::Socket;

/// The infinite slow start threshold.
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// Bits of `tcpi_options`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALING: u8 = 4;

/// States of `tcpi_ca_state`.
const RECOVERY: u8 = 3;
const LOSS: u8 = 4;

/// Replaces fields of the kernel's `answer`, a `tcp_info` or the first bytes of one.
pub(super) fn write(socket: &Socket, answer: &mut [u8]) {
    const CLOSED: u8 = 7;
    let Some(stream) = socket.stream() else { return };
    let info = stream.info();
    let bytes = match &info {
        Ok(info) => first_bytes(info),
        Err(_) => [CLOSED, 0, 0, 0, 0, 0],
    };
    for (to, from) in answer.iter_mut().zip(bytes) {
        *to = from;
    }
    let Ok(info) = info else { return };
    for (offset, value) in words(&info) {
        if let Some(to) = answer.get_mut(offset..offset + 4) {
            to.copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// Returns `tcpi_state`, `tcpi_ca_state`, `tcpi_retransmits`, `tcpi_probes`, `tcpi_backoff` and `tcpi_options`.
fn first_bytes(info: &TcpInfo) -> [u8; 6] {
    let recovery = match (info.recovers, info.after_timeout) {
        (_, true) => LOSS,
        (true, false) => RECOVERY,
        _ => 0,
    };
    let flag = |bit: u8, on: bool| if on { bit } else { 0 };
    let options = flag(TIMESTAMPS, info.timestamps) | flag(SACK, info.sack) | flag(WINDOW_SCALING, info.window_scaling);
    [state(info.state), recovery, info.backoff, 0, info.backoff, options]
}

/// Returns the offsets and values of the 32-bit fields of `tcp_info` (`linux/tcp.h`).
fn words(info: &TcpInfo) -> [(usize, u32); 15] {
    let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    let segments = |bytes: u32| bytes.div_ceil(info.segment_size.max(1));
    [
        (8, micros(info.retransmission_timeout)),
        (16, info.segment_size),
        (20, info.segment_size),
        (24, info.unacknowledged_segments),
        (28, info.sacked_segments),
        (60, info.path_mtu),
        (68, micros(info.round_trip.unwrap_or_default())),
        (72, micros(info.round_trip_deviation.unwrap_or_default())),
        (76, info.slow_start_threshold.map_or(NO_THRESHOLD, segments)),
        (80, segments(info.congestion_window)),
        (84, info.announced_segment_size),
        (144, info.unsent),
        (148, info.minimum_round_trip.map_or(u32::MAX, micros)),
        (228, info.peer_window),
        (232, info.own_window),
    ]
}

/// Returns a state as the kernel numbers it (`net/tcp_states.h`).
fn state(state: SocketState) -> u8 {
    match state {
        SocketState::Established => 1,
        SocketState::SynSent => 2,
        SocketState::SynReceived => 3,
        SocketState::FinWait1 => 4,
        SocketState::FinWait2 => 5,
        SocketState::CloseWait => 8,
        SocketState::LastAck => 9,
        SocketState::Listen => 10,
        SocketState::Closing => 11,
        _ => 7,
    }
}
