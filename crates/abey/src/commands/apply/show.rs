//! The outcome of an apply as text and as JSON.

use abey_policy::Unsupported;
use abey_reconcile::{Outcome, ProgramChange, ProgramState, SettingChange};
use serde::Serialize;

use crate::failure::Failure;

/// Formats the changes, one per line.
pub(super) fn text(outcome: &Outcome, dry_run: bool) -> String {
    let suffix = if dry_run { " (not changed: dry run)" } else { "" };
    let changes = outcome.restored.iter().map(restored).chain(outcome.changes.iter().map(ToString::to_string));
    let programs = outcome.programs.iter().map(ToString::to_string);
    let lines = changes.chain(outcome.later.iter().cloned()).chain(programs);
    let text: String = lines.map(|line| format!("{line}{suffix}\n")).collect();
    if text.is_empty() { "nothing to change\n".to_owned() } else { text }
}

/// Formats the changes that were made in addition to the announced ones.
pub(super) fn additional_text(outcome: &Outcome) -> String {
    let lines = outcome.restored[outcome.announced_restored..].iter().map(restored);
    let changes = outcome.changes[outcome.announced_changes..].iter().map(ToString::to_string);
    lines.chain(changes).map(|line| line + "\n").collect()
}

fn restored(change: &SettingChange) -> String {
    format!("{change} (put back)")
}

#[derive(Serialize)]
pub(super) struct Document<'a> {
    rows: Vec<ChangeRow<'a>>,
    later: &'a [String],
    skipped: Vec<Skipped<'a>>,
    absent: &'a [String],
    programs: &'a [ProgramState],
}

/// Returns the JSON document of an outcome.
pub(super) fn document(outcome: &Outcome) -> Document<'_> {
    let restored = outcome.restored.iter().map(ChangeRow::restored);
    let devices = restored.chain(outcome.changes.iter().map(ChangeRow::Device));
    Document {
        rows: devices.chain(outcome.programs.iter().map(ChangeRow::Program)).collect(),
        later: &outcome.later,
        skipped: outcome.skipped.iter().map(Skipped::from).collect(),
        absent: &outcome.absent,
        programs: &outcome.running,
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChangeRow<'a> {
    Restored {
        #[serde(flatten)]
        change: &'a SettingChange,
        put_back: bool,
    },
    Device(&'a SettingChange),
    Program(&'a ProgramChange),
}

impl<'a> ChangeRow<'a> {
    fn restored(change: &'a SettingChange) -> Self {
        Self::Restored { change, put_back: true }
    }
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

/// One line of `--watch`: the repairs of one device, or one of a program.
#[derive(Serialize)]
pub(super) struct Repair<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    rows: Vec<ChangeRow<'a>>,
}

impl<'a> Repair<'a> {
    /// Returns the lines for an outcome: one for a device, one for each change of a program.
    pub(super) fn all(device: Option<&'a str>, outcome: &'a Outcome) -> Vec<Self> {
        let restored = outcome.restored.iter().map(ChangeRow::restored);
        if device.is_none() {
            let rows = restored.chain(outcome.programs.iter().map(ChangeRow::Program));
            return rows.map(|row| Self { device, rows: vec![row] }).collect();
        }
        let rows: Vec<_> = restored.chain(outcome.changes.iter().map(ChangeRow::Device)).collect();
        if rows.is_empty() { Vec::new() } else { vec![Self { device, rows }] }
    }

    pub(super) fn json(&self) -> Result<String, Failure> {
        let text =
            serde_json::to_string(self).map_err(|error| Failure::check(format!("cannot write JSON: {error}")))?;
        Ok(text + "\n")
    }

    /// Formats the device and its changes. Parts of the device with the same changes are listed together.
    pub(super) fn text(&self) -> String {
        let mut parts: Vec<(String, Vec<String>)> = Vec::new();
        for row in &self.rows {
            match row {
                ChangeRow::Program(change) => parts.push((change.to_string(), Vec::new())),
                ChangeRow::Device(change) | ChangeRow::Restored { change, .. } => {
                    let SettingChange { setting, before, after, .. } = change;
                    let suffix = if matches!(row, ChangeRow::Restored { .. }) { " (put back)" } else { "" };
                    let (subject, what) = (change.subject(), format!("{setting} {before} -> {after}{suffix}"));
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
        let line = |(members, changes): (Vec<String>, String)| match changes.as_str() {
            "" => members.join(", "),
            changes => format!("{}: {changes}", members.join(", ")),
        };
        let all: Vec<String> = groups.into_iter().map(line).collect();
        let device = self.device.map_or_else(String::new, |device| format!("{device}: "));
        format!("{device}{}\n", all.join("; "))
    }
}
