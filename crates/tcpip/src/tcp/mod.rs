//! TCP (RFC 9293). [`connection`] describes how the policies fit together.

pub(crate) mod ack;
pub(crate) mod acknowledge;
mod audit;
pub(crate) mod congestion;
pub(crate) mod connection;
pub(crate) mod cookies;
pub(crate) mod cubic;
pub(crate) mod ecn;
pub(crate) mod handshake;
pub(crate) mod isn;
pub(crate) mod keepalive;
pub(crate) mod newreno;
pub(crate) mod options;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod receive;
pub(crate) mod receive_buffer;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod segment;
pub(crate) mod send;
pub(crate) mod send_buffer;
pub(crate) mod seq;
pub(crate) mod time_wait;
pub(crate) mod timeout;
pub(crate) mod timer;
pub(crate) mod undo;
