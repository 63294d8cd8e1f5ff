//! The errors of control sockets.

use std::io;
use std::path::PathBuf;

use super::protocol::{Refusal, VERSION};

/// An error of serving a control socket, or of talking to one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The user has no directory for sockets.
    #[error(
        "this user has no runtime directory for control sockets: set XDG_RUNTIME_DIR to a directory to which only you can write"
    )]
    NoDirectory,
    /// Other users could put files into the directory.
    #[error(
        "control sockets cannot be in {path}: {problem}; remove it, or set ABEY_CONTROL_DIR to a directory of your own"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The problem.
        problem: &'static str,
    },
    /// The process runs and does not answer.
    #[error("process {pid} does not answer on its control socket: continue it if it is stopped (kill -CONT {pid})")]
    Silent {
        /// The process.
        pid: u32,
    },
    /// Another user has more sockets than are tried.
    #[error("{path} has more control sockets than abey tries")]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
    /// The process ended or closed the connection.
    #[error("process {pid} has closed its control socket: try again if it still runs")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The other end belongs to another user.
    #[error("the control socket {path} is held by {}: run as that user or as root", user_text(*user))]
    OtherUser {
        /// The socket.
        path: PathBuf,
        /// The user's ID, if the user namespace of this process maps it.
        user: Option<u32>,
    },
    /// The answer is invalid.
    #[error(
        "process {pid} does not answer in version {VERSION} of the control protocol ({problem}): use the version of abey with which it was built"
    )]
    Foreign {
        /// The process.
        pid: u32,
        /// The problem with the answer.
        problem: String,
    },
    /// The datapath refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns a user as part of a sentence.
fn user_text(user: Option<u32>) -> String {
    user.map_or_else(|| "a user of another user namespace".to_owned(), |user| format!("user {user}"))
}
