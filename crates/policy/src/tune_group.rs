//! The queues that are tuned together, with the programs that belong to them.

use std::collections::BTreeSet;

use crate::desired::DesiredState;
use crate::error::PolicyError;
use crate::model::{Policy, Program, ProgramRule};
use crate::spanned::{Origin, Spanned};
use crate::tune::{Tune, busy_polls};

/// The queues of a device that one rule tunes, and the programs that belong to them.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneGroup {
    /// The device.
    pub device: String,
    /// The queues.
    pub queues: BTreeSet<u32>,
    /// The rule.
    pub tune: Spanned<Tune>,
    /// The programs, each once.
    pub programs: Vec<Program>,
}

impl Policy {
    /// Whether any rule tunes queues.
    pub fn tunes(&self) -> bool {
        self.devices.iter().flat_map(|rule| &rule.queues).any(|queues| queues.tune.is_some())
    }

    /// Whether the `[[device]]` table at this position tunes some of its queues.
    pub fn tunes_at(&self, table: &Origin) -> bool {
        let mut tables = self.devices.iter().filter(|rule| rule.origin == *table);
        tables.any(|rule| rule.queues.iter().any(|queues| queues.tune.is_some()))
    }

    /// Returns the groups to be tuned: one for each device and rule, sorted by device and first queue.
    ///
    /// # Errors
    /// When a program belongs to several groups and one allows modes in which it busy polls, because its epoll parameters
    /// cannot fit the modes of both; and when a rule names such modes and no program belongs to its queues.
    pub fn tune_groups(&self, desired: &DesiredState) -> Result<Vec<TuneGroup>, PolicyError> {
        let mut groups: Vec<TuneGroup> = Vec::new();
        for device in &desired.devices {
            for (queue, desired) in &device.queues {
                let Some(tune) = &desired.tune else { continue };
                let of_rule = |group: &&mut TuneGroup| group.device == device.name && group.tune.origin == tune.origin;
                match groups.iter_mut().find(of_rule) {
                    Some(group) => drop(group.queues.insert(*queue)),
                    None => groups.push(TuneGroup {
                        device: device.name.clone(),
                        queues: BTreeSet::from([*queue]),
                        tune: tune.clone(),
                        programs: Vec::new(),
                    }),
                }
            }
        }
        for rule in &self.programs {
            rule.join(&mut groups)?;
        }
        let lonely = |group: &&TuneGroup| group.programs.is_empty() && group.tune.value.names_modes;
        for TuneGroup { tune, .. } in groups.iter().filter(lonely) {
            if let Some(family) = tune.value.bounds.families().iter().find(|family| busy_polls(**family)) {
                let problem = format!(
                    "in {family} a program busy polls, and none belongs to these queues: write a [[program]] table with \
                     `device` and `queues`, or leave {family} out of `modes`"
                );
                return Err(PolicyError::Tune { origin: tune.origin.clone(), problem });
            }
        }
        Ok(groups)
    }
}

impl ProgramRule {
    /// Adds the program to the groups whose queues it belongs to.
    fn join(&self, groups: &mut [TuneGroup]) -> Result<(), PolicyError> {
        let Some(device) = &self.device else { return Ok(()) };
        let is_of = |group: &TuneGroup| {
            let has = |queue: &u32| self.queues.as_ref().is_none_or(|queues| queues.value.contains(queue));
            device.value.matches(&group.device) && group.queues.iter().any(has)
        };
        let mut joined: Vec<&mut TuneGroup> = groups.iter_mut().filter(|group| is_of(group)).collect();
        if let [first, second, ..] = &joined[..]
            && joined.iter().any(|group| group.tune.value.busy_polls())
        {
            let problem = format!(
                "its queues are tuned in two groups, by {} and {}, and its epoll parameters cannot fit the modes of \
                 both: name fewer `queues`, or allow base and defer only in `modes`",
                first.tune.origin, second.tune.origin
            );
            return Err(PolicyError::Program { origin: self.origin.clone(), problem });
        }
        for group in &mut joined {
            if !group.programs.contains(&self.program.value) {
                group.programs.push(self.program.value.clone());
            }
        }
        Ok(())
    }
}
