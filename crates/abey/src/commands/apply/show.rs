//! What an apply did, or would do, for people and for programs.

use abey_linux::apply::{SettingChange, Step};
use abey_policy::{Unsupported, Wishes};
use serde::Serialize;

use super::programs::{ProgramChange, ProgramState};
use crate::failure::Failure;

/// What became of one pass over the policy.
#[derive(Default)]
pub(super) struct Outcome {
    /// Nothing was changed.
    pub(super) dry_run: bool,
    /// Changes of devices.
    pub(super) changes: Vec<SettingChange>,
    /// How many of them were shown before they were made.
    shown: usize,
    /// What goes back to what it was, because the policy does not name it any more.
    pub(super) backs: Vec<SettingChange>,
    /// How many of them were shown before they were made.
    shown_backs: usize,
    /// What follows once queues or threads are there that are not yet.
    pub(super) later: Vec<String>,
    /// Changes of units and processes.
    pub(super) programs: Vec<ProgramChange>,
    /// Which of the programs run, and how.
    pub(super) running: Vec<ProgramState>,
    /// What cannot be, and is left out.
    pub(super) skipped: Vec<Unsupported>,
    /// Optional devices that are not there.
    pub(super) absent: Vec<String>,
    /// What else is worth saying: what is left to others, and what waits.
    pub(super) notes: Vec<String>,
}

impl Outcome {
    /// Takes note of the tables without a device.
    pub(super) fn note_absent(&mut self, wishes: &Wishes) {
        let say =
            |absent: &abey_policy::Absent| format!("{}: there is no device with {}", absent.origin, absent.wanted);
        self.absent = wishes.absent.iter().map(say).collect();
    }

    /// Takes note of what goes back, and of what does not because somebody else has changed it since.
    pub(super) fn note_back(&mut self, steps: &[Step], left: Option<&Step>) {
        self.backs.extend(steps.iter().flat_map(Step::changes));
        let subject =
            |step: &Step| step.changes().first().map(|change| format!("{} of {}", change.setting, change.subject()));
        self.notes.extend(left.and_then(subject).map(|subject| {
            format!("{subject}: not put back, because somebody else has changed it since it was applied")
        }));
    }

    /// Everything up to here was shown.
    pub(super) fn shown(self) -> Self {
        Self { shown: self.changes.len(), shown_backs: self.backs.len(), ..self }
    }

    /// What is worth saying beside the changes.
    pub(super) fn remarks(&self) -> Vec<String> {
        let notes = self.notes.iter().cloned();
        let skipped = notes.chain(self.skipped.iter().map(|skipped| format!("left out: {skipped}")));
        skipped.chain(self.absent.iter().cloned()).chain(self.running.iter().map(ToString::to_string)).collect()
    }

    /// The changes, one a line.
    pub(super) fn text(&self) -> String {
        let behind = if self.dry_run { " (not changed: dry run)" } else { "" };
        let changes = self.backs.iter().map(back).chain(self.changes.iter().map(ToString::to_string));
        let programs = self.programs.iter().map(ToString::to_string);
        let lines = changes.chain(self.later.iter().cloned()).chain(programs);
        let text: String = lines.map(|line| format!("{line}{behind}\n")).collect();
        if text.is_empty() { "nothing to change\n".to_owned() } else { text }
    }

    /// What turned out to be needed after the changes had been shown.
    pub(super) fn more(&self) -> String {
        let backs = self.backs[self.shown_backs..].iter().map(back);
        backs.chain(self.changes[self.shown..].iter().map(ToString::to_string)).map(|line| line + "\n").collect()
    }

    pub(super) fn document(&self) -> Document<'_> {
        let backs = self.backs.iter().map(Row::back);
        let devices = backs.chain(self.changes.iter().map(Row::Device));
        Document {
            rows: devices.chain(self.programs.iter().map(Row::Program)).collect(),
            later: &self.later,
            skipped: self.skipped.iter().map(Skipped::from).collect(),
            absent: &self.absent,
            programs: &self.running,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Document<'a> {
    rows: Vec<Row<'a>>,
    later: &'a [String],
    skipped: Vec<Skipped<'a>>,
    absent: &'a [String],
    programs: &'a [ProgramState],
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Back {
        #[serde(flatten)]
        change: &'a SettingChange,
        put_back: bool,
    },
    Device(&'a SettingChange),
    Program(&'a ProgramChange),
}

impl<'a> Row<'a> {
    fn back(change: &'a SettingChange) -> Self {
        Self::Back { change, put_back: true }
    }
}

/// A change that goes back, in words.
fn back(change: &SettingChange) -> String {
    format!("{change} (put back)")
}

#[derive(Serialize)]
struct Skipped<'a> {
    device: &'a str,
    what: &'a str,
    reason: &'a str,
    file: &'a str,
    line: usize,
}

impl<'a> From<&'a Unsupported> for Skipped<'a> {
    fn from(unsupported: &'a Unsupported) -> Self {
        let Unsupported { device, what, reason, origin, .. } = unsupported;
        Self { device, what, reason, file: &origin.file, line: origin.line }
    }
}

/// What was put right on one device, or for one program: one line.
#[derive(Serialize)]
pub(super) struct Repair<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    rows: Vec<Row<'a>>,
}

impl<'a> Repair<'a> {
    pub(super) fn of_device(device: &'a str, outcome: &'a Outcome) -> Self {
        let rows = outcome.backs.iter().map(Row::back).chain(outcome.changes.iter().map(Row::Device));
        Self { device: Some(device), rows: rows.collect() }
    }

    /// One for each program.
    pub(super) fn of_programs(outcome: &'a Outcome) -> Vec<Self> {
        let rows = outcome.backs.iter().map(Row::back).chain(outcome.programs.iter().map(Row::Program));
        rows.map(|row| Self { device: None, rows: vec![row] }).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn json(&self) -> Result<String, Failure> {
        let text = serde_json::to_string(self).map_err(|error| Failure::check(format!("no JSON: {error}")))?;
        Ok(text + "\n")
    }

    /// The device, and what is the same for several of its parts together.
    pub(super) fn text(&self) -> String {
        let mut parts: Vec<(String, Vec<String>)> = Vec::new();
        for row in &self.rows {
            match row {
                Row::Program(change) => parts.push((change.to_string(), Vec::new())),
                Row::Device(change) | Row::Back { change, .. } => {
                    let SettingChange { setting, before, after, .. } = change;
                    let behind = if matches!(row, Row::Back { .. }) { " (put back)" } else { "" };
                    let (subject, what) = (change.subject(), format!("{setting} {before} -> {after}{behind}"));
                    let subject = subject.strip_prefix(&format!("{} ", change.device)).unwrap_or(&subject).to_owned();
                    match parts.iter_mut().find(|(part, _)| *part == subject) {
                        Some((_, changes)) => changes.push(what),
                        None => parts.push((subject, vec![what])),
                    }
                }
            }
        }
        let mut groups: Vec<(Vec<String>, String)> = Vec::new();
        for (part, changes) in parts {
            let changes = changes.join(", ");
            match groups.iter_mut().find(|(_, same)| *same == changes && !same.is_empty()) {
                Some((members, _)) => members.push(part),
                None => groups.push((vec![part], changes)),
            }
        }
        let one = |(members, changes): (Vec<String>, String)| match changes.as_str() {
            "" => members.join(", "),
            changes => format!("{}: {changes}", members.join(", ")),
        };
        let all: Vec<String> = groups.into_iter().map(one).collect();
        let head = self.device.map_or_else(String::new, |device| format!("{device}: "));
        format!("{head}{}\n", all.join("; "))
    }
}
