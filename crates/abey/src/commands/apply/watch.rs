//! `abey apply --watch`: what drivers and other programs change is put back.
//!
//! The kernel tells of links and queues by netlink, and nothing of the settings of NAPI instances, nor of what lies below
//! `/sys` and `/proc` or behind ethtool. All of it is looked at after every such event and every `--every`; the settings of
//! all instances, which are one short answer of the kernel's, every [`GLANCE`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use abey_linux::monitor::Monitor;
use abey_policy::Policy;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use sd_notify::NotifyState;

use super::files::Files;
use super::pass::Machine;
use super::programs::Programs;
use super::show::Repair;
use super::view::{View, unsupported, waits};
use crate::failure::Failure;
use crate::output::print_text;
use crate::service::notify;
use crate::signals::Signals;

/// How often the settings of the NAPI instances are looked at: 64 of them cost 0.02 % of a CPU so, and 0.11 % more by a look
/// at everything every 5 s (measured on the test machine, release build).
const GLANCE: Duration = Duration::from_secs(1);

/// How long to let a storm of events settle after a look.
const SETTLE: Duration = Duration::from_millis(20);

/// How long after a failure to try again: the first time, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// How it watches.
pub(super) struct Manner {
    /// How often everything is looked at without a reason.
    pub(super) every: Duration,
    /// Whether repairs are told as JSON.
    pub(super) json: bool,
}

/// Makes the machine as the policy says and keeps it so until SIGINT or SIGTERM.
pub(super) fn watch(
    machine: Machine,
    files: &Files,
    policy: Policy,
    signals: &Signals,
    Manner { every, json }: Manner,
) -> Result<ExitCode, Failure> {
    // Open before the first look, so that nothing is missed in between.
    let mut monitor = Monitor::open(machine.netns())?;
    let mut watch =
        Watch { machine, policy, json, ready: false, troubles: BTreeMap::new(), said: BTreeSet::new(), backoff: None };
    watch.check()?;
    watch.machine.set_watching(true)?;
    loop {
        let looked = Instant::now();
        // What is changed after this is seen by a glance.
        let seen = watch.machine.instances();
        watch.pass()?;
        let next = watch.backoff.unwrap_or(every);
        let mut differs = || watch.machine.instances() != seen;
        match wait(&mut monitor, signals, looked, next, &mut differs)? {
            Some(Signal::SIGHUP) => watch.read_again(files),
            Some(_) => break,
            None => {}
        }
    }
    notify(&[NotifyState::Stopping]);
    watch.machine.set_watching(false)?;
    Ok(ExitCode::SUCCESS)
}

struct Watch {
    machine: Machine,
    policy: Policy,
    json: bool,
    /// Whether everything has been as it shall be.
    ready: bool,
    /// What fails, by device, so that it is said once.
    troubles: BTreeMap<String, String>,
    /// What else was said.
    said: BTreeSet<String>,
    /// When to try again what failed.
    backoff: Option<Duration>,
}

impl Watch {
    /// What cannot be at all ends the watch before it begins. A device that is not there, or is down, may come.
    fn check(&mut self) -> Result<(), Failure> {
        let mut view = self.machine.look(&self.policy)?;
        view.wishes.check()?;
        if let Some(fatal) = view.fatal().next() {
            return Err(unsupported(fatal));
        }
        view.permitted()
    }

    /// One look, with all the repairs that it shows to be needed. Only standard output can end it.
    fn pass(&mut self) -> Result<(), Failure> {
        let mut troubles = BTreeMap::new();
        match self.machine.look(&self.policy) {
            Ok(view) => self.repair(&view, &mut troubles)?,
            Err(failure) => _ = troubles.insert(String::new(), failure.to_string()),
        }
        self.backoff = (!troubles.is_empty()).then(|| {
            let (first, most) = BACKOFF;
            self.backoff.map_or(first, |last| (last * 2).min(most))
        });
        for (device, trouble) in &troubles {
            if self.troubles.get(device) != Some(trouble) {
                eprintln!("abey: {trouble}");
            }
        }
        self.troubles = troubles;
        Ok(())
    }

    fn repair(&mut self, view: &View, troubles: &mut BTreeMap<String, String>) -> Result<(), Failure> {
        let mut holds = true;
        for (device, error) in &view.wishes.wrong {
            troubles.insert(device.clone(), error.to_string());
        }
        let mut to_do = view.left_behind();
        let changed = view.differences.iter().filter(|(_, difference)| self.machine.is_to_do(difference));
        to_do.extend(changed.map(|(device, _)| device.clone()));
        for device in to_do {
            match self.machine.repair(&self.policy, &device) {
                Ok(outcome) => {
                    outcome.notes.iter().for_each(|note| self.once(note));
                    self.say(&Repair::of_device(&device, &outcome))?;
                }
                Err(failure) => _ = troubles.insert(device.clone(), format!("{device}: {failure}")),
            }
        }
        if let Err(failure) = self.machine.forget_gone(view) {
            troubles.insert(String::new(), failure.to_string());
        }
        view.waits.iter().for_each(|device| self.once(&waits(device)));
        for (_, difference) in &view.differences {
            if let Some(waiting) = &difference.waiting {
                holds = false;
                self.once(waiting);
            }
        }
        for fatal in view.fatal() {
            troubles.entry(fatal.device.clone()).or_insert_with(|| fatal.to_string());
        }
        for absent in view.wishes.absent.iter().filter(|absent| !absent.optional) {
            holds = false;
            self.once(&format!("{}: waits for a device with {}", absent.origin, absent.wanted));
        }
        self.programs(view, troubles)?;
        if holds && troubles.is_empty() && !self.ready {
            self.ready = true;
            notify(&[NotifyState::Ready]);
        }
        Ok(())
    }

    fn programs(&mut self, view: &View, troubles: &mut BTreeMap<String, String>) -> Result<(), Failure> {
        let made = Programs::look(&view.wishes.programs, &self.machine.units, &view.of_programs).and_then(|programs| {
            let running = programs.running.clone();
            let done = programs.is_done();
            let outcome = if done { None } else { Some(self.machine.repair_programs(&self.policy, &programs)?) };
            Ok((running, outcome.unwrap_or_default()))
        });
        match made {
            Ok((running, outcome)) => {
                running.iter().for_each(|state| self.once(&state.to_string()));
                outcome.notes.iter().for_each(|note| self.once(note));
                for repair in Repair::of_programs(&outcome) {
                    self.say(&repair)?;
                }
            }
            Err(failure) => _ = troubles.insert("programs".to_owned(), failure.to_string()),
        }
        Ok(())
    }

    fn read_again(&mut self, files: &Files) {
        match files.read() {
            Ok(policy) => {
                self.policy = policy;
                self.machine.forget();
                self.troubles.clear();
                self.said.clear();
            }
            Err(failure) => eprintln!("abey: {failure}; the policy stays as it was"),
        }
    }

    /// Says something that is no failure, and only once.
    fn once(&mut self, what: &str) {
        if self.said.insert(what.to_owned()) {
            eprintln!("abey: {what}");
        }
    }

    fn say(&self, repair: &Repair) -> Result<(), Failure> {
        if repair.is_empty() {
            return Ok(());
        }
        print_text(&if self.json { repair.json()? } else { repair.text() }).map(drop)
    }
}

/// Waits for an event, a signal, another sight at a glance or the time to look again, and lets a storm of events settle.
fn wait(
    monitor: &mut Monitor,
    signals: &Signals,
    looked: Instant,
    next: Duration,
    differs: &mut impl FnMut() -> bool,
) -> Result<Option<Signal>, Failure> {
    let until = |at: Instant| {
        let left = at.saturating_duration_since(Instant::now());
        // Rounded up, so that it does not spin in the last millisecond.
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    };
    let due = looked.checked_add(next);
    let mut glance = Instant::now() + GLANCE;
    loop {
        let mut watched =
            [PollFd::new(monitor.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let woken = poll(&mut watched, until(due.map_or(glance, |due| due.min(glance)))).unwrap_or(0);
        if let Some(signal) = signals.next() {
            return Ok(Some(signal));
        }
        if !monitor.events()?.is_empty() {
            break;
        }
        let now = Instant::now();
        if woken == 0 && due.is_some_and(|due| now >= due) {
            return Ok(None);
        }
        if now >= glance {
            if differs() {
                return Ok(None);
            }
            glance = now + GLANCE;
        }
    }
    let calm = looked + SETTLE;
    if Instant::now() < calm {
        let _ = poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], until(calm));
    }
    // Whatever came meanwhile is seen by the look that follows.
    monitor.events()?;
    Ok(signals.next())
}
