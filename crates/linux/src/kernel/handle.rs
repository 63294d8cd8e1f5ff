//! An open network namespace: its netlink and ethtool sockets, and its `/sys`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use crate::device::DeviceId;
use crate::ethtool::Ethtool;
use crate::machine::{Capability, MachineError};
use crate::netlink::raw::{Family, RawSocket};
use crate::netlink::{Netlink, NetlinkError};
use crate::netns::NetNs;

/// A network namespace that is open for reading and changing: its netlink and ethtool sockets, and its `/sys`.
pub struct NetnsHandle {
    pub(crate) netlink: Netlink,
    pub(crate) ethtool: Ethtool,
    /// For answers that do not fit the buffer of `netlink`.
    pub(crate) long_answers: RawSocket,
    pub(crate) ethtool_family: Option<Family>,
    sysfs: File,
    pub(crate) netns_inode: u64,
    description: String,
}

impl std::fmt::Debug for NetnsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetnsHandle").field("netns_inode", &self.netns_inode).finish_non_exhaustive()
    }
}

impl NetnsHandle {
    /// Opens the namespace.
    ///
    /// # Errors
    /// When it cannot be entered.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        let mut netlink = Netlink::open(netns)?;
        Ok(Self {
            // Functions that need the family report its absence themselves.
            ethtool_family: Family::find(&mut netlink, "ethtool").ok(),
            netlink,
            ethtool: Ethtool::open(netns)?,
            long_answers: RawSocket::open(netns, Some(rustix::net::netlink::GENERIC))?,
            sysfs: netns.sysfs()?,
            netns_inode: netns.inode(),
            description: netns.description().to_owned(),
        })
    }

    /// Returns the generic netlink socket.
    pub fn netlink(&mut self) -> &mut Netlink {
        &mut self.netlink
    }

    /// Returns a description of the namespace for messages.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the inode number of the namespace.
    pub const fn network_namespace(&self) -> u64 {
        self.netns_inode
    }

    /// Returns the cookie of the namespace (`SO_NETNS_COOKIE`), which stays unique until the machine restarts, while inode
    /// numbers are reused. On a kernel without it (before 5.14), returns the inode number.
    pub fn namespace_cookie(&self) -> u64 {
        self.long_answers.namespace_cookie().unwrap_or(self.netns_inode)
    }

    /// Reads a file below `/sys/class/net/DEVICE`, without the newline at its end.
    pub(super) fn read(&self, device: &str, file: &str) -> Result<String, MachineError> {
        let read = self.directory(device).and_then(|directory| read_at(directory.as_fd(), file));
        read.map_err(|error| refused("read", device, file, Capability::DacOverride, &error))
    }

    pub(super) fn write(&self, device: &str, file: &str, value: &str) -> Result<(), MachineError> {
        let written = self.directory(device).and_then(|directory| write_at(directory.as_fd(), file, value));
        written.map_err(|error| refused("write", device, file, Capability::NetAdmin, &error))
    }

    /// Reads a file of exactly this device: fails if another device has taken its name.
    pub(crate) fn read_of(&self, device: &DeviceId, file: &str) -> Result<String, MachineError> {
        let read = self.directory_of(device).and_then(|directory| read_at(directory.as_fd(), file));
        read.map_err(|error| refused("read", &device.name, file, Capability::DacOverride, &error))
    }

    pub(crate) fn write_of(&self, device: &DeviceId, file: &str, value: &str) -> Result<(), MachineError> {
        let written = self.directory_of(device).and_then(|directory| write_at(directory.as_fd(), file, value));
        written.map_err(|error| refused("write", &device.name, file, Capability::NetAdmin, &error))
    }

    /// Returns the names in a directory of exactly this device.
    pub(crate) fn names_of(&self, device: &DeviceId, directory: &str) -> io::Result<Vec<String>> {
        let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = openat(self.directory_of(device)?, directory, open, Mode::empty())?;
        let entries = rustix::fs::Dir::new(found)?;
        Ok(entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned())).collect())
    }

    /// Returns the target of a symbolic link of exactly this device.
    pub(crate) fn link_of(&self, device: &DeviceId, link: &str) -> io::Result<String> {
        let target = rustix::fs::readlinkat(self.directory_of(device)?, link, Vec::new())?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Returns the path, from the root of `/sys`, of the directory that a symbolic link of exactly this device leads to.
    pub(crate) fn real_path_of(&self, device: &DeviceId, link: &str) -> io::Result<String> {
        let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let target = openat(self.directory_of(device)?, link, open, Mode::empty())?;
        // The mount is detached and private, so the path begins at its root.
        Ok(std::fs::read_link(format!("/proc/self/fd/{}", target.as_raw_fd()))?.to_string_lossy().into_owned())
    }

    fn directory(&self, device: &str) -> io::Result<OwnedFd> {
        let path = format!("class/net/{device}");
        Ok(openat(&self.sysfs, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn directory_of(&self, device: &DeviceId) -> io::Result<OwnedFd> {
        let gone = |_| io::Error::from_raw_os_error(libc::ENODEV);
        let directory = self.directory(&device.name).map_err(gone)?;
        let ifindex = read_at(directory.as_fd(), "ifindex").map_err(gone)?;
        if ifindex.parse() == Ok(device.ifindex) {
            Ok(directory)
        } else {
            Err(io::Error::from_raw_os_error(libc::ENODEV))
        }
    }
}

fn read_at(directory: impl AsFd, file: &str) -> io::Result<String> {
    let mut text = String::new();
    let open = openat(directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(open).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

fn write_at(directory: impl AsFd, file: &str, value: &str) -> io::Result<()> {
    let open = openat(directory, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(open).write_all(value.as_bytes())
}

fn refused(verb: &str, device: &str, file: &str, capability: Capability, error: &io::Error) -> MachineError {
    let action = format!("{verb} /sys/class/net/{device}/{file}");
    // Opening a file of root fails with EACCES, changing a device with EPERM.
    let capability = if error.raw_os_error() == Some(libc::EACCES) { Capability::DacOverride } else { capability };
    MachineError::from_io(device, &action, capability, error)
}
