//! NAPI instances of a device, and the server that receives from them, as a target.

use std::rc::Rc;
use std::time::Duration;

use abey_delivery::{Family, ModeSettings};
use abey_linux::epoll;
use abey_linux::napi::{Napi, NapiChange};
use abey_reconcile::{ApplyError, Step, Target};
use abey_tune::Sample;

use crate::TuneError;
use crate::host::{Host, SharedHost};
use crate::latency::{LatencySource, NO_REQUESTS};
use crate::meter::{Meter, empty_sample};
use crate::name::TargetName;
use crate::selection::{CpuAccount, KernelSubject, Selection};
use crate::server::Server;
use crate::tuner::{ApplyFailure, Interruption, Tunable};

/// NAPI instances that are tuned together.
pub struct KernelTarget {
    host: SharedHost,
    selection: Selection,
    interval: Duration,
    latency_source: Option<Box<dyn LatencySource>>,
    meter: Meter,
    /// The settings that were applied; `None` before the first change.
    applied: Option<ModeSettings>,
    is_absent: bool,
    has_warned: bool,
}

impl KernelTarget {
    /// Opens a target on a host of its own. Changes nothing.
    ///
    /// # Errors
    /// When the subject cannot be tuned as a whole.
    pub fn open(
        subject: KernelSubject,
        interval: Duration,
        latency_source: Option<Box<dyn LatencySource>>,
    ) -> Result<Self, TuneError> {
        let KernelSubject { netns, device, target, server, cpus, journals } = subject;
        let server = Server::of_processes(server)?;
        let cpus = CpuAccount::of(cpus, &server)?;
        let selection = Selection { device, target, server, cpus };
        Self::on(&Host::open(netns, journals)?, selection, interval, latency_source)
    }

    /// Opens a target on a host that other groups use. Changes nothing.
    ///
    /// # Errors
    /// When the selection cannot be tuned as a whole.
    pub fn on(
        host: &SharedHost,
        selection: Selection,
        interval: Duration,
        latency_source: Option<Box<dyn LatencySource>>,
    ) -> Result<Self, TuneError> {
        // Fails where there are no instances, or no queues of these numbers.
        host.borrow_mut().plan(&selection.device, &selection.target, &NapiChange::default())?;
        let is_whole = selection.target == Target::Device && matches!(selection.cpus, CpuAccount::Listed(_));
        let meter = Meter::new(host, latency_source.is_none() || !is_whole);
        let (host, applied, is_absent, has_warned) = (Rc::clone(host), None, false, false);
        let mut kernel = Self { host, selection, interval, latency_source, meter, applied, is_absent, has_warned };
        let found = kernel.instances()?;
        kernel.meter.set_instances(&found)?;
        Ok(kernel)
    }

    /// Returns the target's name.
    pub fn name(&self) -> TargetName {
        let queues = match &self.selection.target {
            Target::Queues(queues) => Some(queues.iter().copied().collect()),
            _ => None,
        };
        let napis = self.meter.ids().iter().copied().collect();
        TargetName { device: self.selection.device.name.clone(), queues, napis }
    }

    /// Names the CPUs whose time is counted.
    pub fn cpus(&self) -> String {
        match &self.selection.cpus {
            CpuAccount::Listed(cpus) => format!("CPU {cpus}"),
            CpuAccount::Server if !self.selection.server.cpus().is_empty() => {
                format!("CPU {}", self.selection.server.cpus())
            }
            CpuAccount::Server | CpuAccount::Polling => "the CPUs that poll it".to_owned(),
        }
    }

    /// Returns the present settings; of several instances, those of the first.
    ///
    /// # Errors
    /// When instances cannot be listed.
    pub fn present(&mut self) -> Result<ModeSettings, TuneError> {
        let napi = self.instances()?.first().map(Napi::settings).unwrap_or_default();
        Ok(ModeSettings { napi, epoll: self.selection.server.present(), ..ModeSettings::default() })
    }

    /// Returns the families of modes that are available here by default.
    ///
    /// # Errors
    /// When one of the families in `named` is not available.
    pub fn families(&self, named: &[Family]) -> Result<Vec<Family>, TuneError> {
        let (capabilities, is_known) = (self.host.borrow().capabilities(), self.selection.server.is_known());
        for family in named {
            match family {
                Family::FullBusy => {
                    return Err(TuneError::unsupported(
                        "fullbusy cannot be turned on in a running program, whose waits are as long as it made them: leave it \
                         out, or start the server with `abey run --mode fullbusy`",
                    ));
                }
                Family::Suspend if !capabilities.suspend => {
                    return Err(TuneError::unsupported(
                        "this kernel has no IRQ suspension (Linux 6.13): leave suspend out",
                    ));
                }
                Family::Suspend | Family::NapiBusy if !is_known => {
                    return Err(TuneError::usage(format!(
                        "{family} needs the server to busy poll: name its process with --pid, whose epoll instances then \
                         get their parameters"
                    )));
                }
                _ => {}
            }
        }
        let busy_polls = is_known && epoll::supported().map_err(TuneError::unsupported)?;
        let suspend = (capabilities.suspend && busy_polls).then_some(Family::Suspend);
        Ok([Family::Base, Family::Defer].into_iter().chain(suspend).collect())
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.selection.server
    }

    /// Describes what a change would do, one line for each setting.
    ///
    /// # Errors
    /// When the change cannot be planned.
    pub fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, TuneError> {
        let Selection { device, target, .. } = &self.selection;
        let plan = self.host.borrow_mut().plan(device, target, &NapiChange::to(&settings.napi))?;
        Ok(plan.steps().iter().flat_map(Step::changes).map(|change| change.to_string()).collect())
    }

    /// Replaces the server's processes.
    pub fn set_server(&mut self, processes: Vec<u32>) {
        self.selection.server.set_processes(processes);
    }

    /// Returns whether one CPU polls both and CPU time is that of the polling CPUs, so that they can only be tuned together.
    pub(crate) fn shares_cpu_with(&self, other: &Self) -> bool {
        let is_polling = |kernel: &Self| kernel.selection.cpus == CpuAccount::Polling;
        is_polling(self) && is_polling(other) && self.meter.shares_cpu_with(&other.meter)
    }

    /// Takes over another target's instances, which get this target's settings.
    pub(crate) fn merge(&mut self, other: Self) -> Result<(), TuneError> {
        let (Target::Queues(own), Target::Queues(more)) = (&mut self.selection.target, other.selection.target) else {
            unreachable!("only queues of a device are tuned separately");
        };
        own.extend(more);
        own.sort_unstable();
        self.meter.merge(other.meter)?;
        let found = self.instances()?;
        self.meter.set_instances(&found)?;
        match self.applied {
            Some(applied) => self.apply(&applied).map_err(ApplyFailure::into_error),
            None => Ok(()),
        }
    }

    /// Restores the settings, or leaves them with `keep`. NAPI settings are restored by the last target of the host that ends.
    ///
    /// # Errors
    /// When settings cannot be restored.
    pub fn finish(self, keep: bool) -> Result<(), TuneError> {
        let Self { host, selection, meter, .. } = self;
        // The meter has a reference to the host.
        drop(meter);
        let epolls = selection.server.finish(keep);
        let restored = Rc::into_inner(host).map_or(Ok(()), |host| host.into_inner().finish(keep));
        restored.and(epolls)
    }

    fn instances(&self) -> Result<Vec<Napi>, TuneError> {
        self.host.borrow_mut().instances(&self.selection.device, &self.selection.target)
    }
}

impl Tunable for KernelTarget {
    fn begin(&mut self, changed: bool) -> Result<(), TuneError> {
        if let Some(applied) = self.applied.filter(|_| !changed) {
            self.selection.server.set_new(applied.epoll)?;
        }
        self.meter.begin((!self.is_absent).then_some(self.selection.device.ifindex))?;
        let interval = self.interval;
        self.latency_source.as_mut().map_or(Ok(()), |source| source.begin(interval, changed))
    }

    fn sample(&mut self) -> Result<Sample, TuneError> {
        let latency = self.latency_source.as_mut().map(|source| source.take()).transpose()?;
        let latency = latency.map(|measured| measured.unwrap_or(NO_REQUESTS));
        let Selection { device, server, cpus, .. } = &self.selection;
        let cpus = match cpus {
            CpuAccount::Listed(cpus) => Some(cpus),
            CpuAccount::Server => Some(server.cpus()).filter(|cpus| !cpus.is_empty()),
            CpuAccount::Polling => None,
        };
        let sample = self.meter.end(device.ifindex, cpus)?;
        Ok(Sample { latency, ..sample.unwrap_or_else(|| empty_sample(self.interval)) })
    }

    fn apply(&mut self, settings: &ModeSettings) -> Result<(), ApplyFailure> {
        let Selection { device, target, .. } = &self.selection;
        let mut host = self.host.borrow_mut();
        let outcome = host.plan(device, target, &NapiChange::to(&settings.napi)).and_then(|plan| {
            if !std::mem::replace(&mut self.has_warned, true) {
                plan.warnings().iter().for_each(|warning| eprintln!("abey: {warning}"));
            }
            host.apply(&plan)
        });
        drop(host);
        let found = self.instances().map_err(ApplyFailure::Target)?;
        match outcome {
            Err(error) if concerns_settings(&error) => return Err(ApplyFailure::Settings(error.to_string())),
            // The instances disappeared meanwhile. They get the settings when they return.
            Err(_) if !self.meter.has(&found) => self.is_absent = true,
            other => other.map_err(|error| ApplyFailure::Target(error.into()))?,
        }
        self.applied = Some(*settings);
        self.selection.server.set(settings.epoll).map_err(ApplyFailure::Target)
    }

    fn is_ready(&mut self) -> Result<bool, TuneError> {
        self.latency_source.as_mut().map_or(Ok(true), |source| source.is_ready())
    }

    fn restore_interrupted(&mut self) -> Result<Option<Interruption>, TuneError> {
        let mut found = self.instances()?;
        if found.is_empty() {
            let device = self.host.borrow_mut().find_device(&self.selection.device.name)?;
            if let Some(device) = device {
                self.selection.device = device;
                found = self.instances()?;
            }
        }
        if found.is_empty() {
            let is_reported = !std::mem::replace(&mut self.is_absent, true);
            let reason = "it has no NAPI instance now, so it is waited for".to_owned();
            return Ok(Some(Interruption { reason, is_reported }));
        }
        let is_new = std::mem::take(&mut self.is_absent) | !self.meter.has(&found);
        if is_new {
            self.meter.set_instances(&found)?;
        }
        let reports = self.host.borrow().capabilities().deferral;
        let differs = |applied: &ModeSettings| reports && found.iter().any(|napi| napi.settings() != applied.napi);
        let lost = self.applied.filter(differs);
        let reason = match (is_new, lost.is_some()) {
            (false, false) => return Ok(None),
            (true, false) => "its queues were made anew",
            (true, true) => "its queues were made anew without their settings, which are set again",
            (false, true) => "another program changed its settings, which are set again",
        };
        if let Some(applied) = lost {
            self.apply(&applied).map_err(ApplyFailure::into_error)?;
        }
        Ok(Some(Interruption { reason: reason.to_owned(), is_reported: true }))
    }
}

/// Returns whether other settings may succeed.
fn concerns_settings(error: &ApplyError) -> bool {
    matches!(
        error,
        ApplyError::Settings { .. }
            | ApplyError::TooLong { .. }
            | ApplyError::Unsupported { .. }
            | ApplyError::OnlyWholeDevice { .. }
    )
}
