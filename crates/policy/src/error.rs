//! Why a policy cannot be used: one sentence that names files, lines and keys.

use abey_config::FileError;

use crate::spanned::Origin;

/// Why a policy cannot be used on a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A file cannot be read, is not TOML, or has a key or value that is not allowed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Two rules for the same setting.
    #[error("two rules for {what}: {first} and {second}; leave one of them out")]
    TwoRules {
        /// The setting, with the device.
        what: String,
        /// The first rule.
        first: Origin,
        /// The second rule.
        second: Origin,
    },
    /// Two rules with different values for a setting that queues of this device share.
    #[error("{what}, but {first} and {second} set different values; set the same value in both")]
    Shared {
        /// What is shared, in words, with the device.
        what: String,
        /// The first rule.
        first: Origin,
        /// The second rule.
        second: Origin,
    },
    /// No device matches a table that is not optional.
    #[error(
        "{origin}: there is no device with {wanted}: the devices are {known}; correct it, or write `optional = true`"
    )]
    NoDevice {
        /// The table.
        origin: Origin,
        /// The criteria of the table.
        wanted: String,
        /// The devices that exist.
        known: String,
    },
    /// A queue number beyond the last queue.
    #[error("{origin}: {device} has no receive queue {queue}: it {has} queues 0 to {last}{advice}")]
    NoQueue {
        /// The rule.
        origin: Origin,
        /// The device.
        device: String,
        /// The requested queue.
        queue: u32,
        /// `has`, or `will have`.
        has: &'static str,
        /// The last queue.
        last: u32,
        /// What to do about it; follows the sentence.
        advice: &'static str,
    },
    /// A CPU that does not exist or is not online.
    #[error("{origin}: CPU {cpu} is not online: the CPUs are {online}")]
    Offline {
        /// The rule.
        origin: Origin,
        /// The CPU.
        cpu: u32,
        /// The CPUs that are online.
        online: String,
    },
    /// CPUs or scheduling of a thread for queues that no thread polls.
    #[error(
        "{origin}: the queues it is for are polled in softirq: give them mode = \"threaded\", or threaded = \"yes\" in their settings"
    )]
    NotThreaded {
        /// The rule.
        origin: Origin,
    },
    /// A `tune` table that cannot be used.
    #[error("{origin}: {problem}")]
    Tune {
        /// The table.
        origin: Origin,
        /// The problem, and what to do.
        problem: String,
    },
    /// A `[[program]]` table that cannot be used.
    #[error("{origin}: {problem}")]
    Program {
        /// The table.
        origin: Origin,
        /// The problem, and what to do.
        problem: String,
    },
}
