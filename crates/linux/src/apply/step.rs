//! One change: to one NAPI instance, or to a device-wide file where the kernel has no setting per instance.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};

use abey_delivery::NapiSettings;
use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use crate::napi::{NapiChange, napi, set_napi};
use crate::netlink::{Netlink, NetlinkError};
use crate::netns::NetNs;

use super::journal::Restored;
use super::wire::{ChangeRecord, SettingsRecord};

/// Where steps are taken: a namespace's netlink and its `/sys`.
pub struct Place {
    pub(super) netlink: Netlink,
    pub(super) sysfs: File,
    pub(super) netns_inode: u64,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("netns_inode", &self.netns_inode).finish_non_exhaustive()
    }
}

impl Place {
    /// Opens the namespace for changes.
    ///
    /// # Errors
    /// When it cannot be entered.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        Ok(Self { netlink: Netlink::open(netns)?, sysfs: netns.sysfs()?, netns_inode: netns.inode() })
    }

    /// The netlink conversation, for looking around.
    pub fn netlink(&mut self) -> &mut Netlink {
        &mut self.netlink
    }

    fn file(&self, device: &str, file: &str, flags: OFlags) -> std::io::Result<File> {
        let path = format!("class/net/{device}/{file}");
        Ok(File::from(openat(&self.sysfs, path, flags | OFlags::CLOEXEC, Mode::empty())?))
    }

    pub(super) fn read(&self, device: &str, file: &str) -> Result<String, NetlinkError> {
        let mut text = String::new();
        let read = self.file(device, file, OFlags::RDONLY).and_then(|mut open| open.read_to_string(&mut text));
        read.map_err(|error| refused("read", device, file, &error))?;
        Ok(text.trim().to_owned())
    }

    fn write(&self, device: &str, file: &str, value: &str) -> Result<(), NetlinkError> {
        let written = self.file(device, file, OFlags::WRONLY).and_then(|mut open| open.write_all(value.as_bytes()));
        written.map_err(|error| refused("write", device, file, &error))
    }
}

fn refused(verb: &str, device: &str, file: &str, error: &std::io::Error) -> NetlinkError {
    let action = format!("{verb} /sys/class/net/{device}/{file}");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => NetlinkError::Denied { action },
        errno => NetlinkError::Refused { action, reason: error.to_string(), errno },
    }
}

/// One change, with what was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Step {
    /// Settings of one NAPI instance.
    Napi {
        /// Its ID.
        id: u32,
        /// The device it belongs to.
        device: String,
        /// All its settings before.
        before: SettingsRecord,
        /// What is changed.
        change: ChangeRecord,
    },
    /// A file below `/sys/class/net/DEVICE`, which holds for every NAPI instance of the device.
    DeviceFile {
        /// The device.
        device: String,
        /// The file's name.
        file: String,
        /// What it said before.
        before: String,
        /// What it shall say.
        after: String,
    },
}

/// One setting of one instance that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// The device.
    pub device: String,
    /// The NAPI instance; `None` for a setting of the whole device.
    pub napi: Option<u32>,
    /// The setting's name.
    pub setting: String,
    /// What it is.
    pub before: String,
    /// What it becomes.
    pub after: String,
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, napi, setting, before, after } = self;
        match napi {
            Some(id) => write!(f, "{device} NAPI {id}: {setting} {before} -> {after}"),
            None => write!(f, "{device}, every NAPI: {setting} {before} -> {after}"),
        }
    }
}

impl Step {
    /// The changes one by one, for people.
    pub fn changes(&self) -> Vec<SettingChange> {
        match self {
            Self::Napi { id, device, before, change } => {
                let one = |(setting, before, after)| SettingChange {
                    device: device.clone(),
                    napi: Some(*id),
                    setting,
                    before,
                    after,
                };
                change.against(before).into_iter().map(one).collect()
            }
            Self::DeviceFile { device, file, before, after } => vec![SettingChange {
                device: device.clone(),
                napi: None,
                setting: file.clone(),
                before: before.clone(),
                after: after.clone(),
            }],
        }
    }

    pub(super) fn take(&self, place: &mut Place) -> Result<(), NetlinkError> {
        match self {
            Self::Napi { id, before, change, .. } => {
                let change = NapiChange::from(change);
                set_napi(&mut place.netlink, *id, &change)?;
                let wanted = change.applied_to(&NapiSettings::from(before));
                let got = napi(&mut place.netlink, *id)?.settings();
                if got == wanted {
                    return Ok(());
                }
                let (action, reason) = (format!("change the settings of NAPI {id}"), "they did not stick".to_owned());
                Err(NetlinkError::Refused { action, reason, errno: None })
            }
            Self::DeviceFile { device, file, after, .. } => place.write(device, file, after),
        }
    }

    fn undo(&self, place: &mut Place) -> Result<Restored, NetlinkError> {
        match self {
            Self::Napi { id, before, change, .. } => {
                let now = match napi(&mut place.netlink, *id) {
                    Ok(napi) => napi.settings(),
                    Err(error) if error.is_not_found() => return Ok(Restored::Gone(self.clone())),
                    Err(error) => return Err(error),
                };
                let back = change.back(before, &now);
                if !back.is_empty() {
                    set_napi(&mut place.netlink, *id, &back)?;
                }
                let after = back.applied_to(&now);
                let all = after == NapiSettings::from(before);
                Ok(if all { Restored::Back(self.clone()) } else { Restored::LeftToOthers(self.clone()) })
            }
            Self::DeviceFile { device, file, before, after } => {
                let now = match place.read(device, file) {
                    Ok(now) => now,
                    Err(NetlinkError::Refused { errno: Some(libc::ENOENT), .. }) => {
                        return Ok(Restored::Gone(self.clone()));
                    }
                    Err(error) => return Err(error),
                };
                if now == *after {
                    place.write(device, file, before)?;
                }
                Ok(if now == *after || now == *before {
                    Restored::Back(self.clone())
                } else {
                    Restored::LeftToOthers(self.clone())
                })
            }
        }
    }
}

/// Undoes the steps, the last one first, and goes on past one that fails, to put back as much as possible.
pub(super) fn undo_all(place: &mut Place, steps: &[Step]) -> Result<Vec<Restored>, NetlinkError> {
    let mut failed = None;
    let mut restored = Vec::new();
    for step in steps.iter().rev() {
        match step.undo(place) {
            Ok(outcome) => restored.push(outcome),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(restored), Err)
}
