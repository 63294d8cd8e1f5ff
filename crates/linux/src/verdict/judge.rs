//! From facts to a verdict.

use std::collections::BTreeMap;
use std::time::Duration;

use abey_delivery::{EpollBusyPoll, NapiSettings, PollContext};

use super::recognise::recognise;
use super::{DeviceFacts, Facts, NoNapi, OwnPolls, ProcessFacts, ProcessVerdict, Reason, State, Verdict};
use crate::polls::PollCounts;
use crate::process::{EpollParams, EpollView, SocketState, SocketView};

/// A process that used less of a CPU than this share of the time had no traffic worth speaking of.
const IDLE_SHARE: f64 = 0.001;

/// Of the waits of an event loop, more than this share with timeout zero means that it does not busy poll.
const ZERO_WAITS: f64 = 0.9;

/// Draws the verdict on one device and one process tree.
///
/// # Panics
/// When `facts` has no process.
#[must_use]
pub fn judge(facts: &Facts) -> Verdict {
    let root = facts.processes.first().expect("the process that was asked about");
    let processes: Vec<ProcessVerdict> =
        facts.processes.iter().map(|process| Inquiry::new(facts, process).verdict()).collect();
    let judged: Vec<&ProcessVerdict> = processes.iter().filter(|verdict| verdict.state != State::Idle).collect();
    let active = !judged.is_empty() && judged.iter().all(|verdict| verdict.state == State::Active);
    let speakers = if judged.is_empty() { with_sockets(&processes) } else { judged };
    let wanted = if active { State::Active } else { State::NotActive };
    let has_epoll = |verdict: &&&ProcessVerdict| !subject(facts, verdict.pid).view.epolls.is_empty();
    let main = speakers.iter().find(|verdict| verdict.state == wanted).or_else(|| speakers.iter().find(has_epoll));
    let main = *main.unwrap_or(&speakers[0]);
    let (pid, name) = match speakers[..] {
        [only] => (only.pid, only.name.clone()),
        _ => (root.view.pid, root.view.comm.clone()),
    };
    let mut reasons = Vec::new();
    for reason in speakers.iter().flat_map(|verdict| &verdict.reasons) {
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

/// The processes that can say why nothing was shown: one without sockets explains nothing when another one has some.
fn with_sockets(processes: &[ProcessVerdict]) -> Vec<&ProcessVerdict> {
    let some: Vec<&ProcessVerdict> =
        processes.iter().filter(|verdict| !verdict.reasons.contains(&Reason::NoSocket)).collect();
    if some.is_empty() { processes.iter().collect() } else { some }
}

fn subject(facts: &Facts, pid: u32) -> &ProcessFacts {
    facts.processes.iter().find(|process| process.view.pid == pid).expect("it was judged")
}

/// The counters behind a positive verdict.
fn evidence(facts: &Facts, main: &ProcessVerdict) -> String {
    let (device, polls) = (&facts.device.name, facts.polls.as_ref().copied().unwrap_or_default());
    let all = with_work(&polls);
    match Inquiry::new(facts, subject(facts, main.pid)).way() {
        Way::BusyPoll => {
            let own: u64 = facts.processes.iter().filter_map(|process| process.own).map(|own| own.with_work).sum();
            format!("{} of its packets' polls on {device} were its own", percent(own, all))
        }
        Way::Thread => {
            format!(
                "{} of the polls with packets on {device} were by NAPI threads",
                percent(polls.kthread_with_work, all)
            )
        }
        Way::Timer => match facts.timer_expiries {
            Some(expiries) => {
                format!("{all} polls with packets on {device}, and deferral timers fired {expiries} times")
            }
            None => format!("{all} polls with packets on {device}, whose interrupts are deferred"),
        },
        Way::Softirq => {
            format!("{} of the polls with packets on {device} were in softirq", percent(polls.softirq_with_work, all))
        }
    }
}

fn percent(part: u64, whole: u64) -> String {
    // The figures are read one after the other, so that a part can come out larger than the whole by a few.
    let share = if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 100.0).min(100.0) };
    if share > 0.0 && share < 1.0 { "less than 1%".to_owned() } else { format!("{share:.0}%") }
}

fn with_work(polls: &PollCounts) -> u64 {
    polls.softirq_with_work + polls.busy_with_work + polls.kthread_with_work
}

/// Why the device has no NAPI instance; `None` when it has one.
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

/// Who has to poll for the settings to be in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The NAPI threads.
    Thread,
    /// The process.
    BusyPoll,
    /// The softirq, woken by timers.
    Timer,
    /// The softirq, woken by interrupts.
    Softirq,
}

/// One process under examination.
struct Inquiry<'a> {
    facts: &'a Facts,
    process: &'a ProcessFacts,
    /// Its sockets that receive through the device, by NAPI instance.
    here: BTreeMap<u32, usize>,
    settings: NapiSettings,
    /// The epoll instances that matter: those that watch sockets with peers, else those that watch listeners.
    epolls: Vec<&'a EpollView>,
    epoll: Option<EpollBusyPoll>,
}

impl<'a> Inquiry<'a> {
    fn new(facts: &'a Facts, process: &'a ProcessFacts) -> Self {
        let napis = &facts.device.napis;
        let mut here = process.view.napi_ids();
        here.retain(|id, _| napis.iter().any(|(napi, _)| napi == id));
        let busiest = here.iter().rev().max_by_key(|&(_, sockets)| sockets).map(|(id, _)| *id);
        let chosen = napis.iter().find(|(id, _)| Some(*id) == busiest).or(napis.first());
        let epolls = serving(&process.view.epolls);
        let epoll = most_common(epolls.iter().filter_map(|epoll| epoll.params.get()));
        Self {
            facts,
            process,
            here,
            settings: chosen.map(|(_, settings)| *settings).unwrap_or_default(),
            epolls,
            epoll,
        }
    }

    fn verdict(&self) -> ProcessVerdict {
        let idle = !self.has_traffic();
        if let Some(reason) = self.nowhere() {
            return self.concluded(if idle { State::Idle } else { State::NotActive }, vec![reason]);
        }
        let mut causes = self.path();
        let reachable = causes.is_empty();
        causes.extend(self.settings());
        if causes.is_empty() {
            causes.extend(self.counted(idle));
        } else if reachable && idle {
            causes.push(self.silence());
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
        self.concluded(state, reasons)
    }

    fn concluded(&self, state: State, reasons: Vec<Reason>) -> ProcessVerdict {
        let view = &self.process.view;
        let configured = recognise(&self.settings, self.epoll);
        ProcessVerdict { pid: view.pid, name: view.comm.clone(), configured, state, reasons }
    }

    fn way(&self) -> Way {
        let NapiSettings { context, irq_suspend_timeout, .. } = self.settings;
        if context != PollContext::Softirq {
            Way::Thread
        } else if self.epoll.is_some() || !irq_suspend_timeout.is_zero() {
            Way::BusyPoll
        } else if self.settings.defers() {
            Way::Timer
        } else {
            Way::Softirq
        }
    }

    /// Whether the process has a share in what the device receives, as far as can be told.
    fn has_traffic(&self) -> bool {
        let polled = self.process.own.is_some_and(|own| own.with_work > 0);
        let peers = self.process.view.sockets.iter().any(|socket| socket.state == SocketState::Connected);
        polled || ((peers || !self.here.is_empty()) && !self.slept())
    }

    fn slept(&self) -> bool {
        let Some(cpu) = self.process.cpu else { return false };
        self.facts.interval > Duration::ZERO && cpu.as_secs_f64() < IDLE_SHARE * self.facts.interval.as_secs_f64()
    }

    /// Why there is nothing to look at: no socket, or no NAPI instance.
    fn nowhere(&self) -> Option<Reason> {
        let DeviceFacts { name, network_namespace, .. } = &self.facts.device;
        let (device, view) = (name.clone(), &self.process.view);
        if view.sockets.is_empty() && view.epolls.is_empty() {
            Some(Reason::NoSocket)
        } else if view.network_namespace != *network_namespace {
            Some(Reason::OtherNamespace { device })
        } else {
            no_napi(&self.facts.device).map(|why| Reason::NoNapi { device, why })
        }
    }

    /// What keeps packets from the NAPI instances of the device.
    fn path(&self) -> Vec<Reason> {
        let DeviceFacts { name, tso_peer, veth, .. } = &self.facts.device;
        let device = name.clone();
        let mut reasons = Vec::new();
        if self.here.is_empty() {
            let bypassing = self.bypassing();
            let silent = self.facts.polls.as_ref().is_ok_and(|polls| with_work(polls) == 0);
            match tso_peer.clone() {
                Some((peer, place)) if bypassing > 0 || silent => {
                    reasons.push(Reason::TsoAtPeer { device, peer, place });
                }
                _ if bypassing > 0 => reasons.push(Reason::NoNapiId { device, sockets: bypassing, veth: *veth }),
                _ => {}
            }
            reasons.extend(self.other_devices());
        }
        reasons
    }

    /// How many sockets with a peer belong to this device, as far as known, and received through no NAPI instance.
    fn bypassing(&self) -> usize {
        let peers = |socket: &&SocketView| socket.state == SocketState::Connected;
        let here: usize = self.here.values().sum();
        let explained = here + self.process.elsewhere.values().sum::<usize>();
        self.process.view.sockets.iter().filter(peers).count().saturating_sub(explained)
    }

    fn other_devices(&self) -> Option<Reason> {
        let (device, elsewhere) = (self.facts.device.name.clone(), self.process.elsewhere.clone());
        let some_here = !self.here.is_empty();
        (!elsewhere.is_empty()).then_some(Reason::OtherDevice { device, elsewhere, some_here })
    }

    /// What is set so that the mode cannot work.
    fn settings(&self) -> Vec<Reason> {
        let mut reasons = Vec::new();
        let NapiSettings { irq_suspend_timeout: suspend, gro_flush_timeout: flush, .. } = self.settings;
        if self.way() == Way::BusyPoll {
            if !self.settings.defers() {
                reasons.push(Reason::NoDeferral { device: self.facts.device.name.clone() });
            } else if !suspend.is_zero() && suspend <= flush {
                reasons.push(Reason::SuspendNotAboveFlush { suspend, flush });
            }
            reasons.extend(self.epoll_parameters());
        }
        reasons
    }

    /// What a mode can be active in spite of.
    fn remarks(&self) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if self.way() == Way::BusyPoll {
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
        let meek = self.epolls.iter().filter_map(|epoll| epoll.params.get()).any(|epoll| !epoll.prefer);
        meek.then_some(Reason::PreferNotSet)
    }

    fn zero_waits(&self) -> Option<Reason> {
        let waits = self.process.waits.filter(|waits| waits.all > 0)?;
        let mostly = waits.zero as f64 > ZERO_WAITS * waits.all as f64;
        mostly.then_some(Reason::ZeroTimeout { zero: waits.zero, of: waits.all })
    }

    fn differing_settings(&self) -> Option<Reason> {
        let used = self.facts.device.napis.iter().filter(|(id, _)| self.here.contains_key(id));
        let configured: BTreeMap<u32, String> =
            used.map(|(id, settings)| (*id, recognise(settings, self.epoll).to_string())).collect();
        let mut kinds: Vec<&String> = configured.values().collect();
        kinds.sort_unstable();
        kinds.dedup();
        (kinds.len() > 1).then_some(Reason::SettingsDiffer { configured })
    }

    /// What the counters say against it; nothing when they show the mode at work.
    fn counted(&self, idle: bool) -> Vec<Reason> {
        let polls = match &self.facts.polls {
            Ok(polls) => polls,
            Err(why) => return vec![Reason::CannotCount { why: why.clone() }],
        };
        if idle || with_work(polls) == 0 {
            return vec![self.silence()];
        }
        let softirq = polls.softirq_with_work;
        let against = match self.way() {
            Way::BusyPoll => return self.own_polls(softirq),
            Way::Thread => (polls.kthread_with_work == 0).then_some(Reason::ThreadsDidNotPoll { softirq }),
            Way::Timer => (self.facts.timer_expiries == Some(0)).then_some(Reason::TimerNeverFired),
            Way::Softirq => (softirq == 0).then_some(Reason::NotInSoftirq { busy: polls.busy_with_work }),
        };
        Vec::from_iter(against)
    }

    /// Why the process's own polls do not bring it its packets; nothing when they do.
    fn own_polls(&self, softirq: u64) -> Vec<Reason> {
        let Some(OwnPolls { all, with_work }) = self.process.own else {
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

    /// Nothing happened: for nobody on this device, or not for this process.
    fn silence(&self) -> Reason {
        match &self.facts.polls {
            Ok(polls) if with_work(polls) == 0 => Reason::NothingReceived { device: self.facts.device.name.clone() },
            _ => Reason::ProcessIdle,
        }
    }
}

fn serving(epolls: &[EpollView]) -> Vec<&EpollView> {
    let with_peers: Vec<&EpollView> =
        epolls.iter().filter(|epoll| !epoll.napi_ids.is_empty() || epoll.without_napi > 0).collect();
    if with_peers.is_empty() { epolls.iter().filter(|epoll| epoll.listeners > 0).collect() } else { with_peers }
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
