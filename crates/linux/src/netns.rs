//! Network namespaces: by name or by process, entered for a call, or made without a name.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// An open network namespace.
///
/// A namespace made by [`NetNs::create`] has no name: it exists as long as this value, a process or a socket in it, so nothing
/// is left behind however a program ends. See `network_namespaces(7)`.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    description: String,
}

/// Why a namespace could not be opened, made or entered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetNsError {
    /// No namespace has that name.
    #[error("there is no network namespace `{name}`: `ip netns` lists the ones with a name ({path}: {source})", path = path.display())]
    Unknown {
        /// The name that was given.
        name: String,
        /// The path of its name.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The process does not exist any more, or the caller lacks the privilege.
    #[error("cannot open the network namespace of process {pid}: {source}; is it running, and are you root?")]
    Process {
        /// The process.
        pid: u32,
        /// The system's reason.
        source: io::Error,
    },
    /// Making or entering a namespace is not allowed.
    #[error("cannot {action} a network namespace: {source}; run as root (it needs CAP_SYS_ADMIN)")]
    Denied {
        /// `make` or `enter`.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl NetNs {
    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> Result<Self, NetNsError> {
        let denied = |source| NetNsError::Denied { action: "open", source };
        let file = File::open("/proc/thread-self/ns/net").map_err(denied)?;
        Ok(Self { file, description: "this network namespace".to_owned() })
    }

    /// Opens the namespace that `ip netns` lists as `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<Self, NetNsError> {
        let path = Path::new("/run/netns").join(name);
        let unknown = |source| NetNsError::Unknown { name: name.to_owned(), path: path.clone(), source };
        // A name is one path component: `..` or `a/b` would open another file.
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return Err(unknown(io::ErrorKind::InvalidInput.into()));
        }
        let file = File::open(&path).map_err(unknown)?;
        Ok(Self { file, description: format!("network namespace {name}") })
    }

    /// Opens the namespace of process `pid`.
    ///
    /// # Errors
    /// The process does not exist any more, or the caller lacks the privilege.
    pub fn of_process(pid: u32) -> Result<Self, NetNsError> {
        let file = File::open(format!("/proc/{pid}/ns/net")).map_err(|source| NetNsError::Process { pid, source })?;
        Ok(Self { file, description: format!("the network namespace of process {pid}") })
    }

    /// Makes an empty namespace without a name. Its loopback device is down.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn create() -> Result<Self, NetNsError> {
        let denied = |source| NetNsError::Denied { action: "make", source };
        let made = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        Ok(Self { file: made.map_err(denied)?, description: "an unnamed network namespace".to_owned() })
    }

    /// Runs `work` on a thread inside the namespace and returns its result. Sockets opened by `work` stay in the namespace.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` over the namespace.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        let denied = |source| NetNsError::Denied { action: "enter", source };
        // No thread needed, so that reading the own namespace works without privilege.
        if Self::current()?.inode() == self.inode() {
            return Ok(work());
        }
        on_a_thread(|| {
            setns(&self.file, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        })
        .map_err(denied)
    }

    /// Opens the root of the namespace's own `/sys`, on a detached mount.
    ///
    /// sysfs shows the devices of the namespace it was mounted in, not of the reader, so each namespace needs its own mount.
    /// Without the privilege to mount, the mounted `/sys` serves for the calling thread's own namespace.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, unless it is the calling thread's own namespace.
    pub fn sysfs(&self) -> Result<File, NetNsError> {
        let denied = |source: io::Error| NetNsError::Denied { action: "read /sys of", source };
        let mounted = self.run(|| -> io::Result<File> {
            let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(context.as_fd())?;
            Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?.into())
        })?;
        match mounted {
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && Self::current()?.inode() == self.inode() =>
            {
                File::open("/sys").map_err(denied)
            }
            other => other.map_err(denied),
        }
    }

    /// Returns the inode number, which identifies the namespace until the machine restarts (`ls -l /proc/self/ns`).
    pub fn inode(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.ino())
    }

    /// Returns the namespace in words, for messages.
    pub fn description(&self) -> &str {
        &self.description
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns every namespace that has a name or a process, each once.
pub fn all() -> Vec<NetNs> {
    let entries = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let named = entries("/run/netns").filter_map(|entry| NetNs::named(entry.file_name().to_str()?).ok());
    let numbers = entries("/proc").filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of_processes = numbers.filter_map(|pid| NetNs::of_process(pid).ok());
    let mut seen = std::collections::BTreeSet::new();
    named.chain(of_processes).filter(|netns| seen.insert(netns.inode())).collect()
}

/// Runs `work` on a new thread: a thread leaves its namespace by ending, which cannot fail.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
