//! The signals that end a command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abey_supervise::signals::{Signal, Signals, TERMINATION};

use crate::failure::Failure;

/// Catches signals, in a command that has no other threads yet.
pub(crate) fn catch(signals: &[Signal]) -> Result<Signals, Failure> {
    Signals::catch(signals).map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))
}

/// Catches SIGINT, SIGTERM, and SIGHUP.
pub(crate) fn catch_with_hangup() -> Result<Signals, Failure> {
    catch(&[Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM])
}

/// Catches these signals, and returns a flag that is set when one of them is delivered.
pub(crate) fn stop_flag(signals: &[Signal]) -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    handle(catch(signals)?, move |_| flag.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

/// Catches SIGINT and SIGTERM, and calls `first` at the first one. A second one ends the process at once, with the status
/// that `exit_status` returns.
pub(crate) fn handle_first(
    mut first: impl FnMut(Signal) + Send + 'static,
    exit_status: impl Fn(Signal) -> i32 + Send + 'static,
) -> Result<(), Failure> {
    let mut is_first = true;
    handle(catch(&TERMINATION)?, move |signal| {
        if !std::mem::replace(&mut is_first, false) {
            std::process::exit(exit_status(signal));
        }
        first(signal);
    })
}

fn handle(signals: Signals, handler: impl FnMut(Signal) + Send + 'static) -> Result<(), Failure> {
    signals.handle(handler).map_err(|error| Failure::lacks(format!("cannot start a thread: {error}")))
}
