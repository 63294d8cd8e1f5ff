//! Counts polls for a while, and gathers the facts of a verdict.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{DeviceOverview, Known, Overview};
use crate::counters::{CountError, Sum, Target};
use crate::cpu::ProcessCpuClock;
use crate::polls::{IN_SOFTIRQ, PollCounter, PollCounts, TimerCounter};
use crate::process::{ProcessView, SocketState, SocketView, threads};
use crate::tracefs::Tracefs;
use crate::verdict::{Facts, OwnPolls, ProcessFacts, Waits};

/// Counters that run from [`Measurement::start`] to [`Measurement::finish`].
#[derive(Debug)]
pub struct Measurement {
    began: Instant,
    devices: Vec<(String, Known<PollCounter>)>,
    timers: Known<TimerCounter>,
    processes: Vec<ProcessMeasurement>,
}

/// The values of the counters.
#[derive(Clone, Debug)]
pub struct Measured {
    /// How long was counted.
    pub interval: Duration,
    /// The polls of each requested device.
    pub polls: BTreeMap<String, Known<PollCounts>>,
    /// How often deferral timers fired, on the whole machine.
    pub timer_expiries: Known<u64>,
    processes: BTreeMap<u32, ProcessCounts>,
}

/// The counts of one process; `None` for what could not be counted.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessCounts {
    polls: Option<OwnPolls>,
    cpu: Option<Duration>,
    waits: Option<Waits>,
}

/// Counters of a part and of the rest. With separate counters, the part never exceeds the whole, whenever they are read.
#[derive(Debug)]
struct SplitCounter {
    part: Sum,
    rest: Sum,
}

#[derive(Debug)]
struct ProcessMeasurement {
    pid: u32,
    polls: Option<SplitCounter>,
    waits: Option<Vec<SplitCounter>>,
    clock: Option<(ProcessCpuClock, Duration)>,
}

impl Measurement {
    /// Starts counting the polls of `devices`; with `target`, also the polls of that device by these processes.
    #[must_use]
    pub fn start(devices: &[&DeviceOverview], target: Option<(&str, &[ProcessView])>) -> Self {
        allow_many_descriptors();
        let counter = |one: &&DeviceOverview| {
            let counter = PollCounter::open(&one.device.name, &one.kthreads()).map_err(|error| error.to_string());
            (one.device.name.clone(), counter)
        };
        let processes = match target {
            None => Vec::new(),
            Some((device, views)) => views.iter().map(|view| ProcessMeasurement::start(device, view.pid)).collect(),
        };
        Self {
            devices: devices.iter().map(counter).collect(),
            timers: TimerCounter::open().map_err(|error| error.to_string()),
            processes,
            began: Instant::now(),
        }
    }

    /// Reads the counters and stops them.
    #[must_use]
    pub fn finish(self) -> Measured {
        let read = |counter: Known<PollCounter>| counter?.read().map_err(|error| error.to_string());
        // All counts are of the same interval, apart from the time that reading takes; parts are read before wholes.
        let processes = self.processes.into_iter().map(|process| (process.pid, process.finish())).collect();
        Measured {
            interval: self.began.elapsed(),
            polls: self.devices.into_iter().map(|(name, counter)| (name, read(counter))).collect(),
            timer_expiries: self.timers.and_then(|mut timers| timers.read().map_err(|error| error.to_string())),
            processes,
        }
    }
}

impl ProcessMeasurement {
    fn start(device: &str, pid: u32) -> Self {
        let clock = ProcessCpuClock::of(pid).ok().and_then(|clock| Some((clock, clock.read().ok()?)));
        let tids = threads(pid).unwrap_or_default();
        let (polls, waits) = match Tracefs::open() {
            Ok(tracefs) => {
                (SplitCounter::of_polls(&tracefs, device, &tids).ok(), SplitCounter::of_waits(&tracefs, &tids).ok())
            }
            Err(_) => (None, None),
        };
        Self { pid, polls, waits, clock }
    }

    fn finish(self) -> ProcessCounts {
        let polls = self.polls.and_then(SplitCounter::read).map(|(with_work, all)| OwnPolls { all, with_work });
        let waits = self.waits.and_then(|calls| {
            let counts: Vec<(u64, u64)> = calls.into_iter().map(SplitCounter::read).collect::<Option<_>>()?;
            let (zero, all): (Vec<u64>, Vec<u64>) = counts.into_iter().unzip();
            Some(Waits { zero: zero.iter().sum(), all: all.iter().sum() })
        });
        let cpu = self.clock.and_then(|(clock, before)| Some(clock.read().ok()?.saturating_sub(before)));
        ProcessCounts { polls, cpu, waits }
    }
}

impl SplitCounter {
    /// Counts the polls of `device` by threads `tids` from within system calls: those with work, and all.
    fn of_polls(tracefs: &Tracefs, device: &str, tids: &[u32]) -> Result<Self, CountError> {
        // A softirq that interrupted the thread has the flag set.
        let by_threads = format!("dev_name == \"{device}\" && !(common_flags & {IN_SOFTIRQ})");
        let open = |filter: &str| Sum::tracepoint(tracefs, ("napi", "napi_poll"), Target::Tasks(tids), Some(filter));
        Ok(Self {
            part: open(&format!("{by_threads} && work > 0"))?,
            rest: open(&format!("{by_threads} && work == 0"))?,
        })
    }

    /// Counts, for each system call that waits for events with a timeout: calls with timeout zero, and all.
    fn of_waits(tracefs: &Tracefs, tids: &[u32]) -> Result<Vec<Self>, CountError> {
        let open = |call, filter| Sum::tracepoint(tracefs, ("syscalls", call), Target::Tasks(tids), Some(filter));
        let share = |call| Ok(Self { part: open(call, "timeout == 0")?, rest: open(call, "timeout != 0")? });
        ["sys_enter_epoll_wait", "sys_enter_epoll_pwait"].into_iter().map(share).collect()
    }

    /// Reads the part and the whole.
    fn read(mut self) -> Option<(u64, u64)> {
        let part = self.part.read().ok()?;
        Some((part, part + self.rest.read().ok()?))
    }
}

/// Raises the limit of open descriptors: each counter needs one per CPU and device. If that fails, opening a counter reports
/// the error.
fn allow_many_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

impl Measured {
    /// Returns the facts on `device` and `processes`: the processes of [`Measurement::start`], inspected again.
    #[must_use]
    pub fn facts(&self, overview: &Overview, device: &DeviceOverview, processes: Vec<ProcessView>) -> Facts {
        let name = &device.device.name;
        let not_measured = || Err(format!("the polls of {name} were not counted"));
        let processes = processes.into_iter().map(|view| {
            let ProcessCounts { polls, cpu, waits } = self.processes.get(&view.pid).copied().unwrap_or_default();
            ProcessFacts { own_polls: polls, cpu, waits, by_other_device: by_other_device(overview, name, &view), view }
        });
        Facts {
            device: device.facts(overview.network_namespace),
            interval: self.interval,
            polls: self.polls.get(name).cloned().unwrap_or_else(not_measured),
            timer_expiries: self.timer_expiries.as_ref().ok().copied(),
            processes: processes.collect(),
        }
    }
}

/// Returns how many connected sockets receive through each device other than `device`.
fn by_other_device(overview: &Overview, device: &str, view: &ProcessView) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let connected = view.sockets.iter().filter(|socket| socket.state == SocketState::Connected);
    for name in connected.filter_map(|socket| device_of(overview, socket)).filter(|name| *name != device) {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

/// Returns the device that most sockets of the processes receive through: the one to judge if the user named none.
#[must_use]
pub fn own_device<'a>(overview: &'a Overview, processes: &[ProcessView]) -> Option<&'a DeviceOverview> {
    let mut counts = BTreeMap::<&str, (usize, usize)>::new();
    for socket in processes.iter().flat_map(|view| &view.sockets) {
        let Some(name) = device_of(overview, socket) else { continue };
        let (connected, all) = counts.entry(name).or_default();
        *connected += usize::from(socket.state == SocketState::Connected || socket.napi_id.is_some());
        *all += 1;
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count).map(|(name, _)| name);
    let found = most.and_then(|name| overview.devices.iter().find(|one| one.device.name == name));
    found.or_else(|| overview.with_napi().find(|one| one.device.up)).or_else(|| overview.devices.first())
}

/// Returns the device that a socket receives through, as far as its NAPI instance or its addresses show.
fn device_of<'a>(overview: &'a Overview, socket: &SocketView) -> Option<&'a str> {
    let named = |found: &'a DeviceOverview| found.device.name.as_str();
    if let Some(id) = socket.napi_id {
        let of = |one: &&DeviceOverview| one.napis.iter().any(|napi| napi.napi.id == id);
        return overview.devices.iter().find(of).map(named);
    }
    let has = |one: &DeviceOverview, address: IpAddr| one.device.addresses.contains(&address);
    let local = socket.local.ip().to_canonical();
    // Between two addresses of the machine itself, packets take the loopback device whatever the addresses are.
    let to_itself = socket.remote.is_some_and(|remote| {
        let remote = remote.ip().to_canonical();
        overview.devices.iter().any(|one| has(one, remote))
    });
    if local.is_loopback() || to_itself {
        return overview.devices.iter().find(|one| one.device.loopback).map(named);
    }
    overview.devices.iter().find(|one| has(one, local)).map(named)
}
