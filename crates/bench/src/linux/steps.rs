//! Load steps under the kernel's modes, and under `abey tune` with the load's latencies.

use abey_loadgen::Kernel;
use abey_testbed::spawn::SpawnExt;

use super::Linux;
use crate::load_driver::{LoadDriver, pin_client};
use crate::runner::Conditions;
use crate::server::Server;
use crate::steps::{Contender, StepDriver, StepMeasurements, StepRun, StepTestBed, Steps, Tuner};
use crate::{BenchError, World};

impl StepTestBed for Linux {
    fn world(&self) -> World {
        World::Linux
    }

    fn measure_steps(
        &self,
        contender: Contender,
        steps: &Steps,
        seed: u64,
        conditions: &Conditions,
    ) -> Result<StepRun, BenchError> {
        let mode = contender.first_mode();
        let applied = self.apply(mode)?;
        let kthreads = self.pin_napi_threads()?;
        let mut server = self.start(mode, conditions)?;
        let tuner = (contender == Contender::Tuned).then(|| self.tuner(steps, &server)).transpose()?;
        let measured = self.network.client.run(|| {
            pin_client(self.network.cpus.client)?;
            let pid = server.pid();
            let to = (self.target(), self.app.protocol().workload());
            let mut driver = LoadDriver::connect(Kernel, to, &mut server, (World::Linux, mode), conditions)?;
            let cpu = self.cpu_time.for_server(pid, &kthreads)?;
            StepDriver { steps, seed, warmup: conditions.warmup, cpu, tuner }.run(&mut driver)
        })?;
        drop(server);
        applied.restore()?;
        let StepMeasurements { slices, cpu_percent, tuner_cpu_percent, tuner, notes } = measured?;
        let contender = contender.to_string();
        Ok(StepRun { world: World::Linux, contender, slices, cpu_percent, tuner_cpu_percent, tuner, notes })
    }
}

impl Linux {
    fn tuner(&self, steps: &Steps, server: &Server) -> Result<Tuner, BenchError> {
        Tuner::start(steps, true, self.network.cpus.client, |command| {
            command.in_netns(&self.network.server).arg(&self.network.device.name);
            command.args(["--pid", &server.pid().to_string(), "--cpus", &self.network.cpus.server.to_string()]);
        })
    }
}
