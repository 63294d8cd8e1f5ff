//! The user-space datapath: Abey's delivery core over its packet queues and its TCP/IP, with sockets and epoll.
//!
//! A [`Runtime`] has a NIC. Each of its queue pairs is a *shard*: the queue, a NAPI instance, and the TCP and UDP state of
//! the flows whose packets arrive there, under one lock. A socket lives in its shard
//! ([`TcpStream::incoming_napi_id`]); an [`Epoll`] holds sockets of any shards.
//!
//! *Who polls a shard* depends on the [mode](abey_delivery::Mode), as in the kernel:
//!
//! 1. a thread inside [`Epoll::wait`] busy polls it, if the epoll has busy-poll parameters;
//! 2. a thread that sleeps in a wait or in a blocking call has the shard's interrupt and timer in its own sleep, and does
//!    the softirq's work when it wakes: no second thread, no context switch;
//! 3. otherwise the shard's *service thread* (`napi/<device>-<id>`) takes interrupts and timers while the application
//!    computes, but for those that are masked or suspended; in `threaded` it polls, in `workqueue` it hands polls to a pool.
//!
//! How the three hand the shard to each other without waking anybody is told in `cover.rs`; how an interrupt that finds
//! the shard's lock busy is not lost, in `lock.rs`. Both files, and the one that puts threads to sleep (`parking.rs`), are
//! run under loom as they are. What everything cost is counted ([`Runtime::counters`]), system calls included: in
//! `suspendX` and `fullbusy` a busy server makes none for a request.
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
//! /// Serves until `connections` have come and gone.
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
//!                 // Short messages; a server that may not block keeps what does not fit, and asks for `Interest::OUT`.
//!                 Ok(count) if count > 0 => streams[&event.token].write_all(&buffer[..count])?,
//!                 Err(error) if error.is_would_block() => {}
//!                 // The end, or an error. Dropping a stream closes it and takes it out of the epoll.
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
//! Not done, on purpose: draining what a closed connection has not sent when the runtime is dropped (its peer is reset, as
//! by a process that died).

#![forbid(unsafe_code)]

mod clock;
pub mod control;
mod counters;
mod cover;
mod epoll;
mod error;
mod kernel;
mod lateness;
mod local;
mod lock;
mod outside;
mod parking;
mod pool;
#[cfg(test)]
mod replay;
mod runtime;
mod select;
mod service;
mod shard;
mod sleeper;
mod socket;
mod sync;
mod threads;
mod wait;

pub use abey_nic::LinkState;
pub use abey_record::{Answer, Call, Recorder, Transition, first_difference};
pub use abey_tcpip::{IoError, Keepalive, Message, OpenError as StackOpenError, Readiness, Shutdown, SocketError};
pub use counters::Counters;
pub use epoll::{Epoll, Event, Interest, Waker};
pub use error::{BuildError, EpollError, Error, OpenError, SetError, SystemError};
pub use kernel::{Neighbors, Route};
pub use outside::{Ended, Outside, ThreadWaker};
pub use runtime::{Builder, Census, Runtime};
pub use socket::{Source, TcpListener, TcpStream, UdpSocket};
