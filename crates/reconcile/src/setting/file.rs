//! Settings that are files: the device-wide ones in `/sys`, and drop-ins of systemd units.

use std::path::PathBuf;

use abey_linux::machine::{Capability, MachineError};
use serde::{Deserialize, Serialize};

use super::{Assignment, Claim, Setting, SettingChange};
use crate::host::Host;

/// A file below `/sys/class/net/DEVICE`, whose value is that of every NAPI instance of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFile {
    /// The device.
    pub device: String,
    /// The file's name.
    pub file: String,
}

impl Setting for DeviceFile {
    type Value = String;

    fn device(&self) -> Option<&str> {
        Some(&self.device)
    }

    fn read(&self, host: &mut dyn Host) -> Result<String, MachineError> {
        host.device_file(&self.device, &self.file)
    }

    fn write(&self, host: &mut dyn Host, value: &String) -> Result<(), MachineError> {
        host.set_device_file(&self.device, &self.file, value)
    }

    fn describe(&self, before: &String, after: &String) -> Vec<SettingChange> {
        vec![SettingChange::of_device(&self.device, &self.file, before.clone(), after.clone())]
    }

    fn claim(&self) -> Claim<'_> {
        Claim::EveryNapi
    }
}

/// A drop-in of a systemd unit; `None` where there is no such file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropIn {
    /// The unit.
    pub unit: String,
    /// The file.
    pub path: PathBuf,
}

impl Setting for DropIn {
    type Value = Option<String>;

    fn device(&self) -> Option<&str> {
        None
    }

    fn read(&self, host: &mut dyn Host) -> Result<Option<String>, MachineError> {
        host.drop_in(&self.path)
    }

    fn write(&self, host: &mut dyn Host, text: &Option<String>) -> Result<(), MachineError> {
        host.set_drop_in(&self.path, text.as_deref())
    }

    fn describe(&self, before: &Option<String>, after: &Option<String>) -> Vec<SettingChange> {
        let words = |text: &Option<String>| match text {
            Some(_) if text == after => format!("{}, from its next start on", self.path.display()),
            Some(_) => "other".to_owned(),
            None => "none".to_owned(),
        };
        vec![SettingChange::of_part("", &self.unit, "drop-in", words(before), words(after))]
    }

    fn claim(&self) -> Claim<'_> {
        Claim::DropIn(&self.path)
    }

    fn subject(&self) -> String {
        format!("the drop-in of {}", self.unit)
    }

    fn continues(first: &Assignment<Self>, later: &Assignment<Self>) -> bool {
        first.setting.path == later.setting.path
    }

    fn capability(_: &Assignment<Self>, root: bool) -> Option<Capability> {
        (!root).then_some(Capability::DacOverride)
    }
}
