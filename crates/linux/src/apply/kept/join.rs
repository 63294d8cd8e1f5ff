//! Steps of the same thing, one after another, as one: from what was there first to what is there now.

use super::Kept;
use crate::apply::replace::join;
use crate::apply::step::Step;

impl Step {
    /// The step in parts of which each can go back by itself.
    pub(super) fn parts(&self) -> Vec<Self> {
        let Self::Thread { device, napi, before, after } = self else { return vec![self.clone()] };
        let part = |cpus: bool| {
            let mut after_part = before.clone();
            after_part.tid = after.tid;
            if cpus {
                after_part.cpus = after.cpus.clone()
            } else {
                after_part.scheduling = after.scheduling
            }
            let (device, napi, before) = (device.clone(), *napi, before.clone());
            Self::Thread { device, napi, before, after: after_part }
        };
        let both = [part(true), part(false)].into_iter();
        both.filter(|part| matches!(part, Self::Thread { before, after, .. } if before != after)).collect()
    }
}

impl Kept {
    /// Whether both are about the same thing.
    pub(super) fn is_of_same(&self, other: &Self) -> bool {
        let place = self.ifindex == other.ifindex && self.queue == other.queue;
        place
            && match (&self.step, &other.step) {
                (Step::Napi { .. }, Step::Napi { .. })
                | (Step::Channels { .. }, Step::Channels { .. })
                | (Step::Ntuple { .. }, Step::Ntuple { .. })
                | (Step::Irq { .. }, Step::Irq { .. }) => true,
                (Step::Thread { before, after, .. }, Step::Thread { before: first, after: last, .. }) => {
                    after.tid == last.tid && (before.cpus == after.cpus) == (first.cpus == last.cpus)
                }
                (Step::DeviceFile { file, .. }, Step::DeviceFile { file: other, .. }) => file == other,
                (Step::RssTable { context, .. }, Step::RssTable { context: other, .. }) => context == other,
                (Step::Xps { queue, .. }, Step::Xps { queue: other, .. }) => queue == other,
                (Step::Process { pid, started, .. }, Step::Process { pid: other, started: since, .. }) => {
                    (pid, started) == (other, since)
                }
                (Step::DropIn { path, .. }, Step::DropIn { path: other, .. }) => path == other,
                _ => false,
            }
    }

    /// Whether it takes away what the other one made, or brings it again.
    pub(super) fn undoes(&self, other: &Self) -> bool {
        self.ifindex == other.ifindex
            && match (&self.step, &other.step) {
                (Step::RuleDeleted { rule, .. }, Step::RuleInserted { rule: ours, others, .. }) => {
                    rule.does_same(ours) && !others.contains(&rule.location())
                }
                (Step::RuleInserted { rule, .. }, Step::RuleDeleted { rule: theirs, .. }) => rule.does_same(theirs),
                (Step::RssContextDeleted { context, .. }, Step::RssContextMade { table, others, .. }) => {
                    context.table == *table && !others.contains(&context.id)
                }
                _ => false,
            }
    }

    /// Both as one, where they are about the same thing.
    pub(super) fn followed_by(&self, later: &Self) -> Self {
        let step = match (&self.step, &later.step) {
            (Step::Napi { before, change, .. }, Step::Napi { id, device, .. }) => {
                // The instance may have another number by now.
                let (id, device) = (*id, device.clone());
                let first = Step::Napi { id, device, before: before.clone(), change: change.clone() };
                join(&first, &later.step).expect("both are of one instance")
            }
            (Step::Channels { device, before, held, .. }, Step::Channels { before: now, after, .. }) => {
                let before = crate::ethtool::ChannelCounts {
                    rx: before.rx.or(now.rx),
                    tx: before.tx.or(now.tx),
                    combined: before.combined.or(now.combined),
                };
                Step::Channels { device: device.clone(), before, after: *after, held: held.clone() }
            }
            (first, last) => with_before(last, first),
        };
        Self { step, ..later.clone() }
    }

    /// Whether it leads back to where it came from.
    pub(super) fn is_nothing(&self) -> bool {
        match &self.step {
            Step::Napi { before, change, .. } => change.against(before).iter().all(|(_, old, new)| old == new),
            Step::DeviceFile { before, after, .. } => before == after,
            Step::Channels { before, after, .. } => before == after,
            Step::RssTable { before, after, .. } => before == after,
            Step::Xps { before, after, .. } | Step::Irq { before, after, .. } => before == after,
            Step::Thread { before, after, .. } => before == after,
            Step::DropIn { before, after, .. } => before == after,
            Step::Process { before, after, .. } => before.iter().all(|(_, cpus)| cpus == after),
            _ => false,
        }
    }
}

/// The step, from where another one of the same thing began.
fn with_before(step: &Step, first: &Step) -> Step {
    let mut step = step.clone();
    match (&mut step, first) {
        (Step::DeviceFile { before, .. }, Step::DeviceFile { before: first, .. }) => before.clone_from(first),
        (Step::RssTable { before, .. }, Step::RssTable { before: first, .. }) => before.clone_from(first),
        (Step::Xps { before, .. }, Step::Xps { before: first, .. })
        | (Step::Irq { before, .. }, Step::Irq { before: first, .. }) => before.clone_from(first),
        (Step::Thread { before, .. }, Step::Thread { before: first, .. }) => before.clone_from(first),
        (Step::DropIn { before, .. }, Step::DropIn { before: first, .. }) => before.clone_from(first),
        (Step::Process { before, .. }, Step::Process { before: first, .. }) => before.clone_from(first),
        _ => {}
    }
    step
}
