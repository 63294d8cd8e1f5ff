//! The directories of control sockets: one for each user, with one socket for each runtime.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::error::ControlError;

/// The environment variable that replaces the default directory.
pub const DIRECTORY_VARIABLE: &str = "ABEY_CONTROL_DIR";

/// The directory of root.
const ROOT: &str = "/run/abey/control";
/// The parent of the users' runtime directories.
const USERS: &str = "/run/user";
/// The most sockets in the directory of one other user that root tries.
const MAX_FOREIGN: usize = 64;
/// The most entries of such a directory that are read.
const MAX_FOREIGN_ENTRIES: usize = 4096;
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

/// A directory in which datapaths are found.
pub(super) struct Place {
    path: PathBuf,
    /// The user whose directory it is, if root looks into it.
    user: Option<u32>,
}

impl Place {
    /// The directory of this user.
    pub(super) fn own(path: PathBuf) -> Self {
        Self { path, user: None }
    }
}

/// Returns the directories in which datapaths are found: the user's own, and for root also those of the other users.
pub(super) fn places() -> Result<Vec<Place>, ControlError> {
    let mut all = vec![Place::own(own_directory()?)];
    if geteuid().is_root() && std::env::var_os(DIRECTORY_VARIABLE).is_none() {
        let users = fs::read_dir(USERS).into_iter().flatten().flatten();
        let foreign = |user: fs::DirEntry| {
            let id = user.file_name().to_str()?.parse().ok()?;
            Some(Place { path: user.path().join("abey"), user: Some(id) })
        };
        all.extend(users.filter_map(foreign).filter(|place| place.user != Some(0)));
    }
    Ok(all)
}

/// A socket that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// The process that serves it, by its name.
    pub(super) pid: u32,
    /// The number of the socket among those of processes with this ID.
    pub(super) number: u32,
    /// Another process created it.
    pub(super) is_lent: bool,
    /// The user who must be at the other end.
    pub(super) owner: u32,
    is_foreign: bool,
    directory: Arc<OwnedFd>,
    name: OsString,
}

impl Found {
    /// Returns the user, if the directory is not that of this process.
    pub(super) fn foreign_user(&self) -> Option<u32> {
        self.is_foreign.then_some(self.owner)
    }

    /// Returns a path of the socket in the directory that was checked, even if another has its name by now.
    pub(super) fn address(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(&self.name)
    }

    /// Removes the socket of a process of this user that has ended.
    pub(super) fn remove(&self) {
        if !self.is_foreign {
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// A directory of another user with more sockets than are tried.
pub(super) struct LeftOut {
    pub(super) user: u32,
    pub(super) path: PathBuf,
}

/// Returns the sockets in these directories, ordered by process, and the directories with more than are tried. Directories of other users that cannot be read or are none are left out: they are not root's concern.
pub(super) fn find(places: Vec<Place>) -> Result<(Vec<Found>, Vec<LeftOut>), ControlError> {
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for Place { path, user } in places {
        match (sockets_in(&path, user), user) {
            (Ok((sockets, is_complete)), user) => {
                found.extend(sockets);
                left_out.extend(user.filter(|_| !is_complete).map(|user| LeftOut { user, path }));
            }
            (Err(_), Some(_)) | (Err(Errno::NOENT), None) => {}
            (Err(error), None) => return Err(ControlError::System { action: "list", path, source: error.into() }),
        }
    }
    found.sort_by(|a, b| (a.is_foreign, a.pid, &a.path).cmp(&(b.is_foreign, b.pid, &b.path)));
    Ok((found, left_out))
}

/// Returns the sockets in a directory, and whether these are all.
fn sockets_in(path: &Path, user: Option<u32>) -> Result<(Vec<Found>, bool), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = Arc::new(openat(CWD, path, flags, Mode::empty())?);
    let owner = fstat(&directory)?.st_uid;
    if user.is_some_and(|user| user != owner) {
        return Ok((Vec::new(), true));
    }
    let (mut found, most) = (Vec::new(), user.map_or(usize::MAX, |_| MAX_FOREIGN));
    for (count, entry) in Dir::read_from(&directory)?.enumerate() {
        if found.len() >= most || user.is_some() && count >= MAX_FOREIGN_ENTRIES {
            return Ok((found, false));
        }
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        let Some((pid, number)) = process_of(Path::new(&name)) else { continue };
        let Ok(socket) = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(socket.st_mode) == FileType::Socket && socket.st_uid == owner {
            let is_lent = Path::new(&name).file_stem().is_some_and(|stem| stem.as_bytes().ends_with(LENT.as_bytes()));
            let (path, directory, is_foreign) = (path.join(&name), directory.clone(), user.is_some());
            found.push(Found { path, pid, number, is_lent, owner, is_foreign, directory, name });
        }
    }
    Ok((found, true))
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

/// Returns the process and the number of a file name `PID-N.sock` or `PID-N.lent.sock`.
fn process_of(path: &Path) -> Option<(u32, u32)> {
    let stem = path.file_stem()?.to_str()?;
    let (pid, number) = stem.strip_suffix(LENT).unwrap_or(stem).split_once('-')?;
    let is_ours = path.extension() == Some(OsStr::new("sock"));
    pid.parse().ok().zip(number.parse().ok()).filter(|_| is_ours)
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
        // That of root is the directory of journals as well, which is closed to others.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(failed("create", parent))?;
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
        assert_eq!((of("12-0.sock"), of("12-34.sock")), (Some((12, 0)), Some((12, 34))));
        assert_eq!(of("12-3.lent.sock"), Some((12, 3)));
        for other in ["12-3.x.sock", "12.sock", ".12-0", "12-0", "x-0.sock", "12-x.sock", "-1-0.sock"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
