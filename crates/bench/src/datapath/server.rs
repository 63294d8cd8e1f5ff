//! A server over the datapath, measured at each load.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use abey_datapath::control::{Client, DIRECTORY_VARIABLE, find_in};
use abey_delivery::Mode;
use abey_linux::counters::Count;
use abey_loadgen::network::Network;
use abey_loadgen::{Report, Workload};

use super::meter::{Counts, Meter};
use super::proof::prove;
use crate::cpu_time::CpuTimeSource;
use crate::load_driver::{LoadDriver, figures, per_query};
use crate::server::Server;
use crate::{BenchError, Conditions, Figure, Figures, Load, Run, World};

/// A running server with a connection to its control socket.
pub(super) struct DatapathServer {
    pub(super) server: Server,
    control: Client,
}

impl DatapathServer {
    /// Starts a server, polls `ready` until it returns true, and connects to its control socket. Other clients of the socket connect in
    /// `on_connect`: afterwards its directory is removed.
    pub(super) fn start(
        mut command: Command,
        name: String,
        conditions: &Conditions,
        ready: impl FnMut(&Server, &Path) -> Result<bool, BenchError>,
        on_connect: impl FnOnce(u32, &Path) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        // The directory exists until the connection is made, so that a killed bench leaves no file behind.
        let control = tempfile::tempdir().map_err(io("make a temporary directory"))?;
        command.env(DIRECTORY_VARIABLE, control.path());
        let mut ready = ready;
        let server = Server::start(command, name, &conditions.stop, |server| ready(server, control.path()))?;
        let found = find_in(control.path())?.into_iter().next();
        let client = found.ok_or_else(|| server.failed("has no datapath".to_owned()))?;
        let client = client.map_err(|unreachable| unreachable.error)?;
        on_connect(server.pid(), control.path())?;
        Ok(Self { server, control: client })
    }

    /// Measures the server at each load. The calling thread must run on the client's CPU and in its namespace.
    pub(super) fn at_each_load<N: Network>(
        &mut self,
        network: N,
        to: (SocketAddr, Workload),
        (world, mode, cpu_time): (World, Mode, &CpuTimeSource),
        (loads, seed): (&[Load], u64),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        let pid = self.server.pid();
        let mut driver = LoadDriver::connect(network, to, &mut self.server, (world, mode), conditions)?;
        let mut runs = Vec::new();
        for &load in loads {
            let mut meter = Meter::new(pid, &self.control, cpu_time)?;
            let report = driver
                .run(load, conditions.duration, conditions.warmup, seed, &mut |phase| meter.handle_phase(phase))?;
            let counts = meter.finish()?;
            let proof = driver.check_proof(load, prove(mode, &counts.until_last_response))?;
            runs.push(driver.finish_run(load, &report, all_figures(&report, &counts), (proof, counts.note)));
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
