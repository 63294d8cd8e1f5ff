//! The user-space datapath: Abey's delivery core over its packet queues and its TCP/IP, with sockets and epoll.
#![forbid(unsafe_code)]

mod clock;
mod counters;
mod cover;
mod epoll;
mod error;
mod local;
mod lock;
mod parking;
mod pool;
mod record;
mod runtime;
mod service;
mod shard;
mod sleeper;
mod socket;
mod sync;
mod wait;

pub use abey_tcpip::{IoError, Keepalive, Readiness, Shutdown, SocketError};
pub use counters::Counters;
pub use epoll::{Epoll, Event, Interest};
pub use error::{BuildError, EpollError, Error, OpenError, SetError, SystemError};
pub use record::{Answer, Call, Recorder, Transition, first_difference};
pub use runtime::{Builder, Census, Runtime};
pub use socket::{Source, TcpListener, TcpStream, UdpSocket};
