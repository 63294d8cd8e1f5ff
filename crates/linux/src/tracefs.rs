//! tracefs, and the tracepoints in it. Nothing visible to other processes is changed.
//!
//! A mounted tracefs is used. Otherwise a *detached* mount is made with `fsopen`,
//! `fsconfig` and `fsmount` (Linux 5.2): it is reachable only through its file descriptor, appears in no mount table and
//! ends with the descriptor. See the kernel's `Documentation/trace/ftrace.rst` and `events.rst` for the files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Why tracefs could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracefsError {
    /// The caller may not read tracefs.
    #[error("tracefs cannot be read without privilege; run as root (CAP_SYS_ADMIN)")]
    NoPermission,
    /// The kernel has no tracefs.
    #[error("this kernel has no tracefs; it needs a kernel built with CONFIG_TRACING and CONFIG_FTRACE")]
    NotBuilt,
    /// The kernel does not have this tracepoint.
    #[error("this kernel has no tracepoint {group}:{name}; it needs a kernel built with {option}")]
    NoTracepoint {
        /// The group, e.g. `napi`.
        group: String,
        /// The name within the group, e.g. `napi_poll`.
        name: String,
        /// The build options that provide it.
        option: &'static str,
    },
    /// A file of tracefs could not be opened or read.
    #[error("cannot read {path} in tracefs: {source}")]
    Read {
        /// The path relative to the root of tracefs.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file of tracefs has unexpected content.
    #[error("{path} in tracefs holds {text:?} where a number was expected")]
    Parse {
        /// The path relative to the root of tracefs.
        path: String,
        /// The content.
        text: String,
    },
}

/// An open tracefs.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
    detached: bool,
}

impl Tracefs {
    /// Opens the tracefs that is mounted on this machine, or a detached mount of it.
    ///
    /// # Errors
    /// [`TracefsError::NoPermission`] without CAP_SYS_ADMIN if tracefs is not mounted or not readable;
    /// [`TracefsError::NotBuilt`] if the kernel has none.
    pub fn open() -> Result<Self, TracefsError> {
        match Self::mounted() {
            Some(Ok(root)) => Ok(Self { root, detached: false }),
            Some(Err(_)) | None => Self::open_detached(),
        }
    }

    /// Makes a detached mount even if tracefs is mounted.
    ///
    /// # Errors
    /// As [`Tracefs::open`].
    pub fn open_detached() -> Result<Self, TracefsError> {
        let explain = |errno: Errno| match errno {
            Errno::PERM | Errno::ACCESS => TracefsError::NoPermission,
            Errno::NODEV | Errno::NOSYS => TracefsError::NotBuilt,
            other => TracefsError::Read { path: ".".into(), source: other.into() },
        };
        let context = rustix::mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(explain)?;
        rustix::mount::fsconfig_create(&context).map_err(explain)?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(explain)?;
        Ok(Self { root, detached: true })
    }

    /// Returns whether this is a detached mount.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.detached
    }

    /// Returns the ID of tracepoint `group:name` for perf.
    ///
    /// # Errors
    /// [`TracefsError::NoTracepoint`] if the kernel lacks it, other variants if it cannot be read.
    pub fn tracepoint_id(&self, group: &str, name: &str) -> Result<u64, TracefsError> {
        let path = format!("events/{group}/{name}/id");
        let text = self.read_event_file(group, name, &path)?;
        text.trim().parse().map_err(|_| TracefsError::Parse { path, text })
    }

    /// Returns the names of the fields of tracepoint `group:name`, the `common_*` ones included, in order.
    ///
    /// # Errors
    /// As [`Tracefs::tracepoint_id`].
    pub fn fields(&self, group: &str, name: &str) -> Result<Vec<String>, TracefsError> {
        let path = format!("events/{group}/{name}/format");
        let text = self.read_event_file(group, name, &path)?;
        Ok(text.lines().filter_map(field_name).map(str::to_owned).collect())
    }

    /// Returns whether tracepoint `group:name` has the field `field`.
    ///
    /// # Errors
    /// As [`Tracefs::tracepoint_id`].
    pub fn has_field(&self, group: &str, name: &str, field: &str) -> Result<bool, TracefsError> {
        Ok(self.fields(group, name)?.iter().any(|f| f == field))
    }

    /// Opens the root of a tracefs in the mount table. No path outside the table is accessed: `/sys/kernel/debug/tracing` is an
    /// automount point, and an access would mount it.
    fn mounted() -> Option<io::Result<OwnedFd>> {
        let mounts = procfs::process::Process::myself().and_then(|me| me.mountinfo()).ok()?;
        let mount = mounts.0.into_iter().find(|m| m.fs_type == "tracefs" && m.root == "/")?;
        // The mode of the directory may let every user open it, but not read the events.
        Some(open_directory(&mount.mount_point).and_then(|root| {
            rustix::fs::openat(&root, "events", OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())?;
            Ok(root)
        }))
    }

    fn read_event_file(&self, group: &str, name: &str, path: &str) -> Result<String, TracefsError> {
        self.read(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                TracefsError::NoTracepoint { group: group.into(), name: name.into(), option: build_option(group) }
            }
            io::ErrorKind::PermissionDenied => TracefsError::NoPermission,
            _ => TracefsError::Read { path: path.into(), source: e },
        })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let fd = rustix::fs::openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text)?;
        Ok(text)
    }
}

fn open_directory(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())?)
}

fn build_option(group: &str) -> &'static str {
    match group {
        "raw_syscalls" => "CONFIG_FTRACE_SYSCALLS",
        "napi" => "CONFIG_NET and CONFIG_EVENT_TRACING",
        _ => "CONFIG_EVENT_TRACING",
    }
}

/// Returns the field that a line of a `format` file declares: `\tfield:int work;\toffset:20;\tsize:4;\tsigned:1;` gives `work`.
fn field_name(line: &str) -> Option<&str> {
    let declaration = line.trim_start().strip_prefix("field:")?.split(';').next()?;
    let name = declaration.rsplit(' ').next()?;
    Some(name.split('[').next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::field_name;

    #[test]
    fn field_names_are_found_in_every_form_of_declaration() {
        for (line, name) in [
            ("\tfield:int work;\toffset:20;\tsize:4;\tsigned:1;", Some("work")),
            ("\tfield:__data_loc char[] dev_name;\toffset:16;\tsize:4;\tsigned:0;", Some("dev_name")),
            ("\tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;", Some("args")),
            ("\tfield:struct napi_struct * napi;\toffset:8;\tsize:8;\tsigned:0;", Some("napi")),
            ("print fmt: \"work %d\", REC->work", None),
            ("", None),
        ] {
            assert_eq!(field_name(line), name, "{line:?}");
        }
    }
}
