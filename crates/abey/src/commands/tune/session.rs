//! One `abey tune` from its first interval to its end: all groups, what is said of them, and who puts back what if it is
//! killed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;

use super::Args;
use super::group::{Group, Notes};
use super::report::Row;
use super::tuner::Look;
use crate::commands::guard::Guard;
use crate::failure::Failure;
use crate::output::{print_rows, print_text};
use crate::signals::Signals;

/// The last rows of a document: more than a day of the shortest intervals is in nobody's document.
const MOST_ROWS: usize = 1 << 20;

/// How much longer than its interval a measurement may take until somebody has seen a latency.
const PATIENCE: u32 = 4;

/// One `abey tune`.
pub(super) struct Session<'a> {
    args: &'a Args,
    groups: Vec<Group>,
    ends: Signals,
    guard: Option<Guard>,
    rows: Vec<Row>,
    began: Instant,
}

impl<'a> Session<'a> {
    pub(super) fn begin(args: &'a Args, groups: Vec<Group>, ends: Signals) -> Result<Self, Failure> {
        let start = || Guard::start(&args.journals);
        let guard = (!args.dry_run && !args.keep).then(start).transpose();
        let guard = guard.map_err(|error| Failure::lacks(format!("cannot start the guard process: {error}")))?;
        Ok(Self { args, groups, ends, guard, rows: Vec::new(), began: Instant::now() })
    }

    /// Until the time is over or a signal comes; then everything is put back, unless it is to stay.
    pub(super) fn run(mut self) -> Result<ExitCode, Failure> {
        let outcome = self.rounds();
        let summaries: Vec<String> = self.groups.iter().map(Group::summary).collect();
        let mut finished = Ok(());
        for group in self.groups {
            finished = finished.and(group.finish(self.args.keep));
        }
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
        outcome?;
        finished?;
        let stay = if self.args.keep { ", which stay" } else { "" };
        summaries.iter().for_each(|summary| eprintln!("abey: {summary}{stay}"));
        if self.args.json { print_rows(&self.rows) } else { Ok(ExitCode::SUCCESS) }
    }

    fn rounds(&mut self) -> Result<(), Failure> {
        let end = self.args.duration.map(|duration| self.began + Duration::from(duration));
        if self.groups.len() > 1 && !self.watch_where_they_are_polled(end)? {
            return Ok(());
        }
        for at in 0..self.groups.len() {
            let look = self.groups[at].start()?;
            if self.args.dry_run {
                for line in self.groups[at].differences(&look.settings)? {
                    self.say(&format!("would begin with {line}"))?;
                }
            }
            self.told(at, &look)?;
        }
        self.begin_intervals(0..self.groups.len());
        while self.wait(end) {
            let now = Instant::now();
            for at in 0..self.groups.len() {
                if self.groups[at].next <= now {
                    self.round(at, now)?;
                }
            }
            self.unite()?;
        }
        Ok(())
    }

    /// An interval in which nothing is changed, to see which groups are one. Whether there is time for more.
    fn watch_where_they_are_polled(&mut self, end: Option<Instant>) -> Result<bool, Failure> {
        self.groups.iter_mut().try_for_each(|group| group.tuned.plant().begin(false))?;
        self.begin_intervals(0..self.groups.len());
        if !self.wait(end) {
            return Ok(false);
        }
        self.groups.iter_mut().try_for_each(|group| group.tuned.plant().sample().map(drop))?;
        self.unite()?;
        self.began = Instant::now();
        Ok(true)
    }

    /// Waits for the end of the next interval. Whether there is one.
    fn wait(&self, end: Option<Instant>) -> bool {
        let until = self.groups.iter().map(|group| group.next).min().expect("there are groups");
        end.is_none_or(|end| until <= end) && !self.ends.wait_until(until)
    }

    /// One group's interval is over, if whoever sees its latencies is ready.
    fn round(&mut self, at: usize, now: Instant) -> Result<(), Failure> {
        let since_began = self.now();
        let group = &mut self.groups[at];
        if !group.tuned.plant().is_ready()? && now < group.patience {
            group.next = now + Duration::from_millis(10);
            return Ok(());
        }
        let look = group.look(since_began)?;
        self.told(at, &look)?;
        self.begin_intervals(at..at + 1);
        Ok(())
    }

    fn begin_intervals(&mut self, which: std::ops::Range<usize>) {
        let interval = Duration::from(self.args.interval);
        let next = Instant::now() + interval;
        for group in &mut self.groups[which] {
            (group.next, group.patience) = (next, next + interval * PATIENCE);
        }
    }

    /// Groups that turn out to be polled by one CPU become one.
    fn unite(&mut self) -> Result<(), Failure> {
        while let Some((at, other)) = self.meeting() {
            let (other, now) = (self.groups.remove(other), self.now());
            let look = self.groups[at].unite(other, now)?;
            self.told(at, &look)?;
            self.begin_intervals(at..at + 1);
        }
        Ok(())
    }

    fn meeting(&self) -> Option<(usize, usize)> {
        let pairs = (0..self.groups.len()).flat_map(|at| (at + 1..self.groups.len()).map(move |other| (at, other)));
        pairs.into_iter().find(|(at, other)| self.groups[*at].meets(&self.groups[*other]))
    }

    fn told(&mut self, at: usize, look: &Look) -> Result<(), Failure> {
        if let Some(guard) = &mut self.guard {
            let mut notes = Notes::default();
            self.groups.iter().for_each(|group| group.note(&mut notes));
            if look.changes() || look.is_news {
                notes.tell(guard);
            }
        }
        let group = &mut self.groups[at];
        group.told(look)?;
        let row = Row::new(&group.tuned.name(), look, group.goal());
        if look.changes() || look.is_news || self.args.all {
            self.say(&row.line(self.args.dry_run))?;
        }
        if self.args.json && self.rows.len() < MOST_ROWS {
            self.rows.push(row);
        }
        Ok(())
    }

    fn say(&self, line: &str) -> Result<(), Failure> {
        if self.args.json { Ok(()) } else { print_text(&format!("{line}\n")).map(drop) }
    }

    /// Since the beginning.
    fn now(&self) -> Nanos {
        Nanos::from_nanos(self.began.elapsed().as_nanos() as u64)
    }
}
