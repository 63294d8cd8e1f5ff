//! One change, with what was there before.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cpu::CpuList;
use crate::device::DeviceId;
use crate::ethtool::rss::{DEFAULT_CONTEXT, queue_list};
use crate::ethtool::{ChannelCounts, FlowRule, RssContext};
use crate::machine::ThreadState;

use super::kernel::NTUPLE;
use super::wire::{ChangeRecord, SettingsRecord};

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
    /// The numbers of a device's queues. Most drivers make all of them anew for it.
    Channels {
        /// The device.
        device: DeviceId,
        /// The numbers before, of every kind that changes.
        before: ChannelCounts,
        /// What they shall be.
        after: ChannelCounts,
        /// What was set on queues, which making them anew may lose.
        held: HeldByQueues,
    },
    /// The indirection table of an RSS context.
    RssTable {
        /// The device.
        device: DeviceId,
        /// The context; 0 is the default one.
        context: u32,
        /// The table before.
        before: Vec<u32>,
        /// What it shall be.
        after: Vec<u32>,
    },
    /// A new RSS context.
    RssContextMade {
        /// The device.
        device: DeviceId,
        /// Its table.
        table: Vec<u32>,
        /// The contexts that were there before: the kernel chooses the new one's number.
        others: Vec<u32>,
    },
    /// An RSS context that goes.
    RssContextDeleted {
        /// The device.
        device: DeviceId,
        /// What it was.
        context: RssContext,
    },
    /// The switch without which a driver takes no rules (`ntuple`).
    Ntuple {
        /// The device.
        device: DeviceId,
        /// Whether it shall be on; before, it was not so.
        on: bool,
    },
    /// A new rule that steers a flow.
    RuleInserted {
        /// The device.
        device: DeviceId,
        /// The rule.
        rule: FlowRule,
        /// The places that were taken before: the driver may choose the new one's place.
        others: Vec<u32>,
    },
    /// A rule that goes.
    RuleDeleted {
        /// The device.
        device: DeviceId,
        /// What it was.
        rule: FlowRule,
    },
    /// The CPUs that use a transmit queue (XPS).
    Xps {
        /// The device.
        device: DeviceId,
        /// The transmit queue.
        queue: u32,
        /// The CPUs before; empty where there was no map.
        before: CpuList,
        /// What they shall be.
        after: CpuList,
    },
    /// The CPUs that an interrupt may go to.
    Irq {
        /// The device it belongs to.
        device: String,
        /// The interrupt.
        irq: u32,
        /// The CPUs before.
        before: CpuList,
        /// What they shall be.
        after: CpuList,
    },
    /// The thread that polls a NAPI instance.
    Thread {
        /// The device.
        device: String,
        /// The NAPI instance.
        napi: u32,
        /// Where and how the thread ran before.
        before: ThreadState,
        /// What that shall be.
        after: ThreadState,
    },
    /// The CPUs of a process, thread by thread.
    Process {
        /// The process.
        pid: u32,
        /// When it started, in clock ticks since boot: numbers are used again.
        started: u64,
        /// The CPUs of each thread before.
        before: Vec<(u32, CpuList)>,
        /// What they shall be.
        after: CpuList,
        /// Threads that shall have others.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        but: Vec<(u32, CpuList)>,
    },
    /// The drop-in of a unit.
    DropIn {
        /// The unit.
        unit: String,
        /// The file.
        path: PathBuf,
        /// What it said before; `None` where it was not there.
        before: Option<String>,
        /// What it shall say; `None` if it goes.
        after: Option<String>,
    },
}

/// What is set on queues, by their numbers, so that it can be set again on queues that were made anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldByQueues {
    /// What each receive queue has.
    pub queues: Vec<HeldByQueue>,
    /// The CPUs of each transmit queue that has a map.
    pub xps: Vec<(u32, CpuList)>,
    /// The default RSS table, where the device has one.
    pub table: Option<Vec<u32>>,
}

/// What one receive queue has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldByQueue {
    /// Its number.
    pub queue: u32,
    /// The settings of its NAPI instance.
    pub napi: SettingsRecord,
    /// The CPUs of its interrupt, where it is known.
    pub irq_cpus: Option<CpuList>,
    /// The thread that polls it, where there is one.
    pub thread: Option<ThreadState>,
}

/// One setting of one instance that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// The device; empty for a process.
    pub device: String,
    /// The NAPI instance; `None` for a setting of something else.
    pub napi: Option<u32>,
    /// What else of the device the setting is of, in words such as `queue 3`; `None` for a NAPI instance, or for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The setting's name.
    pub setting: String,
    /// What it is.
    pub before: String,
    /// What it becomes.
    pub after: String,
}

impl SettingChange {
    /// What it is about: a NAPI instance, a part of the device, or every NAPI instance of it.
    #[must_use]
    pub fn subject(&self) -> String {
        let part = match (self.napi, &self.part) {
            (Some(id), _) => format!("NAPI {id}"),
            (None, Some(part)) => part.clone(),
            (None, None) => "every NAPI".to_owned(),
        };
        format!("{} {part}", self.device).trim().to_owned()
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Before a change of the whole device stands a comma, because a name and a word would read as one.
        let subject = match (self.napi, &self.part) {
            (None, None) => format!("{}, every NAPI", self.device),
            _ => self.subject(),
        };
        write!(f, "{subject}: {} {} -> {}", self.setting, self.before, self.after)
    }
}

impl Step {
    /// The changes one by one, for people.
    #[must_use]
    pub fn changes(&self) -> Vec<SettingChange> {
        let of = |device: &str, part: &str, setting: &str, before: String, after: String| {
            let (device, part, setting) = (device.to_owned(), Some(part.to_owned()), setting.to_owned());
            vec![SettingChange {
                device,
                napi: None,
                part: part.filter(|part| !part.is_empty()),
                setting,
                before,
                after,
            }]
        };
        let none = || "none".to_owned();
        match self {
            Self::Napi { id, device, before, change } => {
                let changes = change.against(before).into_iter();
                changes.map(|(setting, before, after)| of_napi(device, *id, &setting, before, after)).collect()
            }
            Self::DeviceFile { device, file, before, after } => of(device, "", file, before.clone(), after.clone()),
            Self::Channels { device, before, after, .. } => {
                let old = |kind| before.each().find(|(known, _)| *known == kind).map_or(0, |(_, count)| count);
                let each = after.each();
                each.flat_map(|(kind, new)| of(&device.name, "channels", kind, old(kind).to_string(), new.to_string()))
                    .collect()
            }
            Self::RssTable { device, context, before, after } => {
                let part = if *context == DEFAULT_CONTEXT { "RSS".to_owned() } else { context_name(*context) };
                of(&device.name, &part, "queues", queue_list(before), queue_list(after))
            }
            Self::RssContextMade { device, table, .. } => {
                of(&device.name, "new RSS context", "queues", none(), queue_list(table))
            }
            Self::RssContextDeleted { device, context } => {
                of(&device.name, &context_name(context.id), "queues", queue_list(&context.table), none())
            }
            Self::Ntuple { device, on } => {
                let word = |on: bool| if on { "on" } else { "off" }.to_owned();
                of(&device.name, "flow rules", NTUPLE, word(!on), word(*on))
            }
            Self::RuleInserted { device, rule, .. } => {
                of(&device.name, "flow rule", &rule.flow_name(), none(), rule.target().to_string())
            }
            Self::RuleDeleted { device, rule } => {
                of(&device.name, "flow rule", &rule.flow_name(), rule.target().to_string(), none())
            }
            Self::Xps { device, queue, before, after } => {
                let (before, after) = (cpus_or_none(before), cpus_or_none(after));
                of(&device.name, &format!("transmit queue {queue}"), "xps-cpus", before, after)
            }
            Self::Irq { device, irq, before, after } => {
                of(device, &format!("IRQ {irq}"), "irq-cpus", before.to_string(), after.to_string())
            }
            Self::Thread { device, napi, before, after } => {
                let mut found = Vec::new();
                if before.cpus != after.cpus {
                    let (before, after) = (before.cpus.to_string(), after.cpus.to_string());
                    found.push(of_napi(device, *napi, "thread-cpus", before, after));
                }
                if before.scheduling != after.scheduling {
                    let (before, after) = (before.scheduling.to_string(), after.scheduling.to_string());
                    found.push(of_napi(device, *napi, "thread-scheduling", before, after));
                }
                found
            }
            Self::Process { pid, before, after, but, .. } => {
                let all: CpuList = before.iter().flat_map(|(_, cpus)| cpus.iter()).collect();
                let others = but.iter().flat_map(|(_, cpus)| cpus.iter());
                let after: CpuList = after.iter().chain(others).collect();
                of("", &format!("process {pid}"), "cpus", all.to_string(), after.to_string())
            }
            Self::DropIn { unit, path, before, after } => {
                let word = |text: &Option<String>| match text {
                    Some(_) if text == after => format!("{}, from its next start on", path.display()),
                    Some(_) => "other".to_owned(),
                    None => none(),
                };
                of("", unit, "drop-in", word(before), word(after))
            }
        }
    }

    /// The device it is about, where it is about one.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Napi { device, .. }
            | Self::DeviceFile { device, .. }
            | Self::Irq { device, .. }
            | Self::Thread { device, .. } => Some(device),
            Self::Channels { device, .. }
            | Self::RssTable { device, .. }
            | Self::RssContextMade { device, .. }
            | Self::RssContextDeleted { device, .. }
            | Self::Ntuple { device, .. }
            | Self::RuleInserted { device, .. }
            | Self::RuleDeleted { device, .. }
            | Self::Xps { device, .. } => Some(&device.name),
            Self::Process { .. } | Self::DropIn { .. } => None,
        }
    }

    /// Whether both change the same thing, so that only one of two may hold it.
    #[must_use]
    pub(super) fn is_about_what(&self, other: &Self) -> bool {
        use Step::{
            Channels, DeviceFile, DropIn, Irq, Napi, Process, RssTable, RuleDeleted, RuleInserted, Thread, Xps,
        };
        let same_device = self.device() == other.device();
        match (self, other) {
            (Napi { id, .. }, Napi { id: other, .. }) => id == other,
            (Irq { irq, .. }, Irq { irq: other, .. }) => irq == other,
            (Thread { napi, .. }, Thread { napi: other, .. }) => napi == other,
            (Process { pid, .. }, Process { pid: other, .. }) => pid == other,
            (DropIn { path, .. }, DropIn { path: other, .. }) => path == other,
            // A file holds for every instance, and new queues take everything with them that was set on the old ones.
            (DeviceFile { .. }, DeviceFile { .. } | Napi { .. }) | (Napi { .. }, DeviceFile { .. }) => same_device,
            (Channels { .. }, _) | (_, Channels { .. }) => same_device,
            (RssTable { context, .. }, RssTable { context: other, .. }) => same_device && context == other,
            (Xps { queue, .. }, Xps { queue: other, .. }) => same_device && queue == other,
            (
                RuleInserted { rule, .. } | RuleDeleted { rule, .. },
                RuleInserted { rule: other, .. } | RuleDeleted { rule: other, .. },
            ) => same_device && rule.port().is_some() && rule.port() == other.port(),
            _ => false,
        }
    }

    /// The step from before an earlier change of the channels, where it is the default table and that knows it: what the
    /// table was in between names queues that are about to go, which the kernel then keeps from going.
    #[must_use]
    pub fn since_before(&self, earlier: &Self) -> Option<Self> {
        let (
            Self::RssTable { device, context: DEFAULT_CONTEXT, before, after },
            Self::Channels { device: changed, held: HeldByQueues { table: Some(first), .. }, .. },
        ) = (self, earlier)
        else {
            return None;
        };
        let fits = device == changed && first.len() == before.len();
        let (device, before, after) = (device.clone(), first.clone(), after.clone());
        fits.then_some(Self::RssTable { device, context: DEFAULT_CONTEXT, before, after })
    }

    /// Whether it is about something that belongs to the whole machine, not to a network namespace.
    #[must_use]
    pub(super) fn is_of_the_machine(&self) -> bool {
        matches!(self, Self::Irq { .. } | Self::Thread { .. } | Self::Process { .. } | Self::DropIn { .. })
    }

    /// What it holds, for the message that it is held.
    pub(super) fn subject(&self) -> String {
        match self {
            Self::Napi { id, device, .. } => format!("NAPI {id} of {device}"),
            Self::Irq { irq, device, .. } => format!("IRQ {irq} of {device}"),
            Self::Thread { napi, device, .. } => format!("the thread of NAPI {napi} of {device}"),
            Self::Process { pid, .. } => format!("the CPUs of process {pid}"),
            Self::DropIn { unit, .. } => format!("the drop-in of {unit}"),
            other => other.device().unwrap_or_default().to_owned(),
        }
    }
}

fn of_napi(device: &str, id: u32, setting: &str, before: String, after: String) -> SettingChange {
    let (device, setting) = (device.to_owned(), setting.to_owned());
    SettingChange { device, napi: Some(id), part: None, setting, before, after }
}

fn context_name(id: u32) -> String {
    format!("RSS context {id}")
}

fn cpus_or_none(cpus: &CpuList) -> String {
    if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
}
