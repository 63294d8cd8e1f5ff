//! Which NAPI instances can be told apart: CPU time is a CPU's, so those that are polled on one CPU are one.

use std::collections::BTreeMap;

use abey_linux::cpu::CpuList;

/// The share of an instance's polls from which on a CPU counts as one that polls it: less is a timer or a thread that was
/// moved.
const SHARE: f64 = 0.05;

/// Fewer polls do not tell where an instance is polled.
const ENOUGH: f64 = 100.0;

/// Where the polls of some instances ran of late.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Polled {
    by_cpu: BTreeMap<u32, f64>,
}

impl Polled {
    /// Takes in the polls of an interval; those of earlier ones count half as much with each.
    pub(crate) fn add(&mut self, polls: &BTreeMap<u32, u64>) {
        self.by_cpu.values_mut().for_each(|count| *count /= 2.0);
        self.join(polls.iter().map(|(cpu, count)| (*cpu, *count as f64)));
    }

    /// Takes in where others are polled.
    pub(crate) fn unite(&mut self, other: Self) {
        self.join(other.by_cpu.into_iter());
    }

    fn join(&mut self, polls: impl Iterator<Item = (u32, f64)>) {
        for (cpu, count) in polls {
            *self.by_cpu.entry(cpu).or_default() += count;
        }
    }

    /// The CPUs; none where nothing was polled.
    pub(crate) fn cpus(&self) -> CpuList {
        let least = SHARE * self.total();
        self.by_cpu.iter().filter(|(_, count)| **count > 0.0 && **count >= least).map(|(cpu, _)| *cpu).collect()
    }

    /// Whether the same CPU polls both, as far as can be said by now.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let cpus = self.cpus();
        self.total() >= ENOUGH && other.total() >= ENOUGH && other.cpus().iter().any(|cpu| cpus.contains(cpu))
    }

    fn total(&self) -> f64 {
        self.by_cpu.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(intervals: &[&[(u32, u64)]]) -> Polled {
        let mut polled = Polled::default();
        intervals.iter().for_each(|interval| polled.add(&interval.iter().copied().collect()));
        polled
    }

    #[test]
    fn a_few_stray_polls_are_no_cpu_of_an_instance_and_old_ones_fade() {
        let cpus = |intervals: &[&[(u32, u64)]]| polled(intervals).cpus().to_string();
        assert_eq!(cpus(&[&[(0, 1000), (3, 40)]]), "0");
        assert_eq!(cpus(&[&[(0, 1000), (3, 60)]]), "0,3");
        assert_eq!(cpus(&[&[(0, 1000)], &[(1, 1000)]]), "0-1");
        assert_eq!(cpus(&[&[(0, 1000)], &[(1, 1000)], &[(1, 1000)], &[(1, 1000)], &[(1, 1000)]]), "1", "it has moved");
        assert_eq!(cpus(&[&[]]), "");
    }

    #[test]
    fn instances_on_one_cpu_meet_once_enough_was_seen() {
        let on = |cpu, count| polled(&[&[(cpu, count)]]);
        assert!(on(1, 500).meets(&on(1, 100)));
        assert!(!on(1, 500).meets(&on(1, 99)), "too few to tell");
        assert!(!on(1, 500).meets(&on(2, 500)));
        let mut both = on(1, 500);
        both.unite(on(2, 500));
        assert!(both.meets(&on(2, 500)));
    }
}
