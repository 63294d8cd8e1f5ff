//! Why a test network could not be made.

use std::io;

use netlink_socket2::ReplyError;

/// Why a test network could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestbedError {
    /// The namespace could not be entered.
    #[error("cannot enter a network namespace: {0}; run as root (it needs CAP_SYS_ADMIN)")]
    Namespace(io::Error),
    /// The caller lacks the privilege for a request.
    #[error("not allowed to {action}: run as root (it needs CAP_NET_ADMIN)")]
    Denied {
        /// What was requested.
        action: String,
    },
    /// Any other failure of a request.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// What was requested.
        action: String,
        /// The kernel's explanation.
        reason: String,
    },
}

impl TestbedError {
    /// Returns whether the caller lacks a privilege.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Namespace(_) | Self::Denied { .. })
    }

    pub(crate) fn from_io(action: &str, error: &io::Error) -> Self {
        Self::Refused { action: action.to_owned(), reason: error.to_string() }
    }

    pub(crate) fn from_reply(action: &str, error: &ReplyError) -> Self {
        let action = action.to_owned();
        match error.as_io_error().raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Denied { action },
            _ => Self::Refused { action, reason: error.to_string().replace(" (no extended ack)", "") },
        }
    }
}
