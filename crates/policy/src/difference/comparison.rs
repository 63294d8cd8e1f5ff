//! Compares the settings of a device one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::change::Change;
use abey_delivery::{NapiSettings, PollContext};
use abey_linux::cpu::CpuList;
use abey_linux::ethtool::{FlowRule, FlowTarget, PortFlow};
use abey_linux::machine::{DeviceState, NapiState};
use abey_linux::napi::NapiChange;
use abey_linux::probe::NapiCapabilities;

use super::{Action, Difference, Planned, Unsupported};
use crate::desired::{Desired, DesiredDevice, DesiredQueue, DesiredThread, SteeredPorts};
use crate::error::PolicyError;

/// The comparison of a device in progress.
pub(super) struct Comparison<'a> {
    pub(super) state: &'a DeviceState,
    pub(super) capabilities: NapiCapabilities,
    pub(super) online: &'a CpuList,
    pub(super) found: Difference,
}

impl Comparison<'_> {
    fn plan<T>(&mut self, desired: &Desired<T>, action: Action) {
        let (origin, on_unsupported) = (desired.origin.clone(), desired.on_unsupported);
        self.found.planned.push(Planned { action, origin, on_unsupported });
    }

    fn change<T>(&mut self, desired: &Desired<T>, change: Change) {
        self.plan(desired, Action::Change(change));
    }

    fn unsupported<T>(&mut self, desired: &Desired<T>, what: impl Into<String>, reason: impl fmt::Display) {
        self.found.unsupported.push(Unsupported {
            device: self.state.device.name.clone(),
            what: what.into(),
            reason: reason.to_string(),
            origin: desired.origin.clone(),
            on_unsupported: desired.on_unsupported,
        });
    }

    fn later(&mut self, what: impl fmt::Display) {
        self.found.later.push(format!("{}: {what}", self.state.device.name));
    }

    /// Returns a list without the CPUs that are not online.
    fn known(&self, mask: &CpuList) -> CpuList {
        mask.iter().filter(|cpu| self.online.contains(*cpu)).collect()
    }

    pub(super) fn channels(&mut self, desired: Option<&Desired<u32>>) {
        let Some(desired) = desired else { return };
        let what = format!("{} receive queues", desired.value);
        match &self.state.channels {
            Err(lack) => self.unsupported(desired, what, lack),
            Ok(channels) if channels.rx_queues() == desired.value => {}
            Ok(channels) => match channels.to_rx_queues(desired.value) {
                Ok(counts) => self.change(desired, Change::Channels { device: self.state.id(), counts }),
                Err(error) => self.unsupported(desired, what, error),
            },
        }
    }

    /// Returns whether the device has NAPI instances, and records if settings of them are desired and it has none.
    pub(super) fn check_instances(&mut self, desired: &DesiredDevice) -> bool {
        if !self.state.napis.is_empty() {
            return true;
        }
        let first = desired.queues.values().find_map(|queue| queue.settings.as_ref());
        let other = desired.queues.values().any(|queue| queue.irq.is_some() || queue.thread.is_some());
        if !self.state.device.up {
            if first.is_some() || other {
                self.found.waiting = Some(format!("{} is down, so it has no NAPI instances", self.state.device.name));
            }
        } else if let Some(settings) = first {
            let hint = if self.state.device.is_veth() { ": turn on its GRO (`ethtool -K DEV gro on`)" } else { "" };
            self.unsupported(settings, "settings", format!("it has no NAPI instance{hint}"));
        }
        false
    }

    fn napi(&self, queue: u32) -> Option<&NapiState> {
        self.state.napi_of_queue(queue)
    }

    pub(super) fn settings(&mut self, queues: &BTreeMap<u32, DesiredQueue>) -> Result<(), PolicyError> {
        let mut shared = Shared::new(self.state, "NAPI instance");
        for (queue, desired) in queues {
            let Some(settings) = &desired.settings else { continue };
            let wanted = settings.value.napi();
            let Some(napi) = self.napi(*queue).map(|napi| napi.napi) else {
                self.missing(*queue, settings, "settings");
                continue;
            };
            if !shared.first(napi.id, *queue, settings)? {
                continue;
            }
            if let Some((what, reason)) = self.lacking(&wanted) {
                self.unsupported(settings, format!("{what} of queue {queue}"), reason);
                continue;
            }
            if desired.tune.as_ref().is_some_and(|tune| tune.value.allows(&napi.settings())) {
                continue;
            }
            let change = NapiChange::between(&napi.settings(), &wanted);
            if !change.is_empty() {
                let device = self.state.device.clone();
                self.plan(settings, Action::Settings { device, napi: napi.id, change });
            }
        }
        Ok(())
    }

    /// Records that a queue has no NAPI instance: it does not exist yet, or the driver does not report its instance.
    fn missing<T>(&mut self, queue: u32, desired: &Desired<T>, what: &str) {
        if self.state.queues.iter().all(|there| there.queue != queue) {
            self.later(format_args!("queue {queue}: {what}, once it exists"));
        } else {
            self.unsupported(
                desired,
                format!("{what} of queue {queue}"),
                "its driver does not report which NAPI instance serves it",
            );
        }
    }

    /// Returns a setting that this kernel does not have, with the reason.
    fn lacking(&self, settings: &NapiSettings) -> Option<(&'static str, &'static str)> {
        if !settings.irq_suspend_timeout.is_zero() && !self.capabilities.suspend {
            return Some(("irq-suspend-timeout", "this kernel has none: it came with Linux 6.13"));
        }
        if settings.context == PollContext::BusyThread && !self.capabilities.threaded_busy {
            return Some((
                "threaded = \"busy\"",
                "this kernel has no threads that never sleep: they came with Linux 6.19",
            ));
        }
        None
    }

    pub(super) fn flows(&mut self, desired: &Desired<SteeredPorts>) {
        let SteeredPorts { ports, queues } = &desired.value;
        let what = || {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            format!("steering {}", ports.join(", "))
        };
        let rules = match &self.state.rules {
            Ok(rules) => rules,
            Err(lack) => return self.unsupported(desired, what(), lack),
        };
        let one = (queues.len() == 1).then(|| queues.iter().copied().next()).flatten();
        let target = match (one, &self.state.contexts) {
            (Some(queue), _) => Some(FlowTarget::Queue(queue)),
            (None, Err(lack)) => return self.unsupported(desired, what(), lack),
            (None, Ok(contexts)) => {
                let there = contexts.iter().find(|context| context.queues() == *queues);
                there.map(|context| FlowTarget::Context(context.id))
            }
        };
        let stands = |flow: &PortFlow| {
            let there = |rule: &FlowRule| rule.port() == Some(*flow) && Some(rule.target()) == target;
            rules.iter().any(there)
        };
        let flows: Vec<PortFlow> = ports.iter().flat_map(|port| port.flows()).filter(|flow| !stands(flow)).collect();
        let device = self.state.id();
        match target {
            _ if flows.is_empty() => {}
            Some(target) => {
                for flow in flows {
                    self.change(desired, Change::Rule { device: device.clone(), flow, target });
                }
            }
            None => self.plan(desired, Action::Steer { device, queues: queues.clone(), flows }),
        }
    }

    pub(super) fn rss(&mut self, desired: &Desired<BTreeSet<u32>>) {
        match &self.state.rss {
            Err(lack) => self.unsupported(desired, "spreading over queues", lack),
            Ok(context) if context.queues() == desired.value => {}
            Ok(_) => {
                let queues = desired.value.iter().copied().collect();
                self.change(desired, Change::Spread { device: self.state.id(), context: 0, queues });
            }
        }
    }

    pub(super) fn interrupts(&mut self, queues: &BTreeMap<u32, DesiredQueue>) -> Result<(), PolicyError> {
        let mut shared = Shared::new(self.state, "interrupt");
        for (queue, desired) in queues {
            let Some(cpus) = &desired.irq else { continue };
            let what = "interrupt affinity";
            let Some(napi) = self.napi(*queue) else {
                self.missing(*queue, cpus, what);
                continue;
            };
            let (irq, now) = match napi.irq.clone().and_then(|irq| Ok((irq.irq, irq.cpus?))) {
                Ok(found) => found,
                Err(lack) => {
                    self.unsupported(cpus, format!("{what} of queue {queue}"), lack);
                    continue;
                }
            };
            if shared.first(irq, *queue, cpus)? && self.known(&now) != cpus.value {
                self.change(cpus, Change::Irq { device: self.state.id(), irq, cpus: cpus.value.clone() });
            }
        }
        Ok(())
    }

    pub(super) fn xps(&mut self, queue: u32, desired: &Desired<CpuList>) {
        let maps = match &self.state.xps {
            Ok(maps) => maps,
            Err(lack) => return self.unsupported(desired, format!("XPS of queue {queue}"), lack),
        };
        match maps.get(&queue) {
            Some(now) if self.known(now) == desired.value => {}
            Some(_) => {
                self.change(desired, Change::Xps { device: self.state.id(), queue, cpus: desired.value.clone() })
            }
            None if self.found.planned.iter().any(|planned| planned.action.recreates_queues()) => {
                self.later(format_args!("queue {queue}: XPS, once it exists"));
            }
            None => {
                self.unsupported(desired, format!("XPS of queue {queue}"), "it has no transmit queue of this number")
            }
        }
    }

    pub(super) fn threads(&mut self, queues: &BTreeMap<u32, DesiredQueue>) -> Result<(), PolicyError> {
        let mut shared = Shared::new(self.state, "NAPI thread");
        for (queue, desired) in queues {
            let Some(thread) = &desired.thread else { continue };
            let Some(napi) = self.napi(*queue) else {
                self.missing(*queue, thread, "thread");
                continue;
            };
            let (id, now) = (napi.napi.id, napi.thread.clone());
            if !shared.first(id, *queue, thread)? {
                continue;
            }
            match now {
                None => self.later(format_args!("queue {queue}: CPUs and scheduling of its thread, once it has one")),
                Some(Err(lack)) => self.unsupported(thread, format!("thread of queue {queue}"), lack),
                Some(Ok(now)) => {
                    let DesiredThread { cpus, scheduling } = thread.value.clone();
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

/// Something that several queues may share, with the first value that is desired for it.
struct Shared<'a, T> {
    state: &'a DeviceState,
    what: &'static str,
    first: BTreeMap<u32, (u32, Desired<T>)>,
}

impl<'a, T: Clone + PartialEq> Shared<'a, T> {
    fn new(state: &'a DeviceState, what: &'static str) -> Self {
        Self { state, what, first: BTreeMap::new() }
    }

    /// Returns whether this is the first desired value for the thing with this number. Fails if the first one differs.
    fn first(&mut self, id: u32, queue: u32, desired: &Desired<T>) -> Result<bool, PolicyError> {
        let Some((earlier, first)) = self.first.get(&id) else {
            self.first.insert(id, (queue, desired.clone()));
            return Ok(true);
        };
        if first.value == desired.value {
            return Ok(false);
        }
        Err(PolicyError::Shared {
            what: format!("{}: queues {earlier} and {queue} have one {}", self.state.device.name, self.what),
            first: first.origin.clone(),
            second: desired.origin.clone(),
        })
    }
}
