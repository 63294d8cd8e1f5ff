//! What the commands of the Linux world share: the namespace option, error statuses, which modes exist there.

use abey_delivery::{Mode, NapiSettings, PollContext};
use abey_linux::apply::{ApplyError, JournalError};
use abey_linux::device::DeviceError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::{NetNs, NetNsError};

use crate::failure::Failure;

/// Who owns the NIC queue.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct World {
    /// Who owns the NIC queue; this version has the kernel's own NAPI only
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

/// The NAPI settings of a mode that the kernel can deliver.
pub(crate) fn napi_part_only(mode: Mode) -> Result<NapiSettings, Failure> {
    let settings = mode.settings().napi;
    if settings.hold.is_some() || settings.context == PollContext::Workqueue {
        return Err(Failure::usage(format!(
            "the Linux kernel has no mode `{mode}`: it exists in the datapath and sim worlds only"
        )));
    }
    Ok(settings)
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

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Netlink(error) => error.into(),
            ApplyError::Journal(error) => error.into(),
            ApplyError::Settings { .. } | ApplyError::TooLong { .. } | ApplyError::NoQueue { .. } => Self::usage(error),
            ApplyError::Held { .. } => Self::check(error),
            _ => Self::lacks(error),
        }
    }
}
