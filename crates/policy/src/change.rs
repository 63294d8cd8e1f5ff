//! A desired value of one setting, whatever its present value.

use std::fmt;
use std::path::PathBuf;

use abey_linux::cpu::{CpuList, Scheduling};
use abey_linux::device::DeviceId;
use abey_linux::ethtool::rss::DEFAULT_CONTEXT;
use abey_linux::ethtool::{ChannelCounts, FlowTarget, PortFlow};

/// A desired value of one setting, whatever its present value. Settings of NAPI instances are changed by a plan instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set the numbers of queues of a device.
    Channels {
        /// The device.
        device: DeviceId,
        /// The numbers; a kind with `None` is left alone.
        counts: ChannelCounts,
    },
    /// Spread the flows of an RSS context evenly over exactly these queues.
    Spread {
        /// The device.
        device: DeviceId,
        /// The context; 0 is the default one, which gets every flow without a rule.
        context: u32,
        /// The queues.
        queues: Vec<u32>,
    },
    /// Have an additional RSS context over exactly these queues; an existing one is used.
    Context {
        /// The device.
        device: DeviceId,
        /// The queues.
        queues: Vec<u32>,
    },
    /// Delete an additional RSS context, if it exists.
    NoContext {
        /// The device.
        device: DeviceId,
        /// Its number.
        id: u32,
    },
    /// Steer a flow to a queue or context. Other rules of exactly this flow are deleted; rules that match more narrowly
    /// stay.
    Rule {
        /// The device.
        device: DeviceId,
        /// The flow.
        flow: PortFlow,
        /// The target: [`FlowTarget::Queue`] or [`FlowTarget::Context`].
        target: FlowTarget,
    },
    /// Delete the rule at this location, if there is one.
    NoRule {
        /// The device.
        device: DeviceId,
        /// The location.
        location: u32,
    },
    /// Set the CPUs that use a transmit queue; an empty list removes the XPS map.
    Xps {
        /// The device.
        device: DeviceId,
        /// The transmit queue.
        queue: u32,
        /// The CPUs.
        cpus: CpuList,
    },
    /// Set the CPUs that an interrupt may be delivered to.
    Irq {
        /// The device it belongs to.
        device: DeviceId,
        /// The interrupt.
        irq: u32,
        /// The CPUs.
        cpus: CpuList,
    },
    /// Set the CPUs and the scheduling of the thread that polls a NAPI instance; `None` leaves one alone.
    Thread {
        /// The device.
        device: DeviceId,
        /// The NAPI instance.
        napi: u32,
        /// The CPUs.
        cpus: Option<CpuList>,
        /// Class, priority and niceness.
        scheduling: Option<Scheduling>,
    },
    /// Set the CPUs of every thread of a process.
    Process {
        /// The process.
        pid: u32,
        /// The CPUs.
        cpus: CpuList,
    },
    /// Write a drop-in of a systemd unit.
    DropIn {
        /// The unit.
        unit: String,
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |queues: &[u32]| queues.iter().copied().collect::<CpuList>();
        match self {
            Self::Channels { device, counts } => write!(f, "{device}: channels {counts}"),
            Self::Spread { device, context: DEFAULT_CONTEXT, queues } => {
                write!(f, "{device}: flows spread over queues {}", list(queues))
            }
            Self::Spread { device, context, queues } => {
                write!(f, "{device}: RSS context {context} spread over queues {}", list(queues))
            }
            Self::Context { device, queues } => write!(f, "{device}: an RSS context over queues {}", list(queues)),
            Self::NoContext { device, id } => write!(f, "{device}: no RSS context {id}"),
            Self::Rule { device, flow, target } => write!(f, "{device}: {flow} to {target}"),
            Self::NoRule { device, location } => write!(f, "{device}: no flow rule {location}"),
            Self::Xps { device, queue, cpus } => write!(f, "{device}: transmit queue {queue} used by CPUs {cpus}"),
            Self::Irq { device, irq, cpus } => write!(f, "{device}: IRQ {irq} on CPUs {cpus}"),
            Self::Thread { device, napi, cpus, scheduling } => {
                write!(f, "{device}: the thread of NAPI {napi}")?;
                if let Some(cpus) = cpus {
                    write!(f, " on CPUs {cpus}")?;
                }
                scheduling.map_or(Ok(()), |scheduling| write!(f, " as {scheduling}"))
            }
            Self::Process { pid, cpus } => write!(f, "process {pid} on CPUs {cpus}"),
            Self::DropIn { unit, path, .. } => write!(f, "{unit}: drop-in {}", path.display()),
        }
    }
}
