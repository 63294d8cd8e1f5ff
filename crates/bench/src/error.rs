//! Why a bench did not come to an end.

use std::io;
use std::time::Duration;

use abey_datapath::BuildError;
use abey_datapath::control::ControlError;
use abey_delivery::Mode;
use abey_linux::apply::ApplyError;
use abey_linux::counters::CountError;
use abey_linux::cpu::CpuError;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNsError;
use abey_load::{ConfigError, LoadError};

use crate::{Load, World};

/// Why a bench did not come to an end. Nothing is left behind: namespaces and shared memory have no name in any file
/// system, and the servers are children.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// Something the machine lacks.
    #[error("{what}: {advice}")]
    Lacks {
        /// What is missing.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The test network could not be made.
    #[error(transparent)]
    Namespace(#[from] NetNsError),
    /// The test network could not be made.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The load's end of the shared-memory NIC could not be made.
    #[error("the load's end of the wire: {0}")]
    Datapath(#[from] BuildError),
    /// The counters of a datapath could not be read.
    #[error("cannot read the counters of the server: {0}")]
    Control(#[from] ControlError),
    /// The mode's settings could not be applied.
    #[error("{mode}: {source}")]
    Apply {
        /// The mode.
        mode: Mode,
        /// What was refused.
        source: ApplyError,
    },
    /// The mode's settings could not be put back.
    #[error("the settings could not be put back: {0}")]
    Restore(#[from] MachineError),
    /// A figure could not be counted.
    #[error(transparent)]
    Count(#[from] CountError),
    /// CPU time could not be read, or a process not be pinned.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The server did not start or did not stay.
    #[error("the server ({server}) {what}{output}")]
    Server {
        /// Its command line.
        server: String,
        /// What it did.
        what: String,
        /// What it printed, if anything.
        output: String,
    },
    /// The load could not be put on the server.
    #[error("{mode} at {load} ({world}): {source}")]
    Load {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// The load.
        load: Load,
        /// What went wrong.
        source: LoadError,
    },
    /// There is nothing to judge the mode by: no request was due in this time, or the load or the server was not let run.
    #[error(
        "{mode} at {load} ({world}): no request of {duration:?} was answered, and {unsent} were due and not sent: measure for \
         longer, or beside less other work"
    )]
    NothingAnswered {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// The load.
        load: Load,
        /// How long was measured.
        duration: Duration,
        /// Requests that were due and that the load did not get to.
        unsent: u64,
    },
    /// The mode was set and counters say it did nothing, so there is no row to show.
    #[error("{mode} did not engage at {load} ({world}): {reason}")]
    NotActive {
        /// The world.
        world: World,
        /// The mode.
        mode: Mode,
        /// The load.
        load: Load,
        /// What the counters say.
        reason: String,
    },
    /// The kernel's turn, and it would not see the packets.
    #[error("an XDP program is still attached to {0}: the server before it did not end")]
    XdpLeft(String),
    /// A load or duration that no run can have.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file or process operation.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
