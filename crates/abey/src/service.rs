//! The service manager that may have started this process (sd_notify(3)).

use sd_notify::NotifyState;

/// Tells the service manager, if there is one.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        eprintln!("abey: the service manager cannot be told: {error}");
    }
}
