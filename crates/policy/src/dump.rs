//! Writes the present state as a policy, which changes nothing if it is applied at once.

use std::collections::{BTreeMap, BTreeSet};

use abey_config::napi_lines;
use abey_delivery::NapiSettings;
use abey_linux::cpu::{CpuList, SchedulingPolicy};
use abey_linux::ethtool::{FlowTarget, PortFlow};
use abey_linux::machine::{DeviceState, Snapshot, ThreadState};
use glob::Pattern;

use crate::value::Port;

/// Returns the policy of the devices that `wanted` selects. Comments in it name what a policy cannot express.
///
/// Loopback, and devices without a NAPI instance, are left out.
pub fn dump(machine: &Snapshot, online: &CpuList, wanted: impl Fn(&DeviceState) -> bool) -> String {
    let mut out = "version = 1\n".to_owned();
    for state in machine.devices.iter().filter(|state| !state.device.loopback && wanted(state)) {
        let lines = Dump { state, online }.lines();
        if !lines.is_empty() {
            out += &format!("\n[[device]]\nname = \"{}\"\n{}\n", Pattern::escape(&state.device.name), lines.join("\n"));
        }
    }
    out
}

struct Dump<'a> {
    state: &'a DeviceState,
    online: &'a CpuList,
}

impl Dump<'_> {
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.state.napis.is_empty() {
            return lines;
        }
        if let Ok(driver) = &self.state.driver {
            lines.push(format!("# driver {}", driver.name));
        }
        if let Ok(channels) = &self.state.channels
            && channels.to_rx_queues(channels.rx_queues()).is_ok()
        {
            lines.push(format!("channels = {}", channels.rx_queues()));
        }
        if let Ok(rss) = &self.state.rss {
            lines.push(format!("rss = \"{}\"", list(&rss.queues())));
        }
        lines.extend(self.queues());
        lines.extend(self.flows());
        lines
    }

    /// Returns one table for each group of queues with the same settings.
    fn queues(&self) -> Vec<String> {
        let mut groups: Vec<(Vec<String>, BTreeSet<u32>)> = Vec::new();
        for queue in self.state.queues.iter().map(|queue| queue.queue) {
            let of_queue = self.queue(queue);
            match groups.iter_mut().find(|(lines, _)| *lines == of_queue) {
                _ if of_queue.is_empty() => {}
                Some((_, members)) => _ = members.insert(queue),
                None => groups.push((of_queue, BTreeSet::from([queue]))),
            }
        }
        let table = |(lines, members): (Vec<String>, BTreeSet<u32>)| {
            let head = ["".to_owned(), "[[device.queues]]".to_owned(), format!("queues = \"{}\"", list(&members))];
            head.into_iter().chain(lines).collect::<Vec<_>>()
        };
        groups.into_iter().flat_map(table).collect()
    }

    fn queue(&self, queue: u32) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(napi) = self.state.napi_of_queue(queue) {
            lines.push(settings(&napi.napi.settings()));
            if let Ok(Ok(cpus)) = napi.irq.as_ref().map(|irq| &irq.cpus) {
                lines.extend(self.cpus("irq-cpus", cpus));
            }
            if let Some(Ok(thread)) = &napi.thread {
                lines.extend(self.thread(thread));
            }
        }
        if let Some(cpus) = self.state.xps.as_ref().ok().and_then(|maps| maps.get(&queue)) {
            lines.extend(self.cpus("xps-cpus", cpus));
        }
        lines
    }

    fn known(&self, mask: &CpuList) -> Option<CpuList> {
        let known: CpuList = mask.iter().filter(|cpu| self.online.contains(*cpu)).collect();
        (!known.is_empty()).then_some(known)
    }

    fn cpus(&self, key: &str, mask: &CpuList) -> Option<String> {
        self.known(mask).map(|cpus| format!("{key} = \"{cpus}:all\""))
    }

    fn thread(&self, thread: &ThreadState) -> Option<String> {
        let cpus = self.known(&thread.cpus)?;
        let policy = thread.scheduling.policy();
        let class = match policy {
            SchedulingPolicy::Fifo | SchedulingPolicy::Rr => {
                format!(", policy = \"{policy}\", priority = {}", thread.scheduling.priority())
            }
            SchedulingPolicy::Other | SchedulingPolicy::Batch => {
                format!(", policy = \"{policy}\", nice = {}", thread.scheduling.nice())
            }
            SchedulingPolicy::Idle => format!(", policy = \"{policy}\""),
            _ => String::new(),
        };
        Some(format!("thread = {{ cpus = \"{cpus}:all\"{class} }}"))
    }

    fn flows(&self) -> Vec<String> {
        let (Ok(rules), contexts) = (&self.state.rules, self.state.contexts.as_deref().unwrap_or_default()) else {
            return Vec::new();
        };
        let mut by_flow: BTreeMap<PortFlow, BTreeSet<u32>> = BTreeMap::new();
        let mut lines = Vec::new();
        for rule in rules {
            let queues = match rule.target() {
                FlowTarget::Queue(queue) => Some(BTreeSet::from([queue])),
                FlowTarget::Context(id) => {
                    contexts.iter().find(|context| context.id == id).map(|context| context.queues())
                }
                _ => None,
            };
            match (rule.port(), queues) {
                (Some(flow), Some(queues)) => _ = by_flow.insert(flow, queues),
                _ => lines.push(format!("# flow rule {} matches more than a port: left alone", rule.location())),
            }
        }
        let mut by_queues: BTreeMap<BTreeSet<u32>, Vec<Port>> = BTreeMap::new();
        for flow in by_flow.keys() {
            let port = Port::of(flow);
            let [both, other] = port.flows().map(|flow| by_flow.get(&flow));
            match both.filter(|queues| Some(*queues) == other) {
                Some(queues) => {
                    let ports = by_queues.entry(queues.clone()).or_default();
                    if !ports.contains(&port) {
                        ports.push(port);
                    }
                }
                None => lines.push(format!("# {port} goes to different queues over IPv4 and IPv6: left alone")),
            }
        }
        for (queues, ports) in by_queues {
            let ports: Vec<String> = ports.iter().map(|port| format!("\"{port}\"")).collect();
            lines.extend(["".to_owned(), "[[device.flows]]".to_owned(), format!("ports = [{}]", ports.join(", "))]);
            lines.push(format!("queues = \"{}\"", list(&queues)));
        }
        lines
    }
}

/// Formats queue numbers as a list.
fn list(numbers: &BTreeSet<u32>) -> CpuList {
    numbers.iter().copied().collect()
}

fn settings(napi: &NapiSettings) -> String {
    if *napi == NapiSettings::default() {
        return "mode = \"base\"".to_owned();
    }
    format!("settings = {{ {} }}", napi_lines(napi).join(", "))
}
