//! Queue pairs of the NIC that `abey run`'s broker gives this process.
//!
//! The connection to the broker stays open until the process ends; its end returns the queue pairs.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use abey_linux::library::BrokerAddress;
use abey_nic::broker::{Broker, ClaimError, claim, open_claimed};
use abey_nic::{Nic, Options};

use super::process;

/// The connection to the broker.
static BROKER: OnceLock<Arc<dyn Broker>> = OnceLock::new();

/// The socket that [`take_control_listener`] returns.
static CONTROL: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// Returns the listening socket on which `abey status` reaches this process, if the broker passed one. Returns it once.
pub(super) fn take_control_listener() -> Option<UnixListener> {
    CONTROL.get()?.lock().unwrap_or_else(PoisonError::into_inner).take().map(UnixListener::from)
}

/// Why the runtime could not be built.
pub(super) struct RuntimeError {
    pub(super) message: String,
    /// The broker has printed the message.
    pub(super) is_reported: bool,
}

impl From<ClaimError> for RuntimeError {
    fn from(error: ClaimError) -> Self {
        Self { message: error.to_string(), is_reported: matches!(error, ClaimError::Refused(_)) }
    }
}

/// Claims queue pairs and opens them. Waits until the broker has some, for a few seconds at most.
pub(super) fn open(nic: &str, broker: &BrokerAddress, options: &Options) -> Result<Nic, RuntimeError> {
    let mut claimed = claim(&broker.socket, &broker.token, process::is_forked())?;
    if let Some(control) = claimed.control.take() {
        let _ = CONTROL.set(Mutex::new(Some(control)));
    }
    // A process has one runtime, and so one claim.
    let _ = BROKER.set(claimed.broker.clone());
    open_claimed(nic, claimed, options).map_err(|error| report_to_broker(error.to_string()))
}

/// Returns the error of a runtime that could not be built, reported by the broker if there is one.
pub(super) fn report_to_broker(message: String) -> RuntimeError {
    let is_reported = BROKER.get().is_some_and(|broker| broker.report_failure(&message).is_ok());
    RuntimeError { message, is_reported }
}
