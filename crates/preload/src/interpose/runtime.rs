//! The process's runtime, which the first call that needs it builds.
//!
//! # Several processes
//!
//! A server may fork, and change its user, before or after it makes its sockets. What counts is where a socket is *used*:
//! the first such call builds a runtime in its process, with queue pairs that `abey run`'s broker gives it
//! ([`nic_claim`]). So a master process that binds, listens, forks workers and never accepts has no runtime. Each of its
//! workers has its own, which needs no privilege. The NIC decides which worker gets a connection, as with one
//! SO_REUSEPORT listener per queue: the one with the queue on which the first segment arrives. Packets on a queue without
//! a process go to the kernel, where the program's listening socket accepts. A process that gets no queue uses the kernel,
//! and prints one line.
//!
//! A connection that another process needs moves to the kernel, which all processes share ([`handover`](super::handover)). A
//! process that is busy or ends leaves what it has not accepted to the others ([`accept_credit`](super::accept_credit)). The
//! packets of a connection that a process makes must arrive on one of its own queues. Under AF_XDP the queue cannot be predicted, so a process with only some of the queues connects through
//! the kernel.
//!
//! A worker that stops listening (a server that reloads its configuration) keeps its connections, and the kernel gets new
//! ones, for which the program's socket still listens. Connections that were not accepted by then go there, too. The worker's
//! successor waits for the queues, a few seconds at most.
//!
//! Without a broker (`ABEY_DATAPATH` was set by hand) the process opens the NIC itself, and is the only one that can.
//!
//! # Children
//!
//! * *`fork(2)` after the runtime was built.* The runtime's threads do not exist in the child, so it has no runtime, and all
//!   its descriptors are the kernel's. It may close any of them; its parent's connections stay open. Its copies of the
//!   runtime's descriptors are closed at once, so that a queue is free when the process that claimed it ends. What it
//!   uses of its parent's moves to the kernel ([`handover`](super::handover)). A UDP socket whose port the kernel cannot have
//!   (another kind of NIC, several sockets on it) stays the parent's: a child that uses it prints one line, and is stopped
//!   if `ABEY_STRICT=1`.
//! * *`vfork(2)`, `posix_spawn(3)`.* The child shares the descriptor table's memory until it calls `exec`. Closing a
//!   descriptor changes the table only in the process that owns it.
//! * *`exec`.* All descriptors of the runtime are close-on-exec. The environment is inherited, so the new program may claim
//!   queues of its own.
//!
//! # Limits
//!
//! A listening socket that a program inherits by `exec` or receives (socket activation, haproxy's reload) is not
//! recognised; the kernel has it. A process that has forbidden itself threads cannot have a runtime, and prints one line
//! (`RLIMIT_NPROC`, which haproxy's worker sets to 0 unless it is root or `insecure-fork-wanted` is configured).
//!
//! A process may call `chroot(2)` or change its user before its first socket is used. A process that has entered another
//! network namespace cannot reach the broker, and prints so.

use std::net::IpAddr;
use std::sync::{Mutex, OnceLock, PoisonError};

use abey_datapath::{Builder, Runtime, control};
use abey_linux::library::DatapathConfig;

use super::context::{is_af_xdp, uninterposed};
use super::nic_claim::{self, RuntimeError};
use super::{exec, inherited, lifeline, process, runtime_fds};
use crate::config;
use crate::report::Topic;

pub(super) static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();

/// Serves the control socket until the process ends.
static CONTROL: Mutex<Option<control::Server>> = Mutex::new(None);

/// Returns the runtime, built by the first call. Returns `None` if it cannot be built, which is reported once.
pub(super) fn runtime(config: &DatapathConfig) -> Option<&'static Runtime> {
    let built = RUNTIME.get_or_init(|| {
        let built = uninterposed(|| with_signals_blocked(|| runtime_fds::above_floor(|| build(config))));
        match built {
            Ok(runtime) => {
                // SAFETY: the handlers take no arguments. That of the child only stores words and makes system calls.
                unsafe {
                    libc::pthread_atfork(
                        Some(lifeline::before_fork),
                        Some(lifeline::after_fork_in_parent),
                        Some(after_fork_in_child),
                    );
                    libc::atexit(exec::before_exit);
                }
                Some(runtime)
            }
            Err(why) => {
                // `abey run` may have printed the error already.
                if !why.is_reported || config::get().strict {
                    config::failed(Topic::Datapath, &why.message);
                }
                None
            }
        }
    });
    built.as_ref()
}

/// Returns whether this process has built a runtime.
pub(super) fn is_built() -> bool {
    matches!(RUNTIME.get(), Some(Some(_)))
}

/// Ends the runtime's threads and returns its queues. Its sockets must be the kernel's.
pub(super) fn stop() {
    if let Some(Some(runtime)) = RUNTIME.get() {
        uninterposed(|| {
            drop(CONTROL.lock().unwrap_or_else(PoisonError::into_inner).take());
            inherited::stop_serving();
            runtime.stop();
        });
    }
}

fn build(config: &DatapathConfig) -> Result<Runtime, RuntimeError> {
    let mut options = abey_nic::Options::default();
    // The server creates the shared memory; the load generator attaches to it.
    options.end = abey_nic::MemoryEnd::Create;
    if let Some(queues) = config.queues {
        options.memory.queues = queues;
        options.tap_queues = queues;
        options.xdp.queues = Some(queues);
    }
    let mut builder = match &config.broker {
        Some(broker) => {
            let nic = nic_claim::open(&config.nic, broker, &options)?;
            // The list of CPUs is by queue of the whole NIC, and this process may have some of the queues only.
            let cpus = if nic.is_part() { Vec::new() } else { config.cpus.clone() };
            Runtime::builder().opened(nic).pin(cpus)
        }
        None => Runtime::builder().nic(&config.nic, options).pin(config.cpus.clone()),
    };
    builder = with_addresses(builder.mode(config.mode), config);
    let unused = |error| nic_claim::report_to_broker(format!("{error}; this process does not use {}", config.nic));
    let runtime = builder.build().map_err(unused)?;
    inherited::serve(&runtime);
    // The control socket, at which `abey status` reaches the runtime, stays until the process ends. It is optional.
    let control = match (nic_claim::take_control_listener(), &config::get().control_directory) {
        (Some(listener), _) => runtime.serve_control_at(listener).ok(),
        (None, Some(directory)) => runtime.serve_control_in(directory).ok(),
        (None, None) => runtime.serve_control().ok(),
    };
    *CONTROL.lock().unwrap_or_else(PoisonError::into_inner) = control;
    Ok(runtime)
}

fn with_addresses(mut builder: Builder, config: &DatapathConfig) -> Builder {
    // Under AF_XDP the runtime takes addresses and gateways from the kernel.
    if !is_af_xdp(config) {
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

/// Runs `work` with all signals blocked. Threads inherit the mask of the thread that creates them.
fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let before = crate::signal_mask::block_all();
    let result = work();
    crate::signal_mask::restore(&before);
    result
}

/// Does what [`after_fork_in_child`] does, in a child that `fork` or `clone` made as a system call. A child that shares the
/// parent's descriptors leaves them open.
pub(super) fn after_raw_fork(shares_descriptors: bool) {
    if matches!(RUNTIME.get(), Some(Some(_))) {
        process::become_child();
        if !shares_descriptors {
            runtime_fds::close_all_except(lifeline::in_child());
        }
    }
}

extern "C" fn after_fork_in_child() {
    process::become_child();
    runtime_fds::close_all_except(lifeline::in_child());
}
