//! A status as a document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cpu::ContextCpu;
use super::settings::{BusyPoll, Napi};

/// Everything about a datapath. Counters count since the runtime was built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process, as it sees itself.
    pub pid: u32,
    /// The process's name.
    pub program: String,
    /// The version of Abey it runs.
    pub abey: String,
    /// The NIC, as it was named when it was opened.
    pub nic: String,
    /// The host's addresses with their prefixes.
    pub addresses: Vec<String>,
    /// For how long the runtime has been there.
    pub uptime_ns: u64,
    /// The mode, if every setting is that mode's.
    pub mode: Option<String>,
    /// For epolls to come; `null` never busy polls.
    pub busy_poll: Option<BusyPoll>,
    /// The longest that one wait of an epoll may block.
    pub max_wait_ns: Option<u64>,
    /// How long a blocking call polls its own queue before it sleeps.
    pub socket_busy_poll_ns: Option<u64>,
    /// The shards, in the order of the queues.
    pub shards: Vec<Shard>,
    /// What the TCP/IP stacks counted, together.
    pub stack: BTreeMap<String, u64>,
    /// The epolls that have sockets or waiting threads first, at most [`MOST_EPOLLS`].
    pub epolls: Vec<Epoll>,
    /// How many epolls there are.
    pub epoll_count: usize,
    /// The runtime's own threads. The application's are what is left of the process.
    pub threads: Vec<Thread>,
    /// CPU time by what threads are for; empty in an answer of an Abey that could not tell.
    #[serde(default)]
    pub contexts: Vec<ContextCpu>,
    /// CPU time of the whole process.
    pub process_cpu_ns: u64,
}

/// Most epolls that a status lists.
pub const MOST_EPOLLS: usize = 256;

/// One shard: a queue pair, its NAPI instance and the sockets there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// The instance's ID, as its sockets have it (SO_INCOMING_NAPI_ID).
    pub napi: u32,
    /// The queue pair's number.
    pub queue: u32,
    /// The mode that has the settings of this instance, and the runtime's others.
    pub mode: Option<String>,
    /// The instance's settings.
    pub settings: Napi,
    /// Whether the interrupt is masked at the moment.
    pub masked: bool,
    /// What the shard counted ([`crate::Counters`]).
    pub counters: BTreeMap<String, u64>,
    /// Sockets, those included that finish without their application.
    pub sockets: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Sockets that an application holds.
    pub held: usize,
    /// The queue pair.
    pub nic: Queue,
    /// Why nothing works any more, where that is so.
    pub failed: Option<String>,
}

/// A queue pair of the NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Whether anybody is at the other end.
    pub up: bool,
    /// Longest packet, without the Ethernet header.
    pub mtu: usize,
    /// What it counted ([`abey_nic::Counters`]); a counter that this NIC does not have is left out.
    pub counters: BTreeMap<String, u64>,
    /// Frames it dropped, by reason ([`abey_nic::Drops`]).
    pub drops: BTreeMap<String, u64>,
    /// What the operator should put right.
    pub warning: Option<String>,
}

/// An epoll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoll {
    /// Its busy-poll parameters; `null` never busy polls.
    pub busy_poll: Option<BusyPoll>,
    /// How many sockets it has.
    pub sockets: usize,
    /// The instances that these are on.
    pub napis: Vec<u32>,
    /// Threads that sleep in a wait.
    pub sleeping: usize,
}

/// A thread of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its ID.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// The instance it belongs to.
    pub napi: Option<u32>,
    /// Its CPU time; `null` where the kernel does not say.
    pub cpu_ns: Option<u64>,
    /// The CPUs it may run on.
    pub cpus: Option<String>,
}

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Hardirq, softirq, timers and threaded polls of one instance.
    Service,
    /// A worker of the pool.
    Worker,
    /// The control socket.
    Control,
    /// Neighbours and ports of a device that is shared with the kernel.
    Kernel,
}

impl Role {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Worker => "worker",
            Self::Control => "control",
            Self::Kernel => "kernel",
        }
    }
}
