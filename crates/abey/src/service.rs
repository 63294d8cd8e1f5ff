//! Notifications of the service manager (`sd_notify(3)`).

use sd_notify::NotifyState;

/// Notifies the service manager, if one has started this process.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        eprintln!("abey: cannot notify the service manager: {error}");
    }
}
