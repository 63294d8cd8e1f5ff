//! Reasons why a NIC could not be opened.

use std::io;

use crate::name::ParseNicError;

/// Reason why a NIC could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is malformed.
    #[error(transparent)]
    Name(#[from] ParseNicError),
    /// The options are not possible.
    #[error("the options ask for {reason}")]
    Options {
        /// What is wrong.
        reason: String,
    },
    /// No such device.
    #[error("there is no device for {device}: `ip link` lists the ones of this network namespace")]
    NoDevice {
        /// The NIC.
        device: String,
    },
    /// The user lacks a capability.
    #[error("opening {device} is not allowed: run as root, or with {needs}")]
    Permission {
        /// The NIC.
        device: String,
        /// The missing capability.
        needs: &'static str,
    },
    /// Another process created the NIC.
    #[error("{device} is in use already: stop the process that has it, or attach to it if it is a shared-memory NIC")]
    InUse {
        /// The NIC.
        device: String,
    },
    /// No process has created the NIC.
    #[error("there is no {device}: start the process that creates it first, as the same user on the same machine")]
    NotCreated {
        /// The NIC.
        device: String,
    },
    /// The device cannot do what the options ask for, or the process at the other end refused.
    #[error("cannot open {device}: {reason}")]
    Refused {
        /// The NIC.
        device: String,
        /// The reason.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {action} {device}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The NIC.
        device: String,
        /// Its error.
        source: io::Error,
    },
}
