//! This process's runtime: built by the first socket that needs it, and not there in children.
//!
//! # Several processes
//!
//! A server may have forked before its sockets are used, or after, and may have changed its user between. What counts is
//! where a socket is *used*: the first call that needs the datapath builds the runtime of its process, from queue pairs
//! that `abey run`'s broker gives it ([`claim`]). So a master that binds, listens, forks workers and never
//! accepts has no runtime, and each of its workers has one of its own, which needs no privilege. Which worker gets a
//! connection is the NIC's to say, as with one `SO_REUSEPORT` listener for each queue: the one that has the queue on which
//! the connection's first segment arrives. What arrives on a queue that no process has goes to the kernel, where the
//! program's own listening socket takes it. A process that gets no queue is the kernel's, and says so in one line.
//!
//! Nothing is handed from one process to another. A connection that a process makes itself needs its answers on one of its
//! own queues, and where it cannot be known on which queue they arrive (AF_XDP) a process that has only some of the queues
//! connects through the kernel.
//!
//! A worker that stops listening (a server that reads its configuration again) leaves new connections to the kernel from
//! then on, where the program's socket still listens, and keeps those that it has. What was not accepted at that moment is
//! reset, as with one `SO_REUSEPORT` listener for each worker; on one kernel socket that workers share it would not be.
//! The worker's successor waits for the queues, a few seconds at most.
//!
//! Without a broker (`ABEY_DATAPATH` was set by hand) the process opens the NIC itself, and it is the only one that can.
//!
//! # Children
//!
//! * *`fork` after the runtime was built.* Threads do not survive it, so the child has no runtime, and its numbers are the
//!   kernel's: it may close what it likes, and its parent's connections live on. It has copies of the runtime's
//!   descriptors, which are closed at once: a queue is free when the process that had it ends, whoever it has forked. A
//!   child that uses a socket of its parent's is told so in one line, and stopped where `ABEY_STRICT` asks for it.
//! * *`vfork`, `posix_spawn`.* The child shares the table with its parent until it executes something else. Closing a
//!   number takes nothing from the table in another process than the runtime's.
//! * *`exec`.* All descriptors of the runtime are close-on-exec. The environment is inherited, so the new program may claim
//!   queues of its own.
//!
//! # What is not done yet
//!
//! A listening socket that a program inherits by `exec` or is sent (socket activation, haproxy's reload) is not known to be
//! one: it is the kernel's. A process that has forbidden itself further threads (`RLIMIT_NPROC`, which haproxy's worker
//! sets to 0 unless `insecure-fork-wanted` is configured or it is root) cannot have a runtime, and says so.
//!
//! A process that calls `chroot` or changes its user before its first socket is used loses nothing. One that enters
//! another network namespace has left the NIC behind, and is told that the broker cannot be reached.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abey_datapath::{Builder, Runtime};
use abey_linux::library::DatapathConfig;

use super::{claim, descriptors, inside, table};
use crate::report::Topic;
use crate::state;

pub(super) static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();

/// This process was forked from one that has the runtime.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The process that the library was loaded into; its children by `fork` inherit the number.
static LOADED_IN: AtomicU32 = AtomicU32::new(0);

/// To be called while the process is young.
pub(crate) fn prepare() {
    LOADED_IN.store(std::process::id(), Ordering::Relaxed);
}

/// Whether this process was forked from one that has run this program.
pub(super) fn is_forked() -> bool {
    LOADED_IN.load(Ordering::Relaxed) != std::process::id()
}

/// Whether this process was forked from one that has the runtime.
pub(super) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// A child uses a socket of its parent's.
#[cold]
pub(super) fn say_orphaned() {
    state::failed(
        Topic::Datapath,
        &"a process forked from one that uses the datapath has no part in its sockets, which are the kernel's there",
    );
}

/// The runtime, built at the first call; `None`, said once, if it cannot be.
pub(super) fn runtime(config: &DatapathConfig) -> Option<&'static Runtime> {
    let built = RUNTIME.get_or_init(|| {
        let built = inside(|| without_signals(|| descriptors::out_of_the_way(|| build(config))));
        match built {
            Ok(runtime) => {
                // SAFETY: the handler takes no arguments, and makes nothing but system calls and stores.
                unsafe { libc::pthread_atfork(None, None, Some(forked)) };
                Some(runtime)
            }
            Err(why) => {
                // What `abey run` says need not be said twice.
                if !why.is_said || state::get().strict {
                    state::failed(Topic::Datapath, &why.text);
                }
                None
            }
        }
    });
    built.as_ref()
}

/// Why there is no runtime, in one sentence.
pub(super) struct NoRuntime {
    pub(super) text: String,
    /// Somebody else has said so.
    pub(super) is_said: bool,
}

fn build(config: &DatapathConfig) -> Result<Runtime, NoRuntime> {
    let mut options = abey_nic::Options::default();
    // A server's end; whoever loads it attaches.
    options.end = abey_nic::MemoryEnd::Create;
    if let Some(queues) = config.queues {
        options.memory.queues = queues;
        options.tap_queues = queues;
        options.xdp.queues = Some(queues);
    }
    let mut builder = match &config.broker {
        Some(broker) => {
            let nic = claim::open(&config.nic, broker, &options)?;
            // Threads are pinned by queue, and this process may have some of them only.
            let cpus = if nic.is_part() { Vec::new() } else { config.cpus.clone() };
            Runtime::builder().opened(nic).pin(cpus)
        }
        None => Runtime::builder().nic(&config.nic, options).pin(config.cpus.clone()),
    };
    builder = addressed(builder.mode(config.mode), config);
    let unused = |error| claim::complain(format!("{error}; {} stays unused", config.nic));
    let runtime = builder.build().map_err(unused)?;
    // Where `abey status` reaches it: it stays until the process ends. Without a place for it the program runs all the same.
    let control = match (claim::lent_control(), &state::get().control_directory) {
        (Some(listener), _) => runtime.serve_control_at(listener).ok(),
        (None, Some(directory)) => runtime.serve_control_in(directory).ok(),
        (None, None) => runtime.serve_control().ok(),
    };
    std::mem::forget(control);
    Ok(runtime)
}

fn addressed(mut builder: Builder, config: &DatapathConfig) -> Builder {
    // Under AF_XDP the runtime asks the kernel, which also knows the routers.
    if !config.nic.starts_with("af_xdp:") {
        for (address, prefix) in &config.addresses {
            builder = builder.address(*address, *prefix);
        }
    }
    for gateway in &config.gateways {
        builder = match gateway {
            IpAddr::V4(v4) => builder.gateway_v4(*v4),
            IpAddr::V6(v6) => builder.gateway_v6(*v6),
        };
    }
    builder
}

/// Threads inherit the mask of the thread that starts them.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let before = crate::wait::block_signals();
    let result = work();
    crate::wait::restore_signals(&before);
    result
}

extern "C" fn forked() {
    IS_CHILD.store(true, Ordering::Relaxed);
    table::close_all();
    descriptors::close_all();
}
