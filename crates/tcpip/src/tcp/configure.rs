//! Socket options of a connection.

use super::{connection::Connection, keepalive::KeepaliveTimer};
use crate::{
    TcpOptions,
    config::Settings,
    tcp_options::clamp_buffer,
    time::{Instant, nanos},
};

/// Bits of the traffic class that are TCP's own (RFC 3168).
const ECN_FIELD: u8 = 3;

impl Connection {
    /// Applies `options`, of which any may have changed. Those that only matter before the handshake have no effect later.
    pub(crate) fn configure(&mut self, now: Instant, settings: &Settings, options: &TcpOptions) {
        self.set_nodelay(options.nodelay);
        self.cork = options.cork;
        self.linger = options.linger;
        self.user_timeout = options.user_timeout;
        self.maximum_segment = options.maximum_segment.unwrap_or(u16::MAX);
        let class = if self.flow.local.is_ipv4() { options.type_of_service } else { options.traffic_class };
        self.traffic_class = class & !ECN_FIELD;
        self.syn_retries = options.syn_retries;
        self.set_keepalive(now, options);
        self.send_buffer.set_low_water(options.unsent_low_water.unwrap_or(u32::MAX));
        self.congestion.set_algorithm(options.congestion_control.unwrap_or(settings.congestion_control));
        if let Some(bytes) = options.receive_buffer {
            self.receive_buffer.set_limit(clamp_buffer(bytes) as u32);
        }
        if let Some(bytes) = options.send_buffer {
            self.send_buffer.set_limit(clamp_buffer(bytes));
        }
    }

    /// Applies the options that a listener's connection has before its SYN-ACK.
    pub(crate) fn inherit(&mut self, now: Instant, settings: &Settings, options: &TcpOptions) {
        self.configure(now, settings, options);
        self.defer_until = options.defer_accept.map(|span| now.plus(nanos(span)));
    }

    /// Sets TCP_NODELAY. If it becomes set, everything that was written is sent, even if the socket is corked.
    pub(crate) fn set_nodelay(&mut self, nodelay: bool) {
        self.push |= nodelay && !self.nodelay;
        self.nodelay = nodelay;
    }

    fn set_keepalive(&mut self, now: Instant, options: &TcpOptions) {
        let unchanged = self.keepalive_timer.as_ref().map(|timer| timer.settings) == options.keepalive;
        if !unchanged {
            self.keepalive_timer = options.keepalive.map(|keepalive| Box::new(KeepaliveTimer::new(keepalive, now)));
        }
    }

    /// Returns whether a connection stays out of its listener's accept queue, because no data has arrived
    /// (TCP_DEFER_ACCEPT).
    pub(crate) fn defers_accept(&self) -> bool {
        self.defer_until.is_some() && self.receive_buffer.readable() == 0 && !self.receive_buffer.is_finished()
    }
}
