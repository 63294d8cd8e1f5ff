//! Serves a handed-over connection through a pair of Unix sockets.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ConnectionKey, HandOverError};
use crate::host::Host;

/// The pumps of a runtime: the descriptors that stand for connections.
#[derive(Debug, Default)]
pub(crate) struct Pumps {
    ends: Mutex<HashMap<ConnectionKey, OwnedFd>>,
}

impl Pumps {
    /// Returns a copy of the descriptor that stands for a connection, if a pump serves it; `Some(None)` if the process has no
    /// descriptor left.
    #[expect(clippy::option_option, reason = "no pump, or no descriptor")]
    pub(super) fn end(&self, key: ConnectionKey) -> Option<Option<OwnedFd>> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get(&key).map(|end| end.try_clone().ok())
    }
}

/// Starts to serve a connection. Returns the descriptor that stands for it.
pub(super) fn start(host: &Arc<Host>, key: ConnectionKey) -> Result<OwnedFd, HandOverError> {
    let _ = (host, key);
    Err(io::Error::from(io::ErrorKind::Unsupported).into())
}
