//! The groups of a device's instances.

use std::time::Duration;

use abey_linux::cpu::CpuList;
use abey_linux::device::Device;
use abey_reconcile::Target;
use abey_tune::{Bounds, Goal};

use crate::TuneError;
use crate::group::{Group, TuneTarget};
use crate::host::SharedHost;
use crate::kernel::KernelTarget;
use crate::latency::LatencySource;
use crate::selection::{CpuAccount, Selection};
use crate::server::Server;

/// Queues with a goal, to be tuned together or separately.
pub struct GroupRequest {
    /// The device.
    pub device: Device,
    /// Its instances.
    pub target: Target,
    /// The goal.
    pub goal: Goal,
    /// The source of latencies, if there is one.
    pub latency_source: Option<Box<dyn LatencySource>>,
    /// The server that receives from the queues.
    pub server: Server,
    /// The CPUs whose time is counted, if they were listed.
    pub cpus: Option<CpuList>,
    /// Whether a policy makes the request: by default the time of the CPUs that poll is counted then, rather than that of all.
    pub is_of_policy: bool,
}

/// Options of all groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// Length of an interval.
    pub interval: Duration,
    /// Tune all instances of a request together.
    pub together: bool,
    /// Decide, but apply nothing.
    pub dry_run: bool,
}

/// Returns the bounds of a target, which depend on the families of modes that are available for it.
pub type BoundsFor<'a> = &'a dyn Fn(&KernelTarget) -> Result<Bounds, TuneError>;

impl GroupRequest {
    /// Creates the groups of the request. Each instance is a group where everything is measured per instance: there is no source
    /// of latencies, and the CPU time is that of the CPUs that poll it. The latencies of a source, the CPU time of a server and its
    /// epoll instances concern all queues, so all are one group then.
    ///
    /// # Errors
    /// When a group cannot be tuned, or its bounds are wrong.
    pub fn groups(
        self,
        options: GroupOptions,
        rule: usize,
        host: &SharedHost,
        bounds: BoundsFor<'_>,
    ) -> Result<Vec<Group>, TuneError> {
        let Self { device, target, goal, latency_source, server, cpus, is_of_policy } = self;
        // A kernel without settings per instance has the same settings for all of them.
        let is_one = options.together
            || latency_source.is_some()
            || server.is_known()
            || cpus.is_some()
            || !host.borrow().capabilities().deferral;
        let queues = host.borrow_mut().queues(&device, &target)?;
        let new = |selection, latency_source| {
            let mut kernel = KernelTarget::on(host, selection, options.interval, latency_source)?;
            let (bounds, present) = (bounds(&kernel)?, kernel.present()?);
            Group::new((rule, goal, bounds), TuneTarget::Kernel(Box::new(kernel)), present, options.dry_run)
        };
        if is_one || queues.is_empty() {
            let cpus = match (server.is_known(), is_of_policy) {
                (true, true) => CpuAccount::Server,
                (false, true) => CpuAccount::Polling,
                _ => CpuAccount::of(cpus, &server)?,
            };
            return Ok(vec![new(Selection { device, target, server, cpus }, latency_source)?]);
        }
        let selection = |queues| {
            let (device, target) = (device.clone(), Target::Queues(queues));
            let server = Server::of_processes(Vec::new())?;
            Ok::<_, TuneError>(Selection { device, target, server, cpus: CpuAccount::Polling })
        };
        queues.into_iter().map(|queues| new(selection(queues)?, None)).collect()
    }
}
