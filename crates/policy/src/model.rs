//! The content of a policy, before it is matched with the devices of a machine.

use std::collections::BTreeSet;

use abey_delivery::{EpollBusyPoll, Mode, ModeSettings, NapiSettings};
use abey_linux::cpu::{CpuList, Scheduling};
use serde::Deserialize;

use crate::select::Selector;
use crate::spanned::{Origin, Spanned};
use crate::tune::Tune;
use crate::value::{CpuChoice, Port, Queues};

/// What to do with a desired setting that the driver or the kernel does not support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUnsupported {
    /// End the apply before anything is changed.
    #[default]
    Fail,
    /// List the setting and leave it out.
    Skip,
}

/// A machine's delivery policy: all its files.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The choice for devices without one of their own.
    pub on_unsupported: OnUnsupported,
    /// The `[[device]]` tables, in the order of the files.
    pub devices: Vec<DeviceRule>,
    /// The `[[program]]` tables.
    pub programs: Vec<ProgramRule>,
}

/// A `[[device]]` table.
#[derive(Clone, Debug)]
pub struct DeviceRule {
    /// The position of the table.
    pub origin: Origin,
    /// The criteria for devices.
    pub selector: Selector,
    /// Whether it is no error if no device matches.
    pub optional: bool,
    /// What to do with unsupported settings; `None` is the policy's choice.
    pub on_unsupported: Option<OnUnsupported>,
    /// The number of receive queues.
    pub channels: Option<Spanned<u32>>,
    /// The queues over which packets without a flow rule are spread.
    pub rss: Option<Spanned<BTreeSet<u32>>>,
    /// The settings of queues without settings of their own.
    pub settings: Option<Spanned<Settings>>,
    /// Rules for groups of queues.
    pub queues: Vec<QueueRule>,
    /// Ports that are steered to queues.
    pub flows: Vec<PortRule>,
}

/// A `[[device.queues]]` table.
#[derive(Clone, Debug)]
pub struct QueueRule {
    /// The queues.
    pub queues: Spanned<Queues>,
    /// Their settings.
    pub settings: Option<Spanned<Settings>>,
    /// Ports that are steered to them.
    pub ports: Option<Spanned<Vec<Port>>>,
    /// The CPUs of their interrupts.
    pub irq_cpus: Option<Spanned<CpuChoice>>,
    /// The CPUs that transmit on the queues of the same numbers.
    pub xps_cpus: Option<Spanned<CpuChoice>>,
    /// The CPUs and scheduling of the threads that poll them.
    pub thread: Option<Spanned<ThreadRule>>,
    /// The goal and bounds for tuning their settings.
    pub tune: Option<Spanned<Tune>>,
}

/// The CPUs and scheduling of the thread of a NAPI instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRule {
    /// The CPUs.
    pub cpus: Option<CpuChoice>,
    /// The scheduling class.
    pub scheduling: Option<Scheduling>,
}

/// A `[[device.flows]]` table: ports that are steered to queues.
#[derive(Clone, Debug)]
pub struct PortRule {
    /// The destination ports.
    pub ports: Spanned<Vec<Port>>,
    /// The queues.
    pub queues: Spanned<BTreeSet<u32>>,
}

/// Settings of NAPI instances, as a mode or one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// The settings of a mode.
    Mode(Mode),
    /// Individual settings.
    Napi(NapiSettings),
}

impl Settings {
    /// Returns the settings of the NAPI instances.
    pub fn napi(&self) -> NapiSettings {
        match self {
            Self::Mode(mode) => mode.settings().napi,
            Self::Napi(napi) => *napi,
        }
    }

    /// Returns the mode with all its settings, if one was named: a program needs more than the NAPI settings.
    pub fn of_mode(&self) -> Option<(Mode, ModeSettings)> {
        match self {
            Self::Mode(mode) => Some((*mode, mode.settings())),
            Self::Napi(_) => None,
        }
    }
}

/// A `[[program]]` table.
#[derive(Clone, Debug)]
pub struct ProgramRule {
    /// The position of the table.
    pub origin: Origin,
    /// The program.
    pub program: Spanned<Program>,
    /// The device whose settings it runs with.
    pub device: Option<Spanned<glob::Pattern>>,
    /// The queues of that device whose settings it runs with.
    pub queues: Option<Spanned<BTreeSet<u32>>>,
    /// The mode it runs with, in place of that of its queues.
    pub mode: Option<Spanned<Mode>>,
    /// The busy-poll parameters of its epoll instances, in place of those of the mode.
    pub epoll: Option<Spanned<EpollBusyPoll>>,
    /// The CPUs that its threads may run on.
    pub cpus: Option<Spanned<CpuList>>,
    /// Whether connections go to the `SO_REUSEPORT` listener of their queue.
    pub steer: bool,
}

/// How a program is identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A systemd service, by the name of its unit.
    Unit(String),
    /// Every process of an executable, by its path.
    Executable(String),
}
