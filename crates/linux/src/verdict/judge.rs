//! The decision: facts in, verdict out.

use std::collections::BTreeMap;
use std::time::Duration;

use abey_delivery::{EpollBusyPoll, NapiSettings, PollContext};

use super::recognise::recognise;
use super::{DeviceFacts, Facts, NoNapi, OwnPolls, ProcessFacts, ProcessVerdict, Reason, State, Verdict};
use crate::polls::PollCounts;
use crate::process::{EpollParams, EpollView, SocketState, SocketView};

/// A process that used less than this share of a CPU had no traffic that could prove anything.
const IDLE_SHARE: f64 = 0.001;

/// An event loop with more than this share of its waits at timeout zero does not busy poll.
const ZERO_WAITS: f64 = 0.9;

/// Returns the verdict on one device and one process tree.
///
/// # Panics
/// If `facts` has no process.
#[must_use]
pub fn judge(facts: &Facts) -> Verdict {
    let root = facts.processes.first().expect("the requested process");
    let processes: Vec<ProcessVerdict> =
        facts.processes.iter().map(|process| Examination::new(facts, process).verdict()).collect();
    let judged: Vec<&ProcessVerdict> = processes.iter().filter(|verdict| verdict.state != State::Idle).collect();
    let active = !judged.is_empty() && judged.iter().all(|verdict| verdict.state == State::Active);
    let relevant = if judged.is_empty() { with_sockets(&processes) } else { judged };
    let expected = if active { State::Active } else { State::NotActive };
    let has_epoll = |verdict: &&&ProcessVerdict| !facts_of(facts, verdict.pid).view.epolls.is_empty();
    let main = relevant.iter().find(|verdict| verdict.state == expected).or_else(|| relevant.iter().find(has_epoll));
    let main = *main.unwrap_or(&relevant[0]);
    let (pid, name) = match relevant[..] {
        [only] => (only.pid, only.name.clone()),
        _ => (root.view.pid, root.view.comm.clone()),
    };
    let mut reasons = Vec::new();
    for reason in relevant.iter().flat_map(|verdict| &verdict.reasons) {
        if !reasons.contains(reason) {
            reasons.push(reason.clone());
        }
    }
    Verdict {
        device: facts.device.name.clone(),
        pid,
        name,
        configured: main.configured.clone(),
        active,
        evidence: if active { evidence(facts, main) } else { String::new() },
        reasons,
        processes,
    }
}

/// Returns the processes that can explain why the mode is not active: those with sockets, or all if none has any.
fn with_sockets(processes: &[ProcessVerdict]) -> Vec<&ProcessVerdict> {
    let some: Vec<&ProcessVerdict> =
        processes.iter().filter(|verdict| !verdict.reasons.contains(&Reason::NoSocket)).collect();
    if some.is_empty() { processes.iter().collect() } else { some }
}

fn facts_of(facts: &Facts, pid: u32) -> &ProcessFacts {
    facts.processes.iter().find(|process| process.view.pid == pid).expect("a process of these facts")
}

/// Returns the counters behind a positive verdict, in words.
fn evidence(facts: &Facts, main: &ProcessVerdict) -> String {
    let (device, polls) = (&facts.device.name, facts.polls.as_ref().copied().unwrap_or_default());
    let all = all_with_work(&polls);
    match Examination::new(facts, facts_of(facts, main.pid)).poller() {
        Poller::Process => {
            let own: u64 =
                facts.processes.iter().filter_map(|process| process.own_polls).map(|own| own.with_work).sum();
            if is_small(own, all) {
                let softirq = polls.softirq_with_work;
                return format!(
                    "it polled {own} times with packets on {device}, and softirq {softirq} times, for this program and all \
                     others: at this load it sleeps when most packets arrive"
                );
            }
            format!("{} of its packets' polls on {device} were its own", percent(own, all))
        }
        Poller::NapiThread if is_small(polls.kthread_with_work, all) => format!(
            "NAPI threads polled {} times with packets on {device}, and other contexts {} times",
            polls.kthread_with_work,
            all.saturating_sub(polls.kthread_with_work)
        ),
        Poller::NapiThread => {
            format!(
                "{} of the polls with packets on {device} were by NAPI threads",
                percent(polls.kthread_with_work, all)
            )
        }
        Poller::TimerSoftirq => match facts.timer_expiries {
            Some(expiries) => {
                format!("{all} polls with packets on {device}, and deferral timers fired {expiries} times")
            }
            None => format!("{all} polls with packets on {device}, whose interrupts are deferred"),
        },
        Poller::InterruptSoftirq if is_small(polls.softirq_with_work, all) => format!(
            "softirq polled {} times with packets on {device}, and other contexts {} times",
            polls.softirq_with_work,
            all.saturating_sub(polls.softirq_with_work)
        ),
        Poller::InterruptSoftirq => {
            format!("{} of the polls with packets on {device} were in softirq", percent(polls.softirq_with_work, all))
        }
    }
}

fn percent(part: u64, whole: u64) -> String {
    // The counters are read one after the other, so the part can exceed the whole by a few.
    let share = if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 100.0).min(100.0) };
    format!("{share:.0}%")
}

/// Returns whether a part is so small that its share of the whole would hide it.
fn is_small(part: u64, whole: u64) -> bool {
    part.saturating_mul(100) < whole
}

fn all_with_work(polls: &PollCounts) -> u64 {
    polls.softirq_with_work + polls.busy_with_work + polls.kthread_with_work
}

/// Returns why the device has no NAPI instance; `None` if it has one.
pub(super) fn no_napi(device: &DeviceFacts) -> Option<NoNapi> {
    if device.loopback {
        Some(NoNapi::Loopback)
    } else if !device.napis.is_empty() {
        None
    } else if device.veth && device.gro == Some(false) {
        Some(NoNapi::GroOff)
    } else {
        Some(NoNapi::NoInstance)
    }
}

/// The context that has to poll for the settings to be in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poller {
    /// The NAPI threads.
    NapiThread,
    /// The threads of the process, by busy polling.
    Process,
    /// The softirq, raised by deferral timers.
    TimerSoftirq,
    /// The softirq, raised by interrupts.
    InterruptSoftirq,
}

/// One process under examination.
struct Examination<'a> {
    facts: &'a Facts,
    process: &'a ProcessFacts,
    /// How many of its sockets receive through each NAPI instance of the device.
    sockets_by_napi: BTreeMap<u32, usize>,
    settings: NapiSettings,
    /// The epoll instances with connected sockets, or if none has any, those with listeners.
    epolls: Vec<&'a EpollView>,
    epoll: Option<EpollBusyPoll>,
}

impl<'a> Examination<'a> {
    fn new(facts: &'a Facts, process: &'a ProcessFacts) -> Self {
        let napis = &facts.device.napis;
        let mut sockets_by_napi = process.view.napi_ids();
        sockets_by_napi.retain(|id, _| napis.iter().any(|(napi, _)| napi == id));
        let busiest = sockets_by_napi.iter().rev().max_by_key(|&(_, sockets)| sockets).map(|(id, _)| *id);
        let chosen = napis.iter().find(|(id, _)| Some(*id) == busiest).or(napis.first());
        let epolls = serving(&process.view.epolls);
        let epoll = most_common(epolls.iter().filter_map(|epoll| epoll.params.get()));
        Self {
            facts,
            process,
            sockets_by_napi,
            settings: chosen.map(|(_, settings)| *settings).unwrap_or_default(),
            epolls,
            epoll,
        }
    }

    fn verdict(&self) -> ProcessVerdict {
        let idle = !self.has_traffic();
        if let Some(reason) = self.cannot_examine() {
            return self.with_reasons(if idle { State::Idle } else { State::NotActive }, vec![reason]);
        }
        let mut causes = self.path_problems();
        let reachable = causes.is_empty();
        causes.extend(self.setting_problems());
        if causes.is_empty() {
            causes.extend(self.counter_problems(idle));
        } else if reachable && idle {
            causes.push(self.no_traffic());
        }
        let state = match (causes.is_empty(), idle) {
            (true, _) => State::Active,
            (false, false) => State::NotActive,
            (false, true) => State::Idle,
        };
        let mut reasons = causes;
        for remark in self.remarks() {
            if !reasons.contains(&remark) {
                reasons.push(remark);
            }
        }
        self.with_reasons(state, reasons)
    }

    fn with_reasons(&self, state: State, reasons: Vec<Reason>) -> ProcessVerdict {
        let view = &self.process.view;
        let configured = recognise(&self.settings, self.epoll);
        ProcessVerdict { pid: view.pid, name: view.comm.clone(), configured, state, reasons }
    }

    fn poller(&self) -> Poller {
        let NapiSettings { context, irq_suspend_timeout, .. } = self.settings;
        if context != PollContext::Softirq {
            Poller::NapiThread
        } else if self.epoll.is_some() || !irq_suspend_timeout.is_zero() {
            Poller::Process
        } else if self.settings.defers() {
            Poller::TimerSoftirq
        } else {
            Poller::InterruptSoftirq
        }
    }

    /// Returns whether the process received packets through the device, as far as the facts show.
    fn has_traffic(&self) -> bool {
        let polled = self.process.own_polls.is_some_and(|own| own.with_work > 0);
        let connected = self.process.view.sockets.iter().any(|socket| socket.state == SocketState::Connected);
        polled || ((connected || !self.sockets_by_napi.is_empty()) && !self.was_idle())
    }

    fn was_idle(&self) -> bool {
        let Some(cpu) = self.process.cpu else { return false };
        self.facts.interval > Duration::ZERO && cpu.as_secs_f64() < IDLE_SHARE * self.facts.interval.as_secs_f64()
    }

    /// Returns why the process cannot be examined on this device: it has no socket, or the device no NAPI instance.
    fn cannot_examine(&self) -> Option<Reason> {
        let DeviceFacts { name, network_namespace, .. } = &self.facts.device;
        let (device, view) = (name.clone(), &self.process.view);
        if view.sockets.is_empty() && view.epolls.is_empty() {
            Some(Reason::NoSocket)
        } else if view.network_namespace != *network_namespace {
            // Without --netns the namespace is that of the requested process.
            let root = self.facts.processes.first().map(|root| root.view.network_namespace);
            Some(Reason::OtherNamespace { device, is_netns_given: root != Some(*network_namespace) })
        } else {
            no_napi(&self.facts.device).map(|why| Reason::NoNapi { device, why })
        }
    }

    /// Returns what keeps packets from the NAPI instances of the device.
    fn path_problems(&self) -> Vec<Reason> {
        let DeviceFacts { name, tso_peer, veth, tso_peer_off, .. } = &self.facts.device;
        let device = name.clone();
        let mut reasons = Vec::new();
        if self.sockets_by_napi.is_empty() {
            let bypassing = self.bypassing();
            let silent = self.facts.polls.as_ref().is_ok_and(|polls| all_with_work(polls) == 0);
            match tso_peer.clone() {
                Some((peer, netns)) if bypassing > 0 || silent => {
                    reasons.push(Reason::TsoAtPeer { device, peer, netns });
                }
                _ if bypassing > 0 => {
                    let tso = veth.then_some(!*tso_peer_off);
                    reasons.push(Reason::NoNapiId { device, sockets: bypassing, tso });
                }
                _ => {}
            }
            reasons.extend(self.other_devices());
        }
        reasons
    }

    /// Returns how many connected sockets use this device, as far as known, and received through no NAPI instance.
    fn bypassing(&self) -> usize {
        let connected = |socket: &&SocketView| socket.state == SocketState::Connected;
        let through_napi: usize = self.sockets_by_napi.values().sum();
        let explained = through_napi + self.process.by_other_device.values().sum::<usize>();
        self.process.view.sockets.iter().filter(connected).count().saturating_sub(explained)
    }

    fn other_devices(&self) -> Option<Reason> {
        let (device, others) = (self.facts.device.name.clone(), self.process.by_other_device.clone());
        let some_here = !self.sockets_by_napi.is_empty();
        (!others.is_empty()).then_some(Reason::OtherDevice { device, others, some_here })
    }

    /// Returns the settings with which the mode cannot work.
    fn setting_problems(&self) -> Vec<Reason> {
        let mut reasons = Vec::new();
        let NapiSettings { irq_suspend_timeout: suspend, gro_flush_timeout: flush, .. } = self.settings;
        if self.poller() == Poller::Process {
            if !self.settings.defers() {
                reasons.push(Reason::NoDeferral { device: self.facts.device.name.clone() });
            } else if !suspend.is_zero() && suspend <= flush {
                reasons.push(Reason::SuspendNotAboveFlush { suspend, flush });
            }
            reasons.extend(self.epoll_parameters());
        }
        reasons
    }

    /// Returns what limits the effect of a mode without preventing it.
    fn remarks(&self) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if self.poller() == Poller::Process {
            reasons.extend(self.split_epolls());
        }
        reasons.extend(self.differing_settings());
        reasons.extend(self.other_devices());
        reasons
    }

    fn split_epolls(&self) -> impl Iterator<Item = Reason> {
        let split = self.epolls.iter().filter(|epoll| epoll.napi_ids.len() > 1);
        split.map(|epoll| Reason::SeveralNapis { epoll: epoll.fd, napis: epoll.napi_ids.clone() })
    }

    fn epoll_parameters(&self) -> Option<Reason> {
        if self.process.view.epolls.is_empty() {
            return Some(Reason::NoEpoll);
        }
        if self.epolls.iter().any(|epoll| epoll.params == EpollParams::Unsupported) {
            return Some(Reason::ParametersUnsupported);
        }
        let unset = self.epolls.iter().filter(|epoll| epoll.params.get().is_none()).count();
        if unset > 0 {
            return Some(Reason::ParametersNotSet { unset, of: self.epolls.len() });
        }
        let without_prefer = self.epolls.iter().filter_map(|epoll| epoll.params.get()).any(|epoll| !epoll.prefer);
        without_prefer.then_some(Reason::PreferNotSet)
    }

    fn zero_waits(&self) -> Option<Reason> {
        let waits = self.process.waits.filter(|waits| waits.all > 0)?;
        let mostly = waits.zero as f64 > ZERO_WAITS * waits.all as f64;
        mostly.then_some(Reason::ZeroTimeout { zero: waits.zero, of: waits.all })
    }

    fn differing_settings(&self) -> Option<Reason> {
        let used = self.facts.device.napis.iter().filter(|(id, _)| self.sockets_by_napi.contains_key(id));
        let configured: BTreeMap<u32, String> =
            used.map(|(id, settings)| (*id, recognise(settings, self.epoll).to_string())).collect();
        let mut kinds: Vec<&String> = configured.values().collect();
        kinds.sort_unstable();
        kinds.dedup();
        (kinds.len() > 1).then_some(Reason::SettingsDiffer { configured })
    }

    /// Returns what the counters say against the mode; nothing if they prove it active.
    fn counter_problems(&self, idle: bool) -> Vec<Reason> {
        let polls = match &self.facts.polls {
            Ok(polls) => polls,
            Err(why) => return vec![Reason::CannotCount { why: why.clone() }],
        };
        if idle || all_with_work(polls) == 0 {
            return vec![self.no_traffic()];
        }
        let softirq = polls.softirq_with_work;
        let problem = match self.poller() {
            Poller::Process => return self.own_poll_problems(softirq),
            Poller::NapiThread => (polls.kthread_with_work == 0).then_some(Reason::ThreadsDidNotPoll { softirq }),
            Poller::TimerSoftirq => (self.facts.timer_expiries == Some(0)).then_some(Reason::TimerNeverFired),
            Poller::InterruptSoftirq => (softirq == 0).then_some(Reason::NotInSoftirq { busy: polls.busy_with_work }),
        };
        Vec::from_iter(problem)
    }

    /// Returns why the process's own polls found no packets; nothing if they did.
    fn own_poll_problems(&self, softirq: u64) -> Vec<Reason> {
        let Some(OwnPolls { all, with_work }) = self.process.own_polls else {
            return vec![Reason::CannotCount { why: "the polls of its threads could not be counted".to_owned() }];
        };
        if with_work > 0 {
            return Vec::new();
        }
        if let Some(zero) = self.zero_waits() {
            return vec![zero];
        }
        let split: Vec<Reason> = self.split_epolls().collect();
        match all {
            _ if !split.is_empty() => split,
            0 => vec![Reason::AllInSoftirq { softirq }],
            own => vec![Reason::OwnPollsEmpty { own, softirq }],
        }
    }

    /// Returns the reason for a lack of traffic: on the whole device, or for this process only.
    fn no_traffic(&self) -> Reason {
        match &self.facts.polls {
            Ok(polls) if all_with_work(polls) == 0 => {
                Reason::NothingReceived { device: self.facts.device.name.clone() }
            }
            _ => Reason::ProcessIdle,
        }
    }
}

/// Returns the epoll instances that [`Examination::epolls`] holds.
fn serving(epolls: &[EpollView]) -> Vec<&EpollView> {
    let with_connections: Vec<&EpollView> =
        epolls.iter().filter(|epoll| !epoll.napi_ids.is_empty() || epoll.without_napi > 0).collect();
    if with_connections.is_empty() {
        epolls.iter().filter(|epoll| epoll.listeners > 0).collect()
    } else {
        with_connections
    }
}

fn most_common(all: impl Iterator<Item = EpollBusyPoll>) -> Option<EpollBusyPoll> {
    let mut counts: Vec<(EpollBusyPoll, usize)> = Vec::new();
    for one in all {
        match counts.iter_mut().find(|(known, _)| *known == one) {
            Some((_, count)) => *count += 1,
            None => counts.push((one, 1)),
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(params, _)| params)
}
