//! Breadth-first search over every state that a world can reach; each state is stored with its first predecessor.
//!
//! Breadth first makes the schedule of the first violation the shortest one. States are stored as a 64-bit
//! fingerprint: with three million states the chance that any two collide is below one in a million.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::hash::BuildHasher;

use foldhash::quality::FixedState;

use crate::world::{Scope, Step, World};

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    /// The longest of the shortest schedules.
    pub(crate) depth: usize,
    pub(crate) failure: Option<Failure>,
}

/// A broken invariant, and the shortest schedule that leads to it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) schedule: Vec<Step>,
}

impl Failure {
    /// Formats the schedule as numbered lines, with the reason below.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (n, step) in self.schedule.iter().enumerate() {
            let _ = writeln!(text, "  {:>2}. {step:?}", n + 1);
        }
        let _ = write!(text, "      => {}", self.why);
        text
    }
}

/// Explores all schedules of `scope`, up to `limit` states.
pub(crate) fn explore(scope: &Scope, limit: usize) -> Report {
    let first = World::new(scope);
    let mut search = Search { came_from: HashMap::default(), frontier: VecDeque::new() };
    let start = fingerprint(&first);
    search.came_from.insert(start, None);
    search.frontier.push_back((first, start, 0));
    let mut report = Report { states: 1, steps: 0, depth: 0, failure: None };
    let mut steps = Vec::new();
    while let Some((world, here, depth)) = search.frontier.pop_front() {
        report.depth = depth;
        if let Err(why) = world.sometimes_drains(scope, here) {
            report.failure = Some(search.failure(here, None, &why));
            return report;
        }
        world.steps(scope, &mut steps);
        for step in &steps {
            let mut next = world.clone();
            report.steps += 1;
            if let Err(violation) = next.apply(scope, *step) {
                report.failure = Some(search.failure(here, Some(*step), &violation.to_string()));
                return report;
            }
            let there = fingerprint(&next);
            if search.remember(there, here, *step) {
                report.states += 1;
                search.frontier.push_back((next, there, depth + 1));
            }
        }
        assert!(report.states <= limit, "more than {limit} states: make the scope smaller");
    }
    report
}

struct Search {
    came_from: HashMap<u64, Option<(u64, Step)>, FixedState>,
    frontier: VecDeque<(World, u64, usize)>,
}

impl Search {
    fn remember(&mut self, there: u64, from: u64, step: Step) -> bool {
        let entry = self.came_from.entry(there);
        let new = matches!(entry, Entry::Vacant(_));
        entry.or_insert(Some((from, step)));
        new
    }

    fn failure(&self, mut at: u64, last: Option<Step>, why: &str) -> Failure {
        let mut schedule: Vec<Step> = last.into_iter().collect();
        while let Some((from, step)) = self.came_from[&at] {
            schedule.push(step);
            at = from;
        }
        schedule.reverse();
        Failure { why: why.to_owned(), schedule }
    }
}

fn fingerprint(world: &World) -> u64 {
    FixedState::default().hash_one(world)
}

/// Rounds of a fair schedule after which every queue must have been emptied.
const MAX_ROUNDS: usize = 400;

impl World {
    /// Runs [`Self::drains`] for one state in 32: it takes long, and neighbouring states drain alike.
    fn sometimes_drains(&self, scope: &Scope, fingerprint: u64) -> Result<(), String> {
        if fingerprint.is_multiple_of(32) { self.drains(scope) } else { Ok(()) }
    }

    /// Checks liveness: without further packets, with every possible step under way made in turn, and with applications that
    /// stay at work, every enabled queue becomes empty within [`MAX_ROUNDS`] rounds.
    pub(crate) fn drains(&self, scope: &Scope) -> Result<(), String> {
        let waiting = |world: &Self| world.instances.iter().any(|on| on.packets > 0 && on.napi.is_enabled());
        let mut world = self.clone();
        let mut steps = Vec::new();
        let mut possible = Vec::new();
        for _ in 0..MAX_ROUNDS {
            if !waiting(&world) {
                return Ok(());
            }
            world.steps(scope, &mut steps);
            steps.retain(|step| step.is_progress());
            for step in steps.drain(..) {
                // An earlier step of this round may have made this one impossible.
                world.steps(scope, &mut possible);
                if possible.contains(&step) {
                    world.apply(scope, step).map_err(|violation| violation.to_string())?;
                }
            }
            if world.may_tick(scope) {
                world.apply(scope, Step::Tick).map_err(|violation| violation.to_string())?;
            }
        }
        Err("liveness: without further packets and with all parties moving in turn, packets stay in an enabled queue"
            .to_owned())
    }
}
