//! A sample: all instances at one moment.

use abey_datapath::control::Status;
use abey_delivery::{Family, Nanos, NapiSettings};

use crate::collector::CollectorResult;
use crate::counts::Counts;

/// All instances at one moment. Counts start when the sampler first sees an instance (kernel) or when the datapath starts.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The time that the caller passed to [`Sampler::sample`](crate::Sampler::sample).
    pub at: Nanos,
    /// The instances of the kernel, by ID, followed by those of datapaths.
    pub instances: Vec<Instance>,
    /// The datapaths that own these instances.
    pub datapaths: Vec<Datapath>,
    /// The machine's receive softirq, if it was read.
    pub softnet: Option<Softnet>,
    /// The result of each collector.
    pub results: Vec<CollectorResult>,
}

/// The owner of an instance: what `--world` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The kernel.
    Linux,
    /// A datapath in user space.
    Datapath,
}

impl Owner {
    /// Returns the owner's name, as in the `world` label and the JSON key `world`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Datapath => "datapath",
        }
    }
}

/// A unique key of an instance during its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// The owner.
    pub owner: Owner,
    /// The process ID of the datapath: in the caller's PID namespace, or in its own if that does not contain it; 0 for the
    /// kernel.
    pub pid: u32,
    /// The number of its control socket among those of processes with this ID.
    pub socket: u32,
    /// The NAPI ID.
    pub napi: u32,
}

/// A NAPI instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its key.
    pub key: InstanceKey,
    /// The network device, or the datapath's NIC.
    pub device: String,
    /// The receive queues it serves, in ascending order.
    pub queues: Vec<u32>,
    /// The mode that its settings are, or a description of the nearest one.
    pub mode: String,
    /// The family of the mode. For the kernel it follows from the instance's settings alone: busy-polling modes that differ
    /// from deferral in the epoll parameters only, which belong to processes, count as `defer`.
    pub family: Family,
    /// Its settings.
    pub settings: NapiSettings,
    /// Its interrupt, if it has one of its own.
    pub irq: Option<u32>,
    /// Its counts.
    pub counts: Counts,
}

impl Instance {
    /// Returns its queues as a comma-separated list, or `-` if it has none.
    #[must_use]
    pub fn queue_list(&self) -> String {
        if self.queues.is_empty() {
            return "-".to_owned();
        }
        self.queues.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
}

/// A running datapath.
#[derive(Clone, Debug)]
pub struct Datapath {
    /// The status it reported, with the process ID of [`InstanceKey::pid`].
    pub status: Status,
    /// See [`InstanceKey::socket`].
    pub socket: u32,
}

/// The receive softirq of all CPUs, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Softnet {
    /// Packets that the kernel's receive path processed.
    pub processed: u64,
    /// Packets dropped because a CPU's backlog was full.
    pub dropped: u64,
    /// Softirq runs that ended with work left because the packet budget or the time was spent.
    pub squeezes: u64,
}

/// Samples for unit tests.
#[cfg(test)]
pub(crate) mod tests_support {
    use std::time::Duration;

    use super::*;
    use crate::collector::Collector;

    /// Returns a sample at time 0 in which every collector succeeded.
    pub(crate) fn sample(instances: Vec<Instance>) -> Sample {
        let result = |collector| CollectorResult { collector, duration: Duration::ZERO, result: Ok(()) };
        let results = Collector::ALL.map(result).to_vec();
        Sample { at: Nanos::ZERO, instances, datapaths: Vec::new(), softnet: None, results }
    }

    /// Returns an instance in mode `base` without counts.
    pub(crate) fn instance(device: &str, napi: u32) -> Instance {
        Instance {
            key: InstanceKey { owner: Owner::Linux, pid: 0, socket: 0, napi },
            device: device.to_owned(),
            queues: vec![0],
            mode: "base".to_owned(),
            family: Family::Base,
            settings: NapiSettings::default(),
            irq: None,
            counts: Counts::default(),
        }
    }
}
