//! Errors of the tuner.

use abey_datapath::control::ControlError;
use abey_linux::device::DeviceError;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNsError;
use abey_policy::PolicyError;
use abey_reconcile::ApplyError;

/// Why tuning could not start or go on. Each message is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The request is wrong. Nothing was changed.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks something, or denies it.
    #[error("{0}")]
    Unsupported(String),
    /// Something failed while tuning.
    #[error("{0}")]
    Failed(String),
    /// Settings could not be planned or applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The kernel answered a request with an error.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A device was not found.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The machine's state could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A network namespace could not be opened.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The policy has an error.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A datapath did not answer, or refused.
    #[error(transparent)]
    Datapath(#[from] ControlError),
}

impl TuneError {
    pub(crate) fn usage(message: impl std::fmt::Display) -> Self {
        Self::Usage(message.to_string())
    }

    pub(crate) fn unsupported(message: impl std::fmt::Display) -> Self {
        Self::Unsupported(message.to_string())
    }

    pub(crate) fn failed(message: impl std::fmt::Display) -> Self {
        Self::Failed(message.to_string())
    }
}
