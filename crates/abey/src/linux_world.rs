//! What the commands of the Linux world share: the namespace option, error statuses, which modes exist there.

use std::path::Path;

use abey_delivery::{Mode, ModeSettings};
use abey_linux::apply::{ApplyError, JournalError};
use abey_linux::device::DeviceError;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::{NetNs, NetNsError};
use abey_sim::SettingsFile;
use abey_sim::plan::mode_of;

use crate::failure::Failure;

/// Who owns the NIC queue.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct World {
    /// Who owns the NIC queue
    #[arg(long, value_enum, default_value_t = WorldChoice::Linux)]
    world: WorldChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WorldChoice {
    Linux,
    Datapath,
    Both,
}

impl World {
    /// Whether it is to be Abey's own datapath.
    pub(crate) fn is_datapath(self) -> bool {
        self.world == WorldChoice::Datapath
    }

    /// Refuses the worlds that this version does not have.
    pub(crate) fn only_linux(self) -> Result<(), Failure> {
        if self.world == WorldChoice::Linux {
            return Ok(());
        }
        Err(Failure::usage("this version has the linux world only: leave --world out, or say --world linux"))
    }
}

/// The namespace a command works in.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Namespace {
    /// The network namespace to work in, by the name that `ip netns` gives it
    #[arg(long = "netns", value_name = "NAME")]
    name: Option<String>,
}

impl Namespace {
    /// Whether one was named.
    pub(crate) fn is_given(&self) -> bool {
        self.name.is_some()
    }

    /// Opens it; without a name, it is the one Abey was started in.
    pub(crate) fn open(&self) -> Result<NetNs, Failure> {
        Ok(match &self.name {
            Some(name) => NetNs::named(name)?,
            None => NetNs::current()?,
        })
    }
}

/// Settings that the kernel is to have, as a mode or as a settings file has them.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The mode's name, or the file's: for messages, and it reads well in a sentence.
    pub name: String,
    /// The mode that has exactly these settings.
    pub mode: Option<Mode>,
    /// All of them.
    pub settings: ModeSettings,
}

impl Wanted {
    /// A mode that the kernel can deliver.
    pub(crate) fn mode(mode: Mode) -> Result<Self, Failure> {
        let settings = mode.settings();
        if settings.only_ours().is_some() {
            return Err(Failure::usage(format!(
                "the Linux kernel has no mode `{mode}`: it exists in the datapath and sim worlds only"
            )));
        }
        Ok(Self { name: mode.to_string(), mode: Some(mode), settings })
    }

    /// The settings of a file, if the kernel can deliver them.
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
