//! TCP, UDP, ARP, neighbour discovery and ICMP over IPv4 and IPv6, sans-I/O.
//!
//! A [`Stack`] is the protocol state of one shard: neighbours, listeners, connections, UDP sockets, timers and
//! counters. It does no input or output, reads no clock, starts no thread and shares nothing with other shards. The
//! caller owns a queue of frames and a clock, and repeats four steps:
//!
//! 1. [`Stack::handle_frames`] with the received frames, and [`Stack::handle_timeout`] if the deadline has passed;
//! 2. [`Stack::poll_event`] until it returns `None`, and what the application does in response: [`Stack::accept`],
//!    [`Stack::read`], [`Stack::write`], ...;
//! 3. [`Stack::poll_transmit_burst`] (or [`Stack::poll_transmit`]) until there are no more frames;
//! 4. [`Stack::poll_timeout`] for the next deadline.
//!
//! The order affects efficiency only: a response written before step 3 carries the acknowledgement of its request. An
//! early or redundant call is harmless. Time must not go backwards. The cost of a call is bounded by its arguments:
//! the caller chooses how many frames and which budget it passes, and `handle_timeout` takes a bounded number of
//! steps.
//!
//! ```
//! use abey_tcpip::{Config, Frames, Instant, Settings, Stack};
//!
//! let host = |last: u8| {
//!     let settings = Settings {
//!         mac: [2, 0, 0, 0, 0, last],
//!         addresses: vec![([10, 0, 0, last].into(), 24)],
//!         ..Settings::default()
//!     };
//!     Ok::<_, abey_tcpip::ConfigError>(Stack::new(Config::new(settings)?, last.into()))
//! };
//! let (mut client, mut server) = (host(1)?, host(2)?);
//! let listener = server.listen("0.0.0.0:80".parse()?, 16)?;
//! let now = Instant(0);
//! let stream = client.connect(now, "10.0.0.2:80".parse()?)?;
//!
//! // A wire without delay: ARP, then the handshake.
//! for _ in 0..4 {
//!     for (from, to) in [(0, 1), (1, 0)] {
//!         let hosts = [&mut client, &mut server];
//!         let mut wire = Frames::default();
//!         let [a, b] = hosts;
//!         let (sender, receiver) = if (from, to) == (0, 1) { (a, b) } else { (b, a) };
//!         sender.poll_transmit_burst(now, &mut wire, 64);
//!         receiver.handle_frames(now, wire.frames.iter().map(Vec::as_slice));
//!     }
//! }
//! assert!(client.is_connected(stream));
//! let accepted = server.accept(listener)?;
//! assert_eq!(client.write(stream, b"hello")?, 5);
//! # let mut wire = Frames::default();
//! # client.poll_transmit_burst(now, &mut wire, 64);
//! # server.handle_frames(now, wire.frames.iter().map(Vec::as_slice));
//! let mut buffer = [0; 16];
//! assert_eq!(server.read(accepted, &mut buffer)?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `tcp/connection.rs` describes how TCP's policies fit together. Not implemented on purpose: fragments of
//! anything but UDP, IPv4 options, source routing, router advertisements (the gateway is configured), and urgent data
//! (handled as ordinary data, RFC 6093).

#![forbid(unsafe_code)]

mod checksum;
mod config;
mod counters;
mod datagram_table;
mod demux;
mod ecn;
mod error;
mod event;
mod flow;
mod fragment;
mod gro;
mod icmp;
mod limiter;
mod listener;
mod neighbor;
mod packet;
mod path_mtu;
mod reassembly;
mod ring;
mod stack;
mod tcp;
mod tcp_options;
mod time;
mod udp;
mod wheel;

pub use config::{
    Config, ConfigError, CongestionControl, EcnMode, Keepalive, MAXIMUM_MTU, MINIMUM_MTU, Offloads, Resolution,
    Settings,
};
pub use counters::Counters;
pub use datagram_table::Sharing;
pub use error::{ExportError, IoError, OpenError, SocketError};
pub use event::{Event, Readiness, SocketId};
pub use packet::{ChecksumToFill, FrameInfo};
pub use stack::{
    ExportedConnection, ExportedTimestamps, FrameSink, Frames, Holder, LocalEndpoint, Message, Overdue, Overflow,
    PassedSyn, ReceiveSide, SendEnd, SendSide, Shutdown, SocketInfo, SocketState, Stack, TcpInfo, Transport,
    UnacceptedConnection, datagram_frame, is_segment_of,
};
pub use tcp_options::TcpOptions;
pub use time::Instant;

#[cfg(test)]
mod tests {
    /// A shard, with its stack, moves between threads.
    #[test]
    fn a_stack_can_be_sent() {
        fn is_send<T: Send>() {}
        is_send::<crate::Stack>();
    }
}
