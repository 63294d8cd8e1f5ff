//! Load steps under the datapath's modes, and under `abey tune`, which reads the 99th percentile from the datapath itself.

use std::path::Path;

use abey_datapath::control::DIRECTORY_VARIABLE;
use abey_delivery::Mode;
use abey_loadgen::Kernel;
use abey_loadgen::network::Network;

use super::memory::CLIENT;
use super::preloaded::{Preloaded, Wire, over_memory};
use super::server::DatapathServer;
use crate::client::over_af_xdp;
use crate::load_driver::{LoadDriver, pin_client};
use crate::runner::Conditions;
use crate::steps::{Contender, StepDriver, StepMeasurements, StepRun, StepTestBed, Steps, Tuner};
use crate::{BenchError, ClientKind, World};

/// A server with its tuner, if any.
struct TunedServer {
    served: DatapathServer,
    tuner: Option<Tuner>,
    mode: Mode,
}

impl StepTestBed for Preloaded {
    fn world(&self) -> World {
        self.setup.world
    }

    fn measure_steps(
        &self,
        contender: Contender,
        steps: &Steps,
        seed: u64,
        conditions: &Conditions,
    ) -> Result<StepRun, BenchError> {
        let mode = contender.first_mode();
        let start = |nic: &str| -> Result<TunedServer, BenchError> {
            // The tuner connects once; the directory is removed afterwards.
            let mut tuner = None;
            let served = self.start(nic, mode, conditions, |pid, control| {
                if contender == Contender::Tuned {
                    tuner = Some(self.tuner(steps, pid, control)?);
                }
                Ok(())
            })?;
            Ok(TunedServer { served, tuner, mode })
        };
        let measured = match &self.wire {
            Wire::Veth(network, client) => {
                let pair = start(&format!("af_xdp:{}", network.device.name))?;
                match client {
                    ClientKind::Kernel => {
                        network.client.run(|| self.run_steps(|| Ok(Kernel), pair, (steps, seed), conditions))?
                    }
                    ClientKind::Datapath => network
                        .client
                        .run(|| self.run_steps(|| over_af_xdp(network), pair, (steps, seed), conditions))?,
                }
            }
            Wire::Memory(cpus) => {
                let nic = Self::next_nic();
                let pair = start(&nic)?;
                let network = || over_memory(&nic, CLIENT, cpus.client);
                let load = || self.run_steps(network, pair, (steps, seed), conditions);
                std::thread::scope(|scope| {
                    scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            }
        };
        let StepMeasurements { slices, cpu_percent, tuner_cpu_percent, tuner, notes } = measured?;
        let (world, contender) = (self.setup.world, contender.to_string());
        Ok(StepRun { world, contender, slices, cpu_percent, tuner_cpu_percent, tuner, notes })
    }
}

impl Preloaded {
    fn tuner(&self, steps: &Steps, pid: u32, control: &Path) -> Result<Tuner, BenchError> {
        // The datapath measures the 99th percentile itself; any other percentile comes from the load.
        let tuner = Tuner::start(steps, steps.goal.percentile != 99, self.wire.cpus().client, |command| {
            command.args(["--pid", &pid.to_string()]).env(DIRECTORY_VARIABLE, control);
        })?;
        tuner.wait_for_output("p99=")?;
        Ok(tuner)
    }

    /// Runs the steps. The calling thread must be in the client's namespace, if it has one.
    fn run_steps<N: Network>(
        &self,
        network: impl FnOnce() -> Result<N, BenchError>,
        TunedServer { mut served, tuner, mode }: TunedServer,
        (steps, seed): (&Steps, u64),
        conditions: &Conditions,
    ) -> Result<StepMeasurements, BenchError> {
        pin_client(self.wire.cpus().client)?;
        // If the server has ended, that is the error.
        let network = network().map_err(|error| served.server.check().err().unwrap_or(error))?;
        let to = (self.target(), self.app.protocol().workload());
        let pid = served.server.pid();
        let mut driver = LoadDriver::connect(network, to, &mut served.server, (self.setup.world, mode), conditions)?;
        let cpu = self.cpu_time.for_server(pid, &[])?;
        StepDriver { steps, seed, warmup: conditions.warmup, cpu, tuner }.run(&mut driver)
    }
}
