//! The control socket: how `abey status`, `abey set` and others reach a running datapath.
//!
//! A runtime that [serves](crate::Runtime::serve_control) one has a unix-domain stream socket `PID-N.sock` in its user's
//! directory ([`own_directory`]). There is no daemon: who wants to know which datapaths there are looks into the directory
//! ([`find()`]), and removes what processes left there that were killed. Only the same user and root may talk, which both
//! ends check (SO_PEERCRED, `unix(7)`) beside the permissions of directory (0700) and socket (0600). A process that has
//! dropped its privileges has no such directory; who started it can [lend] it a socket (`PID-N.lent.sock`).
//!
//! *Protocol, version 1.* A request is one line of JSON of at most [`MAX_REQUEST`] bytes, and so is its answer, of at most
//! [`MAX_ANSWER`] bytes; a client waits for the answer before it asks again, as often as it likes:
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
//! What the keys mean is with the types: [`Request`], [`Change`], [`Status`]. Times are in nanoseconds. A request with a key
//! that is not known is refused, so that nothing is passed over that somebody meant; an answer may get more keys in time.
//!
//! *What clients can do to a runtime.* The socket has one thread, which sleeps without a time limit while nobody asks, and
//! makes no answer to somebody who has not taken the last one. At most [`MAX_CLIENTS`] are connected; one more takes the
//! place of the one that has been silent for longest. Who sends what is no request is told so and disconnected. Each shard's
//! lock is held for the copying of its counters, or of some sockets, one shard after the other.
//!
//! What is set this way ends with the process, and is written down nowhere.

mod change;
mod client;
mod cpu;
mod latency;
mod place;
mod protocol;
mod server;
mod settings;
mod sockets;
mod status;
mod view;

use std::io;
use std::path::PathBuf;

pub use client::{Client, Unreachable, find, find_in};
pub use cpu::ContextCpu;
pub use latency::{LONGEST_WATCH, Latencies, LatencyPage};
pub use place::{DIRECTORY_VARIABLE, Lent, lend, own_directory};
pub use protocol::{Answer, Change, Refusal, RefusalKind, Reply, Request, SettingChange, VERSION, Wanted};
pub use server::{MAX_CLIENTS, Server};
pub use settings::{BusyPoll, HoldFor, Napi, Settings, Threaded};
pub use sockets::{MOST_SOCKETS, Socket, SocketPage};
pub use status::{Epoll, MOST_EPOLLS, Queue, Role, Shard, Status, Thread};

pub(crate) use change::Waits;

/// Longest request, in bytes, with the end of its line.
pub const MAX_REQUEST: usize = 64 << 10;
/// Longest answer, in bytes, with the end of its line.
pub const MAX_ANSWER: usize = 16 << 20;

/// Why a control socket is not served or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No directory for sockets.
    #[error(
        "this user has no runtime directory for control sockets: set XDG_RUNTIME_DIR to a directory that is yours alone"
    )]
    NoDirectory,
    /// A directory in which others could put something.
    #[error(
        "control sockets cannot be in {path}: {problem}; remove it, or set {DIRECTORY_VARIABLE} to a directory of your own"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The process is there and says nothing.
    #[error("process {pid} does not answer at its control socket: is it stopped?")]
    Silent {
        /// The process.
        pid: u32,
    },
    /// The process ended, or disconnected us.
    #[error("process {pid} has closed its control socket: try again if it still runs")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The other end is somebody else's.
    #[error("the control socket {path} is held by user {user}: run as that user or as root")]
    OtherUser {
        /// The socket.
        path: PathBuf,
        /// Who is there.
        user: u32,
    },
    /// What came back is no answer.
    #[error(
        "process {pid} does not answer in version {VERSION} of the control protocol ({said}): use the abey it was built with"
    )]
    Foreign {
        /// The process.
        pid: u32,
        /// What is wrong with the answer.
        said: String,
    },
    /// What was asked for was not done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The system refused something.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
