//! One look at everything.

use abey_datapath::control::Status;
use abey_delivery::{Family, Nanos};

use crate::collector::Outcome;
use crate::counts::Counts;

/// Everything at one moment. Counts count since the sampler first saw the instance (kernel) or since the datapath began.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When, on the clock of who asked.
    pub at: Nanos,
    /// The instances: the kernel's by ID, then those of datapaths.
    pub instances: Vec<Instance>,
    /// The datapaths that these belong to.
    pub datapaths: Vec<Datapath>,
    /// The receive softirq of the machine, if it was read.
    pub softnet: Option<Softnet>,
    /// What could be read, and what not.
    pub outcomes: Vec<Outcome>,
}

/// Who owns an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum World {
    /// The kernel.
    Linux,
    /// A datapath.
    Datapath,
}

impl World {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Datapath => "datapath",
        }
    }
}

/// What tells an instance from every other, as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Who owns it.
    pub world: World,
    /// The process of a datapath, as we see it; 0 in the kernel.
    pub pid: u32,
    /// The instance's ID.
    pub napi: u32,
}

/// A NAPI instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Which.
    pub key: Key,
    /// The network device, or the NIC of the datapath.
    pub device: String,
    /// The receive queues it serves, ascending.
    pub queues: Vec<u32>,
    /// Its settings as a mode: exactly, or what it is nearest to, in words.
    pub mode: String,
    /// The mechanism, whatever the figures. Of the kernel's it is that of the instance's settings alone: busy-polling modes
    /// that differ from deferral in the epoll parameters only, which belong to processes, are `defer` here.
    pub family: Family,
    /// Its settings.
    pub settings: Settings,
    /// Its interrupt, where it has one of its own.
    pub irq: Option<u32>,
    /// What it did.
    pub counts: Counts,
}

impl Instance {
    /// Its queues as a list, `-` for an instance that has none.
    #[must_use]
    pub fn queue(&self) -> String {
        if self.queues.is_empty() {
            return "-".to_owned();
        }
        self.queues.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The settings that are times and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// See [`abey_delivery::NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: u32,
    /// See [`abey_delivery::NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout: Nanos,
    /// See [`abey_delivery::NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout: Nanos,
}

/// A running datapath.
#[derive(Clone, Debug)]
pub struct Datapath {
    /// What it says of itself; its process is numbered as we see it.
    pub status: Status,
}

/// The receive softirq of all CPUs, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Softnet {
    /// Packets that went through the kernel's receive path.
    pub processed: u64,
    /// Packets dropped because a CPU's backlog was full.
    pub dropped: u64,
    /// Runs that stopped with work left because their packets or time were spent.
    pub squeezes: u64,
}

/// Samples for tests of what is made of them.
#[cfg(test)]
pub(crate) mod tests_support {
    use std::time::Duration;

    use super::*;
    use crate::collector::Collector;

    /// At time 0, every collector successful.
    pub(crate) fn sample(instances: Vec<Instance>) -> Sample {
        let outcome = |collector| Outcome { collector, took: Duration::ZERO, result: Ok(()) };
        let outcomes = Collector::ALL.map(outcome).to_vec();
        Sample { at: Nanos::ZERO, instances, datapaths: Vec::new(), softnet: None, outcomes }
    }

    /// One that has done nothing, in mode `base`.
    pub(crate) fn instance(device: &str, napi: u32) -> Instance {
        Instance {
            key: Key { world: World::Linux, pid: 0, napi },
            device: device.to_owned(),
            queues: vec![0],
            mode: "base".to_owned(),
            family: Family::Base,
            settings: Settings::default(),
            irq: None,
            counts: Counts::default(),
        }
    }
}
