//! The command as a user without any capability.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use abey_linux::library::FILE_NAME;

use super::{ABEY, copy_program, has, library, quiet};

/// Copies of the command and its library in a directory that every user may read, and a way to run them without capabilities.
pub(crate) struct UnprivilegedUser {
    directory: tempfile::TempDir,
}

impl UnprivilegedUser {
    /// Returns `None` and prints the reason if `setpriv` is not installed.
    pub(crate) fn new() -> Option<Self> {
        if !has("setpriv") {
            return None;
        }
        let directory = tempfile::tempdir().expect("directory");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
        open(directory.path());
        // A debug build is large: hard links instead of copies where the file system allows them.
        let put = |from: &Path, name: &str| {
            let to = directory.path().join(name);
            fs::hard_link(from, &to).unwrap_or_else(|_| copy_program(from, &to));
            open(&to);
        };
        put(Path::new(ABEY), "abey");
        put(&library(), FILE_NAME);
        let journals = directory.path().join("journals");
        fs::create_dir(&journals).expect("directory");
        std::os::unix::fs::chown(&journals, Some(65534), Some(65534)).expect("the user's own");
        Some(Self { directory })
    }

    /// Returns a directory that the user may write, so that a failure is due to a missing capability.
    pub(crate) fn journals(&self) -> PathBuf {
        self.directory.path().join("journals")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = quiet("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(self.directory.path().join("abey"));
        command.current_dir("/");
        command
    }
}
