//! The control socket of a running datapath, through which `abey status`, `abey set` and other programs reach it.
//!
//! A runtime that [serves](crate::Runtime::serve_control) one has a unix-domain stream socket `PID-N.sock` in its user's
//! directory ([`own_directory`]). There is no daemon: a client lists the directory ([`find()`]), and removes the sockets of
//! processes that were killed. Only the same user and root may connect. Both ends check that (SO_PEERCRED, `unix(7)`), in
//! addition to the permissions of the directory (0700) and the socket (0600). A process that has dropped its privileges has
//! no such directory; its parent can [lend] it a socket (`PID-N.lent.sock`).
//!
//! *Protocol, version 1.* A request is one line of JSON of at most [`MAX_REQUEST`] bytes, and so is its answer, of at most
//! [`MAX_ANSWER`] bytes. A client may send any number of requests, each after the answer to the one before:
//!
//! ```text
//! {"version":1,"request":"status"}
//! {"version":1,"answer":{"status":{"pid":4711,"nic":"memory:kv","mode":"suspend20","shards":[...],...}}}
//!
//! {"version":1,"request":{"sockets":{"most":100}}}
//! {"version":1,"answer":{"sockets":[{"napi":3,"queue":0,"sockets":[{"transport":"tcp","state":"listen",...}],"more":0}]}}
//!
//! {"version":1,"request":{"latency":{"watch_ns":2000000000}}}
//! {"version":1,"answer":{"latency":[{"napi":3,"queue":0,"requests":812,"answered":[[20479,3],[20991,7]]}]}}
//!
//! {"version":1,"request":{"set":{"napis":[3],"gro_flush_timeout_ns":50000}}}
//! {"version":1,"answer":{"changes":[{"napi":3,"setting":"gro-flush-timeout","before":"20us","after":"50us"}]}}
//!
//! {"version":1,"request":{"set":{"napis":[9]}}}
//! {"version":1,"answer":{"refused":{"kind":"impossible","message":"..."}}}
//! ```
//!
//! The types document the keys: [`Request`], [`Change`], [`Status`]. Times are in nanoseconds. A request with an unknown key
//! is refused rather than obeyed in part. Later versions of Abey may add keys to answers.
//!
//! *The cost of clients.* The socket has one thread, which sleeps without a timeout while there are no requests, and answers
//! no request of a client that has not read the last answer. At most [`MAX_CLIENTS`] are connected; one more replaces the
//! client that has been idle for longest, one without a valid request first. A client that sends an invalid request receives an error and is disconnected. Each
//! shard's lock is held while its counters or some of its sockets are copied, one shard after the other.
//!
//! Settings that are changed in this way last as long as the process, and are stored nowhere.

mod change;
mod client;
mod cpu;
mod directory;
mod error;
mod latency;
mod protocol;
mod search;
mod server;
mod sockets;
mod status;
mod view;

pub use client::Client;
pub use directory::{DIRECTORY_VARIABLE, Lent, lend, own_directory};
pub use error::ControlError;
pub use latency::{Latencies, LatencyPage, MAX_LATENCY_WATCH};
pub use protocol::{
    Answer, Change, MAX_ANSWER, MAX_REQUEST, Query, Refusal, RefusalKind, Reply, Request, SettingChange, VERSION,
};
pub use search::{Unreachable, describe, find, find_in, statuses};
pub use server::{MAX_CLIENTS, Server};
pub use sockets::{MAX_SOCKETS, Socket, SocketPage};
pub use status::{ContextCpu, Epoll, MAX_EPOLLS, Queue, Role, Shard, Status, Thread};
