//! Steps under the datapath's modes, and under `abey tune`, which has its 99th percentile from the datapath itself.

use std::path::Path;

use abey_datapath::control::DIRECTORY_VARIABLE;
use abey_delivery::Mode;
use abey_load::Kernel;
use abey_load::network::Network;

use super::bed::CLIENT;
use super::preloaded::{Preloaded, Wire, over_memory};
use super::served::Served;
use crate::client::over_af_xdp;
use crate::load_run::{Driver, pin_client};
use crate::matrix::Conditions;
use crate::steps::{Contender, Course, Driven, StepBed, StepRun, Steps, Tuner};
use crate::{BenchError, ClientKind, World};

/// A server and, while it is tuned, its tuner.
struct Pair {
    served: Served,
    tuner: Option<Tuner>,
    mode: Mode,
}

impl StepBed for Preloaded {
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
        let start = |nic: &str| -> Result<Pair, BenchError> {
            // The tuner connects once and keeps that: the directory goes as soon as it has.
            let mut tuner = None;
            let served = self.start(nic, mode, conditions, |pid, control| {
                if contender == Contender::Tuned {
                    tuner = Some(self.tuner(steps, pid, control)?);
                }
                Ok(())
            })?;
            Ok(Pair { served, tuner, mode })
        };
        let driven = match &self.wire {
            Wire::Veth(bed, client) => {
                let pair = start(&format!("af_xdp:{}", bed.device.name))?;
                match client {
                    ClientKind::Kernel => {
                        bed.client.run(|| self.over(|| Ok(Kernel), pair, (steps, seed), conditions))?
                    }
                    ClientKind::Datapath => {
                        bed.client.run(|| self.over(|| over_af_xdp(bed), pair, (steps, seed), conditions))?
                    }
                }
            }
            Wire::Memory(cpus) => {
                let nic = Self::next_nic();
                let pair = start(&nic)?;
                let network = || over_memory(&nic, CLIENT, cpus.client);
                let load = || self.over(network, pair, (steps, seed), conditions);
                std::thread::scope(|scope| {
                    scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            }
        };
        let Driven { slices, cpu_percent, tuner_cpu_percent, tuner, notes } = driven?;
        let (world, contender) = (self.setup.world, contender.to_string());
        Ok(StepRun { world, contender, slices, cpu_percent, tuner_cpu_percent, tuner, notes })
    }
}

impl Preloaded {
    fn tuner(&self, steps: &Steps, pid: u32, control: &Path) -> Result<Tuner, BenchError> {
        // What the datapath sees by itself is what it tells apart; any other percentile has to be told.
        let tuner = Tuner::start(steps, steps.goal.percentile != 99, self.wire.cpus().client, |command| {
            command.args(["--pid", &pid.to_string()]).env(DIRECTORY_VARIABLE, control);
        })?;
        tuner.wait_until_it_says("p99=")?;
        Ok(tuner)
    }

    /// From the client's place: its namespace, if it has one, and its CPU.
    fn over<N: Network>(
        &self,
        network: impl FnOnce() -> Result<N, BenchError>,
        Pair { mut served, tuner, mode }: Pair,
        (steps, seed): (&Steps, u64),
        conditions: &Conditions,
    ) -> Result<Driven, BenchError> {
        pin_client(self.wire.cpus().client)?;
        // A server that has ended is the reason, whatever else is said.
        let network = network().map_err(|error| served.server.check().err().unwrap_or(error))?;
        let to = (self.target(), self.app.protocol().workload());
        let pid = served.server.pid();
        let mut driver = Driver::connect(network, to, &mut served.server, (self.setup.world, mode), conditions)?;
        let cpu = self.cpu_time.watch(pid, &[])?;
        Course { steps, seed, warmup: conditions.warmup, cpu, tuner }.drive(&mut driver)
    }
}
