//! The progress bar of a load.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error, if that is a terminal, drawn by a thread of its own.
pub(super) struct Bar {
    bar: ProgressBar,
    started: Arc<OnceLock<Instant>>,
}

impl Bar {
    /// Shows the bar. Its thread inherits the CPU affinity of the calling thread.
    pub(super) fn start(warmup: Nanos, duration: Nanos) -> Self {
        let total = Duration::from(warmup) + Duration::from(duration);
        let bar = ProgressBar::new(total.as_millis() as u64);
        let style = ProgressStyle::with_template("{msg:10} [{bar:40}] {percent:>3} %").expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        let started = Arc::new(OnceLock::<Instant>::new());
        if !bar.is_hidden() {
            let (bar, started) = (bar.clone(), Arc::clone(&started));
            bar.set_message("connecting");
            std::thread::spawn(move || {
                while !bar.is_finished() {
                    if let Some(start) = started.get() {
                        bar.set_message("measuring");
                        bar.set_position(start.elapsed().as_millis() as u64);
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
        }
        Self { bar, started }
    }

    /// Starts the count of time.
    pub(super) fn begin(&self) {
        let _ = self.started.set(Instant::now());
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
