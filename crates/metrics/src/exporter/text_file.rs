//! Metrics in a file, for the text-file collector of another exporter.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Exporter, ExporterError, ServiceEvent};

/// Maximum delay between setting the stop flag and the end of the loop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Writes the metrics to a file every `interval` until `stop` is true, then removes the file, whose metrics would be stale.
/// `on_event` is called after the first write and when the loop ends.
///
/// # Errors
/// [`ExporterError`] if a sample, the file or its removal fails.
pub fn write_until(
    stop: &AtomicBool,
    path: &Path,
    interval: Duration,
    mut exporter: Exporter,
    on_event: &mut dyn FnMut(ServiceEvent),
) -> Result<(), ExporterError> {
    write(path, &exporter.scrape()?)?;
    on_event(ServiceEvent::Ready(None));
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let left = interval.saturating_sub(last.elapsed());
        if left.is_zero() {
            last = Instant::now();
            write(path, &exporter.scrape()?)?;
        }
        std::thread::sleep(left.min(STOP_CHECK_INTERVAL));
    }
    on_event(ServiceEvent::Stopping);
    std::fs::remove_file(path).map_err(|source| ExporterError::Remove { path: path.to_owned(), source })
}

/// Replaces the file atomically: a reader sees the old or the new content, never a part.
fn write(path: &Path, text: &str) -> Result<(), ExporterError> {
    let failed = |source| ExporterError::Write { path: path.to_owned(), source };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    std::fs::write(&temporary, text).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}
