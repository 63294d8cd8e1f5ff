//! Errors of commands: a message and an exit status.

use std::fmt;
use std::process::ExitCode;

use abey_supervise::devices::SearchError;
use abey_supervise::guard::GuardError;
use abey_supervise::program::ProgramError;
use abey_supervise::settings::EpollCheckError;
use abey_tuner::TuneError;

/// An error that ends the command: a message of one sentence, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Returns a failure with status 1: a check failed, or the work could not be finished.
    pub(crate) fn check(message: impl fmt::Display) -> Self {
        Self { status: 1, message: message.to_string() }
    }

    /// Returns a failure with status 2: the command line or an input file is wrong.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { status: 2, message: message.to_string() }
    }

    /// Returns a failure with status 3: the machine lacks something, or denies it.
    pub(crate) fn lacks(message: impl fmt::Display) -> Self {
        Self { status: 3, message: message.to_string() }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Self {
        Self::usage(error)
    }
}

impl From<SearchError> for Failure {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Netlink(error) => error.into(),
            SearchError::Ambiguous { .. } => Self::usage(error),
            _ => Self::check(error),
        }
    }
}

impl From<EpollCheckError> for Failure {
    fn from(error: EpollCheckError) -> Self {
        Self::lacks(error)
    }
}

impl From<GuardError> for Failure {
    fn from(error: GuardError) -> Self {
        match error {
            GuardError::Journal(error) => error.into(),
            GuardError::Datapath(error) => error.into(),
            _ => Self::check(error),
        }
    }
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Self {
        match error {
            TuneError::Usage(message) => Self::usage(message),
            TuneError::Unsupported(message) => Self::lacks(message),
            TuneError::Failed(message) => Self::check(message),
            TuneError::Apply(error) => error.into(),
            TuneError::Netlink(error) => error.into(),
            TuneError::Device(error) => error.into(),
            TuneError::Machine(error) => error.into(),
            TuneError::NetNs(error) => error.into(),
            TuneError::Policy(error) => error.into(),
            TuneError::Datapath(error) => error.into(),
        }
    }
}
