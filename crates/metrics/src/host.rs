//! Counters of the whole machine: interrupts, and packets, drops and squeezes of the receive softirq.

use std::collections::BTreeMap;

use abey_linux::counters::{Interrupts, ProcTableError, Softnet as SoftnetTable, SoftnetCpu};

use crate::counts::Counter;
use crate::sample::{Instance, Softnet};

/// Sets the interrupt count of each instance that has an interrupt of its own.
pub(crate) fn count_interrupts(instances: &mut [Instance]) -> Result<(), ProcTableError> {
    // Reading the table is slow on a machine with many CPUs, and virtual devices have no entry in it.
    if instances.iter().all(|one| one.irq.is_none()) {
        return Ok(());
    }
    let table = Interrupts::read()?;
    let totals: BTreeMap<u32, u64> =
        table.lines.iter().filter_map(|line| Some((line.irq.parse().ok()?, line.total()))).collect();
    for one in instances {
        if let Some(count) = one.irq.and_then(|irq| totals.get(&irq)) {
            one.counts.set(Counter::Interrupts, *count);
        }
    }
    Ok(())
}

/// Totals of `/proc/net/softnet_stat`, extended from its 32-bit counters to 64 bits.
#[derive(Debug, Default)]
pub(crate) struct SoftnetTotals {
    before: BTreeMap<u32, SoftnetCpu>,
    sum: Softnet,
}

impl SoftnetTotals {
    pub(crate) fn read(&mut self) -> Result<Softnet, ProcTableError> {
        let table = SoftnetTable::read()?;
        for cpu in table.cpus {
            self.add(cpu);
        }
        Ok(self.sum)
    }

    fn add(&mut self, now: SoftnetCpu) {
        let before = self.before.insert(now.cpu, now);
        let grown = |field: fn(&SoftnetCpu) -> u64| match &before {
            Some(before) => u64::from((field(&now) as u32).wrapping_sub(field(before) as u32)),
            None => field(&now),
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
    fn totals_continue_when_a_32_bit_counter_wraps() {
        let mut totals = SoftnetTotals::default();
        let reading = |cpu, processed| SoftnetCpu { cpu, processed, dropped: 1, time_squeeze: 2, backlog: None };
        totals.add(reading(0, 0xffff_fff0));
        totals.add(reading(1, 5));
        totals.add(reading(0, 0x10));
        assert_eq!(totals.sum, Softnet { processed: 0x1_0000_0010 + 5, dropped: 2, squeezes: 4 });
    }
}
