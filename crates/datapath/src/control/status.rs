//! The status of a runtime as a document.

use std::collections::BTreeMap;

use abey_delivery::{EpollBusyPoll, NapiSettings};
use serde::{Deserialize, Serialize};

/// The status of a datapath. Counters count since the runtime was built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The ID of the process, in its own PID namespace.
    pub pid: u32,
    /// The process's name.
    pub program: String,
    /// The version of Abey.
    pub abey: String,
    /// The name under which the NIC was opened.
    pub nic: String,
    /// The host's addresses with their prefixes.
    pub addresses: Vec<String>,
    /// The time since the runtime was built.
    pub uptime_ns: u64,
    /// The mode, if all settings are those of one mode.
    pub mode: Option<String>,
    /// The busy-poll parameters of new epolls; `null` disables busy polling.
    pub busy_poll: Option<EpollBusyPoll>,
    /// How long one wait of an epoll may block.
    pub max_wait_ns: Option<u64>,
    /// How long a blocking call busy polls its queue before it sleeps.
    pub socket_busy_poll_ns: Option<u64>,
    /// The shards, in the order of the queues.
    pub shards: Vec<Shard>,
    /// The sums of the TCP/IP stacks' counters.
    pub stack: BTreeMap<String, u64>,
    /// The epolls, those with sockets or waiting threads first; at most [`MAX_EPOLLS`].
    pub epolls: Vec<Epoll>,
    /// The number of epolls.
    pub epoll_count: usize,
    /// The runtime's own threads. The other threads of the process are the application's.
    pub threads: Vec<Thread>,
    /// The CPU time by the role of threads; empty in the answer of an earlier version of Abey.
    #[serde(default)]
    pub contexts: Vec<ContextCpu>,
    /// The CPU time of the whole process.
    pub process_cpu_ns: u64,
}

/// The most epolls in a status.
pub const MAX_EPOLLS: usize = 256;

/// The status of a shard: a queue pair, its NAPI instance and its sockets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// The instance's ID, which its sockets return (SO_INCOMING_NAPI_ID).
    pub napi: u32,
    /// The queue pair's index.
    pub queue: u32,
    /// The mode with the settings of this instance and of the runtime's epolls and sockets.
    pub mode: Option<String>,
    /// The instance's settings.
    pub settings: NapiSettings,
    /// Whether the interrupt is masked.
    pub masked: bool,
    /// The shard's counters ([`crate::Counters`]).
    pub counters: BTreeMap<String, u64>,
    /// Sockets, including those that the application has closed and that have not finished.
    pub sockets: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Sockets that an application holds.
    pub held: usize,
    /// The queue pair.
    pub nic: Queue,
    /// The error with which the device failed; `null` if it has not.
    pub failed: Option<String>,
}

/// A queue pair of the NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Whether the link is up.
    pub up: bool,
    /// The longest packet in bytes, without the Ethernet header.
    pub mtu: usize,
    /// Its counters ([`abey_nic::Counters`]), without those that this NIC does not have.
    pub counters: BTreeMap<String, u64>,
    /// The frames it dropped, by reason ([`abey_nic::Drops`]).
    pub drops: BTreeMap<String, u64>,
    /// A problem that the operator should correct.
    pub warning: Option<String>,
}

/// An epoll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoll {
    /// Its busy-poll parameters; `null` disables busy polling.
    pub busy_poll: Option<EpollBusyPoll>,
    /// The number of its sockets.
    pub sockets: usize,
    /// The NAPI instances of these sockets.
    pub napis: Vec<u32>,
    /// The number of threads that sleep in a wait.
    pub sleeping: usize,
}

/// A thread of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its ID.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The NAPI instance that it serves.
    pub napi: Option<u32>,
    /// Its CPU time; `null` if the kernel does not report it.
    pub cpu_ns: Option<u64>,
    /// The CPUs it may run on.
    pub cpus: Option<String>,
}

/// The CPU time of the threads of one role, without those that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextCpu {
    /// The role of the threads; `null` for those of the application.
    pub role: Option<Role>,
    /// The number of threads.
    pub threads: usize,
    /// Their CPU time.
    pub cpu_ns: u64,
    /// The part of it in the kernel, for system calls and for interrupts that hit the threads, in clock ticks of 10 ms.
    pub kernel_ns: u64,
}

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Hardirq, softirq, timers and threaded polls of one instance.
    Service,
    /// A worker of the pool.
    Worker,
    /// The control socket.
    Control,
    /// Requests to hand connections over.
    Handover,
    /// Neighbours and ports of a device that is shared with the kernel.
    Kernel,
}

impl Role {
    /// Returns the role's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Worker => "worker",
            Self::Control => "control",
            Self::Handover => "handover",
            Self::Kernel => "kernel",
        }
    }
}
