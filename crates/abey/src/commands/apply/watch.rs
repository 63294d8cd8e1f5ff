//! `abey apply --watch`: what drivers and other programs change is put back.
//!
//! The kernel tells of links and queues by netlink, and nothing of the settings of NAPI instances: those are looked at
//! after every such event, and every [`PERIOD`].

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
use super::pass::{Machine, View, unsupported};
use super::programs::Programs;
use super::show::Repair;
use crate::failure::Failure;
use crate::output::print_text;
use crate::service::notify;
use crate::signals::Signals;

/// How often the machine is looked at without a reason.
const PERIOD: Duration = Duration::from_secs(30);

/// How long to let a storm of events settle after a look.
const SETTLE: Duration = Duration::from_millis(20);

/// How long after a failure to try again: the first time, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), PERIOD);

/// Makes the machine as the policy says and keeps it so until SIGINT or SIGTERM.
pub(super) fn watch(
    machine: Machine,
    files: &Files,
    policy: Policy,
    signals: &Signals,
    json: bool,
) -> Result<ExitCode, Failure> {
    // Open before the first look, so that nothing is missed in between.
    let mut monitor = Monitor::open(machine.netns())?;
    let mut watch =
        Watch { machine, policy, json, ready: false, troubles: BTreeMap::new(), said: BTreeSet::new(), backoff: None };
    watch.check()?;
    loop {
        let looked = Instant::now();
        watch.pass()?;
        let next = watch.backoff.unwrap_or(PERIOD);
        match wait(&mut monitor, signals, looked, next)? {
            Some(Signal::SIGHUP) => watch.read_again(files),
            Some(_) => break,
            None => {}
        }
    }
    notify(&[NotifyState::Stopping]);
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
        for (device, difference) in &view.differences {
            if self.machine.is_to_do(difference) {
                match self.machine.repair(&self.policy, device) {
                    Ok(outcome) => self.say(&Repair::of_device(device, &outcome))?,
                    Err(failure) => _ = troubles.insert(device.clone(), format!("{device}: {failure}")),
                }
            }
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
        let wishes = &view.wishes.programs;
        let made = Programs::look(wishes, &self.machine.units).and_then(|programs| {
            programs.make()?;
            Ok(programs)
        });
        match made {
            Ok(programs) => {
                for state in &programs.running {
                    self.once(&state.to_string());
                }
                for repair in Repair::of_programs(&programs.changes()) {
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

/// Waits for an event, a signal or the time to look again, and lets a storm of events settle.
fn wait(monitor: &mut Monitor, signals: &Signals, looked: Instant, next: Duration) -> Result<Option<Signal>, Failure> {
    let until = |at: Instant| {
        let left = at.saturating_duration_since(Instant::now());
        // Rounded up, so that it does not spin in the last millisecond.
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    };
    let due = Instant::now() + next;
    loop {
        let mut watched =
            [PollFd::new(monitor.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let woken = poll(&mut watched, until(due)).unwrap_or(0);
        if let Some(signal) = signals.next() {
            return Ok(Some(signal));
        }
        if !monitor.events()?.is_empty() {
            break;
        }
        if woken == 0 && Instant::now() >= due {
            return Ok(None);
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
