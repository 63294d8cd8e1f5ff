//! Metrics in a file, for the text-file collector of another exporter.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::scrape::Exporter;
use crate::failure::Failure;

/// Writes the metrics until SIGINT or SIGTERM, then removes the file: what it says would be of nobody.
pub(super) fn keep(path: &Path, mut exporter: Exporter, interval: Duration) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    }
    write(path, &exporter.scrape()?)?;
    crate::service::notify(&[sd_notify::NotifyState::Ready]);
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let left = interval.saturating_sub(last.elapsed());
        if left.is_zero() {
            last = Instant::now();
            write(path, &exporter.scrape()?)?;
        }
        // A signal that comes just before it sleeps is seen soon as well.
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
    crate::service::notify(&[sd_notify::NotifyState::Stopping]);
    std::fs::remove_file(path).map_err(|error| Failure::check(format!("cannot remove {}: {error}", path.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// Readers see the old file or the new one, never a part.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::lacks(format!("cannot write {}: {error}; choose another file with --textfile", path.display()))
    };
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    std::fs::write(&unfinished, text).map_err(failed)?;
    std::fs::rename(&unfinished, path).map_err(|error| {
        let _ = std::fs::remove_file(&unfinished);
        failed(error)
    })
}
