//! The directory of journals and applied states, whose files are carried out as root.
//!
//! It is opened once and its files are opened relative to the descriptor, without following links. The directory and each
//! file must belong to root or to the user of this process, and no other user may be able to write to them. The directory has
//! the mode 0700 and its files 0600: another user can neither read them nor take the lock.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, openat, renameat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::JournalError;
use crate::lock::Lock;

/// The greatest size of a file that is read, in bytes. A journal of 1,000 queues has about a megabyte.
const MAX_SIZE: u64 = 16 << 20;

/// The mode bits that let users other than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// An open directory of journals and applied states.
#[derive(Debug)]
pub(crate) struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens the directory; `None` if there is none, or if this process is not root and may not read it.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, JournalError> {
        // Without a slash at the end, after which a link would be followed.
        let path: &Path = &path.components().collect::<PathBuf>();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(CWD, path, flags, Mode::empty()) {
            Ok(descriptor) => Self::checked(descriptor, path).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::ACCESS) if !geteuid().is_root() => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(refused(path, "it is not a directory".to_owned())),
            Err(error) => Err(failed("list", path, error)),
        }
    }

    /// Creates the directory, if there is none, and opens it.
    pub(crate) fn create(path: &Path) -> Result<Self, JournalError> {
        if let Some(directory) = Self::open(path)? {
            return Ok(directory);
        }
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| failed("write", path, source))?;
        Self::open(path)?.ok_or_else(|| failed("write", path, io::Error::from(io::ErrorKind::PermissionDenied)))
    }

    fn checked(descriptor: OwnedFd, path: &Path) -> Result<Self, JournalError> {
        let about = fstat(&descriptor).map_err(|error| failed("list", path, error))?;
        check_access(&about).map_err(|problem| refused(path, problem))?;
        if about.st_mode & 0o077 != 0 && about.st_uid == geteuid().as_raw() {
            // Versions up to 0.1 created it with 0755. A file system that is read-only keeps its mode.
            let _ = fchmod(&descriptor, Mode::from_raw_mode(0o700));
        }
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Locks the directory against other writers until the value is dropped.
    pub(crate) fn lock(&self) -> Result<Lock<'_>, JournalError> {
        Lock::take(self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Returns the names of the entries.
    pub(crate) fn names(&self) -> Result<Vec<OsString>, JournalError> {
        let failed = |error: Errno| failed("list", &self.path, error);
        let entries = Dir::read_from(&self.descriptor).map_err(failed)?;
        let name = |entry: rustix::fs::DirEntry| {
            use std::os::unix::ffi::OsStrExt;
            OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()
        };
        entries.map(|entry| entry.map(name).map_err(failed)).collect()
    }

    /// Reads a file; `None` if there is none.
    pub(crate) fn read(&self, name: &OsStr) -> Result<Option<Vec<u8>>, JournalError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Some(file) = self.open_file(name, flags)? else { return Ok(None) };
        self.read_all(name, &file).map(Some)
    }

    /// Opens a file for reading and writing, and creates it if there is none.
    pub(crate) fn open_or_create(&self, name: &OsStr) -> Result<File, JournalError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CREATE;
        let opened = self.open_file(name, flags)?;
        opened.ok_or_else(|| failed("write", &self.path_of(name), io::Error::from(io::ErrorKind::NotFound)))
    }

    /// Opens a file and checks it.
    fn open_file(&self, name: &OsStr, flags: OFlags) -> Result<Option<File>, JournalError> {
        let path = self.path_of(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match openat(&self.descriptor, name, flags, Mode::from_raw_mode(0o600)) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(refused(&path, "it is a symbolic link".to_owned())),
            Err(Errno::NXIO | Errno::ISDIR) => return Err(refused(&path, NOT_A_FILE.to_owned())),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let about = fstat(&file).map_err(|error| failed("read", &path, error))?;
        check_file(&about).map_err(|problem| refused(&path, problem))?;
        Ok(Some(file))
    }

    /// Reads the whole of a file that was opened here.
    pub(crate) fn read_all(&self, name: &OsStr, mut file: &File) -> Result<Vec<u8>, JournalError> {
        let (path, mut bytes) = (self.path_of(name), Vec::new());
        file.by_ref().take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(|error| failed("read", &path, error))?;
        if bytes.len() as u64 > MAX_SIZE {
            return Err(refused(&path, format!("it has more than {} MiB", MAX_SIZE >> 20)));
        }
        Ok(bytes)
    }

    /// Creates a file that only its owner can read. A file of this name that an earlier process left is removed.
    pub(crate) fn create_new(&self, name: &OsStr) -> io::Result<File> {
        let _ = self.remove(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.descriptor, name, flags, Mode::from_raw_mode(0o600))?.into())
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, name, AtFlags::empty())?)
    }

    /// Replaces `to` by `from`.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.descriptor, from, &self.descriptor, to)?)
    }

    /// Renames `from` to `to`, which must not exist.
    pub(crate) fn rename_new(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        renameat_with(&self.descriptor, from, &self.descriptor, to, RenameFlags::NOREPLACE)
    }

    /// Whether `file` is the one that has this name now.
    pub(crate) fn has(&self, name: &OsStr, file: &File) -> bool {
        let (named, open) = (statat(self.descriptor.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW), fstat(file));
        matches!((named, open), (Ok(named), Ok(open)) if (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino))
    }
}

const NOT_A_FILE: &str = "it is not a regular file";

fn check_file(about: &Stat) -> Result<(), String> {
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(NOT_A_FILE.to_owned());
    }
    if about.st_nlink > 1 {
        return Err("it has a second name (a hard link)".to_owned());
    }
    check_access(about)
}

/// Checks that only root and the user of this process can have written there.
fn check_access(about: &Stat) -> Result<(), String> {
    let (owner, user) = (about.st_uid, geteuid().as_raw());
    if owner != 0 && owner != user {
        return Err(format!("it belongs to user {owner}"));
    }
    if about.st_mode & OTHERS_WRITE != 0 {
        return Err(format!("other users may write to it (mode {:04o})", about.st_mode & 0o7777));
    }
    Ok(())
}

pub(crate) fn failed(action: &'static str, path: &Path, source: impl Into<io::Error>) -> JournalError {
    JournalError::File { action, path: path.to_owned(), source: source.into() }
}

pub(crate) fn refused(path: &Path, problem: String) -> JournalError {
    JournalError::Refused { path: path.to_owned(), problem }
}
