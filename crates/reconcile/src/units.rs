//! Drop-ins of systemd units: reads and replaces the files, and makes systemd read them.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use abey_linux::spawn::CommandSetup;
use nix::sys::signal::SigSet;

/// The directory of drop-ins that do not survive a restart of the machine (systemd.unit(5)).
pub const RUNTIME_UNITS: &str = "/run/systemd/system";

/// Whether systemd reads the file at this path.
pub(crate) fn is_systemds(path: &Path) -> bool {
    path.starts_with(RUNTIME_UNITS)
}

/// Returns the text of a drop-in; `None` if there is no such file.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a drop-in atomically. Without a text, removes it, and its directory if that is empty afterwards.
pub(crate) fn write(path: &Path, text: Option<&str>) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        // Fails if the directory has other drop-ins.
        let _ = fs::remove_dir(directory);
        return Ok(());
    };
    fs::create_dir_all(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = directory.join(format!(".{name}.{}", std::process::id()));
    let written = fs::File::create(&draft).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&draft, path)).inspect_err(|_| _ = fs::remove_file(&draft))
}

/// Makes systemd read its units again. Running units are not affected.
///
/// # Errors
/// A sentence, if systemd did not.
pub(crate) fn reload() -> Result<(), String> {
    let mut command = Command::new("systemctl");
    command.arg("daemon-reload").stdin(Stdio::null()).stdout(Stdio::null()).unblock_signals(&SigSet::all());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`systemctl daemon-reload` failed ({status}), so systemd does not use the drop-ins")),
        Err(error) => Err(format!("cannot run `systemctl daemon-reload`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_drop_in_removes_its_directory_only_if_empty() {
        let root = tempfile::tempdir().expect("directory");
        let path = root.path().join("demo.service.d/50-abey.conf");
        assert_eq!(read(&path).expect("readable"), None);
        write(&path, Some("[Service]\n")).expect("written");
        assert_eq!(read(&path).expect("readable").as_deref(), Some("[Service]\n"));
        write(&path, None).expect("removed");
        write(&path, None).expect("removing it twice is no error");
        assert!(!path.parent().expect("a directory").exists());
        write(&path, Some("")).expect("written");
        let other = path.with_file_name("10-other.conf");
        fs::write(&other, "").expect("written");
        write(&path, None).expect("removed");
        assert!(other.exists() && !path.exists());
    }
}
