//! What the machine counts beside its instances: interrupts, and the receive softirq's squeezes.

use std::collections::BTreeMap;

use abey_linux::counters::{Interrupts, ProcTableError, Softnet as Table, SoftnetCpu};

use crate::counts::Counter;
use crate::sample::{Instance, Softnet};

/// Gives each instance that has an interrupt its count.
pub(crate) fn count_interrupts(instances: &mut [Instance]) -> Result<(), ProcTableError> {
    // The table is long on a large machine, and virtual devices have no part in it.
    if instances.iter().all(|one| one.irq.is_none()) {
        return Ok(());
    }
    let table = Interrupts::read()?;
    let lines: BTreeMap<u32, u64> =
        table.lines.iter().filter_map(|line| Some((line.irq.parse().ok()?, line.total()))).collect();
    for one in instances {
        if let Some(count) = one.irq.and_then(|irq| lines.get(&irq)) {
            one.counts.set(Counter::Interrupts, *count);
        }
    }
    Ok(())
}

/// The figures of `/proc/net/softnet_stat`, 32 bits wide there, which do not wrap here.
#[derive(Debug, Default)]
pub(crate) struct Softirqs {
    before: BTreeMap<u32, SoftnetCpu>,
    sum: Softnet,
}

impl Softirqs {
    pub(crate) fn read(&mut self) -> Result<Softnet, ProcTableError> {
        let table = Table::read()?;
        for now in table.cpus {
            self.take(now);
        }
        Ok(self.sum)
    }

    fn take(&mut self, now: SoftnetCpu) {
        let before = self.before.insert(now.cpu, now);
        let grown = |of: fn(&SoftnetCpu) -> u64| match &before {
            Some(before) => u64::from((of(&now) as u32).wrapping_sub(of(before) as u32)),
            None => of(&now),
        };
        self.sum.processed += grown(|cpu| cpu.processed);
        self.sum.dropped += grown(|cpu| cpu.dropped);
        self.sum.squeezes += grown(|cpu| cpu.time_squeeze);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_wrap_go_on() {
        let mut softirqs = Softirqs::default();
        let reading = |cpu, processed| SoftnetCpu { cpu, processed, dropped: 1, time_squeeze: 2, backlog: None };
        softirqs.take(reading(0, 0xffff_fff0));
        softirqs.take(reading(1, 5));
        softirqs.take(reading(0, 0x10));
        assert_eq!(softirqs.sum, Softnet { processed: 0x1_0000_0010 + 5, dropped: 2, squeezes: 4 });
    }
}
