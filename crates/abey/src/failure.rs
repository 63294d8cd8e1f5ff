//! How a command ends when it does not do what was asked: one sentence and an exit status.

use std::fmt;
use std::process::ExitCode;

/// A failure: what, where, what to do, in one sentence; and which exit status says so.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Status 1: something was checked and found wrong.
    pub(crate) fn check(message: impl fmt::Display) -> Self {
        Self { status: 1, message: message.to_string() }
    }

    /// Status 2: the command line or an input file asks for what cannot be.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { status: 2, message: message.to_string() }
    }

    /// Status 3: the machine lacks something, or does not allow it.
    pub(crate) fn lacks(message: impl fmt::Display) -> Self {
        Self { status: 3, message: message.to_string() }
    }

    /// The same, and what else there is to say of it.
    pub(crate) fn and(self, more: impl fmt::Display) -> Self {
        Self { message: format!("{}; {more}", self.message), ..self }
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
