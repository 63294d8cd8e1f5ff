//! `abey tune --policy`: what the policy's `tune` tables say, as groups.

use std::path::PathBuf;

use abey_delivery::Family;
use abey_linux::apply::Target;
use abey_linux::cpu::CpuList;
use abey_linux::machine::Snapshot;
use abey_policy::{Policy, PolicyError, TuneGroup, Wishes};
use abey_tune::{Bounds, Goal};

use super::device::Wanted;
use super::group::Group;
use super::kernel::Kernel;
use super::latency::{Feed, Witness};
use super::machine::Shared;
use super::server::Server;
use super::{Args, witness};
use crate::commands::apply::Files;
use crate::failure::Failure;

/// The policy in these places; it has to say how to tune.
pub(super) fn read(paths: &[PathBuf]) -> Result<Policy, Failure> {
    let policy = Files::new(paths).read()?;
    if policy.tunes() {
        return Ok(policy);
    }
    Err(Failure::usage(
        "the policy does not say how to tune anything: give a [[device.queues]] table a line such as \
         tune = { goal = \"p99=250us\" }",
    ))
}

/// The groups of the policy, of one device or of all.
pub(super) fn groups(args: &Args, policy: &Policy, machine: &Shared) -> Result<Vec<Group>, Failure> {
    let snapshot = Snapshot::read_at(machine.borrow_mut().place())?;
    let online = CpuList::online().map_err(Failure::lacks)?;
    let mut wishes = policy.resolve(&snapshot, &online)?;
    let only = args.device.as_deref();
    check(policy, &mut wishes, only)?;
    let mut meant = policy.tune_groups(&wishes)?;
    if let Some(only) = only {
        let all: Vec<String> = meant.iter().map(|group| group.device.clone()).collect();
        meant.retain(|group| group.device == only);
        if meant.is_empty() {
            machine.borrow_mut().device(only)?;
            let others = if all.is_empty() { "nothing that is here".to_owned() } else { all.join(", ") };
            return Err(Failure::usage(format!("the policy does not say how to tune {only}: it tunes {others}")));
        }
    }
    if meant.is_empty() {
        return Err(Failure::usage("no device of which the policy says how to tune it is here"));
    }
    let mut seen_by_all = Seen::of(args, &meant)?;
    let mut groups = Vec::new();
    for (rule, group) in meant.into_iter().enumerate() {
        let witness = seen_by_all.witness(args, &group)?;
        let device = machine.borrow_mut().device(&group.device)?;
        let TuneGroup { queues, tune, programs, .. } = group;
        let (target, goal) = (Target::Queues(queues.into_iter().collect()), tune.value.goal);
        let server = Server::of_programs(programs);
        let wanted = Wanted { device, target, goal, witness, server, cpus: None, is_of_policy: true };
        let said = |failure: Failure| Failure::lacks(format!("{}: {failure}", tune.origin));
        let bounds = |kernel: &Kernel| bounds(&tune.value, kernel).map_err(said);
        groups.extend(wanted.groups(args, rule, machine, &bounds)?);
    }
    Ok(groups)
}

/// Fails where a device that is to be tuned is not there, or something is wrong with it.
fn check(policy: &Policy, wishes: &mut Wishes, only: Option<&str>) -> Result<(), Failure> {
    wishes.wrong.retain(|(device, _)| only.is_none_or(|only| only == device));
    wishes.check()?;
    let missing = wishes.absent.iter().find(|absent| !absent.optional && policy.tunes_at(&absent.origin));
    match missing.filter(|_| only.is_none()) {
        Some(absent) => {
            let (origin, wanted) = (absent.origin.clone(), absent.wanted.clone());
            Err(PolicyError::NoDevice { origin, wanted, known: wishes.known.join(", ") }.into())
        }
        None => Ok(()),
    }
}

/// The bounds, with those of the usual families that can be had here where the rule names none.
fn bounds(tune: &abey_policy::Tune, kernel: &Kernel) -> Result<Bounds, Failure> {
    let own = tune.bounds.families();
    let possible = kernel.families(if tune.names_modes { own } else { &[] })?;
    if tune.names_modes {
        return Ok(tune.bounds.clone());
    }
    let families: Vec<Family> = own.iter().copied().filter(|family| possible.contains(family)).collect();
    Bounds::new(tune.bounds.flush(), tune.bounds.suspend(), &families).map_err(Failure::usage)
}

/// Who sees the latencies of a group: a file of its own, or whom the command line names, if only one group needs that.
struct Seen {
    by_all: Option<Box<dyn Witness>>,
}

impl Seen {
    fn of(args: &Args, groups: &[TuneGroup]) -> Result<Self, Failure> {
        let by_all = witness(args)?;
        let count = groups.iter().filter(|group| needs_witness(group)).count();
        if by_all.is_some() && count != 1 {
            return Err(Failure::usage(format!(
                "--probe and --latencies see one figure, and {count} rules of the policy have a goal p99= and no \
                 `latencies` of their own: give each a file (tune = {{ goal = \"p99=250us\", latencies = \"/run/NAME\" }})"
            )));
        }
        Ok(Self { by_all })
    }

    fn witness(&mut self, args: &Args, group: &TuneGroup) -> Result<Option<Box<dyn Witness>>, Failure> {
        let TuneGroup { tune, .. } = group;
        if let Some(path) = &tune.value.latencies {
            let feed = Feed::open(path).map_err(|failure| Failure::usage(format!("{}: {failure}", tune.origin)))?;
            return Ok(Some(Box::new(feed)));
        }
        if !needs_witness(group) {
            return Ok(None);
        }
        match self.by_all.take() {
            Some(witness) => Ok(Some(witness)),
            None if args.estimate => Ok(None),
            None => Err(Failure::usage(format!(
                "{}: nobody sees the latencies that goal {} is about: write `latencies = \"FILE\"` there, for a client to \
                 write what it sees; give --probe HOST:PORT; or steer by an estimate from polls and CPU time (--estimate)",
                tune.origin, tune.value.goal
            ))),
        }
    }
}

/// Whether it has to be said elsewhere who sees its latencies.
fn needs_witness(group: &TuneGroup) -> bool {
    matches!(group.tune.value.goal, Goal::P99(_)) && group.tune.value.latencies.is_none()
}
