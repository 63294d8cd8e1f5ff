//! A server on the datapath, measured at each load in turn.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use abey_datapath::control::{Client, DIRECTORY_VARIABLE, find_in};
use abey_delivery::Mode;
use abey_linux::counters::Count;
use abey_load::network::Network;
use abey_load::{Report, Workload};

use super::meter::{Counts, Meter};
use super::proof::judge;
use crate::cpu_time::CpuTime;
use crate::load_run::{Driver, figures, per_query};
use crate::server::Server;
use crate::{BenchError, Conditions, Figure, Figures, Load, Run, World};

/// A server that runs, and what its counters are asked through.
pub(super) struct Served {
    pub(super) server: Server,
    control: Client,
}

impl Served {
    /// Starts a server, and reaches its datapath as soon as the server is `ready`. Others that are to reach it do so in
    /// `reached`: afterwards its socket has no name.
    pub(super) fn start(
        mut command: Command,
        shown: String,
        conditions: &Conditions,
        ready: impl FnMut(&Server, &Path) -> Result<bool, BenchError>,
        reached: impl FnOnce(u32, &Path) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        // For as long as it takes to connect: then not even a bench that is killed leaves a file behind.
        let control = tempfile::tempdir().map_err(io("make a temporary directory"))?;
        command.env(DIRECTORY_VARIABLE, control.path());
        let mut ready = ready;
        let server = Server::start(command, shown, &conditions.stop, |server| ready(server, control.path()))?;
        let found = find_in(control.path())?.into_iter().next();
        let client = found.ok_or_else(|| server.failed("has no datapath".to_owned()))?;
        let client = client.map_err(|unreachable| unreachable.error)?;
        reached(server.pid(), control.path())?;
        Ok(Self { server, control: client })
    }

    /// Measures it from the calling thread, which is where the load belongs.
    pub(super) fn at_each_load<N: Network>(
        &mut self,
        network: N,
        to: (SocketAddr, Workload),
        (world, mode, cpu_time): (World, Mode, &CpuTime),
        (loads, seed): (&[Load], u64),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        let pid = self.server.pid();
        let mut driver = Driver::connect(network, to, &mut self.server, (world, mode), conditions)?;
        let mut runs = Vec::new();
        for &load in loads {
            let mut meter = Meter::new(pid, &self.control, cpu_time)?;
            let report =
                driver.run(load, conditions.duration, conditions.warmup, seed, &mut |phase| meter.at(phase))?;
            let counts = meter.finish()?;
            let proof = driver.proved(load, judge(mode, &counts.until_answered))?;
            runs.push(driver.measured(load, &report, all_figures(&report, &counts), (proof, counts.note)));
        }
        Ok(runs)
    }
}

fn all_figures(report: &Report, counts: &Counts) -> Figures {
    let mut all = figures(report, counts.usage);
    let each = |count: Option<u64>| per_query(count? as f64, report);
    all.set(Figure::Cycles, each(counts.work.get(Count::Cycles)));
    all.set(Figure::Instructions, each(counts.work.get(Count::Instructions)));
    all.set(Figure::Wakeups, Some(counts.sleeps as f64 / counts.usage.interval.as_secs_f64()));
    all.set(Figure::ContextSwitches, each(Some(counts.switches)));
    all.set(Figure::SystemCalls, each(Some(counts.datapath.system_calls())));
    all
}
