//! Opens a file in a headless Chromium and gives back the document as it stands after its scripts ran.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Names under which the browser is installed.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A start takes about a second on an idle machine; this is for a busy one.
const BOUND: Duration = Duration::from_secs(90);

/// Ends the browser when a test is over, however it ends.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The document after its scripts ran, or `None` if there is no browser to try.
pub(crate) fn dump_dom(file: &Path) -> Option<String> {
    let dir = tempfile::tempdir().expect("a directory for the profile");
    let out = dir.path().join("dom.html");
    let mut browser = NAMES.iter().find_map(|name| start(name, dir.path(), &out, file))?;
    let until = Instant::now() + BOUND;
    loop {
        if let Some(status) = browser.0.try_wait().expect("our own child") {
            assert!(status.success(), "the browser failed: {status}");
            return Some(fs::read_to_string(&out).expect("the dump"));
        }
        assert!(Instant::now() < until, "the browser did not end within {BOUND:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn start(name: &str, profile: &Path, out: &Path, file: &Path) -> Option<Browser> {
    let quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,900",
        "--dump-dom",
    ];
    Command::new(name)
        .args(quiet)
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(File::create(out).expect("a file for the dump"))
        .stderr(Stdio::null())
        .spawn()
        .ok()
        .map(Browser)
}
