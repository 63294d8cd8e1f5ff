//! All groups of one `abey tune`, from the first interval to the end.

use std::ops::Range;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_supervise::guard::Guard;
use abey_supervise::signals::Signals;

use crate::TuneError;
use crate::group::{Group, UndoNotes};
use crate::report::TuneRow;
use crate::tuner::Decision;

/// How many intervals to wait, beyond the one that ends, for a latency.
const LATENCY_WAIT: u32 = 4;

/// How long to wait between two checks for a latency.
const LATENCY_CHECK: Duration = Duration::from_millis(10);

/// Options of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Length of an interval.
    pub interval: Duration,
    /// When to end; `None`: at a signal.
    pub duration: Option<Duration>,
    /// Decide, but apply nothing.
    pub dry_run: bool,
    /// Leave the last settings in force at the end.
    pub keep: bool,
}

/// Output of a session.
pub trait SessionOutput {
    /// Receives a line of text.
    ///
    /// # Errors
    /// When the output is closed.
    fn line(&mut self, text: &str) -> Result<(), TuneError>;

    /// Receives a decision. `is_reported`: it changes settings, or reports an event.
    ///
    /// # Errors
    /// When the output is closed.
    fn decision(&mut self, row: TuneRow, is_reported: bool) -> Result<(), TuneError>;
}

/// A running session.
pub struct Session<'a> {
    options: SessionOptions,
    groups: Vec<Group>,
    signals: Signals,
    guard: Option<Guard>,
    output: &'a mut dyn SessionOutput,
    began: Instant,
}

impl<'a> Session<'a> {
    /// Creates a session of at least one group. The guard restores settings if this process is killed.
    pub fn new(
        options: SessionOptions,
        groups: Vec<Group>,
        signals: Signals,
        guard: Option<Guard>,
        output: &'a mut dyn SessionOutput,
    ) -> Self {
        Self { options, groups, signals, guard, output, began: Instant::now() }
    }

    /// Tunes until the duration is over or a signal arrives; then restores all settings, unless they are to be left. Returns a
    /// summary for each group.
    ///
    /// # Errors
    /// When a group cannot be tuned any more, or settings cannot be restored.
    pub fn run(mut self) -> Result<Vec<String>, TuneError> {
        let outcome = self.run_intervals();
        let summaries: Vec<String> = self.groups.iter().map(Group::summary).collect();
        let mut finished = Ok(());
        for group in self.groups {
            finished = finished.and(group.finish(self.options.keep));
        }
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
        outcome?;
        finished?;
        Ok(summaries)
    }

    fn run_intervals(&mut self) -> Result<(), TuneError> {
        let end = self.options.duration.map(|duration| self.began + duration);
        if self.groups.len() > 1 && !self.observe_poll_cpus(end)? {
            return Ok(());
        }
        for at in 0..self.groups.len() {
            let decision = self.groups[at].start()?;
            if self.options.dry_run {
                for line in self.groups[at].differences(&decision.settings)? {
                    self.output.line(&format!("would begin with {line}"))?;
                }
            }
            self.record(at, &decision)?;
        }
        self.begin_intervals(0..self.groups.len());
        while self.wait_for_next(end) {
            let now = Instant::now();
            for at in 0..self.groups.len() {
                if self.groups[at].next <= now {
                    self.end_interval(at, now)?;
                }
            }
            self.merge_groups()?;
        }
        Ok(())
    }

    /// Runs an interval without changes, to find the groups that one CPU polls. Returns whether there is time for more.
    fn observe_poll_cpus(&mut self, end: Option<Instant>) -> Result<bool, TuneError> {
        self.groups.iter_mut().try_for_each(|group| group.target.tunable().begin(false))?;
        self.begin_intervals(0..self.groups.len());
        if !self.wait_for_next(end) {
            return Ok(false);
        }
        self.groups.iter_mut().try_for_each(|group| group.target.tunable().sample().map(drop))?;
        self.merge_groups()?;
        self.began = Instant::now();
        Ok(true)
    }

    /// Waits for the end of the next interval. Returns false when the session ends first.
    fn wait_for_next(&self, end: Option<Instant>) -> bool {
        let until = self.groups.iter().map(|group| group.next).min().expect("a session has groups");
        end.is_none_or(|end| until <= end) && !self.signals.wait_until(until)
    }

    /// Ends one group's interval, or postpones its end while its source of latencies is not ready.
    fn end_interval(&mut self, at: usize, now: Instant) -> Result<(), TuneError> {
        let since_began = self.now();
        let group = &mut self.groups[at];
        if !group.target.tunable().is_ready()? && now < group.latency_deadline {
            group.next = now + LATENCY_CHECK;
            return Ok(());
        }
        let decision = group.end_interval(since_began)?;
        self.record(at, &decision)?;
        self.begin_intervals(at..at + 1);
        Ok(())
    }

    fn begin_intervals(&mut self, which: Range<usize>) {
        let interval = self.options.interval;
        let next = Instant::now() + interval;
        for group in &mut self.groups[which] {
            (group.next, group.latency_deadline) = (next, next + interval * LATENCY_WAIT);
        }
    }

    /// Merges groups that one CPU polls.
    fn merge_groups(&mut self) -> Result<(), TuneError> {
        while let Some((at, other)) = self.groups_on_one_cpu() {
            let (other, now) = (self.groups.remove(other), self.now());
            let decision = self.groups[at].merge(other, now)?;
            self.record(at, &decision)?;
            self.begin_intervals(at..at + 1);
        }
        Ok(())
    }

    fn groups_on_one_cpu(&self) -> Option<(usize, usize)> {
        let mut candidates =
            (0..self.groups.len()).flat_map(|at| (at + 1..self.groups.len()).map(move |other| (at, other)));
        candidates.find(|(at, other)| self.groups[*at].shares_cpu_with(&self.groups[*other]))
    }

    fn record(&mut self, at: usize, decision: &Decision) -> Result<(), TuneError> {
        let is_reported = decision.changes() || decision.is_reported;
        if let Some(guard) = &mut self.guard {
            let mut notes = UndoNotes::default();
            self.groups.iter().for_each(|group| group.add_undo(&mut notes));
            if is_reported {
                notes.send(guard);
            }
        }
        let group = &mut self.groups[at];
        group.record(decision)?;
        let row = TuneRow::new(&group.target.name(), decision, group.goal());
        self.output.decision(row, is_reported)
    }

    /// Returns the time since the session began.
    fn now(&self) -> Nanos {
        Nanos::from_nanos(self.began.elapsed().as_nanos() as u64)
    }
}
