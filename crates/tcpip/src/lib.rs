//! TCP, UDP, ARP, neighbour discovery and ICMP over IPv4 and IPv6, sans-I/O: frames and time in, frames and deadlines out.
//!
//! A [`Stack`] is one shard's protocol state: neighbours, listeners, connections, UDP sockets, timers, counters. It does no
//! input or output, has no clock and no threads, and shares nothing with other shards. The caller has a queue of frames and
//! a clock, and goes round:
//!
//! 1. [`Stack::handle_frames`] with what came in, [`Stack::handle_timeout`] if the deadline has passed;
//! 2. [`Stack::poll_event`] until `None`, and whatever the application does about it: [`Stack::accept`], [`Stack::read`],
//!    [`Stack::write`], ...;
//! 3. [`Stack::poll_transmit_burst`] (or [`Stack::poll_transmit`]) until nothing comes;
//! 4. [`Stack::poll_timeout`] for when to come back at the latest.
//!
//! The order matters for efficiency only (a response that is written before step 3 carries the acknowledgement of its
//! request); calls that are early, late or for nothing do no harm. Time must not go backwards. No call takes longer than
//! its arguments say: frames and budgets are the caller's, and a call of `handle_timeout` takes a bounded number of steps.
//!
//! ```
//! use abey_tcpip::{Config, Frames, Instant, Settings, Stack};
//!
//! let host = |last: u8| {
//!     let settings = Settings {
//!         station: [2, 0, 0, 0, 0, last],
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
//! How TCP's policies fit together is in `tcp/connection.rs`. Not done, on purpose: reassembly of fragments, options of
//! IPv4, source routing, router advertisements (the gateway is configured), urgent data (treated as data, RFC 6093).

#![forbid(unsafe_code)]

mod config;
mod counters;
mod error;
mod event;
mod flow;
mod gro;
mod icmp;
mod limiter;
mod listener;
mod neighbor;
mod packet;
mod paths;
mod ring;
mod stack;
mod tcp;
mod time;
mod udp;
mod wheel;

pub use config::{
    Config, ConfigError, CongestionControl, Keepalive, MAXIMUM_MTU, MINIMUM_MTU, Offloads, Resolution, Settings,
};
pub use counters::Counters;
pub use error::{IoError, OpenError, SocketError};
pub use event::{Event, Readiness, SocketId};
pub use packet::{ChecksumToFill, FrameInfo};
pub use stack::{FrameSink, Frames, Holder, Local, Message, Shutdown, SocketInfo, SocketState, Stack, Transport};
pub use time::Instant;

#[cfg(test)]
mod tests {
    /// A shard moves between threads under its lock.
    #[test]
    fn a_stack_can_be_sent() {
        fn is_send<T: Send>() {}
        is_send::<crate::Stack>();
    }
}
