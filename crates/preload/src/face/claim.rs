//! Queue pairs of the NIC for this process, from `abey run`'s broker.
//!
//! The connection to the broker stays open until the process ends, and its end is how the broker knows.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use abey_linux::library::BrokerAddress;
use abey_nic::broker::{Broker, ClaimError, claim, open_claimed};
use abey_nic::{Nic, Options};

use super::process::{self, NoRuntime};

/// What keeps the claim.
static BROKER: OnceLock<Arc<dyn Broker>> = OnceLock::new();

/// See [`lent_control`].
static CONTROL: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// The listening socket that the broker has lent, at which `abey status` reaches this process; once.
pub(super) fn lent_control() -> Option<UnixListener> {
    CONTROL.get()?.lock().unwrap_or_else(PoisonError::into_inner).take().map(UnixListener::from)
}

impl From<ClaimError> for NoRuntime {
    fn from(error: ClaimError) -> Self {
        Self { text: error.to_string(), is_said: matches!(error, ClaimError::Refused(_)) }
    }
}

/// Claims queue pairs, which may take a moment, and opens them.
pub(super) fn open(nic: &str, broker: &BrokerAddress, options: &Options) -> Result<Nic, NoRuntime> {
    let mut claimed = claim(&broker.socket, &broker.token, process::is_forked())?;
    if let Some(control) = claimed.control.take() {
        let _ = CONTROL.set(Mutex::new(Some(control)));
    }
    // There is one runtime in a process, and so one claim.
    let _ = BROKER.set(claimed.broker.clone());
    open_claimed(nic, claimed, options).map_err(|error| complain(error.to_string()))
}

/// Why there is no runtime after all: said by the broker, where there is one.
pub(super) fn complain(text: String) -> NoRuntime {
    let is_said = BROKER.get().is_some_and(|broker| broker.complain(&text).is_ok());
    NoRuntime { text, is_said }
}
