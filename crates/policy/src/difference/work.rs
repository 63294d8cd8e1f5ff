//! Wish by wish: what is so already, what can be done, and what cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abey_delivery::{NapiSettings, PollContext};
use abey_linux::apply::Change;
use abey_linux::cpu::CpuList;
use abey_linux::ethtool::{FlowRule, FlowTarget, PortFlow};
use abey_linux::machine::{DeviceState, NapiState};
use abey_linux::napi::NapiChange;
use abey_linux::probe::NapiCapabilities;

use super::{Act, Difference, Planned, Unsupported};
use crate::error::PolicyError;
use crate::resolve::{DeviceWish, QueueWish, Steered, ThreadOfQueue, Wish};

/// A device's state, and what was found out about it so far.
pub(super) struct Work<'a> {
    pub(super) state: &'a DeviceState,
    pub(super) able: NapiCapabilities,
    pub(super) online: &'a CpuList,
    pub(super) found: Difference,
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

    pub(super) fn channels(&mut self, wish: Option<&Wish<u32>>) {
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
    pub(super) fn check_instances(&mut self, wish: &DeviceWish) -> bool {
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

    pub(super) fn settings(&mut self, queues: &BTreeMap<u32, QueueWish>) -> Result<(), PolicyError> {
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
            if wish.tune.as_ref().is_some_and(|tune| tune.value.allows(&napi.settings())) {
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

    pub(super) fn flows(&mut self, wish: &Wish<Steered>) {
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
            let there = |rule: &FlowRule| rule.port() == Some(*flow) && Some(rule.target()) == target;
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

    pub(super) fn rss(&mut self, wish: &Wish<BTreeSet<u32>>) {
        match &self.state.rss {
            Err(lack) => self.cannot(wish, "spreading over queues", lack),
            Ok(context) if context.queues() == wish.value => {}
            Ok(_) => {
                let queues = wish.value.iter().copied().collect();
                self.change(wish, Change::Spread { device: self.state.id(), context: 0, queues });
            }
        }
    }

    pub(super) fn interrupts(&mut self, queues: &BTreeMap<u32, QueueWish>) -> Result<(), PolicyError> {
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

    pub(super) fn xps(&mut self, queue: u32, wish: &Wish<CpuList>) {
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

    pub(super) fn threads(&mut self, queues: &BTreeMap<u32, QueueWish>) -> Result<(), PolicyError> {
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
            what: format!("{}: queues {earlier} and {queue} have one {}", self.state.device.name, self.what),
            first: first.origin.clone(),
            second: wish.origin.clone(),
        })
    }
}
