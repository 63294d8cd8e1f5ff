//! Sockets: TCP streams, listeners and UDP sockets.
//!
//! A TCP stream lives in the shard where its packets arrive. A listener or a UDP socket belongs to no flow, and has a part
//! in each of several shards.

mod connect;
mod handle;
mod listener;
mod stream;
mod udp;

pub use listener::TcpListener;
pub use stream::TcpStream;
pub use udp::UdpSocket;
