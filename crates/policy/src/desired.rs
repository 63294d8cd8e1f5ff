//! The desired state of a machine: the settings of every device, queue and program that a policy matches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use abey_linux::cpu::{CpuList, Scheduling};
use abey_linux::library::LibraryConfig;

use crate::error::PolicyError;
use crate::model::{OnUnsupported, Program, Settings};
use crate::spanned::{Origin, Spanned};
use crate::tune::Tune;
use crate::value::Port;

/// The desired state of a machine.
#[derive(Debug, Default)]
pub struct DesiredState {
    /// The devices that a table matches.
    pub devices: Vec<DesiredDevice>,
    /// Devices with an error in the policy: a queue that does not exist, two rules for one setting.
    pub wrong: Vec<(String, PolicyError)>,
    /// Tables that match no device.
    pub absent: Vec<Absent>,
    /// The names of the machine's devices, for messages.
    pub known: Vec<String>,
    /// The programs that belong to queues.
    pub programs: Vec<DesiredProgram>,
}

impl DesiredState {
    /// Fails with the first [error](Self::wrong).
    ///
    /// # Errors
    /// The first error.
    pub fn check(&mut self) -> Result<(), PolicyError> {
        if self.wrong.is_empty() { Ok(()) } else { Err(self.wrong.remove(0).1) }
    }
}

/// A table that matches no device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The table.
    pub origin: Origin,
    /// The criteria of the table.
    pub wanted: String,
    /// Whether that is no error.
    pub optional: bool,
}

/// A desired value, the rule it comes from, and what to do if it is unsupported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired<T> {
    /// The value.
    pub value: T,
    /// The position of the rule.
    pub origin: Origin,
    /// Whether the apply fails if the value is unsupported.
    pub on_unsupported: OnUnsupported,
}

/// The desired settings of one device.
#[derive(Clone, Debug)]
pub struct DesiredDevice {
    /// Its name.
    pub name: String,
    /// The number of receive queues.
    pub channels: Option<Desired<u32>>,
    /// The queues over which packets without a flow rule are spread.
    pub rss: Option<Desired<BTreeSet<u32>>>,
    /// The desired settings of each queue.
    pub queues: BTreeMap<u32, DesiredQueue>,
    /// Ports that are steered to queues.
    pub flows: Vec<Desired<SteeredPorts>>,
}

/// Ports and the queues that they are steered to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeredPorts {
    /// The destination ports.
    pub ports: Vec<Port>,
    /// The queues.
    pub queues: BTreeSet<u32>,
}

/// The desired settings of one queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredQueue {
    /// The settings of its NAPI instance.
    pub settings: Option<Desired<Settings>>,
    /// The CPUs of its interrupt.
    pub irq: Option<Desired<CpuList>>,
    /// The CPUs that transmit on the queue of the same number.
    pub xps: Option<Desired<CpuList>>,
    /// The CPUs and scheduling of its thread.
    pub thread: Option<Desired<DesiredThread>>,
    /// The bounds for tuning its settings: settings within them are left alone.
    pub tune: Option<Spanned<Tune>>,
}

/// The CPUs and scheduling of one thread; `None` leaves one alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredThread {
    /// The CPUs.
    pub cpus: Option<CpuList>,
    /// The scheduling class.
    pub scheduling: Option<Scheduling>,
}

/// The desired settings of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredProgram {
    /// The table.
    pub origin: Origin,
    /// The program.
    pub program: Program,
    /// What the library does in it; nothing for a mode that consists of NAPI settings only.
    pub library: LibraryConfig,
    /// The CPUs that its threads may run on.
    pub cpus: Option<CpuList>,
}

impl DesiredProgram {
    /// Returns the drop-in that gives the program's unit the library and its CPUs from its next start on
    /// (systemd.exec(5)); `None` if it needs neither.
    pub fn drop_in(&self, library: &Path) -> Option<String> {
        let mut lines = Vec::new();
        if !self.library.is_passive() {
            lines.push(format!("Environment=LD_PRELOAD={}", library.display()));
            lines.extend(self.library.to_env().into_iter().map(|(name, value)| format!("Environment={name}={value}")));
        }
        if let Some(cpus) = &self.cpus {
            lines.push(format!("CPUAffinity={cpus}"));
        }
        let head = format!("# Written by `abey apply` as {} says.\n[Service]\n", self.origin.file);
        (!lines.is_empty()).then(|| head + &lines.join("\n") + "\n")
    }
}
