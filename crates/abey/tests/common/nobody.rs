//! The command as a user without any capability.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use abey_linux::library::FILE_NAME;

use super::{ABEY, copy_program, has, library, quiet};

/// The command and its library where nobody may execute them, for a user without any capability.
pub(crate) struct Nobody {
    place: tempfile::TempDir,
}

impl Nobody {
    /// `None` with a printed reason where there is no way to become nobody.
    pub(crate) fn new() -> Option<Self> {
        if !has("setpriv") {
            return None;
        }
        let place = tempfile::tempdir().expect("directory");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
        open(place.path());
        // A debug build is large: a second name is enough where the file system allows it.
        let put = |from: &Path, name: &str| {
            let to = place.path().join(name);
            fs::hard_link(from, &to).unwrap_or_else(|_| copy_program(from, &to));
            open(&to);
        };
        put(Path::new(ABEY), "abey");
        put(&library(), FILE_NAME);
        let journals = place.path().join("journals");
        fs::create_dir(&journals).expect("directory");
        fs::set_permissions(&journals, fs::Permissions::from_mode(0o777)).expect("permissions");
        Some(Self { place })
    }

    /// A directory that nobody can write, so that it is the lack of a capability that shows.
    pub(crate) fn journals(&self) -> PathBuf {
        self.place.path().join("journals")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = quiet("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(self.place.path().join("abey"));
        command.current_dir("/");
        command
    }
}
