//! How far, and to which end, settings may be tuned while the machine runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use abey_delivery::{Family, NapiSettings};
use abey_tune::{Bounds, Goal};

use crate::error::PolicyError;
use crate::model::{Policy, Program, ProgramRule};
use crate::resolve::Wishes;
use crate::said::{Origin, Said};

/// A goal and the bounds within which it is to be reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// What is wanted.
    pub goal: Goal,
    /// What may be chosen for it.
    pub bounds: Bounds,
    /// Whether the families of modes were named; the usual ones are allowed as far as they can be had.
    pub names_modes: bool,
    /// Where a client writes the latencies of these queues.
    pub latencies: Option<PathBuf>,
}

/// Queues of a device that one rule says how to tune, and the programs that belong to them.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneGroup {
    /// The device.
    pub device: String,
    /// The queues.
    pub queues: BTreeSet<u32>,
    /// What the rule says.
    pub tune: Said<Tune>,
    /// The programs, each once.
    pub programs: Vec<Program>,
}

impl Tune {
    /// Whether a controller may have chosen these, whatever the epoll instances of the program have.
    pub fn allows(&self, napi: &NapiSettings) -> bool {
        self.bounds.families().iter().any(|family| {
            let mut settings = family.example().settings();
            settings.napi = *napi;
            self.bounds.contains(&settings)
        })
    }

    /// Whether it may choose modes in which programs busy poll.
    pub fn busy_polls(&self) -> bool {
        self.bounds.families().iter().any(|family| busy_polls(*family))
    }
}

impl Policy {
    /// Whether any rule says how to tune.
    pub fn tunes(&self) -> bool {
        self.devices.iter().flat_map(|rule| &rule.queues).any(|queues| queues.tune.is_some())
    }

    /// Whether the `[[device]]` table that begins there says how to tune some of its queues.
    pub fn tunes_at(&self, table: &Origin) -> bool {
        let mut tables = self.devices.iter().filter(|rule| rule.origin == *table);
        tables.any(|rule| rule.queues.iter().any(|queues| queues.tune.is_some()))
    }

    /// What is to be tuned on the machine that `wishes` are of: a group for each device and rule, by device and first queue.
    ///
    /// # Errors
    /// A program that belongs to several groups of which one may choose modes in which it busy polls: its parameters cannot
    /// go with each of them. A rule that names such modes, and no program belongs to its queues.
    pub fn tune_groups(&self, wishes: &Wishes) -> Result<Vec<TuneGroup>, PolicyError> {
        let mut groups: Vec<TuneGroup> = Vec::new();
        for device in &wishes.devices {
            for (queue, wish) in &device.queues {
                let Some(tune) = &wish.tune else { continue };
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
    /// Joins the groups whose queues it belongs to.
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
                "its queues are tuned in two groups, as {} and {} say, and its epoll instances cannot go with the modes of \
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

/// Whether programs busy poll in modes of this family.
fn busy_polls(family: Family) -> bool {
    family.example().settings().epoll.is_some()
}
