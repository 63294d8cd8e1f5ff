//! Drop-ins of systemd's units: read, replaced, and told to systemd.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::SigSet;

use crate::spawn::CommandPlace;

/// Where systemd looks for drop-ins that a restart of the machine forgets (systemd.unit(5)).
pub const RUNTIME_UNITS: &str = "/run/systemd/system";

/// Whether systemd reads what is there.
pub(crate) fn is_systemds(path: &Path) -> bool {
    path.starts_with(RUNTIME_UNITS)
}

/// What a drop-in says; `None` if it is not there.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a drop-in, so that a reader sees the old one or the new one, or removes it, with its directory if that is
/// empty then.
pub(crate) fn write(path: &Path, text: Option<&str>) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        // Somebody else's drop-ins keep it.
        let _ = fs::remove_dir(directory);
        return Ok(());
    };
    fs::create_dir_all(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = directory.join(format!(".{name}.{}", std::process::id()));
    let written = fs::File::create(&beside).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&beside, path)).inspect_err(|_| _ = fs::remove_file(&beside))
}

/// Lets systemd read its units again; what runs is left alone.
///
/// # Errors
/// In words, when it did not.
pub(crate) fn reload() -> Result<(), String> {
    let mut command = Command::new("systemctl");
    command.arg("daemon-reload").stdin(Stdio::null()).stdout(Stdio::null()).with_signals(&SigSet::all());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`systemctl daemon-reload` failed ({status}): systemd does not know the drop-ins")),
        Err(error) => Err(format!("cannot run `systemctl daemon-reload`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_goes_with_its_directory_and_not_with_those_of_others() {
        let place = tempfile::tempdir().expect("directory");
        let path = place.path().join("demo.service.d/50-abey.conf");
        assert_eq!(read(&path).expect("readable"), None);
        write(&path, Some("[Service]\n")).expect("written");
        assert_eq!(read(&path).expect("readable").as_deref(), Some("[Service]\n"));
        write(&path, None).expect("removed");
        write(&path, None).expect("it is gone already");
        assert!(!path.parent().expect("a directory").exists());
        write(&path, Some("")).expect("written");
        let other = path.with_file_name("10-other.conf");
        fs::write(&other, "").expect("written");
        write(&path, None).expect("removed");
        assert!(other.exists() && !path.exists());
    }
}
