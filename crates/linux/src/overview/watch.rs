//! Counts who polls for a while, and puts together what a verdict needs.

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

/// Counters that run from [`Watch::start`] to [`Watch::finish`].
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    devices: Vec<(String, Known<PollCounter>)>,
    timers: Known<TimerCounter>,
    processes: Vec<ProcessWatch>,
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Watched {
    /// For how long.
    pub interval: Duration,
    /// The polls of each device that was watched.
    pub polls: BTreeMap<String, Known<PollCounts>>,
    /// How often deferral timers fired, on the whole machine.
    pub timer_expiries: Known<u64>,
    processes: BTreeMap<u32, Doings>,
}

/// What one process did; `None` for what could not be counted.
#[derive(Clone, Copy, Debug, Default)]
struct Doings {
    polls: Option<OwnPolls>,
    cpu: Option<Duration>,
    waits: Option<Waits>,
}

/// Counters of a part and of the rest. Counted apart, a part never exceeds the whole, whenever the two are read.
#[derive(Debug)]
struct Share {
    part: Sum,
    rest: Sum,
}

#[derive(Debug)]
struct ProcessWatch {
    pid: u32,
    polls: Option<Share>,
    waits: Option<Vec<Share>>,
    clock: Option<(ProcessCpuClock, Duration)>,
}

impl Watch {
    /// Starts counting the polls of `devices`; with `target`, also what these processes do to that device.
    #[must_use]
    pub fn start(devices: &[&DeviceOverview], target: Option<(&str, &[ProcessView])>) -> Self {
        allow_many_descriptors();
        let counter = |one: &&DeviceOverview| {
            let counter = PollCounter::open(&one.device.name, &one.kthreads()).map_err(|error| error.to_string());
            (one.device.name.clone(), counter)
        };
        let processes = match target {
            None => Vec::new(),
            Some((device, views)) => views.iter().map(|view| ProcessWatch::start(device, view.pid)).collect(),
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
    pub fn finish(self) -> Watched {
        let read = |counter: Known<PollCounter>| counter?.read().map_err(|error| error.to_string());
        // Every count is of the same span, but for the time it takes to read them: those that are shares of others first.
        let processes = self.processes.into_iter().map(|process| (process.pid, process.finish())).collect();
        Watched {
            interval: self.began.elapsed(),
            polls: self.devices.into_iter().map(|(name, counter)| (name, read(counter))).collect(),
            timer_expiries: self.timers.and_then(|mut timers| timers.read().map_err(|error| error.to_string())),
            processes,
        }
    }
}

impl ProcessWatch {
    fn start(device: &str, pid: u32) -> Self {
        let clock = ProcessCpuClock::of(pid).ok().and_then(|clock| Some((clock, clock.read().ok()?)));
        let tids = threads(pid).unwrap_or_default();
        let (polls, waits) = match Tracefs::open() {
            Ok(tracefs) => (Share::of_polls(&tracefs, device, &tids).ok(), Share::of_waits(&tracefs, &tids).ok()),
            Err(_) => (None, None),
        };
        Self { pid, polls, waits, clock }
    }

    fn finish(self) -> Doings {
        let polls = self.polls.and_then(Share::read).map(|(with_work, all)| OwnPolls { all, with_work });
        let waits = self.waits.and_then(|calls| {
            let counts: Vec<(u64, u64)> = calls.into_iter().map(Share::read).collect::<Option<_>>()?;
            let (zero, all): (Vec<u64>, Vec<u64>) = counts.into_iter().unzip();
            Some(Waits { zero: zero.iter().sum(), all: all.iter().sum() })
        });
        let cpu = self.clock.and_then(|(clock, before)| Some(clock.read().ok()?.saturating_sub(before)));
        Doings { polls, cpu, waits }
    }
}

impl Share {
    /// The polls of `device` by threads `tids` from within system calls: those with work, of all.
    fn of_polls(tracefs: &Tracefs, device: &str, tids: &[u32]) -> Result<Self, CountError> {
        // A softirq that runs on top of the thread has the flag set.
        let mine = format!("dev_name == \"{device}\" && !(common_flags & {IN_SOFTIRQ})");
        let open = |filter: &str| Sum::tracepoint(tracefs, ("napi", "napi_poll"), Target::Tasks(tids), Some(filter));
        Ok(Self { part: open(&format!("{mine} && work > 0"))?, rest: open(&format!("{mine} && work == 0"))? })
    }

    /// For each system call that waits for events with a timeout in its arguments: calls with timeout zero, of all.
    fn of_waits(tracefs: &Tracefs, tids: &[u32]) -> Result<Vec<Self>, CountError> {
        let open = |call, filter| Sum::tracepoint(tracefs, ("syscalls", call), Target::Tasks(tids), Some(filter));
        let share = |call| Ok(Self { part: open(call, "timeout == 0")?, rest: open(call, "timeout != 0")? });
        ["sys_enter_epoll_wait", "sys_enter_epoll_pwait"].into_iter().map(share).collect()
    }

    /// The part and the whole.
    fn read(mut self) -> Option<(u64, u64)> {
        let part = self.part.read().ok()?;
        Some((part, part + self.rest.read().ok()?))
    }
}

/// There are several descriptors a CPU, device and question. Where the limit cannot be raised, opening one fails and says
/// so.
fn allow_many_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

impl Watched {
    /// The facts on `device` and `processes`, which are those the watch was started with, looked at again.
    #[must_use]
    pub fn facts(&self, overview: &Overview, device: &DeviceOverview, processes: Vec<ProcessView>) -> Facts {
        let name = &device.device.name;
        let unwatched = || Err(format!("{name} was not watched"));
        let processes = processes.into_iter().map(|view| {
            let Doings { polls, cpu, waits } = self.processes.get(&view.pid).copied().unwrap_or_default();
            ProcessFacts { own: polls, cpu, waits, elsewhere: elsewhere(overview, name, &view), view }
        });
        Facts {
            device: device.facts(overview.network_namespace),
            interval: self.interval,
            polls: self.polls.get(name).cloned().unwrap_or_else(unwatched),
            timer_expiries: self.timer_expiries.as_ref().ok().copied(),
            processes: processes.collect(),
        }
    }
}

/// How many sockets with a peer do not receive through `device`, by the device they use.
fn elsewhere(overview: &Overview, device: &str, view: &ProcessView) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let connected = view.sockets.iter().filter(|socket| socket.state == SocketState::Connected);
    for name in connected.filter_map(|socket| device_of(overview, socket)).filter(|name| *name != device) {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

/// The device that most of the processes' sockets receive through, or would: the one to judge when none was named.
#[must_use]
pub fn own_device<'a>(overview: &'a Overview, processes: &[ProcessView]) -> Option<&'a DeviceOverview> {
    let mut counts = BTreeMap::<&str, (usize, usize)>::new();
    for socket in processes.iter().flat_map(|view| &view.sockets) {
        let Some(name) = device_of(overview, socket) else { continue };
        let (peers, all) = counts.entry(name).or_default();
        *peers += usize::from(socket.state == SocketState::Connected || socket.napi_id.is_some());
        *all += 1;
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count).map(|(name, _)| name);
    let found = most.and_then(|name| overview.devices.iter().find(|one| one.device.name == name));
    found.or_else(|| overview.with_napi().find(|one| one.device.up)).or_else(|| overview.devices.first())
}

/// The device a socket receives through, as far as its NAPI instance or its addresses tell.
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
