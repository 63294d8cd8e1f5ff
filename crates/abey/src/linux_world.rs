//! Parts of the commands that work on the kernel: the namespace argument, settings, and the exit statuses of errors.

use std::path::Path;

use abey_delivery::{Mode, ModeSettings};
use abey_linux::device::DeviceError;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::{NetNs, NetNsError};
use abey_reconcile::{ApplyError, JournalError};
use abey_sim::SettingsFile;
use abey_sim::plan::mode_of;

use crate::failure::Failure;

/// The namespace of a command.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Namespace {
    /// Work in this network namespace, by its name in `ip netns`
    #[arg(long = "netns", value_name = "NAME")]
    name: Option<String>,
}

impl Namespace {
    /// Returns whether a namespace was named.
    pub(crate) fn is_given(&self) -> bool {
        self.name.is_some()
    }

    /// Opens the named namespace; without a name, that of this process.
    pub(crate) fn open(&self) -> Result<NetNs, Failure> {
        Ok(match &self.name {
            Some(name) => NetNs::named(name)?,
            None => NetNs::current()?,
        })
    }
}

/// Settings for the kernel, of a mode or of a settings file.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The name of the mode or of the file, for messages.
    pub name: String,
    /// The mode that has exactly these settings.
    pub mode: Option<Mode>,
    /// The settings.
    pub settings: ModeSettings,
}

impl Wanted {
    /// Returns the settings of a mode that the kernel has.
    pub(crate) fn mode(mode: Mode) -> Result<Self, Failure> {
        let settings = mode.settings();
        if settings.only_ours().is_some() {
            return Err(Failure::usage(format!(
                "the Linux kernel has no mode `{mode}`: it exists in the datapath and sim worlds only"
            )));
        }
        Ok(Self { name: mode.to_string(), mode: Some(mode), settings })
    }

    /// Returns the settings of a file, if the kernel has them.
    pub(crate) fn file(path: &Path) -> Result<Self, Failure> {
        let SettingsFile { name, settings, .. } = SettingsFile::load(path).map_err(Failure::usage)?;
        if let Some(what) = settings.only_ours() {
            return Err(Failure::usage(format!(
                "{name} asks for {what}, which the Linux kernel does not have: it exists in the datapath and sim worlds only"
            )));
        }
        Ok(Self { name, mode: mode_of(&settings), settings })
    }
}

impl From<NetNsError> for Failure {
    fn from(error: NetNsError) -> Self {
        match error {
            NetNsError::Unknown { .. } | NetNsError::Process { .. } => Self::usage(error),
            _ => Self::lacks(error),
        }
    }
}

impl From<NetlinkError> for Failure {
    fn from(error: NetlinkError) -> Self {
        match error {
            NetlinkError::Namespace(error) => error.into(),
            NetlinkError::Missing { .. } | NetlinkError::Denied { .. } => Self::lacks(error),
            _ => Self::check(error),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Netlink(error) => error.into(),
            _ => Self::usage(error),
        }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::File { .. } => Self::lacks(error),
            _ => Self::check(error),
        }
    }
}

impl From<MachineError> for Failure {
    fn from(error: MachineError) -> Self {
        match error {
            MachineError::Unsupported { .. } | MachineError::Denied { .. } => Self::lacks(error),
            _ => Self::check(error),
        }
    }
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Netlink(error) => error.into(),
            ApplyError::Machine(error) => error.into(),
            ApplyError::Journal(error) => error.into(),
            ApplyError::Settings { .. } | ApplyError::TooLong { .. } | ApplyError::NoQueue { .. } => Self::usage(error),
            ApplyError::Held { .. } => Self::check(error),
            _ => Self::lacks(error),
        }
    }
}
