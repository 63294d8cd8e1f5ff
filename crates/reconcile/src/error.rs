//! Why a policy was not applied, or a journal not used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_policy::PolicyError;

use crate::plan::ApplyError;

/// Why a journal or the applied state could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file could not be read or written.
    #[error(
        "cannot {action} the journal {path}: {source}; settings are restored from it after a crash, and only root may write it",
        path = path.display()
    )]
    File {
        /// `write`, `read`, `lock`, `list` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file has other content.
    #[error("the journal {path} is damaged ({reason}): correct the device's settings by hand, then remove the file", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        reason: String,
    },
    /// A file or the directory may be another user's work, or names something that Abey does not change.
    #[error("{path} is not used and nothing in it is carried out: {problem}; find out who wrote it, then remove it", path = path.display())]
    Refused {
        /// The file or the directory.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// Another process holds the lock.
    #[error("{holder} holds {path} for more than {} s: end it, then try again", limit.as_secs(), path = path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process that holds it.
        holder: String,
        /// How long this process has waited.
        limit: Duration,
    },
    /// A signal arrived while another process held the lock.
    #[error("ended by a signal while {holder} held {path}", path = path.display())]
    Interrupted {
        /// The file.
        path: PathBuf,
        /// The process that holds it.
        holder: String,
    },
    /// A setting could not be restored.
    #[error("cannot restore the settings in {path}: {source}", path = path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: MachineError,
    },
}

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
