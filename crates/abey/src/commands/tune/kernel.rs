//! Some of the kernel's NAPI instances of a device, and the server behind them, as something to tune.

use std::rc::Rc;
use std::time::Duration;

use abey_delivery::{Family, ModeSettings};
use abey_linux::apply::{ApplyError, Step, Target};
use abey_linux::epoll;
use abey_linux::napi::{Napi, NapiChange};
use abey_tune::Sample;

use super::latency::{UNSEEN, Witness};
use super::machine::{Machine, Shared};
use super::meter::{Meter, nothing};
use super::name::Name;
use super::part::{Cpus, Part, Subject};
use super::server::Server;
use super::tuner::{Lost, Plant, Refused};
use crate::failure::Failure;

/// Instances at work.
pub(crate) struct Kernel {
    machine: Shared,
    part: Part,
    interval: Duration,
    witness: Option<Box<dyn Witness>>,
    meter: Meter,
    /// What they were given; nothing before the first change.
    wanted: Option<ModeSettings>,
    is_away: bool,
    warned: bool,
}

impl Kernel {
    /// Looks whether it can be tuned, all of it together, and changes nothing.
    pub(crate) fn open(
        subject: Subject,
        interval: Duration,
        witness: Option<Box<dyn Witness>>,
    ) -> Result<Self, Failure> {
        let Subject { netns, device, target, server, cpus, journals } = subject;
        let server = Server::of_processes(server)?;
        let cpus = Cpus::of(cpus, &server)?;
        Self::on(&Machine::open(netns, journals)?, Part { device, target, server, cpus }, interval, witness)
    }

    /// The same on a machine that others tune as well.
    pub(crate) fn on(
        machine: &Shared,
        part: Part,
        interval: Duration,
        witness: Option<Box<dyn Witness>>,
    ) -> Result<Self, Failure> {
        // Whether there are instances, and queues of these numbers.
        machine.borrow_mut().plan(&part.device, &part.target, &NapiChange::default())?;
        let is_whole = part.target == Target::Device && matches!(part.cpus, Cpus::These(_));
        let meter = Meter::new(machine, witness.is_none() || !is_whole);
        let machine = Rc::clone(machine);
        let mut kernel = Self { machine, part, interval, witness, meter, wanted: None, is_away: false, warned: false };
        let found = kernel.instances()?;
        kernel.meter.know(&found)?;
        Ok(kernel)
    }

    /// Which they are.
    pub(crate) fn name(&self) -> Name {
        let queues = match &self.part.target {
            Target::Queues(queues) => Some(queues.iter().copied().collect()),
            _ => None,
        };
        Name { device: self.part.device.name.clone(), queues, napis: self.meter.ids().iter().copied().collect() }
    }

    /// Whose CPU time counts, in words.
    pub(crate) fn cpus(&self) -> String {
        match &self.part.cpus {
            Cpus::These(cpus) => format!("CPU {cpus}"),
            Cpus::Server if !self.part.server.cpus().is_empty() => format!("CPU {}", self.part.server.cpus()),
            Cpus::Server | Cpus::Polling => "the CPUs that poll it".to_owned(),
        }
    }

    /// What is in force now: of several instances, with the first.
    pub(crate) fn present(&mut self) -> Result<ModeSettings, Failure> {
        let napi = self.instances()?.first().map(Napi::settings).unwrap_or_default();
        Ok(ModeSettings { napi, epoll: self.part.server.present(), ..ModeSettings::default() })
    }

    /// Which of the families can be had here by default, and which of those that were `named` cannot.
    pub(crate) fn families(&self, named: &[Family]) -> Result<Vec<Family>, Failure> {
        let (able, is_known) = (self.machine.borrow().able(), self.part.server.is_known());
        for family in named {
            match family {
                Family::FullBusy => {
                    return Err(Failure::lacks(
                        "the kernel has no fullbusy that can be turned on and off in a running program, whose waits are as \
                         long as it made them: leave it out, or start the server with `abey run --mode fullbusy`",
                    ));
                }
                Family::Suspend if !able.suspend => {
                    return Err(Failure::lacks("this kernel has no IRQ suspension (Linux 6.13): leave suspend out"));
                }
                Family::Suspend | Family::NapiBusy if !is_known => {
                    return Err(Failure::usage(format!(
                        "{family} needs the server to busy poll: name its process with --pid, whose epoll instances then \
                         get their parameters"
                    )));
                }
                _ => {}
            }
        }
        let busy_polls = is_known && epoll::supported().map_err(Failure::lacks)?;
        let suspend = (able.suspend && busy_polls).then_some(Family::Suspend);
        Ok([Family::Base, Family::Defer].into_iter().chain(suspend).collect())
    }

    /// The server.
    pub(crate) fn server(&self) -> &Server {
        &self.part.server
    }

    /// What would change, one line each.
    pub(crate) fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, Failure> {
        let Part { device, target, .. } = &self.part;
        let plan = self.machine.borrow_mut().plan(device, target, &NapiChange::to(&settings.napi))?;
        Ok(plan.steps().iter().flat_map(Step::changes).map(|change| change.to_string()).collect())
    }

    /// Other processes are the server from now on.
    pub(crate) fn serve(&mut self, server: Vec<u32>) {
        self.part.server.become_processes(server);
    }

    /// Whether both can only be steered together, as one CPU polls them and CPU time is that CPU's.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let both_poll = self.part.cpus == Cpus::Polling && other.part.cpus == Cpus::Polling;
        both_poll && self.meter.meets(&other.meter)
    }

    /// Takes others in, which have the settings of these from here on.
    pub(crate) fn unite(&mut self, other: Self) -> Result<(), Failure> {
        let (Target::Queues(own), Target::Queues(more)) = (&mut self.part.target, other.part.target) else {
            unreachable!("only parts of a device are polled by themselves");
        };
        own.extend(more);
        own.sort_unstable();
        self.meter.unite(other.meter)?;
        let found = self.instances()?;
        self.meter.know(&found)?;
        match self.wanted {
            Some(wanted) => self.apply(&wanted).map_err(Refused::into_failure),
            None => Ok(()),
        }
    }

    /// Puts everything back, or leaves it for good; what the instances have when the last that is tuned on the machine ends.
    pub(crate) fn finish(self, keep: bool) -> Result<(), Failure> {
        let Self { machine, part, meter, .. } = self;
        // It holds the machine as well.
        drop(meter);
        let epolls = part.server.finish(keep);
        let restored = Rc::into_inner(machine).map_or(Ok(()), |machine| machine.into_inner().finish(keep));
        restored.and(epolls)
    }

    fn instances(&self) -> Result<Vec<Napi>, Failure> {
        self.machine.borrow_mut().instances(&self.part.device, &self.part.target)
    }
}

impl Plant for Kernel {
    fn begin(&mut self, changed: bool) -> Result<(), Failure> {
        if let Some(wanted) = self.wanted.filter(|_| !changed) {
            self.part.server.look_through(wanted.epoll)?;
        }
        self.meter.begin((!self.is_away).then_some(self.part.device.ifindex))?;
        let interval = self.interval;
        self.witness.as_mut().map_or(Ok(()), |witness| witness.begin(interval, changed))
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let latency = self.witness.as_mut().map(|witness| witness.take()).transpose()?;
        let latency = latency.map(|seen| seen.unwrap_or(UNSEEN));
        let Part { device, server, cpus, .. } = &self.part;
        let cpus = match cpus {
            Cpus::These(cpus) => Some(cpus),
            Cpus::Server => Some(server.cpus()).filter(|cpus| !cpus.is_empty()),
            Cpus::Polling => None,
        };
        let seen = self.meter.end(device.ifindex, cpus)?;
        Ok(Sample { latency, ..seen.unwrap_or_else(|| nothing(self.interval)) })
    }

    fn apply(&mut self, settings: &ModeSettings) -> Result<(), Refused> {
        let Part { device, target, .. } = &self.part;
        let mut machine = self.machine.borrow_mut();
        let made = machine.plan(device, target, &NapiChange::to(&settings.napi)).and_then(|plan| {
            if !std::mem::replace(&mut self.warned, true) {
                plan.warnings().iter().for_each(|warning| eprintln!("abey: {warning}"));
            }
            machine.make(&plan)
        });
        drop(machine);
        let found = self.instances().map_err(Refused::Lost)?;
        match made {
            Err(error) if is_of_settings(&error) => return Err(Refused::Settings(error.to_string())),
            // They have gone meanwhile, and get it when they are back.
            Err(_) if !self.meter.knows(&found) => self.is_away = true,
            other => other.map_err(|error| Refused::Lost(error.into()))?,
        }
        self.wanted = Some(*settings);
        self.part.server.set(settings.epoll).map_err(Refused::Lost)
    }

    fn is_ready(&mut self) -> Result<bool, Failure> {
        self.witness.as_mut().map_or(Ok(true), |witness| witness.is_ready())
    }

    fn keep(&mut self) -> Result<Option<Lost>, Failure> {
        let mut found = self.instances()?;
        if found.is_empty() {
            let device = self.machine.borrow_mut().find_device(&self.part.device.name)?;
            if let Some(device) = device {
                self.part.device = device;
                found = self.instances()?;
            }
        }
        if found.is_empty() {
            let is_news = !std::mem::replace(&mut self.is_away, true);
            return Ok(Some(Lost { why: "it has no NAPI instance now, so it is waited for".to_owned(), is_news }));
        }
        let is_new = std::mem::take(&mut self.is_away) | !self.meter.knows(&found);
        if is_new {
            self.meter.know(&found)?;
        }
        let reports = self.machine.borrow().able().deferral;
        let differ = |wanted: &ModeSettings| reports && found.iter().any(|napi| napi.settings() != wanted.napi);
        let lost = self.wanted.filter(differ);
        let why = match (is_new, lost.is_some()) {
            (false, false) => return Ok(None),
            (true, false) => "its queues were made anew",
            (true, true) => "its queues were made anew without their settings, which are set again",
            (false, true) => "somebody else changed its settings, which are set again",
        };
        if let Some(wanted) = lost {
            self.apply(&wanted).map_err(Refused::into_failure)?;
        }
        Ok(Some(Lost { why: why.to_owned(), is_news: true }))
    }
}

/// Whether another choice may help.
fn is_of_settings(error: &ApplyError) -> bool {
    matches!(
        error,
        ApplyError::Settings { .. }
            | ApplyError::TooLong { .. }
            | ApplyError::Unsupported { .. }
            | ApplyError::OnlyWholeDevice { .. }
    )
}
