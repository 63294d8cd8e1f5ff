//! `abey apply --watch`: repairs what drivers and other programs change.
//!
//! The kernel reports changes of links and queues by netlink. It reports no changes of NAPI settings, nor of what is set
//! through `/sys`, `/proc` and ethtool. Everything is read after each such report and after each period; the settings of all
//! NAPI instances, which are one short answer of the kernel, every [`NAPI_PERIOD`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use abey_linux::monitor::{Event, Monitor};
use abey_policy::Policy;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::ReconcileError;
use crate::outcome::Outcome;
use crate::pace::{BURST, Pace, Remarks};
use crate::policy_files::PolicyFiles;
use crate::reconciler::Reconciler;
use crate::view::{View, waits};

/// The period of reading the settings of all NAPI instances. With 64 instances this takes 0.02 % of a CPU, and reading
/// everything every 5 s takes 0.11 % more (measured on the test machine, release build).
const NAPI_PERIOD: Duration = Duration::from_secs(1);

/// The delay before trying again after a failure: the first one, and the maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// A request to a running watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// End the watch.
    Stop,
    /// Read the policy again.
    Reload,
}

/// What a watch depends on: requests come in, reports go out.
pub trait WatchContext {
    /// Returns the descriptor that becomes readable with a request.
    fn request_fd(&self) -> BorrowedFd<'_>;

    /// Returns the next request that has arrived.
    fn next_request(&self) -> Option<Request>;

    /// Reports the repairs of one device, or of the programs if `device` is `None`.
    ///
    /// # Errors
    /// When the report cannot be written, which ends the watch.
    fn repaired(&mut self, device: Option<&str>, outcome: &Outcome) -> Result<(), ReconcileError>;

    /// Reports a failure or a remark, in one sentence.
    fn note(&mut self, text: &str);

    /// Reports that the machine equals the policy for the first time.
    fn ready(&mut self);

    /// Reports that the watch is about to end.
    fn stopping(&mut self);
}

/// Applies the policy, and repairs every change of it until a request to stop. `period` is the maximum time between two
/// comparisons of everything.
///
/// # Errors
/// When the policy can never be applied to the machine, or a report cannot be written.
pub fn watch(
    reconciler: Reconciler,
    files: &PolicyFiles,
    policy: Policy,
    period: Duration,
    context: &mut dyn WatchContext,
) -> Result<(), ReconcileError> {
    // Opened before the first comparison, so that no event is missed.
    let mut monitor = Monitor::open(reconciler.netns())?;
    let mut watch = Watch {
        reconciler,
        policy,
        context,
        ready: false,
        failures: BTreeMap::new(),
        remarks: Remarks::default(),
        programs: BTreeSet::new(),
        devices: BTreeSet::new(),
        pace: Pace::new(),
        found_work: false,
        compares_for_events: false,
        backoff: None,
    };
    watch.check()?;
    watch.reconciler.set_watching(true)?;
    loop {
        let began = Instant::now();
        // Changes of NAPI settings after this are found by comparing with it.
        let instances = watch.reconciler.instances();
        watch.pass()?;
        if std::mem::take(&mut watch.compares_for_events) {
            watch.pace.compared(watch.found_work);
        }
        let delay = watch.backoff.unwrap_or(period);
        match watch.wait(&mut monitor, began, delay, &instances)? {
            Some(Request::Reload) => watch.reload(files),
            Some(Request::Stop) => break,
            None => {}
        }
    }
    watch.context.stopping();
    watch.reconciler.set_watching(false)
}

struct Watch<'a> {
    reconciler: Reconciler,
    policy: Policy,
    context: &'a mut dyn WatchContext,
    /// Whether the machine has equalled the policy.
    ready: bool,
    /// The present failures by device, each of which is reported once.
    failures: BTreeMap<String, String>,
    remarks: Remarks,
    /// The states of the processes of programs at the last comparison, which were reported.
    programs: BTreeSet<String>,
    /// The devices of the policy at the last comparison, by ifindex.
    devices: BTreeSet<u32>,
    pace: Pace,
    /// Whether the last comparison found something to repair.
    found_work: bool,
    /// Whether notifications cause the next comparison.
    compares_for_events: bool,
    /// The delay before trying again what failed.
    backoff: Option<Duration>,
}

impl Watch<'_> {
    /// Fails if the policy can never be applied. A device that is missing or down may appear later.
    fn check(&mut self) -> Result<(), ReconcileError> {
        let mut view = self.reconciler.view(&self.policy)?;
        view.desired.check()?;
        view.check_support()?;
        view.check_permission()
    }

    /// Compares once and makes all repairs. Fails only if a report cannot be written.
    fn pass(&mut self) -> Result<(), ReconcileError> {
        let mut failures = BTreeMap::new();
        self.found_work = false;
        match self.reconciler.view(&self.policy) {
            Ok(view) => self.repair(&view, &mut failures)?,
            Err(error) => _ = failures.insert(String::new(), error.to_string()),
        }
        self.backoff = (!failures.is_empty()).then(|| {
            let (first, most) = BACKOFF;
            self.backoff.map_or(first, |last| (last * 2).min(most))
        });
        for (device, failure) in &failures {
            if self.failures.get(device) != Some(failure) {
                self.context.note(failure);
            }
        }
        self.failures = failures;
        Ok(())
    }

    fn repair(&mut self, view: &View, failures: &mut BTreeMap<String, String>) -> Result<(), ReconcileError> {
        let mut complete = true;
        self.devices = view.devices();
        for (device, error) in &view.desired.wrong {
            failures.insert(device.clone(), error.to_string());
        }
        let mut different = view.stale_devices();
        let with_actions = view.differences.iter().filter(|(_, difference)| self.reconciler.has_actions(difference));
        different.extend(with_actions.map(|(device, _)| device.clone()));
        self.found_work |= !different.is_empty();
        for device in different {
            match self.reconciler.repair(&self.policy, &device) {
                Ok(outcome) => {
                    outcome.notes.iter().for_each(|note| self.note_once(note));
                    self.context.repaired(Some(&device), &outcome)?;
                }
                Err(error) => _ = failures.insert(device.clone(), format!("{device}: {error}")),
            }
        }
        if let Err(error) = self.reconciler.forget_missing(view) {
            failures.insert(String::new(), error.to_string());
        }
        view.waiting.iter().for_each(|device| self.note_once(&waits(device)));
        for (_, difference) in &view.differences {
            if let Some(waiting) = &difference.waiting {
                complete = false;
                self.note_once(waiting);
            }
        }
        for fatal in view.fatal() {
            failures.entry(fatal.device.clone()).or_insert_with(|| fatal.to_string());
        }
        for absent in view.desired.absent.iter().filter(|absent| !absent.optional) {
            complete = false;
            self.note_once(&format!("{}: waits for a device with {}", absent.origin, absent.wanted));
        }
        self.repair_programs(view, failures)?;
        if complete && failures.is_empty() && !self.ready {
            self.ready = true;
            self.context.ready();
        }
        Ok(())
    }

    fn repair_programs(&mut self, view: &View, failures: &mut BTreeMap<String, String>) -> Result<(), ReconcileError> {
        let repaired = self.reconciler.programs(view).and_then(|programs| {
            self.found_work |= !programs.is_done();
            let outcome = match programs.is_done() {
                true => Outcome::default(),
                false => self.reconciler.repair_programs(&self.policy, &programs)?,
            };
            Ok((programs.running, outcome))
        });
        match repaired {
            Ok((running, outcome)) => {
                // Only those of now: process IDs come and go.
                let now: BTreeSet<String> = running.iter().map(ToString::to_string).collect();
                now.difference(&self.programs).for_each(|state| self.context.note(state));
                self.programs = now;
                outcome.notes.iter().for_each(|note| self.note_once(note));
                self.context.repaired(None, &outcome)?;
            }
            Err(error) => _ = failures.insert("programs".to_owned(), error.to_string()),
        }
        Ok(())
    }

    fn reload(&mut self, files: &PolicyFiles) {
        match files.read() {
            Ok(policy) => {
                self.policy = policy;
                self.reconciler.reset();
                self.failures.clear();
                self.remarks.clear();
                self.programs.clear();
            }
            Err(error) => self.context.note(&format!("{error}; the previous policy stays in force")),
        }
    }

    /// Reports a remark that is no failure, once.
    fn note_once(&mut self, text: &str) {
        if self.remarks.is_new(text) {
            self.context.note(text);
        }
    }

    /// Waits for an event, a request, a change of NAPI settings or the end of `delay`, and then until the next comparison is
    /// due.
    fn wait(
        &mut self,
        monitor: &mut Monitor,
        began: Instant,
        delay: Duration,
        instances: &[abey_linux::napi::Napi],
    ) -> Result<Option<Request>, ReconcileError> {
        let retry_at = began.checked_add(delay);
        let mut check_napis = Instant::now() + NAPI_PERIOD;
        let mut compare_at: Option<Instant> = None;
        loop {
            let until = retry_at.into_iter().chain(compare_at).fold(check_napis, Instant::min);
            self.sleep(Some(monitor), until);
            if let Some(request) = self.context.next_request() {
                return Ok(Some(request));
            }
            let (events, now) = (monitor.events()?, Instant::now());
            if !events.is_empty() {
                let is_urgent = events.iter().any(|event| self.concerns_policy(event));
                let at = began + self.pace.due(now.saturating_duration_since(began), is_urgent);
                let at = compare_at.map_or(at, |earlier| earlier.min(at));
                compare_at = Some(at);
                // The rest of the burst, which would wake this process one by one.
                self.sleep(None, at.min(now + BURST));
            } else if retry_at.is_some_and(|at| now >= at) {
                return Ok(None);
            }
            if compare_at.is_some_and(|at| Instant::now() >= at) {
                // The comparison that follows includes these events.
                monitor.events()?;
                self.compares_for_events = true;
                return Ok(self.context.next_request());
            }
            if now >= check_napis {
                if self.reconciler.instances() != instances {
                    return Ok(None);
                }
                check_napis = now + NAPI_PERIOD;
            }
        }
    }

    /// Sleeps until a request or, with a monitor, a notification arrives, or until a time.
    fn sleep(&self, monitor: Option<&Monitor>, until: Instant) {
        let mut watched = vec![PollFd::new(self.context.request_fd(), PollFlags::POLLIN)];
        watched.extend(monitor.map(|monitor| PollFd::new(monitor.as_fd(), PollFlags::POLLIN)));
        let _ = poll(&mut watched, timeout_until(until));
    }

    /// Whether a notification is about a device of the policy. Those that were lost may have been.
    fn concerns_policy(&self, event: &Event) -> bool {
        match event {
            Event::Changed { ifindex, .. } => self.devices.contains(ifindex),
            _ => false,
        }
    }
}

fn timeout_until(at: Instant) -> PollTimeout {
    let left = at.saturating_duration_since(Instant::now());
    // Rounded up, so that the last millisecond is not spent spinning.
    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
}
