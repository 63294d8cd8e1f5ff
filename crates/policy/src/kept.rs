//! What was applied before and the policy no longer names: that goes back to what it was.

use abey_linux::apply::{Kept, Step};
use abey_linux::ethtool::{FlowRule, FlowTarget, PortFlow};
use abey_linux::machine::{DeviceState, NapiState, Snapshot};

use crate::resolve::{DeviceWish, QueueWish, Wishes};

/// What becomes of a thing that is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// The policy names it: what it has is the policy's matter.
    Stays,
    /// The policy does not name it: this step, which is the one that was kept with the numbers that are valid now, is to
    /// be put back.
    Back(Box<Step>),
    /// It would go back, and cannot now: its device is down, so that its queues have no NAPI instances.
    Waits,
    /// It is not there any more.
    Gone,
    /// It is no device's: whoever knows the programs decides.
    OfPrograms,
}

impl Wishes {
    /// What becomes of each of these on a machine as it is now.
    pub fn fates(&self, kept: &[Kept], machine: &Snapshot) -> Vec<Fate> {
        let mut fates: Vec<Fate> = kept.iter().map(|one| self.fate(one, machine)).collect();
        // Contexts, and the switch that rules need, go when the rules that need them have gone.
        for at in 0..kept.len() {
            let Some((state, wish)) = self.device_of(&kept[at], machine) else { continue };
            let back = |rule: &FlowRule| {
                let mut both = kept.iter().zip(&fates);
                both.any(|(one, fate)| matches!((&one.step, fate), (Step::RuleInserted { rule: ours, others, .. }, Fate::Back(_))
                    if one.ifindex == Some(state.device.ifindex) && ours.does_same(rule) && !others.contains(&rule.location())))
            };
            let mut stay = state.rules.iter().flatten().filter(|rule| !back(rule));
            let stays = match &kept[at].step {
                Step::Ntuple { .. } => stay.next().is_some() || wish.is_some_and(|wish| !wish.flows.is_empty()),
                Step::RssContextMade { table, others, .. } => {
                    let ours = |id: u32| {
                        let all = state.contexts.iter().flatten();
                        all.into_iter().any(|one| one.id == id && one.table == *table && !others.contains(&id))
                    };
                    let queues = table.iter().copied().collect();
                    stay.any(|rule| matches!(rule.target(), FlowTarget::Context(id) if ours(id)))
                        || wish.is_some_and(|wish| wish.flows.iter().any(|flows| flows.value.queues == queues))
                }
                _ => continue,
            };
            fates[at] = if stays { Fate::Stays } else { Fate::Back(Box::new(kept[at].step.clone())) };
        }
        fates
    }

    fn device_of<'a>(
        &'a self,
        kept: &Kept,
        machine: &'a Snapshot,
    ) -> Option<(&'a DeviceState, Option<&'a DeviceWish>)> {
        let state = machine.device(kept.step.device()?)?;
        let wish = self.devices.iter().find(|wish| wish.name == state.device.name);
        (kept.ifindex == Some(state.device.ifindex)).then_some((state, wish))
    }

    fn fate(&self, kept: &Kept, machine: &Snapshot) -> Fate {
        if kept.step.device().is_none() {
            return Fate::OfPrograms;
        }
        let Some((state, wish)) = self.device_of(kept, machine) else { return Fate::Gone };
        // What is wrong with the policy of a device has to be put right first.
        if self.wrong.iter().any(|(name, _)| *name == state.device.name) {
            return Fate::Stays;
        }
        let of_queue = |queue: u32| wish.and_then(|wish| wish.queues.get(&queue));
        let any_queue = |wanted: fn(&QueueWish) -> bool| wish.is_some_and(|wish| wish.queues.values().any(wanted));
        let named = match &kept.step {
            Step::Channels { .. } => wish.is_some_and(|wish| wish.channels.is_some()),
            Step::RssTable { .. } => wish.is_some_and(|wish| wish.rss.is_some()),
            Step::DeviceFile { .. } => any_queue(|queue| queue.settings.is_some()),
            Step::RuleInserted { rule, .. } | Step::RuleDeleted { rule, .. } => {
                rule.port().is_some_and(|flow| wish.is_some_and(|wish| wish.steers(flow)))
            }
            Step::Xps { queue, .. } => {
                if !state.xps.as_ref().is_ok_and(|maps| maps.contains_key(queue)) {
                    return Fate::Gone;
                }
                of_queue(*queue).is_some_and(|queue| queue.xps.is_some())
            }
            Step::Napi { .. } | Step::Irq { .. } | Step::Thread { .. } => return of_instance(kept, state, wish),
            // What is not told apart here is put back.
            _ => false,
        };
        if named { Fate::Stays } else { Fate::Back(Box::new(kept.step.clone())) }
    }
}

impl DeviceWish {
    fn steers(&self, flow: PortFlow) -> bool {
        self.flows.iter().any(|flows| flows.value.ports.iter().any(|port| port.flows().contains(&flow)))
    }
}

/// What is about the NAPI instance of a queue, its interrupt or its thread.
fn of_instance(kept: &Kept, state: &DeviceState, wish: Option<&DeviceWish>) -> Fate {
    let Some(napi) = kept.queue.and_then(|queue| state.napi_of_queue(queue)) else {
        return if state.device.up { Fate::Gone } else { Fate::Waits };
    };
    let any = |wanted: &dyn Fn(&QueueWish) -> bool| {
        wish.is_some_and(|wish| napi.rx_queues.iter().filter_map(|queue| wish.queues.get(queue)).any(wanted))
    };
    let Some(step) = renumbered(&kept.step, napi) else { return Fate::Gone };
    let named = match &step {
        Step::Napi { .. } => any(&|queue| queue.settings.is_some()),
        Step::Irq { .. } => any(&|queue| queue.irq.is_some()),
        Step::Thread { before, after, .. } => {
            let cpus = before.cpus != after.cpus;
            let says = |queue: &QueueWish| {
                let thread = queue.thread.as_ref().map(|wish| &wish.value);
                thread.is_some_and(|wish| if cpus { wish.cpus.is_some() } else { wish.scheduling.is_some() })
            };
            any(&says)
        }
        _ => false,
    };
    if named { Fate::Stays } else { Fate::Back(Box::new(step)) }
}

/// The step with the numbers of the instance that serves its queue now; `None` if what it was about is not there any more.
fn renumbered(step: &Step, napi: &NapiState) -> Option<Step> {
    match step.clone() {
        Step::Napi { device, before, change, .. } => Some(Step::Napi { id: napi.napi.id, device, before, change }),
        Step::Irq { irq, .. } if napi.irq.as_ref().is_ok_and(|now| now.irq == irq) => Some(step.clone()),
        Step::Thread { device, before, after, .. } => {
            let same = napi.napi.thread == Some(after.tid);
            same.then_some(Step::Thread { device, napi: napi.napi.id, before, after })
        }
        _ => None,
    }
}
