//! Why a policy was not applied.

use abey_linux::netlink::NetlinkError;
use abey_policy::PolicyError;

use crate::journal::JournalError;
use crate::plan::ApplyError;

/// Why a policy was not applied, or could not be compared with the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The policy has an error.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A setting could not be read or changed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A journal or the applied state could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// There is no policy, or its files cannot be listed.
    #[error("{0}")]
    Files(String),
    /// The machine or this process cannot do what the policy asks for.
    #[error("{0}")]
    Impossible(String),
    /// Something else failed.
    #[error("{0}")]
    Failed(String),
}

impl ReconcileError {
    /// Adds what became of the changes before the failure. The failure is no longer one of the policy or the machine.
    pub(crate) fn after_changes(&self, outcome: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{self}; {outcome}"))
    }
}
