//! What a policy says, before anybody knows which devices there are.

use std::collections::BTreeSet;

use abey_delivery::{EpollBusyPoll, Mode, ModeSettings, NapiSettings};
use abey_linux::cpu::{CpuList, Scheduling};
use serde::Deserialize;

use crate::said::{Origin, Said};
use crate::select::Selector;
use crate::tune::Tune;
use crate::value::{CpuChoice, Port, Queues};

/// What becomes of a wish that the driver or the kernel cannot fulfil.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUnsupported {
    /// It ends the apply before anything is changed.
    #[default]
    Fail,
    /// It is listed and left out.
    Skip,
}

/// A machine's delivery policy: all its files.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// What holds for devices that say nothing else.
    pub on_unsupported: OnUnsupported,
    /// The `[[device]]` tables, in the order of the files.
    pub devices: Vec<DeviceRule>,
    /// The `[[program]]` tables.
    pub programs: Vec<ProgramRule>,
}

/// A `[[device]]` table.
#[derive(Clone, Debug)]
pub struct DeviceRule {
    /// Where the table begins.
    pub origin: Origin,
    /// Which devices are meant.
    pub selector: Selector,
    /// Whether there may be none.
    pub optional: bool,
    /// What becomes of what its driver cannot do; `None`: as the policy says.
    pub on_unsupported: Option<OnUnsupported>,
    /// How many receive queues.
    pub channels: Option<Said<u32>>,
    /// Over which queues packets are spread that no flow rule takes.
    pub rss: Option<Said<BTreeSet<u32>>>,
    /// For queues without settings of their own.
    pub settings: Option<Said<Settings>>,
    /// Rules for single queues.
    pub queues: Vec<QueueRule>,
    /// Ports that are steered.
    pub flows: Vec<FlowWish>,
}

/// A `[[device.queues]]` table.
#[derive(Clone, Debug)]
pub struct QueueRule {
    /// Which queues.
    pub queues: Said<Queues>,
    /// Their settings.
    pub settings: Option<Said<Settings>>,
    /// Ports that are steered to them.
    pub ports: Option<Said<Vec<Port>>>,
    /// Which CPUs their interrupts go to.
    pub irq_cpus: Option<Said<CpuChoice>>,
    /// Which CPUs transmit on the queues of the same numbers.
    pub xps_cpus: Option<Said<CpuChoice>>,
    /// Where and how the threads run that poll them.
    pub thread: Option<Said<ThreadWish>>,
    /// How far their settings may be tuned.
    pub tune: Option<Said<Tune>>,
}

/// Where and how a NAPI instance's thread runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadWish {
    /// The CPUs.
    pub cpus: Option<CpuChoice>,
    /// The scheduling class.
    pub scheduling: Option<Scheduling>,
}

/// A `[[device.flows]]` table: ports that are steered to queues.
#[derive(Clone, Debug)]
pub struct FlowWish {
    /// The destination ports.
    pub ports: Said<Vec<Port>>,
    /// The queues.
    pub queues: Said<BTreeSet<u32>>,
}

/// Settings of NAPI instances, by a mode's name or one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Those of a mode.
    Mode(Mode),
    /// These.
    Napi(NapiSettings),
}

impl Settings {
    /// The settings of the NAPI instances.
    pub fn napi(&self) -> NapiSettings {
        match self {
            Self::Mode(mode) => mode.settings().napi,
            Self::Napi(napi) => *napi,
        }
    }

    /// All of the mode, where one was named: what a program needs to know of it.
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
    /// Where the table begins.
    pub origin: Origin,
    /// Which program.
    pub program: Said<Program>,
    /// The device whose settings it runs with.
    pub device: Option<Said<glob::Pattern>>,
    /// The queues of it.
    pub queues: Option<Said<BTreeSet<u32>>>,
    /// The mode it runs with, in place of that of its queues.
    pub mode: Option<Said<Mode>>,
    /// The busy-poll parameters of its epoll instances, in place of those of the mode.
    pub epoll: Option<Said<EpollBusyPoll>>,
    /// The CPUs that its threads may run on.
    pub cpus: Option<Said<CpuList>>,
    /// Whether connections go to the `SO_REUSEPORT` listener of their queue.
    pub steer: bool,
}

/// How a program is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A systemd service, by the name of its unit.
    Unit(String),
    /// Every process of a file.
    Executable(String),
}
