//! The kernel's NAPI instances of a device, and the server behind them, as something to tune.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use abey_delivery::{Family, ModeSettings, Nanos};
use abey_linux::apply::{ApplyError, Place, Plan, Restored, Target, Transaction};
use abey_linux::cpu::{CpuList, CpuTimes, process_affinity};
use abey_linux::device::{Device, received_packets};
use abey_linux::epoll;
use abey_linux::napi::{Napi, NapiChange, napis};
use abey_linux::netns::NetNs;
use abey_linux::polls::{PollCounter, PollCounts};
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_linux::process::{self, EpollChanges, EpollParams};
use abey_tune::Sample;

use super::latency::Witness;
use super::tuner::{Plant, Refused};
use crate::failure::Failure;

/// How often the server's processes are looked through for epoll instances that are new.
const LOOK_THROUGH: Duration = Duration::from_secs(5);

/// What is to be tuned.
pub(crate) struct Subject {
    pub(crate) netns: NetNs,
    pub(crate) device: Device,
    pub(crate) target: Target,
    /// The server, whose epoll parameters go with the mode. What is below these processes belongs to it.
    pub(crate) server: Vec<u32>,
    /// The CPUs whose time counts; without any named, those that the server may run on.
    pub(crate) cpus: Option<CpuList>,
    pub(crate) journals: PathBuf,
}

/// The device at work.
pub(crate) struct Kernel {
    subject: Subject,
    place: Place,
    able: NapiCapabilities,
    cpus: CpuList,
    interval: Duration,
    witness: Option<Box<dyn Witness>>,
    /// Counted where nobody sees latencies: it costs a server that polls much a few hundredths of its CPU.
    polls: Option<PollCounter>,
    /// What was changed; nothing before the first change.
    transaction: Option<Transaction>,
    epolls: EpollChanges,
    wanted: ModeSettings,
    looked_through: Instant,
    mark: Option<Mark>,
    warned: bool,
}

/// The counters when an interval began.
struct Mark {
    at: Instant,
    cpu: CpuTimes,
    packets: u64,
    polls: PollCounts,
}

impl Kernel {
    /// Looks whether it can be tuned, and changes nothing.
    pub(crate) fn open(
        subject: Subject,
        interval: Duration,
        witness: Option<Box<dyn Witness>>,
    ) -> Result<Self, Failure> {
        let mut place = Place::open(&subject.netns)?;
        let able = napi_capabilities(place.netlink())?;
        // Whether there are instances, and queues of these numbers.
        Plan::new(&mut place, &subject.device, &subject.target, &NapiChange::default(), able)?;
        let cpus = match &subject.cpus {
            Some(cpus) => {
                cpus.check_online().map_err(Failure::usage)?;
                cpus.clone()
            }
            None => cpus_of(&subject.server)?,
        };
        let kthreads: Vec<u32> =
            instances(&mut place, &subject.device)?.iter().filter_map(|napi| napi.thread).collect();
        let count = || PollCounter::open(&subject.device.name, &kthreads).map_err(Failure::lacks);
        let polls = if witness.is_none() { Some(count()?) } else { None };
        Ok(Self {
            subject,
            place,
            able,
            cpus,
            interval,
            witness,
            polls,
            transaction: None,
            epolls: EpollChanges::default(),
            wanted: ModeSettings::default(),
            looked_through: Instant::now(),
            mark: None,
            warned: false,
        })
    }

    /// The CPUs whose time counts.
    pub(crate) fn cpus(&self) -> &CpuList {
        &self.cpus
    }

    /// What is in force now.
    pub(crate) fn present(&mut self) -> Result<ModeSettings, Failure> {
        let all = instances(&mut self.place, &self.subject.device)?;
        let napi = all.first().map(Napi::settings).unwrap_or_default();
        let views = self.subject.server.iter().filter_map(|pid| process::inspect_tree(*pid).ok()).flatten();
        let epoll = views.flat_map(|view| view.epolls).find_map(|one| EpollParams::get(one.params));
        Ok(ModeSettings { napi, epoll, ..ModeSettings::default() })
    }

    /// Which of the families can be had here by default, and which of those that were `named` cannot.
    pub(crate) fn families(&self, named: &[Family]) -> Result<Vec<Family>, Failure> {
        for family in named {
            match family {
                Family::FullBusy => {
                    return Err(Failure::lacks(
                        "the kernel has no fullbusy that can be turned on and off in a running program, whose waits are as \
                         long as it made them: leave it out, or start the server with `abey run --mode fullbusy`",
                    ));
                }
                Family::Suspend if !self.able.suspend => {
                    return Err(Failure::lacks("this kernel has no IRQ suspension (Linux 6.13): leave suspend out"));
                }
                Family::Suspend | Family::NapiBusy if self.subject.server.is_empty() => {
                    return Err(Failure::usage(format!(
                        "{family} needs the server to busy poll: name its process with --pid, whose epoll instances then \
                         get their parameters"
                    )));
                }
                _ => {}
            }
        }
        let busy_polls = !self.subject.server.is_empty() && epoll::supported().map_err(Failure::lacks)?;
        let suspend = (self.able.suspend && busy_polls).then_some(Family::Suspend);
        Ok([Family::Base, Family::Defer].into_iter().chain(suspend).collect())
    }

    /// What leads back in the processes, for the guard.
    pub(crate) fn epolls(&self) -> &EpollChanges {
        &self.epolls
    }

    /// What would change, one line each.
    pub(crate) fn differences(&mut self, settings: &ModeSettings) -> Result<Vec<String>, Failure> {
        let Subject { device, target, .. } = &self.subject;
        let plan = Plan::new(&mut self.place, device, target, &NapiChange::to(&settings.napi), self.able)?;
        let changes = plan.steps().iter().flat_map(abey_linux::apply::Step::changes);
        Ok(changes.map(|change| change.to_string()).collect())
    }

    /// Other processes are the server from now on.
    pub(crate) fn serve(&mut self, server: Vec<u32>) {
        self.subject.server = server;
    }

    /// Puts everything back, or leaves it for good.
    pub(crate) fn finish(self, keep: bool) -> Result<(), Failure> {
        if keep {
            self.transaction.into_iter().for_each(|transaction| transaction.finish().keep());
            self.epolls.keep();
            return Ok(());
        }
        let epolls = self.epolls.restore();
        let restored = self.transaction.map_or(Ok(Vec::new()), Transaction::roll_back).map_err(|error| {
            Failure::check(format!("settings could not be put back: {error}; `abey set --restore` tries again"))
        })?;
        if restored.iter().any(|one| matches!(one, Restored::LeftToOthers(_))) {
            eprintln!("abey: somebody else changed {} meanwhile: what they set stays", self.subject.device.name);
        }
        epolls.map_err(Failure::check)
    }

    fn mark(&mut self) -> Result<Mark, Failure> {
        let packets = received_packets(self.place.netlink(), self.subject.device.ifindex)?;
        let polls = match &mut self.polls {
            Some(counter) => counter.read().map_err(Failure::check)?,
            None => PollCounts::default(),
        };
        Ok(Mark { at: Instant::now(), cpu: CpuTimes::read().map_err(Failure::check)?, packets, polls })
    }

    /// Gives the server's epoll instances what the settings say of them.
    fn set_epolls(&mut self) -> Result<(), Failure> {
        self.looked_through = Instant::now();
        if self.subject.server.is_empty() {
            return Ok(());
        }
        let below = self.subject.server.iter().flat_map(|pid| process::descendants(*pid).unwrap_or_default());
        let mut all: Vec<u32> = self.subject.server.iter().copied().chain(below).collect();
        all.sort_unstable();
        all.dedup();
        let count = self.epolls.set(&all, self.wanted.epoll).map_err(Failure::lacks)?;
        let runs = all.iter().any(|pid| process::start_time(*pid).is_some());
        if count == 0 && runs && self.wanted.epoll.is_some() {
            return Err(Failure::check("the server has no epoll instance that could busy poll: leave --pid out"));
        }
        Ok(())
    }
}

/// The CPUs that these processes may run on; all where there are no processes.
fn cpus_of(server: &[u32]) -> Result<CpuList, Failure> {
    let online = CpuList::online().map_err(Failure::lacks)?;
    let mut own = Vec::new();
    for pid in server {
        own.extend(process_affinity(*pid).map_err(Failure::usage)?.iter());
    }
    if own.is_empty() { Ok(online) } else { Ok(own.into_iter().filter(|cpu| online.contains(*cpu)).collect()) }
}

fn instances(place: &mut Place, device: &Device) -> Result<Vec<Napi>, Failure> {
    Ok(napis(place.netlink(), Some(device.ifindex))?)
}

/// What another choice may help against, and what not.
fn refused(error: ApplyError) -> Refused {
    match error {
        ApplyError::Settings { .. }
        | ApplyError::TooLong { .. }
        | ApplyError::Unsupported { .. }
        | ApplyError::OnlyWholeDevice { .. } => Refused::Settings(error.to_string()),
        other => Refused::Lost(other.into()),
    }
}

impl Plant for Kernel {
    fn begin(&mut self, changed: bool) -> Result<(), Failure> {
        if !changed && self.looked_through.elapsed() > LOOK_THROUGH {
            self.set_epolls()?;
        }
        self.mark = Some(self.mark()?);
        let interval = self.interval;
        self.witness.as_mut().map_or(Ok(()), |witness| witness.begin(interval, changed))
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let latency = self.witness.as_mut().map_or(Ok(None), |witness| witness.take())?;
        let now = self.mark()?;
        let before = self.mark.take().expect("an interval has begun");
        let usage = now.cpu.since(&before.cpu, &self.cpus).map_err(Failure::check)?;
        let polls = now.polls.since(&before.polls);
        let with_work = polls.softirq_with_work + polls.busy_with_work + polls.kthread_with_work;
        let interval = now.at - before.at;
        Ok(Sample {
            interval: Nanos::from_nanos(interval.as_nanos() as u64),
            packets: now.packets.saturating_sub(before.packets),
            polls: polls.total(),
            empty_polls: polls.total().saturating_sub(with_work),
            cpu: usage.busy_time.as_secs_f64() / usage.interval.as_secs_f64().max(1e-9),
            latency,
        })
    }

    fn apply(&mut self, settings: &ModeSettings) -> Result<(), Refused> {
        let Subject { device, target, netns, journals, .. } = &self.subject;
        let wanted = NapiChange::to(&settings.napi);
        let plan = Plan::new(&mut self.place, device, target, &wanted, self.able).map_err(refused)?;
        if !std::mem::replace(&mut self.warned, true) {
            plan.warnings().iter().for_each(|warning| eprintln!("abey: {warning}"));
        }
        if self.transaction.is_none() {
            let place = Place::open(netns).map_err(|error| Refused::Lost(error.into()))?;
            self.transaction = Some(Transaction::begin(place, Some(journals)));
        }
        self.transaction.as_mut().expect("begun").replace(plan).map_err(refused)?;
        self.wanted = *settings;
        self.set_epolls().map_err(Refused::Lost)
    }

    fn is_ready(&mut self) -> Result<bool, Failure> {
        self.witness.as_mut().map_or(Ok(true), |witness| witness.is_ready())
    }
}
