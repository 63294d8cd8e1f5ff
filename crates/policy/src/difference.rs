//! What a device has against what is wanted of it: the changes in their order, and what cannot be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abey_delivery::{NapiSettings, PollContext};
use abey_linux::apply::Change;
use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, DeviceId};
use abey_linux::ethtool::{FlowTarget, PortFlow};
use abey_linux::machine::{DeviceState, NapiState};
use abey_linux::napi::NapiChange;
use abey_linux::probe::NapiCapabilities;

use crate::error::PolicyError;
use crate::model::OnUnsupported;
use crate::resolve::{DeviceWish, QueueWish, Steered, ThreadOfQueue, Wish};
use crate::said::Origin;

/// What has to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Settings of a NAPI instance.
    Settings {
        /// The device.
        device: Device,
        /// The instance's ID.
        napi: u32,
        /// What is changed.
        change: NapiChange,
    },
    /// One change of anything else.
    Change(Change),
    /// An RSS context over these queues, and rules that send these flows to it.
    Steer {
        /// The device.
        device: DeviceId,
        /// The queues.
        queues: BTreeSet<u32>,
        /// The flows that do not go there yet.
        flows: Vec<PortFlow>,
    },
}

impl Act {
    /// Whether it makes queues, NAPI instances and interrupts anew, so that nothing that was known of them holds.
    pub fn renews_queues(&self) -> bool {
        matches!(self, Self::Change(Change::Channels { .. }))
    }
}

/// One thing to do, and on whose behalf.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What.
    pub act: Act,
    /// Where it is asked for.
    pub origin: Origin,
    /// What becomes of it if it turns out that the driver cannot do it.
    pub on_unsupported: OnUnsupported,
}

/// A wish that the driver or the kernel cannot fulfil.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The device.
    pub device: String,
    /// What is wanted, in words.
    pub what: String,
    /// Why it cannot be.
    pub reason: String,
    /// Where it is asked for.
    pub origin: Origin,
    /// Whether it ends the apply.
    pub on_unsupported: OnUnsupported,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, what, reason, origin, .. } = self;
        write!(f, "{device}: {what}: {reason}; asked for in {origin}")
    }
}

/// What leads from a device's state to what is wanted of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// What can be done now, in this order. After one that [renews queues](Act::renews_queues), look again.
    pub planned: Vec<Planned>,
    /// What shall follow once queues or threads are there that are not yet, in words.
    pub later: Vec<String>,
    /// What cannot be.
    pub unsupported: Vec<Unsupported>,
    /// Why nothing can be said yet of the device's NAPI instances: it is down.
    pub waiting: Option<String>,
}

impl Difference {
    /// Whether everything that can be is as it is wanted.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty() && self.later.is_empty() && self.waiting.is_none()
    }
}

impl DeviceWish {
    /// What has to change on the device.
    ///
    /// # Errors
    /// Two rules that want different things of what is one thing on this device, such as the NAPI instance of two queues.
    pub fn difference(
        &self,
        state: &DeviceState,
        able: NapiCapabilities,
        online: &CpuList,
    ) -> Result<Difference, PolicyError> {
        let mut work = Work { state, able, online, found: Difference::default() };
        work.channels(self.channels.as_ref());
        let ready = work.check_instances(self);
        if ready {
            work.settings(&self.queues)?;
        }
        for flows in &self.flows {
            work.flows(flows);
        }
        if let Some(rss) = &self.rss {
            work.rss(rss);
        }
        if ready {
            work.interrupts(&self.queues)?;
        }
        for (queue, wish) in &self.queues {
            if let Some(xps) = &wish.xps {
                work.xps(*queue, xps);
            }
        }
        if ready {
            work.threads(&self.queues)?;
        }
        Ok(work.found)
    }
}

struct Work<'a> {
    state: &'a DeviceState,
    able: NapiCapabilities,
    online: &'a CpuList,
    found: Difference,
}

impl Work<'_> {
    fn plan<T>(&mut self, wish: &Wish<T>, act: Act) {
        let (origin, on_unsupported) = (wish.origin.clone(), wish.on_unsupported);
        self.found.planned.push(Planned { act, origin, on_unsupported });
    }

    fn change<T>(&mut self, wish: &Wish<T>, change: Change) {
        self.plan(wish, Act::Change(change));
    }

    fn cannot<T>(&mut self, wish: &Wish<T>, what: impl Into<String>, reason: impl fmt::Display) {
        self.found.unsupported.push(Unsupported {
            device: self.state.device.name.clone(),
            what: what.into(),
            reason: reason.to_string(),
            origin: wish.origin.clone(),
            on_unsupported: wish.on_unsupported,
        });
    }

    fn later(&mut self, what: impl fmt::Display) {
        self.found.later.push(format!("{}: {what}", self.state.device.name));
    }

    /// A mask without the CPUs that are not online.
    fn known(&self, mask: &CpuList) -> CpuList {
        mask.iter().filter(|cpu| self.online.contains(*cpu)).collect()
    }

    fn channels(&mut self, wish: Option<&Wish<u32>>) {
        let Some(wish) = wish else { return };
        let what = format!("{} receive queues", wish.value);
        match &self.state.channels {
            Err(lack) => self.cannot(wish, what, lack),
            Ok(channels) if channels.rx_queues() == wish.value => {}
            Ok(channels) => match channels.to_rx_queues(wish.value) {
                Ok(counts) => self.change(wish, Change::Channels { device: self.state.id(), counts }),
                Err(error) => self.cannot(wish, what, error),
            },
        }
    }

    /// Whether the device has NAPI instances, if anything is wanted of them.
    fn check_instances(&mut self, wish: &DeviceWish) -> bool {
        if !self.state.napis.is_empty() {
            return true;
        }
        let first = wish.queues.values().find_map(|queue| queue.settings.as_ref());
        let other = wish.queues.values().any(|queue| queue.irq.is_some() || queue.thread.is_some());
        if !self.state.device.up {
            if first.is_some() || other {
                self.found.waiting = Some(format!("{} is down, so it has no NAPI instances", self.state.device.name));
            }
        } else if let Some(settings) = first {
            let hint = if self.state.device.is_veth() { ": turn on its GRO (`ethtool -K DEV gro on`)" } else { "" };
            self.cannot(settings, "settings", format!("it has no NAPI instance{hint}"));
        }
        false
    }

    fn napi(&self, queue: u32) -> Option<&NapiState> {
        self.state.napi_of_queue(queue)
    }

    fn settings(&mut self, queues: &BTreeMap<u32, QueueWish>) -> Result<(), PolicyError> {
        let mut shared = Shared::new(self.state, "NAPI instance");
        for (queue, wish) in queues {
            let Some(settings) = &wish.settings else { continue };
            let wanted = settings.value.napi();
            let Some(napi) = self.napi(*queue).map(|napi| napi.napi) else {
                self.missing(*queue, settings, "settings");
                continue;
            };
            if !shared.first(napi.id, *queue, settings)? {
                continue;
            }
            if let Some((what, reason)) = self.lacking(&wanted) {
                self.cannot(settings, format!("{what} of queue {queue}"), reason);
                continue;
            }
            if wish.tune.as_ref().is_some_and(|tune| tune.allows(&napi.settings())) {
                continue;
            }
            let change = NapiChange::between(&napi.settings(), &wanted);
            if !change.is_empty() {
                let device = self.state.device.clone();
                self.plan(settings, Act::Settings { device, napi: napi.id, change });
            }
        }
        Ok(())
    }

    /// A queue that has no NAPI instance: because it is not there yet, or because the driver does not tell.
    fn missing<T>(&mut self, queue: u32, wish: &Wish<T>, what: &str) {
        if self.state.queues.iter().all(|there| there.queue != queue) {
            self.later(format_args!("queue {queue}: {what}, when it is there"));
        } else {
            self.cannot(
                wish,
                format!("{what} of queue {queue}"),
                "its driver does not tell which NAPI instance serves it",
            );
        }
    }

    /// What of some settings this kernel does not have at all.
    fn lacking(&self, settings: &NapiSettings) -> Option<(&'static str, &'static str)> {
        if !settings.irq_suspend_timeout.is_zero() && !self.able.suspend {
            return Some(("irq-suspend-timeout", "this kernel has none: it came with Linux 6.13"));
        }
        if settings.context == PollContext::BusyThread && !self.able.threaded_busy {
            return Some((
                "threaded = \"busy\"",
                "this kernel has no threads that never sleep: they came with Linux 6.19",
            ));
        }
        None
    }

    fn flows(&mut self, wish: &Wish<Steered>) {
        let Steered { ports, queues } = &wish.value;
        let what = || {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            format!("steering {}", ports.join(", "))
        };
        let rules = match &self.state.rules {
            Ok(rules) => rules,
            Err(lack) => return self.cannot(wish, what(), lack),
        };
        let one = (queues.len() == 1).then(|| queues.iter().copied().next()).flatten();
        let target = match (one, &self.state.contexts) {
            (Some(queue), _) => Some(FlowTarget::Queue(queue)),
            (None, Err(lack)) => return self.cannot(wish, what(), lack),
            (None, Ok(contexts)) => {
                let there = contexts.iter().find(|context| context.queues() == *queues);
                there.map(|context| FlowTarget::Context(context.id))
            }
        };
        let stands = |flow: &PortFlow| {
            let there =
                |rule: &abey_linux::ethtool::FlowRule| rule.port() == Some(*flow) && Some(rule.target()) == target;
            rules.iter().any(there)
        };
        let flows: Vec<PortFlow> = ports.iter().flat_map(|port| port.flows()).filter(|flow| !stands(flow)).collect();
        let device = self.state.id();
        match target {
            _ if flows.is_empty() => {}
            Some(target) => {
                for flow in flows {
                    self.change(wish, Change::Rule { device: device.clone(), flow, target });
                }
            }
            None => self.plan(wish, Act::Steer { device, queues: queues.clone(), flows }),
        }
    }

    fn rss(&mut self, wish: &Wish<BTreeSet<u32>>) {
        match &self.state.rss {
            Err(lack) => self.cannot(wish, "spreading over queues", lack),
            Ok(context) if context.queues() == wish.value => {}
            Ok(_) => {
                let queues = wish.value.iter().copied().collect();
                self.change(wish, Change::Spread { device: self.state.id(), context: 0, queues });
            }
        }
    }

    fn interrupts(&mut self, queues: &BTreeMap<u32, QueueWish>) -> Result<(), PolicyError> {
        let mut shared = Shared::new(self.state, "interrupt");
        for (queue, wish) in queues {
            let Some(cpus) = &wish.irq else { continue };
            let what = "interrupt affinity";
            let Some(napi) = self.napi(*queue) else {
                self.missing(*queue, cpus, what);
                continue;
            };
            let (irq, now) = match napi.irq.clone().and_then(|irq| Ok((irq.irq, irq.cpus?))) {
                Ok(found) => found,
                Err(lack) => {
                    self.cannot(cpus, format!("{what} of queue {queue}"), lack);
                    continue;
                }
            };
            if shared.first(irq, *queue, cpus)? && self.known(&now) != cpus.value {
                self.change(cpus, Change::Irq { device: self.state.id(), irq, cpus: cpus.value.clone() });
            }
        }
        Ok(())
    }

    fn xps(&mut self, queue: u32, wish: &Wish<CpuList>) {
        let maps = match &self.state.xps {
            Ok(maps) => maps,
            Err(lack) => return self.cannot(wish, format!("XPS of queue {queue}"), lack),
        };
        match maps.get(&queue) {
            Some(now) if self.known(now) == wish.value => {}
            Some(_) => self.change(wish, Change::Xps { device: self.state.id(), queue, cpus: wish.value.clone() }),
            None if self.found.planned.iter().any(|planned| planned.act.renews_queues()) => {
                self.later(format_args!("queue {queue}: XPS, when it is there"));
            }
            None => self.cannot(wish, format!("XPS of queue {queue}"), "it has no transmit queue of this number"),
        }
    }

    fn threads(&mut self, queues: &BTreeMap<u32, QueueWish>) -> Result<(), PolicyError> {
        let mut shared = Shared::new(self.state, "NAPI thread");
        for (queue, wish) in queues {
            let Some(thread) = &wish.thread else { continue };
            let Some(napi) = self.napi(*queue) else {
                self.missing(*queue, thread, "thread");
                continue;
            };
            let (id, now) = (napi.napi.id, napi.thread.clone());
            if !shared.first(id, *queue, thread)? {
                continue;
            }
            match now {
                None => self.later(format_args!("queue {queue}: where its thread runs, when it has one")),
                Some(Err(lack)) => self.cannot(thread, format!("thread of queue {queue}"), lack),
                Some(Ok(now)) => {
                    let ThreadOfQueue { cpus, scheduling } = thread.value.clone();
                    let cpus = cpus.filter(|cpus| *cpus != now.cpus);
                    let scheduling = scheduling.filter(|scheduling| *scheduling != now.scheduling);
                    if cpus.is_some() || scheduling.is_some() {
                        self.change(thread, Change::Thread { device: self.state.id(), napi: id, cpus, scheduling });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Things that several queues may have in common: what was wanted of each first.
struct Shared<'a, T> {
    state: &'a DeviceState,
    what: &'static str,
    first: BTreeMap<u32, (u32, Wish<T>)>,
}

impl<'a, T: Clone + PartialEq> Shared<'a, T> {
    fn new(state: &'a DeviceState, what: &'static str) -> Self {
        Self { state, what, first: BTreeMap::new() }
    }

    /// Whether this is the first wish for the thing with this number.
    fn first(&mut self, id: u32, queue: u32, wish: &Wish<T>) -> Result<bool, PolicyError> {
        let Some((earlier, first)) = self.first.get(&id) else {
            self.first.insert(id, (queue, wish.clone()));
            return Ok(true);
        };
        if first.value == wish.value {
            return Ok(false);
        }
        Err(PolicyError::Shared {
            device: self.state.device.name.clone(),
            what: format!("queues {earlier} and {queue} have one {}", self.what),
            first: first.origin.clone(),
            second: wish.origin.clone(),
        })
    }
}
