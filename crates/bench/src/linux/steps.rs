//! Steps under the kernel's modes, and under `abey tune` with what the load sees.

use abey_linux::spawn::CommandPlace;
use abey_load::Kernel;

use super::Linux;
use crate::load_run::{Driver, pin_client};
use crate::matrix::Conditions;
use crate::server::Server;
use crate::steps::{Contender, Course, Driven, StepBed, StepRun, Steps, Tuner};
use crate::{BenchError, World};

impl StepBed for Linux {
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
        let driven = self.bed.client.run(|| {
            pin_client(self.bed.cpus.client)?;
            let pid = server.pid();
            let to = (self.target(), self.app.protocol().workload());
            let mut driver = Driver::connect(Kernel, to, &mut server, (World::Linux, mode), conditions)?;
            let cpu = self.cpu_time.watch(pid, &kthreads)?;
            Course { steps, seed, warmup: conditions.warmup, cpu, tuner }.drive(&mut driver)
        })?;
        drop(server);
        applied.restore()?;
        let Driven { slices, cpu_percent, tuner_cpu_percent, tuner, notes } = driven?;
        let contender = contender.to_string();
        Ok(StepRun { world: World::Linux, contender, slices, cpu_percent, tuner_cpu_percent, tuner, notes })
    }
}

impl Linux {
    fn tuner(&self, steps: &Steps, server: &Server) -> Result<Tuner, BenchError> {
        Tuner::start(steps, true, self.bed.cpus.client, |command| {
            command.in_netns(&self.bed.server).arg(&self.bed.device.name);
            command.args(["--pid", &server.pid().to_string(), "--cpus", &self.bed.cpus.server.to_string()]);
        })
    }
}
