//! Errors of a bench.

use std::io;
use std::time::Duration;

use abey_datapath::BuildError;
use abey_datapath::control::ControlError;
use abey_delivery::Mode;
use abey_linux::counters::CountError;
use abey_linux::cpu::CpuError;
use abey_linux::library::FindError;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNsError;
use abey_loadgen::{ConfigError, LoadError};
use abey_reconcile::ApplyError;
use abey_testbed::TestbedError;

use crate::{Load, World};

/// An error of a bench. Nothing is left behind: namespaces and shared memory have no name in any file system, and servers
/// end with their parent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The caller set the stop flag.
    #[error("stopped")]
    Stopped,
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// The machine lacks something, or refuses it to this user.
    #[error("{what}: {advice}")]
    Lacks {
        /// What is missing.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The test network could not be created.
    #[error(transparent)]
    Namespace(#[from] NetNsError),
    /// The test network could not be created.
    #[error(transparent)]
    Network(#[from] TestbedError),
    /// The test network could not be created.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The client's datapath could not be created.
    #[error("cannot open the client's end of the wire: {0}")]
    Datapath(#[from] BuildError),
    /// The counters of a datapath could not be read.
    #[error("cannot read the counters of the server: {0}")]
    Control(#[from] ControlError),
    /// The mode's settings could not be applied.
    #[error("{mode}: {source}")]
    Apply {
        /// The mode.
        mode: Mode,
        /// The error.
        source: ApplyError,
    },
    /// The mode's settings could not be restored.
    #[error("cannot restore the settings: {0}")]
    Restore(#[from] MachineError),
    /// A counter could not be opened or read.
    #[error(transparent)]
    Count(#[from] CountError),
    /// CPU time could not be read, or a process could not be pinned.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The server did not start, or ended.
    #[error("the server ({server}) {what}{output}")]
    Server {
        /// Its command line.
        server: String,
        /// What happened.
        what: String,
        /// Its output, if any.
        output: String,
    },
    /// The load failed.
    #[error("{mode} at {load} ({world}): {source}")]
    Load {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// The load.
        load: Load,
        /// The error.
        source: LoadError,
    },
    /// No request was answered: the run was too short, or other programs used the CPUs.
    #[error(
        "{mode} at {load} ({world}): no response within {duration:?}, {unsent} requests due but not sent: use a longer \
         --duration, or end other programs"
    )]
    NothingAnswered {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// The load.
        load: Load,
        /// The measured time.
        duration: Duration,
        /// Requests that were due and not sent.
        unsent: u64,
    },
    /// The mode was set, but the counters do not prove it active.
    #[error("{mode} did not engage at {load} ({world}): {reason}")]
    NotActive {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// The load.
        load: Load,
        /// The counters.
        reason: String,
    },
    /// `libabey.so` was not found or does not fit.
    #[error(transparent)]
    Library(#[from] FindError),
    /// An XDP program of an earlier server still diverts the packets from the kernel.
    #[error("an XDP program is still attached to {0}: the previous server did not end")]
    XdpLeft(String),
    /// An invalid load or duration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An operation on a file or process failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
}
