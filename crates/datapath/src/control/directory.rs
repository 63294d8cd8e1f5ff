//! The directories of control sockets: one for each user, with one socket for each runtime.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::error::ControlError;

/// The environment variable that replaces the default directory.
pub const DIRECTORY_VARIABLE: &str = "ABEY_CONTROL_DIR";

/// The directory of root.
const ROOT: &str = "/run/abey/control";
/// The parent of the users' runtime directories.
const USERS: &str = "/run/user";
/// The most sockets of one process.
const MAX_PER_PROCESS: u32 = 1000;

/// Returns the directory in which this process creates its control sockets: `$ABEY_CONTROL_DIR`, else `/run/abey/control` for root,
/// else `$XDG_RUNTIME_DIR/abey` or `/run/user/UID/abey`.
///
/// # Errors
/// The user has no runtime directory.
pub fn own_directory() -> Result<PathBuf, ControlError> {
    let named = |variable: &str| {
        let value = PathBuf::from(std::env::var_os(variable)?);
        value.is_absolute().then_some(value)
    };
    if let Some(named) = named(DIRECTORY_VARIABLE) {
        return Ok(named);
    }
    if geteuid().is_root() {
        return Ok(ROOT.into());
    }
    let user = Path::new(USERS).join(geteuid().as_raw().to_string());
    let runtime = named("XDG_RUNTIME_DIR").or_else(|| user.is_dir().then_some(user));
    runtime.map(|runtime| runtime.join("abey")).ok_or(ControlError::NoDirectory)
}

/// Returns the directories in which datapaths are found: the user's own, and for root also those of the other users.
pub(super) fn directories() -> Result<Vec<PathBuf>, ControlError> {
    let mut all = vec![own_directory()?];
    if geteuid().is_root() && std::env::var_os(DIRECTORY_VARIABLE).is_none() {
        let users = fs::read_dir(USERS).into_iter().flatten().flatten();
        all.extend(users.map(|user| user.path().join("abey")));
    }
    Ok(all)
}

/// A socket that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// The process that serves it, by its name.
    pub(super) pid: u32,
    /// Another process created it.
    pub(super) is_lent: bool,
    /// The user who must be at the other end.
    pub(super) owner: u32,
}

/// Returns the sockets in these directories, ordered by process.
pub(super) fn find(directories: Vec<PathBuf>) -> Result<Vec<Found>, ControlError> {
    let mut found = Vec::new();
    for directory in directories {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(ControlError::System { action: "list", path: directory, source }),
        };
        // A symbolic link is not followed.
        let Ok(about) = fs::symlink_metadata(&directory) else { continue };
        if !about.is_dir() {
            continue;
        }
        for path in entries.flatten().map(|entry| entry.path()) {
            let (Some(pid), Ok(socket)) = (process_of(&path), fs::symlink_metadata(&path)) else { continue };
            if socket.file_type().is_socket() && socket.uid() == about.uid() {
                let is_lent = path.file_stem().is_some_and(|stem| stem.as_encoded_bytes().ends_with(LENT.as_bytes()));
                found.push(Found { path, pid, is_lent, owner: about.uid() });
            }
        }
    }
    found.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    Ok(found)
}

/// The part of the name, after the number, that marks a socket which one process created for another.
const LENT: &str = ".lent";

/// A control socket that this process created for another one, which serves it
/// ([`Runtime::serve_control_at`](crate::Runtime::serve_control_at)). Dropping this removes the socket.
#[derive(Debug)]
pub struct Lent(PathBuf);

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Creates a control socket in this user's directory for process `to`, which runs as another user and cannot create one
/// there. Users who may connect to this process may then connect to that one.
///
/// # Errors
/// Those of [`Runtime::serve_control`](crate::Runtime::serve_control).
pub fn lend(to: u32) -> Result<(UnixListener, Lent), ControlError> {
    let (listener, path) = listen_for(&own_directory()?, to, LENT)?;
    Ok((listener, Lent(path)))
}

/// Returns the process of a file name `PID-N.sock` or `PID-N.lent.sock`.
fn process_of(path: &Path) -> Option<u32> {
    let stem = path.file_stem()?.to_str()?;
    let (pid, number) = stem.strip_suffix(LENT).unwrap_or(stem).split_once('-')?;
    let is_ours = path.extension() == Some(OsStr::new("sock")) && number.parse::<u32>().is_ok();
    pid.parse().ok().filter(|_| is_ours)
}

/// Creates a listening socket of this process with a unique name. Creates the directory if necessary.
pub(super) fn listen(directory: &Path) -> Result<(UnixListener, PathBuf), ControlError> {
    listen_for(directory, std::process::id(), "")
}

fn listen_for(directory: &Path, pid: u32, mark: &str) -> Result<(UnixListener, PathBuf), ControlError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ControlError::System { action, path, source }
    };
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("create", directory)(error)),
        _ => {}
    }
    check(directory)?;
    // The socket gets its name when it listens already. A client may remove one that does not, as that of a dead process.
    let draft = directory.join(format!(".{pid}-{:?}", std::thread::current().id()));
    let _ = fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft).map_err(failed("create", &draft))?;
    let named = link_to_free_name(directory, &draft, pid, mark);
    if named.is_err() {
        let _ = fs::remove_file(&draft);
    }
    let path = named.map_err(failed("create a socket in", directory))?;
    Ok((listener, path))
}

/// Gives a socket the first name that no running process uses.
fn link_to_free_name(directory: &Path, draft: &Path, pid: u32, mark: &str) -> io::Result<PathBuf> {
    fs::set_permissions(draft, Permissions::from_mode(0o600))?;
    for number in 0..MAX_PER_PROCESS {
        let path = directory.join(format!("{pid}-{number}{mark}.sock"));
        // A hard link and not a renaming, which would replace an existing file.
        match fs::hard_link(draft, &path) {
            Ok(()) => {
                fs::remove_file(draft)?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if remove_if_stale(&path) && fs::hard_link(draft, &path).is_ok() {
                    fs::remove_file(draft)?;
                    return Ok(path);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::QuotaExceeded.into())
}

/// Removes a socket on which no process listens. Returns whether it was removed.
fn remove_if_stale(path: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    UnixStream::connect(path).is_err_and(refused) && fs::remove_file(path).is_ok()
}

/// Checks that only this user can write to the directory. Another user who can could replace the sockets.
fn check(directory: &Path) -> Result<(), ControlError> {
    let unsafe_for = |problem| Err(ControlError::Directory { path: directory.to_owned(), problem });
    let about = fs::symlink_metadata(directory).map_err(|source| ControlError::System {
        action: "check",
        path: directory.to_owned(),
        source,
    })?;
    match () {
        () if !about.is_dir() => unsafe_for("it is not a directory"),
        () if about.uid() != geteuid().as_raw() => unsafe_for("it belongs to another user"),
        () if about.mode() & 0o022 != 0 => unsafe_for("others may write to it"),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_parsed_from_the_name() {
        let of = |name: &str| process_of(&Path::new("/run/abey").join(name));
        assert_eq!((of("12-0.sock"), of("12-34.sock")), (Some(12), Some(34).map(|_| 12)));
        assert_eq!(of("12-3.lent.sock"), Some(12));
        for other in ["12-3.x.sock", "12.sock", ".12-0", "12-0", "x-0.sock", "12-x.sock", "-1-0.sock"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
