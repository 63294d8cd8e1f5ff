//! Opens a file in a headless Chromium and returns the document after its scripts have run.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Program names of the browser.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A limit that only a hang reaches: a start takes about a second on an idle machine.
const HANG_LIMIT: Duration = Duration::from_secs(90);

/// A running browser, which is killed on drop.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the document after its scripts have run; `None` without an installed browser.
pub(crate) fn dump_dom(file: &Path) -> Option<String> {
    let dir = tempfile::tempdir().expect("a directory for the profile");
    let out = dir.path().join("dom.html");
    let mut browser = NAMES.iter().find_map(|name| start(name, dir.path(), &out, file))?;
    let until = Instant::now() + HANG_LIMIT;
    loop {
        if let Some(status) = browser.0.try_wait().expect("a child") {
            assert!(status.success(), "the browser failed: {status}");
            return Some(fs::read_to_string(&out).expect("the dump"));
        }
        assert!(Instant::now() < until, "the browser did not end within {HANG_LIMIT:?}");
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
