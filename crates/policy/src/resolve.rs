//! A policy and the devices there are: what every device and queue shall have.

use std::collections::{BTreeMap, BTreeSet};

use abey_linux::cpu::{CpuList, Scheduling};
use abey_linux::machine::{DeviceState, Snapshot};

use crate::error::PolicyError;
use crate::model::{DeviceRule, OnUnsupported, Policy, QueueRule, Settings};
use crate::overlap;
use crate::program::ProgramWish;
use crate::said::{Origin, Said};
use crate::tune::Tune;
use crate::value::{CpuChoice, Port, Queues};

/// What is wanted of a machine as it is now.
#[derive(Debug, Default)]
pub struct Wishes {
    /// One for each device that a table means.
    pub devices: Vec<DeviceWish>,
    /// Devices of which something is wanted that cannot be: a queue that is not there, two rules for one thing.
    pub wrong: Vec<(String, PolicyError)>,
    /// Tables that mean no device.
    pub absent: Vec<Absent>,
    /// The names of the devices there are, for messages.
    pub known: Vec<String>,
    /// The programs that belong to queues.
    pub programs: Vec<ProgramWish>,
}

impl Wishes {
    /// Fails with the first thing that is [wrong](Self::wrong).
    ///
    /// # Errors
    /// That one.
    pub fn check(&mut self) -> Result<(), PolicyError> {
        if self.wrong.is_empty() { Ok(()) } else { Err(self.wrong.remove(0).1) }
    }
}

/// A table that means no device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The table.
    pub origin: Origin,
    /// What it asks for.
    pub wanted: String,
    /// Whether there may be none.
    pub optional: bool,
}

/// Something that is wanted, who says so, and what becomes of it where it cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish<T> {
    /// What is wanted.
    pub value: T,
    /// Where it is said.
    pub origin: Origin,
    /// Whether the whole apply depends on it.
    pub on_unsupported: OnUnsupported,
}

/// What is wanted of one device.
#[derive(Clone, Debug)]
pub struct DeviceWish {
    /// Its name.
    pub name: String,
    /// How many receive queues.
    pub channels: Option<Wish<u32>>,
    /// The queues over which packets are spread that no rule takes.
    pub rss: Option<Wish<BTreeSet<u32>>>,
    /// What is wanted of each queue.
    pub queues: BTreeMap<u32, QueueWish>,
    /// Ports that are steered.
    pub flows: Vec<Wish<Steered>>,
}

/// Ports and the queues that they are steered to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steered {
    /// The destination ports.
    pub ports: Vec<Port>,
    /// The queues.
    pub queues: BTreeSet<u32>,
}

/// What is wanted of one queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueWish {
    /// Its NAPI instance's settings.
    pub settings: Option<Wish<Settings>>,
    /// Its interrupt's CPUs.
    pub irq: Option<Wish<CpuList>>,
    /// The CPUs that transmit on the queue of the same number.
    pub xps: Option<Wish<CpuList>>,
    /// Its thread.
    pub thread: Option<Wish<ThreadOfQueue>>,
    /// How far its settings may be tuned: what is within these bounds is left alone.
    pub tune: Option<Said<Tune>>,
}

/// Where and how one thread runs; `None` leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadOfQueue {
    /// The CPUs.
    pub cpus: Option<CpuList>,
    /// The scheduling class.
    pub scheduling: Option<Scheduling>,
}

impl Policy {
    /// What it wants of the machine; `online` are the machine's CPUs.
    ///
    /// # Errors
    /// A CPU that is not online, and a program whose mode nobody tells. What is wrong with one device is in
    /// [`Wishes::wrong`], so that it does not stand in the way of the others.
    pub fn resolve(&self, machine: &Snapshot, online: &CpuList) -> Result<Wishes, PolicyError> {
        self.check_cpus(online)?;
        let known = machine.devices.iter().map(|state| state.device.name.clone()).collect();
        let mut wishes = Wishes { known, ..Wishes::default() };
        for state in &machine.devices {
            let rules: Vec<&DeviceRule> = self.devices.iter().filter(|rule| rule.selector.matches(state)).collect();
            if rules.is_empty() {
                continue;
            }
            let name = &state.device.name;
            match overlap::of_device(name, &rules).and_then(|()| self.device(state, &rules)) {
                Ok(wish) => wishes.devices.push(wish),
                Err(error) => wishes.wrong.push((name.clone(), error)),
            }
        }
        for rule in &self.devices {
            if !machine.devices.iter().any(|state| rule.selector.matches(state)) {
                let (origin, optional) = (rule.origin.clone(), rule.optional);
                wishes.absent.push(Absent { origin, wanted: rule.selector.to_string(), optional });
            }
        }
        for rule in &self.programs {
            rule.resolve(&mut wishes)?;
        }
        Ok(wishes)
    }

    fn check_cpus(&self, online: &CpuList) -> Result<(), PolicyError> {
        let queues = self.devices.iter().flat_map(|rule| &rule.queues);
        let of_queues = queues.flat_map(|rule| {
            let choices = [&rule.irq_cpus, &rule.xps_cpus].into_iter().flatten();
            let thread =
                rule.thread.iter().filter_map(|thread| Some((thread.value.cpus.as_ref()?.cpus(), &thread.origin)));
            choices.map(|said| (said.value.cpus(), &said.origin)).chain(thread)
        });
        let of_programs =
            self.programs.iter().filter_map(|rule| rule.cpus.as_ref()).map(|said| (&said.value, &said.origin));
        for (cpus, origin) in of_queues.chain(of_programs) {
            if let Some(cpu) = cpus.iter().find(|cpu| !online.contains(*cpu)) {
                return Err(PolicyError::Offline { origin: origin.clone(), cpu, online: online.to_string() });
            }
        }
        Ok(())
    }

    fn device(&self, state: &DeviceState, rules: &[&DeviceRule]) -> Result<DeviceWish, PolicyError> {
        let mut wish = DeviceWish {
            name: state.device.name.clone(),
            channels: None,
            rss: None,
            queues: BTreeMap::new(),
            flows: Vec::new(),
        };
        let mut named: BTreeSet<u32> = BTreeSet::new();
        for rule in rules {
            let choice = rule.on_unsupported.unwrap_or(self.on_unsupported);
            wish.channels = wish.channels.or_else(|| rule.channels.as_ref().map(|said| wanted(said, choice)));
            wish.rss = wish.rss.or_else(|| rule.rss.as_ref().map(|said| wanted(said, choice)));
            for queues in &rule.queues {
                if let Queues::These(numbers) = &queues.queues.value {
                    named.extend(numbers);
                }
            }
        }
        let count = Count::of(state, wish.channels.as_ref());
        if let Some(rss) = &wish.rss {
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
                wish.add(queues, &members, choice);
            }
            for flows in &rule.flows {
                count.check(state, &flows.queues.value, &flows.queues.origin)?;
                let value = Steered { ports: flows.ports.value.clone(), queues: flows.queues.value.clone() };
                wish.flows.push(wanted(&flows.ports.with(value), choice));
            }
        }
        // What holds for the whole device comes last: it fills what is left.
        for rule in rules {
            let choice = rule.on_unsupported.unwrap_or(self.on_unsupported);
            let Some(settings) = &rule.settings else { continue };
            for queue in count.all() {
                let of_queue = wish.queues.entry(queue).or_default();
                of_queue.settings.get_or_insert_with(|| wanted(settings, choice));
            }
        }
        wish.check_threads(state)?;
        Ok(wish)
    }
}

impl DeviceWish {
    fn add(&mut self, rule: &QueueRule, members: &BTreeSet<u32>, choice: OnUnsupported) {
        let cpus = |said: &Option<Said<CpuChoice>>, at| {
            said.as_ref().map(|said| wanted(&said.with(said.value.of(at)), choice))
        };
        for (at, queue) in members.iter().enumerate() {
            let thread = rule.thread.as_ref().map(|said| {
                let cpus = said.value.cpus.as_ref().map(|choice| choice.of(at));
                wanted(&said.with(ThreadOfQueue { cpus, scheduling: said.value.scheduling }), choice)
            });
            let settings = rule.settings.as_ref().map(|said| wanted(said, choice));
            let tune = rule.tune.clone();
            let (irq, xps) = (cpus(&rule.irq_cpus, at), cpus(&rule.xps_cpus, at));
            self.queues.insert(*queue, QueueWish { settings, irq, xps, thread, tune });
        }
        if let Some(ports) = &rule.ports {
            let value = Steered { ports: ports.value.clone(), queues: members.clone() };
            self.flows.push(wanted(&ports.with(value), choice));
        }
    }

    /// A thread's place only makes sense where a thread polls, or shall.
    fn check_threads(&self, state: &DeviceState) -> Result<(), PolicyError> {
        for (queue, wish) in &self.queues {
            let Some(thread) = &wish.thread else { continue };
            let now = state.napi_of_queue(*queue).map(|napi| napi.napi.settings().context);
            let context = wish.settings.as_ref().map(|settings| settings.value.napi().context).or(now);
            if context.is_some_and(|context| !context.is_thread()) {
                return Err(PolicyError::NotThreaded { origin: thread.origin.clone() });
            }
        }
        Ok(())
    }
}

fn wanted<T: Clone>(said: &Said<T>, on_unsupported: OnUnsupported) -> Wish<T> {
    Wish { value: said.value.clone(), origin: said.origin.clone(), on_unsupported }
}

/// How many receive queues a device has, or will have.
struct Count {
    queues: u32,
    /// Whether that is still to come.
    will: bool,
    /// Not known: a device that is down may list none.
    unknown: bool,
}

impl Count {
    fn of(state: &DeviceState, wanted: Option<&Wish<u32>>) -> Self {
        let channels = state.channels.as_ref().ok();
        let now = match channels {
            Some(channels) => channels.rx_queues(),
            None => state.queues.iter().map(|queue| queue.queue + 1).max().unwrap_or(0),
        };
        match wanted.filter(|wish| channels.is_some_and(|channels| channels.to_rx_queues(wish.value).is_ok())) {
            Some(wish) => Self { queues: wish.value, will: wish.value != now, unknown: false },
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
