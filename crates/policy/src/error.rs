//! Why a policy cannot be: one sentence that names files, lines and keys.

use abey_input::FileError;

use crate::said::Origin;

/// Why a policy cannot be used on a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A file cannot be read, is no TOML, or says what cannot be.
    #[error(transparent)]
    File(#[from] FileError),
    /// Two places speak of the same thing.
    #[error("two rules for {what}: {first} and {second}; leave one of them out")]
    TwoRules {
        /// What they speak of, with the device.
        what: String,
        /// The one that comes first.
        first: Origin,
        /// The other one.
        second: Origin,
    },
    /// Two rules want different things of what is one thing on this device.
    #[error("{what}, and {first} wants something else of it than {second}; let both say the same")]
    Shared {
        /// What is shared, in words, with the device.
        what: String,
        /// One rule.
        first: Origin,
        /// The other one.
        second: Origin,
    },
    /// No device matches, and the table does not say that there may be none.
    #[error(
        "{origin}: there is no device with {wanted}: the devices are {known}; correct it, or write `optional = true`"
    )]
    NoDevice {
        /// The table.
        origin: Origin,
        /// What it asks for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// A queue beyond the last.
    #[error("{origin}: {device} has no receive queue {queue}: it {has} queues 0 to {last}{advice}")]
    NoQueue {
        /// Where it is asked for.
        origin: Origin,
        /// The device.
        device: String,
        /// The queue that is asked for.
        queue: u32,
        /// `has`, or `will have`.
        has: &'static str,
        /// The last queue.
        last: u32,
        /// What to do about it.
        advice: &'static str,
    },
    /// A CPU that is not there or not online.
    #[error("{origin}: CPU {cpu} is not online: the CPUs are {online}")]
    Offline {
        /// Where it is asked for.
        origin: Origin,
        /// The CPU.
        cpu: u32,
        /// Those there are.
        online: String,
    },
    /// A thread's place is given for queues that no thread polls.
    #[error(
        "{origin}: the queues it is for are polled in softirq: give them mode = \"threaded\", or threaded = \"yes\" in their settings"
    )]
    NotThreaded {
        /// Where it is asked for.
        origin: Origin,
    },
    /// A rule that cannot be tuned by.
    #[error("{origin}: {problem}")]
    Tune {
        /// The rule.
        origin: Origin,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A program without anything to do.
    #[error("{origin}: {problem}")]
    Program {
        /// Where it stands.
        origin: Origin,
        /// What is wrong, and what to do.
        problem: String,
    },
}
