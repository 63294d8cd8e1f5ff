//! The user-space datapath: Abey's delivery core over its packet queues and its TCP/IP, with sockets and epoll.
//!
//! A [`Runtime`] has a NIC. Each of its queue pairs is a *shard*: the queue, a NAPI instance, and the TCP and UDP state of
//! the flows whose packets arrive there, under one lock. A socket lives in its shard
//! ([`TcpStream::incoming_napi_id`]); an [`Epoll`] holds sockets of any shards.
//!
//! *Which thread polls a shard* depends on the [mode](abey_delivery::Mode), as in the kernel:
//!
//! 1. a thread inside [`Epoll::wait`] busy polls it, if the epoll has busy-poll parameters;
//! 2. a thread that sleeps in a wait or in a blocking call also sleeps on the shard's interrupt and timer, and runs the
//!    softirq when it wakes: no second thread, no context switch;
//! 3. otherwise the shard's *service thread* (`napi/<device>-<id>`) handles interrupts and timers that are not masked or
//!    suspended, while the application computes. In `threaded` it polls, in `workqueue` it hands polls to a pool.
//!
//! [`abey_delivery::handoff`] explains how the three hand the shard to each other without a wake-up. `lock.rs` explains why
//! an interrupt that finds the shard's lock busy is not lost. Both, and `park_state.rs`, which parks threads, are tested
//! under loom. The costs are counted ([`Runtime::counters`]), including system calls: in `suspendX` and `fullbusy` a busy
//! server makes none for a request.
//!
//! Layers, from the bottom: `lock`, `parker`, `clock`, `environment`; `shard`; `kernel`; `host`; `wait`; `epoll`; `runtime`
//! and `control`; `socket`. A shard notifies the layers above it through the trait `shard::Notify`.
//!
//! An echo server, and a client, over two ends of a shared-memory NIC:
//!
//! ```
//! use std::collections::HashMap;
//!
//! use abey_datapath::{Interest, Runtime, TcpListener, TcpStream};
//! use abey_nic::rss::{Rss, SYMMETRIC_KEY};
//! use abey_nic::{MemoryQueue, MemoryShape, QueuePair};
//!
//! /// A host with the address 10.0.0.`last`. With a NIC of its own name: `.nic("memory:x", Default::default())`.
//! fn host(last: u8, queues: Vec<MemoryQueue>, mode: &str) -> Result<Runtime, Box<dyn std::error::Error>> {
//!     let rss = Rss::new(SYMMETRIC_KEY, queues.len() as u32);
//!     let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
//!     let builder = Runtime::builder().queues("memory", [2, 0, 0, 0, 0, last], queues, Some(rss));
//!     Ok(builder.address([10, 0, 0, last].into(), 24).mode(mode.parse()?).build()?)
//! }
//!
//! /// Serves until `connections` connections have been accepted and closed.
//! fn serve(listener: &TcpListener, runtime: &Runtime, connections: u64) -> Result<(), Box<dyn std::error::Error>> {
//!     const LISTENER: u64 = u64::MAX;
//!     let epoll = runtime.epoll();
//!     listener.set_nonblocking(true);
//!     epoll.add(listener, LISTENER, Interest::IN)?;
//!     let (mut streams, mut events, mut accepted) = (HashMap::<u64, TcpStream>::new(), Vec::new(), 0);
//!     while accepted < connections || !streams.is_empty() {
//!         epoll.wait(&mut events, 64, None)?;
//!         for event in &events {
//!             if event.token == LISTENER {
//!                 while let Ok((stream, _peer)) = listener.accept() {
//!                     epoll.add(&stream, accepted, Interest::IN | Interest::RDHUP)?;
//!                     streams.insert(accepted, stream);
//!                     accepted += 1;
//!                 }
//!                 continue;
//!             }
//!             let mut buffer = [0; 4096];
//!             match streams[&event.token].read(&mut buffer) {
//!                 // Short messages. A server that must not block keeps the rest of a long one, and adds `Interest::OUT`.
//!                 Ok(count) if count > 0 => streams[&event.token].write_all(&buffer[..count])?,
//!                 Err(error) if error.is_would_block() => {}
//!                 // The end, or an error. Dropping a stream closes it and removes it from the epoll.
//!                 _ => drop(streams.remove(&event.token)),
//!             }
//!         }
//!     }
//!     Ok(())
//! }
//!
//! let (left, right) = abey_nic::pair(MemoryShape::default())?;
//! let (client, server) = (host(1, left, "base")?, host(2, right, "suspend20")?);
//! let listener = TcpListener::bind(&server, "10.0.0.2:7".parse()?)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| serve(&listener, &server, 1).expect("served"));
//!     let stream = TcpStream::connect(&client, "10.0.0.2:7".parse()?)?;
//!     stream.write_all(b"hello")?;
//!     let mut answer = [0; 5];
//!     stream.read_exact(&mut answer)?;
//!     assert_eq!(&answer, b"hello");
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! assert!(server.counters(None).suspensions > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Data that a closed connection has not sent is lost when the runtime is dropped. The peer is reset, as by a process that
//! was killed.

#![forbid(unsafe_code)]

mod app_thread;
mod clock;
pub mod control;
mod counters;
mod environment;
mod epoll;
mod error;
pub mod handover;
mod host;
mod kernel;
mod kernel_wait;
mod lock;
mod park_state;
mod parker;
#[cfg(test)]
mod replay;
mod runtime;
mod service;
mod shard;
mod socket;
mod source;
mod sync;
mod threads;
mod wait;
mod work_queue;
mod worker;

pub use abey_delivery::record::{Answer, Call, Recorder, Transition, first_difference};
pub use abey_nic::LinkState;
pub use abey_tcpip::{
    CongestionControl, IoError, Keepalive, LocalEndpoint, Message, OpenError as StackOpenError, Overflow, Readiness,
    Sharing, Shutdown, SocketError, SocketState, TcpInfo, TcpOptions,
};
pub use counters::Counters;
pub use epoll::{Epoll, Event, Interest, Waker};
pub use error::{BuildError, EpollError, Error, OpenError, SetError, SystemError};
pub use kernel::{HostAddresses, Neighbors, Route};
pub use kernel_wait::{KernelWait, ThreadWaker, WaitOutcome};
pub use runtime::{Builder, Runtime};
pub use shard::Census;
pub use socket::{TcpListener, TcpStream, UdpSocket};
pub use source::Source;
