//! Where control sockets are: one directory for each user, one socket for each runtime, found by looking there.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::ControlError;

/// Names the directory, in place of the usual ones.
pub const DIRECTORY_VARIABLE: &str = "ABEY_CONTROL_DIR";

/// Root's.
const ROOT: &str = "/run/abey/control";
/// Below it are the users' runtime directories.
const USERS: &str = "/run/user";
/// Most sockets of one process.
const MOST: u32 = 1000;

/// The directory in which this process puts its control sockets: `$ABEY_CONTROL_DIR`, else `/run/abey/control` for root,
/// else `$XDG_RUNTIME_DIR/abey` or `/run/user/UID/abey`.
///
/// # Errors
/// A user without a runtime directory.
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

/// The directories in which to look for datapaths: one's own, and for root the users' as well.
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
    /// Another process made it.
    pub(super) is_lent: bool,
    /// Who must be at the other end.
    pub(super) owner: u32,
}

/// The sockets in these directories, by process.
pub(super) fn find(directories: Vec<PathBuf>) -> Result<Vec<Found>, ControlError> {
    let mut found = Vec::new();
    for directory in directories {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(ControlError::System { action: "list", path: directory, source }),
        };
        // A link to somewhere else is nothing that we follow.
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

/// What follows the number in the name of a socket that one process made for another.
const LENT: &str = ".lent";

/// A control socket that this process made for another one, which serves it
/// ([`Runtime::serve_control_at`](crate::Runtime::serve_control_at)). Dropping this removes it.
#[derive(Debug)]
pub struct Lent(PathBuf);

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Makes a control socket in one's own directory that another process is to serve: one that may not, as it is another
/// user's. Whoever may talk to this process may talk to that one then.
///
/// # Errors
/// As for [`Runtime::serve_control`](crate::Runtime::serve_control).
pub fn lend(to: u32) -> Result<(UnixListener, Lent), ControlError> {
    let (listener, path) = listen_for(&own_directory()?, to, LENT)?;
    Ok((listener, Lent(path)))
}

/// The process in the name `PID-N.sock` or `PID-N.lent.sock`.
fn process_of(path: &Path) -> Option<u32> {
    let stem = path.file_stem()?.to_str()?;
    let (pid, number) = stem.strip_suffix(LENT).unwrap_or(stem).split_once('-')?;
    let is_ours = path.extension() == Some(OsStr::new("sock")) && number.parse::<u32>().is_ok();
    pid.parse().ok().filter(|_| is_ours)
}

/// A socket of this process, listening, under a name of its own; the directory is made if it is not there.
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
    // Whoever looks finds a socket only when it listens: one that does not is one whose process has died.
    let draft = directory.join(format!(".{pid}-{:?}", std::thread::current().id()));
    let _ = fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft).map_err(failed("create", &draft))?;
    let settled = settle(directory, &draft, pid, mark);
    if settled.is_err() {
        let _ = fs::remove_file(&draft);
    }
    let path = settled.map_err(failed("create a socket in", directory))?;
    Ok((listener, path))
}

/// Gives a socket the first name that nobody has who lives.
fn settle(directory: &Path, draft: &Path, pid: u32, mark: &str) -> io::Result<PathBuf> {
    fs::set_permissions(draft, Permissions::from_mode(0o600))?;
    for number in 0..MOST {
        let path = directory.join(format!("{pid}-{number}{mark}.sock"));
        // A link, not a renaming: it never takes the place of what is there.
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

/// Removes a socket at which nobody listens. Whether it is gone.
fn remove_if_stale(path: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    UnixStream::connect(path).is_err_and(refused) && fs::remove_file(path).is_ok()
}

/// The directory must be ours alone to write to: whoever can write there could put a socket of its own in place of ours.
fn check(directory: &Path) -> Result<(), ControlError> {
    let unsafe_for = |problem| Err(ControlError::Directory { path: directory.to_owned(), problem });
    let about = fs::symlink_metadata(directory).map_err(|source| ControlError::System {
        action: "look at",
        path: directory.to_owned(),
        source,
    })?;
    match () {
        () if !about.is_dir() => unsafe_for("it is no directory"),
        () if about.uid() != geteuid().as_raw() => unsafe_for("it belongs to another user"),
        () if about.mode() & 0o022 != 0 => unsafe_for("others may write to it"),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let of = |name: &str| process_of(&Path::new("/run/abey").join(name));
        assert_eq!((of("12-0.sock"), of("12-34.sock")), (Some(12), Some(34).map(|_| 12)));
        assert_eq!(of("12-3.lent.sock"), Some(12));
        for other in ["12-3.x.sock", "12.sock", ".12-0", "12-0", "x-0.sock", "12-x.sock", "-1-0.sock"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
