//! What shall be, whatever it is now: turned into the steps that are missing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use crate::cpu::{CpuList, Scheduling};
use crate::device::DeviceId;
use crate::ethtool::rss::DEFAULT_CONTEXT;
use crate::ethtool::{ChannelCounts, FlowRule, FlowTarget, PortFlow, RssContext, spread};
use crate::machine::{MachineError, ThreadState};
use crate::process::start_time;

use super::kernel::Kernel;
use super::step::{HeldByQueues, Step};

/// What shall be, whatever it is now. Settings of NAPI instances are not here: those are a [`Plan`](super::Plan).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A device has so many queues.
    Channels {
        /// The device.
        device: DeviceId,
        /// How many; what is `None` is left alone.
        counts: ChannelCounts,
    },
    /// The flows of an RSS context are spread evenly over these queues and no others.
    Spread {
        /// The device.
        device: DeviceId,
        /// The context; 0 is the default one, which has every flow that no rule sends elsewhere.
        context: u32,
        /// The queues.
        queues: Vec<u32>,
    },
    /// There is an additional RSS context over exactly these queues. One that is there serves.
    Context {
        /// The device.
        device: DeviceId,
        /// The queues.
        queues: Vec<u32>,
    },
    /// An additional RSS context is not there.
    NoContext {
        /// The device.
        device: DeviceId,
        /// Its number.
        id: u32,
    },
    /// A flow goes to a queue or context. Other rules of the same flow go; rules that match more narrowly stay.
    Rule {
        /// The device.
        device: DeviceId,
        /// The flow.
        flow: PortFlow,
        /// Where it goes: [`FlowTarget::Queue`] or [`FlowTarget::Context`].
        target: FlowTarget,
    },
    /// There is no rule at this place.
    NoRule {
        /// The device.
        device: DeviceId,
        /// The place.
        location: u32,
    },
    /// A transmit queue is used by these CPUs; by none of their own, if there are none.
    Xps {
        /// The device.
        device: DeviceId,
        /// The transmit queue.
        queue: u32,
        /// The CPUs.
        cpus: CpuList,
    },
    /// An interrupt goes to these CPUs only.
    Irq {
        /// The device it belongs to.
        device: DeviceId,
        /// The interrupt.
        irq: u32,
        /// The CPUs.
        cpus: CpuList,
    },
    /// The thread that polls a NAPI instance runs so; what is `None` is left alone.
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
    /// Every thread of a process runs on these CPUs only.
    Process {
        /// The process.
        pid: u32,
        /// The CPUs.
        cpus: CpuList,
    },
    /// Queues, by their numbers, have what they had once; those that are not there are left out. A thread is there only
    /// once its instance is threaded: for those it takes a second time.
    Queues {
        /// The device.
        device: DeviceId,
        /// What they had.
        held: HeldByQueues,
    },
    /// A unit has this drop-in.
    DropIn {
        /// The unit.
        unit: String,
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
}

impl Change {
    /// What has to be done for it now, in order; nothing where it is so already.
    ///
    /// # Errors
    /// When the present state cannot be read, or makes the change impossible.
    pub fn steps<K: Kernel>(&self, kernel: &mut K) -> Result<Vec<Step>, MachineError> {
        match self {
            Self::Channels { device, counts } => channels(kernel, device, counts),
            Self::Spread { device, context, queues } => {
                let before = kernel.rss(device, *context)?.table;
                let after = table_over(device, before.len(), queues)?;
                let different = distribution(&before) != distribution(&after);
                let step = Step::RssTable { device: device.clone(), context: *context, before, after };
                Ok(different.then_some(step).into_iter().collect())
            }
            Self::Context { device, queues } => {
                // Without a table there is nothing to make a context of, which says more than that none can be listed.
                let size = kernel.rss(device, DEFAULT_CONTEXT)?.table.len();
                let table = table_over(device, size, queues)?;
                let there = kernel.rss_contexts(device)?;
                if find_context(&there, queues).is_some() {
                    return Ok(Vec::new());
                }
                let others = there.iter().map(|context| context.id).collect();
                Ok(vec![Step::RssContextMade { device: device.clone(), table, others }])
            }
            Self::NoContext { device, id } => {
                let there = kernel.rss_contexts(device)?.into_iter().find(|context| context.id == *id);
                let step = |context| Step::RssContextDeleted { device: device.clone(), context };
                Ok(there.map(step).into_iter().collect())
            }
            Self::Rule { device, flow, target } => rule(kernel, device, *flow, *target),
            Self::NoRule { device, location } => {
                let there = kernel.rules(device)?.into_iter().find(|rule| rule.location() == *location);
                let step = |rule| Step::RuleDeleted { device: device.clone(), rule };
                Ok(there.map(step).into_iter().collect())
            }
            Self::Xps { device, queue, cpus } => {
                let (before, after) = (kernel.xps(device, *queue)?, cpus.clone());
                let step = || Step::Xps {
                    device: device.clone(),
                    queue: *queue,
                    before: before.clone(),
                    after: after.clone(),
                };
                Ok((before != after).then(step).into_iter().collect())
            }
            Self::Irq { device, irq, cpus } => {
                let (before, after) = (kernel.irq(&device.name, *irq)?, cpus.clone());
                let device = device.name.clone();
                let step = || Step::Irq { device, irq: *irq, before: before.clone(), after: after.clone() };
                Ok((before != after).then(step).into_iter().collect())
            }
            Self::Thread { device, napi, cpus, scheduling } => {
                thread(kernel, &device.name, *napi, cpus.as_ref(), scheduling.as_ref())
            }
            Self::Process { pid, cpus } => process(kernel, *pid, cpus),
            Self::Queues { device, held } => held.steps(kernel, device),
            Self::DropIn { unit, path, text } => {
                let (before, after) = (kernel.drop_in(path)?, Some(text.clone()));
                let (unit, path) = (unit.clone(), path.clone());
                let different = before != after;
                Ok(different.then_some(Step::DropIn { unit, path, before, after }).into_iter().collect())
            }
        }
    }

    /// The context that serves, for [`Change::Context`].
    pub(super) fn context<K: Kernel>(&self, kernel: &mut K) -> Result<Option<u32>, MachineError> {
        match self {
            Self::Context { device, queues } => Ok(find_context(&kernel.rss_contexts(device)?, queues)),
            _ => Ok(None),
        }
    }
}

pub(super) fn channels<K: Kernel>(
    kernel: &mut K,
    device: &DeviceId,
    counts: &ChannelCounts,
) -> Result<Vec<Step>, MachineError> {
    let now = kernel.channels(device)?;
    let after = counts.beyond(&now);
    if after.is_empty() {
        return Ok(Vec::new());
    }
    let same_kinds = |all: ChannelCounts| ChannelCounts {
        rx: after.rx.and(all.rx),
        tx: after.tx.and(all.tx),
        combined: after.combined.and(all.combined),
    };
    // A kind that the driver has none of has no number to go back to, and the driver refuses the change itself.
    let before = same_kinds(now.counts());
    let held = HeldByQueues::read(kernel, device, now.tx.now + now.combined.now);
    Ok(vec![Step::Channels { device: device.clone(), before, after, held }])
}

/// How often each queue stands in a table, which is what matters of it.
fn distribution(table: &[u32]) -> Vec<(u32, usize)> {
    let queues: BTreeSet<u32> = table.iter().copied().collect();
    queues.into_iter().map(|queue| (queue, table.iter().filter(|entry| **entry == queue).count())).collect()
}

fn table_over(device: &DeviceId, size: usize, queues: &[u32]) -> Result<Vec<u32>, MachineError> {
    let table = spread(size, queues);
    if table.is_empty() || queues.len() > size {
        return Err(MachineError::Refused {
            device: device.name.clone(),
            action: format!("spread flows of {device} over {} queues", queues.len()),
            reason: format!("its RSS table has {size} entries"),
            errno: None,
        });
    }
    Ok(table)
}

fn find_context(there: &[RssContext], queues: &[u32]) -> Option<u32> {
    let serves = |context: &&RssContext| {
        let wanted = spread(context.table.len(), queues);
        !wanted.is_empty() && distribution(&context.table) == distribution(&wanted)
    };
    there.iter().find(serves).map(|context| context.id)
}

fn rule<K: Kernel>(
    kernel: &mut K,
    device: &DeviceId,
    flow: PortFlow,
    target: FlowTarget,
) -> Result<Vec<Step>, MachineError> {
    let rules = kernel.rules(device)?;
    let wanted = FlowRule::to_port(flow, target);
    let mut same_flow: Vec<&FlowRule> = rules.iter().filter(|rule| rule.port() == Some(flow)).collect();
    let kept = same_flow.iter().position(|rule| rule.does_same(&wanted)).map(|place| same_flow.remove(place));
    let mut steps = Vec::new();
    if kept.is_none() {
        // Where there is a switch and it is off, a driver takes no rules.
        if kernel.ntuple(device)? == Some(false) {
            steps.push(Step::Ntuple { device: device.clone(), on: true });
        }
    }
    // Two rules of one flow are an error to some drivers: the old one goes first.
    steps.extend(same_flow.into_iter().map(|rule| Step::RuleDeleted { device: device.clone(), rule: rule.clone() }));
    if kept.is_none() {
        let others = rules.iter().map(FlowRule::location).collect();
        steps.push(Step::RuleInserted { device: device.clone(), rule: wanted, others });
    }
    Ok(steps)
}

fn thread<K: Kernel>(
    kernel: &mut K,
    device: &str,
    napi: u32,
    cpus: Option<&CpuList>,
    scheduling: Option<&Scheduling>,
) -> Result<Vec<Step>, MachineError> {
    let tid = kernel.napi(device, napi)?.thread.ok_or_else(|| MachineError::Refused {
        device: device.to_owned(),
        action: format!("pin the thread of NAPI {napi} of {device}"),
        reason: "it has none: its polling is not threaded".to_owned(),
        errno: None,
    })?;
    let before = kernel.thread(device, tid)?;
    let after = ThreadState {
        tid,
        cpus: cpus.unwrap_or(&before.cpus).clone(),
        scheduling: *scheduling.unwrap_or(&before.scheduling),
    };
    if after == before {
        return Ok(Vec::new());
    }
    Ok(vec![Step::Thread { device: device.to_owned(), napi, before, after }])
}

fn process<K: Kernel>(kernel: &mut K, pid: u32, cpus: &CpuList) -> Result<Vec<Step>, MachineError> {
    let mut before = Vec::new();
    for tid in kernel.process_threads(pid)? {
        match kernel.thread("", tid) {
            Ok(thread) => before.push((tid, thread.cpus)),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    if before.iter().all(|(_, now)| now == cpus) {
        return Ok(Vec::new());
    }
    let started = start_time(pid).unwrap_or(0);
    Ok(vec![Step::Process { pid, started, before, after: cpus.clone(), but: Vec::new() }])
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
            Self::Queues { device, .. } => write!(f, "{device}: its queues as they were"),
            Self::DropIn { unit, path, .. } => write!(f, "{unit}: drop-in {}", path.display()),
        }
    }
}
