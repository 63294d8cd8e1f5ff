//! The CPUs that poll a group. CPU time is measured per CPU, so instances that one CPU polls are tuned together.

use std::collections::BTreeMap;

use abey_linux::cpu::CpuList;

/// The least share of an instance's polls with which a CPU counts as polling it. Timers and migrated threads cause smaller ones.
const LEAST_SHARE: f64 = 0.05;

/// The least number of polls from which the CPUs are judged.
const LEAST_POLLS: f64 = 100.0;

/// Recent polls of some instances by CPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PollCpus {
    by_cpu: BTreeMap<u32, f64>,
}

impl PollCpus {
    /// Adds the polls of an interval, and halves the weight of earlier ones.
    pub(crate) fn add(&mut self, polls: &BTreeMap<u32, u64>) {
        self.by_cpu.values_mut().for_each(|count| *count /= 2.0);
        self.join(polls.iter().map(|(cpu, count)| (*cpu, *count as f64)));
    }

    /// Adds the polls of another group.
    pub(crate) fn merge(&mut self, other: Self) {
        self.join(other.by_cpu.into_iter());
    }

    fn join(&mut self, polls: impl Iterator<Item = (u32, f64)>) {
        for (cpu, count) in polls {
            *self.by_cpu.entry(cpu).or_default() += count;
        }
    }

    /// Returns the CPUs that poll; none where there were no polls.
    pub(crate) fn cpus(&self) -> CpuList {
        let least = LEAST_SHARE * self.total();
        self.by_cpu.iter().filter(|(_, count)| **count > 0.0 && **count >= least).map(|(cpu, _)| *cpu).collect()
    }

    /// Returns whether one CPU polls both, if there were enough polls to tell.
    pub(crate) fn shares_cpu_with(&self, other: &Self) -> bool {
        let cpus = self.cpus();
        self.total() >= LEAST_POLLS && other.total() >= LEAST_POLLS && other.cpus().iter().any(|cpu| cpus.contains(cpu))
    }

    fn total(&self) -> f64 {
        self.by_cpu.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(intervals: &[&[(u32, u64)]]) -> PollCpus {
        let mut polled = PollCpus::default();
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
        assert!(on(1, 500).shares_cpu_with(&on(1, 100)));
        assert!(!on(1, 500).shares_cpu_with(&on(1, 99)), "too few to tell");
        assert!(!on(1, 500).shares_cpu_with(&on(2, 500)));
        let mut both = on(1, 500);
        both.merge(on(2, 500));
        assert!(both.shares_cpu_with(&on(2, 500)));
    }
}
