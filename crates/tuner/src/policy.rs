//! The groups that a policy's `tune` tables define.

use abey_delivery::Family;
use abey_linux::cpu::CpuList;
use abey_linux::machine::Snapshot;
use abey_policy::{DesiredState, Policy, PolicyError, TuneGroup};
use abey_reconcile::Target;
use abey_tune::{Bounds, Goal};

use crate::TuneError;
use crate::device::{GroupOptions, GroupRequest};
use crate::group::Group;
use crate::host::SharedHost;
use crate::kernel::KernelTarget;
use crate::latency::{LatencyFile, LatencySource};
use crate::server::Server;

/// Where the groups of a policy come from.
pub struct PolicyRequest<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The only device to tune; `None` for all that the policy tunes.
    pub device: Option<&'a str>,
    /// A source of latencies from the command line, for the one rule that needs it.
    pub latency_source: Option<Box<dyn LatencySource>>,
    /// Whether rules without a source of latencies estimate them.
    pub estimate: bool,
}

impl PolicyRequest<'_> {
    /// Creates the groups.
    ///
    /// # Errors
    /// When a device is missing, a rule is wrong, or a goal has no source of latencies.
    pub fn groups(self, options: GroupOptions, host: &SharedHost) -> Result<Vec<Group>, TuneError> {
        let Self { policy, device: only, latency_source, estimate } = self;
        let snapshot = Snapshot::read_at(host.borrow_mut().handle())?;
        let online = CpuList::online().map_err(TuneError::unsupported)?;
        let mut desired = policy.resolve(&snapshot, &online)?;
        check(policy, &mut desired, only)?;
        let mut rules = policy.tune_groups(&desired)?;
        if let Some(only) = only {
            let all: Vec<String> = rules.iter().map(|group| group.device.clone()).collect();
            rules.retain(|group| group.device == only);
            if rules.is_empty() {
                host.borrow_mut().device(only)?;
                let others = if all.is_empty() { "no device of this machine".to_owned() } else { all.join(", ") };
                return Err(TuneError::usage(format!("the policy does not say how to tune {only}: it tunes {others}")));
            }
        }
        if rules.is_empty() {
            return Err(TuneError::usage("the policy tunes no device of this machine"));
        }
        let mut sources = LatencySources::new(latency_source, estimate, &rules)?;
        let mut groups = Vec::new();
        for (rule, group) in rules.into_iter().enumerate() {
            let latency_source = sources.take(&group)?;
            let device = host.borrow_mut().device(&group.device)?;
            let TuneGroup { queues, tune, programs, .. } = group;
            let (target, goal) = (Target::Queues(queues.into_iter().collect()), tune.value.goal);
            let server = Server::of_programs(programs);
            let request = GroupRequest { device, target, goal, latency_source, server, cpus: None, is_of_policy: true };
            let with_origin = |error: TuneError| TuneError::unsupported(format!("{}: {error}", tune.origin));
            let bounds = |kernel: &KernelTarget| bounds(&tune.value, kernel).map_err(with_origin);
            groups.extend(request.groups(options, rule, host, &bounds)?);
        }
        Ok(groups)
    }
}

/// Fails where a device to tune is missing or has an error.
fn check(policy: &Policy, desired: &mut DesiredState, only: Option<&str>) -> Result<(), TuneError> {
    desired.wrong.retain(|(device, _)| only.is_none_or(|only| only == device));
    desired.check()?;
    let missing = desired.absent.iter().find(|absent| !absent.optional && policy.tunes_at(&absent.origin));
    match missing.filter(|_| only.is_none()) {
        Some(absent) => {
            let (origin, wanted) = (absent.origin.clone(), absent.wanted.clone());
            Err(PolicyError::NoDevice { origin, wanted, known: desired.known.join(", ") }.into())
        }
        None => Ok(()),
    }
}

/// Returns the rule's bounds, with those of the default families that are available here where the rule names none.
fn bounds(tune: &abey_policy::Tune, kernel: &KernelTarget) -> Result<Bounds, TuneError> {
    let own = tune.bounds.families();
    let available = kernel.families(if tune.names_modes { own } else { &[] })?;
    if tune.names_modes {
        return Ok(tune.bounds.clone());
    }
    let families: Vec<Family> = own.iter().copied().filter(|family| available.contains(family)).collect();
    Bounds::new(tune.bounds.flush(), tune.bounds.suspend(), &families).map_err(TuneError::usage)
}

/// The sources of latencies of the rules: files of their own, or the one from the command line.
struct LatencySources {
    shared: Option<Box<dyn LatencySource>>,
    estimate: bool,
}

impl LatencySources {
    fn new(shared: Option<Box<dyn LatencySource>>, estimate: bool, rules: &[TuneGroup]) -> Result<Self, TuneError> {
        let count = rules.iter().filter(|rule| needs_source(rule)).count();
        if shared.is_some() && count != 1 {
            return Err(TuneError::usage(format!(
                "--probe and --latencies measure one figure, and {count} rules of the policy have a goal p99= and no \
                 `latencies` of their own: give each a file (tune = {{ goal = \"p99=250us\", latencies = \"/run/NAME\" }})"
            )));
        }
        Ok(Self { shared, estimate })
    }

    fn take(&mut self, rule: &TuneGroup) -> Result<Option<Box<dyn LatencySource>>, TuneError> {
        let TuneGroup { tune, .. } = rule;
        if let Some(path) = &tune.value.latencies {
            let file =
                LatencyFile::open(path).map_err(|error| TuneError::usage(format!("{}: {error}", tune.origin)))?;
            return Ok(Some(Box::new(file)));
        }
        if !needs_source(rule) {
            return Ok(None);
        }
        match self.shared.take() {
            Some(source) => Ok(Some(source)),
            None if self.estimate => Ok(None),
            None => Err(TuneError::usage(format!(
                "{}: goal {} needs latencies, which the kernel does not measure: write `latencies = \"FILE\"` there, to which \
                 a client writes them; give --probe HOST:PORT; or let them be estimated from polls and CPU time (--estimate)",
                tune.origin, tune.value.goal
            ))),
        }
    }
}

/// Returns whether the rule needs a source of latencies and names none.
fn needs_source(rule: &TuneGroup) -> bool {
    matches!(rule.tune.value.goal, Goal::P99(_)) && rule.tune.value.latencies.is_none()
}
