//! Options of TCP sockets, as an application sets them.

use core::time::Duration;

use crate::config::{CongestionControl, Keepalive};

/// Options of a TCP socket, named after those of `socket(7)`, `tcp(7)` and `ip(7)`. Accepted connections inherit those
/// that their listener had when the SYN arrived. The default is that of a new socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// TCP_NODELAY: small segments do not wait for acknowledgements.
    pub nodelay: bool,
    /// TCP_CORK: only full segments are sent, for at most 200 ms.
    pub cork: bool,
    /// SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT.
    pub keepalive: Option<Keepalive>,
    /// SO_LINGER, without blocking. With `Some(0)`, closing resets the connection. With `Some(t)`, the connection is reset
    /// if it has not finished `t` after closing. With `None` it finishes without a limit.
    pub linger: Option<Duration>,
    /// TCP_USER_TIMEOUT: how long a connection may stall before it is aborted (RFC 5482).
    pub user_timeout: Option<Duration>,
    /// TCP_MAXSEG in bytes: an upper bound of both directions' segments, TCP options included. It has an effect before the
    /// SYN or SYN-ACK is sent.
    pub maximum_segment: Option<u16>,
    /// TCP_NOTSENT_LOWAT in bytes: the socket is writable while fewer bytes than this were written and not sent.
    pub unsent_low_water: Option<u32>,
    /// IP_TOS, for IPv4. TCP ignores the two bits of the ECN field, which are its own.
    pub type_of_service: u8,
    /// IPV6_TCLASS, for IPv6. As `type_of_service`.
    pub traffic_class: u8,
    /// TCP_CONGESTION; `None` for the stack's setting.
    pub congestion_control: Option<CongestionControl>,
    /// TCP_SYNCNT: retransmissions of a SYN or SYN-ACK; `None` for the stack's setting.
    pub syn_retries: Option<u8>,
    /// TCP_DEFER_ACCEPT, of a listener: how long a connection without data stays out of the accept queue.
    pub defer_accept: Option<Duration>,
    /// SO_RCVBUF in bytes, clamped to 2 KiB .. 256 MiB. It disables the automatic growth. The negotiated window scale limits
    /// the effect on a connection.
    pub receive_buffer: Option<usize>,
    /// SO_SNDBUF in bytes, clamped to 2 KiB .. 256 MiB.
    pub send_buffer: Option<usize>,
}

/// Clamps the size of a buffer.
pub(crate) fn clamp_buffer(bytes: usize) -> usize {
    bytes.clamp(2048, 1 << 28)
}
