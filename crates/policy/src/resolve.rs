//! Matches a policy with the devices of a machine: the desired settings of every device and queue.

use std::collections::{BTreeMap, BTreeSet};

use abey_linux::cpu::CpuList;
use abey_linux::machine::{DeviceState, Snapshot};

use crate::desired::{Absent, Desired, DesiredDevice, DesiredQueue, DesiredState, DesiredThread, SteeredPorts};
use crate::error::PolicyError;
use crate::model::{DeviceRule, OnUnsupported, Policy, QueueRule};
use crate::overlap;
use crate::spanned::{Origin, Spanned};
use crate::value::{CpuChoice, Queues};

impl Policy {
    /// Matches the policy with the devices of a machine; `online` are the machine's online CPUs.
    ///
    /// # Errors
    /// A CPU that is not online, and a program without a mode. Errors in the policy of one device are in
    /// [`DesiredState::wrong`], so that they do not affect other devices.
    pub fn resolve(&self, machine: &Snapshot, online: &CpuList) -> Result<DesiredState, PolicyError> {
        self.check_cpus(online)?;
        let known = machine.devices.iter().map(|state| state.device.name.clone()).collect();
        let mut desired = DesiredState { known, ..DesiredState::default() };
        for state in &machine.devices {
            let rules: Vec<&DeviceRule> = self.devices.iter().filter(|rule| rule.selector.matches(state)).collect();
            if rules.is_empty() {
                continue;
            }
            let name = &state.device.name;
            match overlap::of_device(name, &rules).and_then(|()| self.device(state, &rules)) {
                Ok(device) => desired.devices.push(device),
                Err(error) => desired.wrong.push((name.clone(), error)),
            }
        }
        for rule in &self.devices {
            if !machine.devices.iter().any(|state| rule.selector.matches(state)) {
                let (origin, optional) = (rule.origin.clone(), rule.optional);
                desired.absent.push(Absent { origin, wanted: rule.selector.to_string(), optional });
            }
        }
        for rule in &self.programs {
            rule.resolve(&mut desired)?;
        }
        Ok(desired)
    }

    fn check_cpus(&self, online: &CpuList) -> Result<(), PolicyError> {
        let queues = self.devices.iter().flat_map(|rule| &rule.queues);
        let of_queues = queues.flat_map(|rule| {
            let choices = [&rule.irq_cpus, &rule.xps_cpus].into_iter().flatten();
            let thread =
                rule.thread.iter().filter_map(|thread| Some((thread.value.cpus.as_ref()?.cpus(), &thread.origin)));
            choices.map(|spanned| (spanned.value.cpus(), &spanned.origin)).chain(thread)
        });
        let of_programs =
            self.programs.iter().filter_map(|rule| rule.cpus.as_ref()).map(|spanned| (&spanned.value, &spanned.origin));
        for (cpus, origin) in of_queues.chain(of_programs) {
            if let Some(cpu) = cpus.iter().find(|cpu| !online.contains(*cpu)) {
                return Err(PolicyError::Offline { origin: origin.clone(), cpu, online: online.to_string() });
            }
        }
        Ok(())
    }

    fn device(&self, state: &DeviceState, rules: &[&DeviceRule]) -> Result<DesiredDevice, PolicyError> {
        let mut desired = DesiredDevice {
            name: state.device.name.clone(),
            channels: None,
            rss: None,
            queues: BTreeMap::new(),
            flows: Vec::new(),
        };
        let mut named: BTreeSet<u32> = BTreeSet::new();
        for rule in rules {
            let choice = rule.on_unsupported.unwrap_or(self.on_unsupported);
            desired.channels =
                desired.channels.or_else(|| rule.channels.as_ref().map(|spanned| wanted(spanned, choice)));
            desired.rss = desired.rss.or_else(|| rule.rss.as_ref().map(|spanned| wanted(spanned, choice)));
            for queues in &rule.queues {
                if let Queues::These(numbers) = &queues.queues.value {
                    named.extend(numbers);
                }
            }
        }
        let count = Count::of(state, desired.channels.as_ref());
        if let Some(rss) = &desired.rss {
            count.check(state, &rss.value, &rss.origin)?;
        }
        for rule in rules {
            let choice = rule.on_unsupported.unwrap_or(self.on_unsupported);
            for queues in &rule.queues {
                let members = match &queues.queues.value {
                    Queues::These(numbers) => numbers.clone(),
                    Queues::Rest => count.all().filter(|queue| !named.contains(queue)).collect(),
                };
                count.check(state, &members, &queues.queues.origin)?;
                desired.add(queues, &members, choice);
            }
            for flows in &rule.flows {
                count.check(state, &flows.queues.value, &flows.queues.origin)?;
                let value = SteeredPorts { ports: flows.ports.value.clone(), queues: flows.queues.value.clone() };
                desired.flows.push(wanted(&flows.ports.with(value), choice));
            }
        }
        // Settings of the whole device come last, for the queues without settings of their own.
        for rule in rules {
            let choice = rule.on_unsupported.unwrap_or(self.on_unsupported);
            let Some(settings) = &rule.settings else { continue };
            for queue in count.all() {
                let of_queue = desired.queues.entry(queue).or_default();
                of_queue.settings.get_or_insert_with(|| wanted(settings, choice));
            }
        }
        desired.check_threads(state)?;
        Ok(desired)
    }
}

impl DesiredDevice {
    fn add(&mut self, rule: &QueueRule, members: &BTreeSet<u32>, choice: OnUnsupported) {
        let cpus = |spanned: &Option<Spanned<CpuChoice>>, at| {
            spanned.as_ref().map(|spanned| wanted(&spanned.with(spanned.value.of(at)), choice))
        };
        for (at, queue) in members.iter().enumerate() {
            let thread = rule.thread.as_ref().map(|spanned| {
                let cpus = spanned.value.cpus.as_ref().map(|choice| choice.of(at));
                wanted(&spanned.with(DesiredThread { cpus, scheduling: spanned.value.scheduling }), choice)
            });
            let settings = rule.settings.as_ref().map(|spanned| wanted(spanned, choice));
            let tune = rule.tune.clone();
            let (irq, xps) = (cpus(&rule.irq_cpus, at), cpus(&rule.xps_cpus, at));
            self.queues.insert(*queue, DesiredQueue { settings, irq, xps, thread, tune });
        }
        if let Some(ports) = &rule.ports {
            let value = SteeredPorts { ports: ports.value.clone(), queues: members.clone() };
            self.flows.push(wanted(&ports.with(value), choice));
        }
    }

    /// Fails if the policy has settings of threads for queues that are not polled by a thread.
    fn check_threads(&self, state: &DeviceState) -> Result<(), PolicyError> {
        for (queue, desired) in &self.queues {
            let Some(thread) = &desired.thread else { continue };
            let now = state.napi_of_queue(*queue).map(|napi| napi.napi.settings().context);
            let context = desired.settings.as_ref().map(|settings| settings.value.napi().context).or(now);
            if context.is_some_and(|context| !context.is_thread()) {
                return Err(PolicyError::NotThreaded { origin: thread.origin.clone() });
            }
        }
        Ok(())
    }
}

fn wanted<T: Clone>(spanned: &Spanned<T>, on_unsupported: OnUnsupported) -> Desired<T> {
    Desired { value: spanned.value.clone(), origin: spanned.origin.clone(), on_unsupported }
}

/// The number of receive queues that a device has, or will have.
struct Count {
    queues: u32,
    /// Whether the policy changes the number.
    will: bool,
    /// Whether the number is unknown: a device that is down may list no queues.
    unknown: bool,
}

impl Count {
    fn of(state: &DeviceState, wanted: Option<&Desired<u32>>) -> Self {
        let channels = state.channels.as_ref().ok();
        let now = match channels {
            Some(channels) => channels.rx_queues(),
            None => state.queues.iter().map(|queue| queue.queue + 1).max().unwrap_or(0),
        };
        match wanted.filter(|desired| channels.is_some_and(|channels| channels.to_rx_queues(desired.value).is_ok())) {
            Some(desired) => Self { queues: desired.value, will: desired.value != now, unknown: false },
            None => Self { queues: now, will: false, unknown: now == 0 },
        }
    }

    fn all(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.queues
    }

    fn check(&self, state: &DeviceState, queues: &BTreeSet<u32>, origin: &Origin) -> Result<(), PolicyError> {
        let Some(queue) = queues.iter().copied().find(|queue| *queue >= self.queues && !self.unknown) else {
            return Ok(());
        };
        let able = state.channels.is_ok() && !self.will;
        Err(PolicyError::NoQueue {
            origin: origin.clone(),
            device: state.device.name.clone(),
            queue,
            has: if self.will { "will have" } else { "has" },
            last: self.queues - 1,
            advice: if able { "; `channels` gives it more" } else { "" },
        })
    }
}
