//! What is tuned of the kernel: a device as the command line says it, or what a policy says, as groups.

use abey_delivery::Family;
use abey_linux::apply::Target;
use abey_linux::cpu::CpuList;
use abey_linux::device::Device;
use abey_tune::{Bounds, Goal};

use super::goal::GoalArgs;
use super::group::{Group, Tuned};
use super::kernel::Kernel;
use super::latency::Witness;
use super::machine::Shared;
use super::part::{Cpus, Part};
use super::server::Server;
use super::{Args, witness};
use crate::failure::Failure;

/// Queues with a goal, that are steered together or instance by instance.
pub(super) struct Wanted {
    pub(super) device: Device,
    pub(super) target: Target,
    pub(super) goal: Goal,
    pub(super) witness: Option<Box<dyn Witness>>,
    pub(super) server: Server,
    /// The CPUs whose time counts, if they were named.
    pub(super) cpus: Option<CpuList>,
    /// Where nothing else decides: those that poll rather than all.
    pub(super) is_of_policy: bool,
}

/// Makes the bounds, once it is known what is possible.
type BoundsOf<'a> = &'a dyn Fn(&Kernel) -> Result<Bounds, Failure>;

/// The groups of a device, as the command line says.
pub(super) fn groups(args: &Args, goal: Goal, machine: &Shared) -> Result<Vec<Group>, Failure> {
    let name = args.device.as_deref().expect("clap asks for DEV or --pid");
    let device = machine.borrow_mut().device(name)?;
    let target = if args.queues.is_empty() { Target::Device } else { Target::Queues(args.queues.clone()) };
    let server = Server::of_processes(args.pid.into_iter().collect())?;
    let (witness, cpus, is_of_policy) = (witness(args)?, args.cpus.clone(), false);
    let wanted = Wanted { device, target, goal, witness, server, cpus, is_of_policy };
    wanted.groups(args, 0, machine, &|kernel| bounds(&args.goal, kernel))
}

fn bounds(args: &GoalArgs, kernel: &Kernel) -> Result<Bounds, Failure> {
    let possible: Vec<Family> = kernel.families(&args.families)?;
    args.bounds(&possible)
}

impl Wanted {
    /// The groups that it comes to. Each instance is one by itself where what is seen is each instance's: nobody sees
    /// latencies, and CPU time is that of the CPUs that poll it. Latencies of a witness are those of all queues, and the CPU
    /// time and the epoll instances of a server are all queues' as well.
    pub(super) fn groups(
        self,
        args: &Args,
        rule: usize,
        machine: &Shared,
        bounds: BoundsOf<'_>,
    ) -> Result<Vec<Group>, Failure> {
        let Self { device, target, goal, witness, server, cpus, is_of_policy } = self;
        // A kernel without settings of each instance has one for all of them.
        let is_one =
            args.group || witness.is_some() || server.is_known() || cpus.is_some() || !machine.borrow().able().deferral;
        let queues = machine.borrow_mut().queues(&device, &target)?;
        let new = |part, witness| {
            let mut kernel = Kernel::on(machine, part, args.interval.into(), witness)?;
            let (bounds, present) = (bounds(&kernel)?, kernel.present()?);
            Group::new((rule, goal, bounds), Tuned::Kernel(Box::new(kernel)), present, args.dry_run)
        };
        if is_one || queues.is_empty() {
            let cpus = match (server.is_known(), is_of_policy) {
                (true, true) => Cpus::Server,
                (false, true) => Cpus::Polling,
                _ => Cpus::of(cpus, &server)?,
            };
            return Ok(vec![new(Part { device, target, server, cpus }, witness)?]);
        }
        let part = |queues| {
            let (device, target) = (device.clone(), Target::Queues(queues));
            Ok::<_, Failure>(Part { device, target, server: Server::of_processes(Vec::new())?, cpus: Cpus::Polling })
        };
        queues.into_iter().map(|queues| new(part(queues)?, None)).collect()
    }
}
