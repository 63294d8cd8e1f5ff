//! Programs that belong to queues: drop-ins for units, CPUs for processes, and whether they have loaded the library.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use abey_linux::cpu::{CpuList, process_affinity};
use abey_linux::library::{FILE_NAME, find_library};
use abey_linux::process::start_time;
use abey_policy::{Change, DesiredProgram, Program};
use serde::Serialize;

use crate::applied_state::AppliedStep;
use crate::bounds::{Bounds, DROP_IN, foreign_line, is_library};
use crate::error::ReconcileError;
use crate::permission;
use crate::step::Step;

/// A change of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramChange {
    /// Its unit or executable.
    pub program: String,
    /// The process; `None` for a unit.
    pub pid: Option<u32>,
    /// The setting's name.
    pub setting: &'static str,
    /// The value before.
    pub before: String,
    /// The value after.
    pub after: String,
}

impl fmt::Display for ProgramChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, pid, setting, before, after } = self;
        match pid {
            Some(pid) => write!(f, "{program} (pid {pid}): {setting} {before} -> {after}"),
            None => write!(f, "{program}: {setting} {before} -> {after}"),
        }
    }
}

/// A running process of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramState {
    /// Its unit or executable.
    pub program: String,
    /// The process.
    pub pid: u32,
    /// Whether it has loaded the library; `None` if this process may not read that.
    pub library: Option<bool>,
    /// Whether the policy asks for the library.
    #[serde(skip)]
    wants_library: bool,
}

impl fmt::Display for ProgramState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, pid, library, wants_library } = self;
        let (is, advice) = match (library, wants_library) {
            (Some(true), _) => (format!("runs with {FILE_NAME}"), ""),
            (Some(false), true) if program.starts_with('/') => (
                format!("runs without {FILE_NAME}"),
                ": start it with `abey run`, or from a unit that the policy names",
            ),
            (Some(false), true) => (format!("runs without {FILE_NAME}"), ": its next start loads it"),
            (Some(false), false) => (format!("runs without {FILE_NAME}"), ""),
            (None, _) => {
                (format!("runs; only its user, or a process with CAP_SYS_PTRACE, can check for {FILE_NAME}"), "")
            }
        };
        write!(f, "{program} (pid {pid}) {is}{advice}")
    }
}

/// The comparison of the machine's programs with a policy.
#[derive(Default)]
pub(crate) struct Programs {
    files: Vec<DropIn>,
    pins: Vec<Pin>,
    pub(crate) running: Vec<ProgramState>,
    /// The settings of earlier applies that the policy no longer names, in the order in which they are restored.
    pub(crate) stale: Vec<AppliedStep>,
    /// The settings of earlier applies whose process has ended.
    pub(crate) missing: Vec<AppliedStep>,
}

struct DropIn {
    unit: String,
    path: PathBuf,
    before: Option<String>,
    after: String,
}

struct Pin {
    program: String,
    pid: u32,
    before: CpuList,
    after: CpuList,
}

impl Programs {
    /// Compares the programs with what is desired. `applied` are the settings of earlier applies, the last one first.
    pub(crate) fn compare(
        desired: &[DesiredProgram],
        bounds: Bounds<'_>,
        applied: &[AppliedStep],
    ) -> Result<Self, ReconcileError> {
        let mut found = Self::default();
        let (mut drop_ins, mut pinned) = (BTreeSet::new(), BTreeSet::new());
        for desired in desired {
            let name = match &desired.program {
                Program::Unit(unit) => {
                    if let Some(file) = drop_in(desired, unit, bounds)? {
                        drop_ins.insert(file.path.clone());
                        found.files.extend(Some(file).filter(|file| file.before.as_ref() != Some(&file.after)));
                    }
                    unit
                }
                Program::Executable(file) => file,
            };
            for pid in processes_of(&desired.program) {
                let (library, wants_library) = (has_library(pid), !desired.library.is_passive());
                found.running.push(ProgramState { program: name.clone(), pid, library, wants_library });
                let Some(after) = &desired.cpus else { continue };
                pinned.insert(pid);
                // Fails if the process has just ended.
                let Ok(before) = process_affinity(pid) else { continue };
                if before != *after {
                    found.pins.push(Pin { program: name.clone(), pid, before, after: after.clone() });
                }
            }
        }
        if !found.pins.is_empty() {
            permission::check_pinning()?;
        }
        for one in applied {
            match &one.step {
                Step::DropIn(file) if !drop_ins.contains(&file.setting.path) => found.stale.push(one.clone()),
                Step::Process(process) if start_time(process.pid) != Some(process.started) => {
                    found.missing.push(one.clone());
                }
                Step::Process(process) if !pinned.contains(&process.pid) => found.stale.push(one.clone()),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Whether nothing has to be changed.
    pub(crate) fn is_done(&self) -> bool {
        self.files.is_empty() && self.pins.is_empty() && self.stale.is_empty() && self.missing.is_empty()
    }

    /// Describes the changes.
    pub(crate) fn changes(&self) -> Vec<ProgramChange> {
        let files = self.files.iter().map(|file| ProgramChange {
            program: file.unit.clone(),
            pid: None,
            setting: "drop-in",
            before: if file.before.is_some() { "other" } else { "none" }.to_owned(),
            after: format!("{}, from its next start on", file.path.display()),
        });
        let pins = self.pins.iter().map(|pin| ProgramChange {
            program: pin.program.clone(),
            pid: Some(pin.pid),
            setting: "cpus",
            before: pin.before.to_string(),
            after: pin.after.to_string(),
        });
        files.chain(pins).collect()
    }

    /// Returns the desired values that differ from the present ones: first the drop-ins, then the CPUs of processes.
    pub(crate) fn desired(&self) -> impl Iterator<Item = Change> {
        let files = self.files.iter().map(|DropIn { unit, path, after, .. }| Change::DropIn {
            unit: unit.clone(),
            path: path.clone(),
            text: after.clone(),
        });
        files.chain(self.pins.iter().map(|pin| Change::Process { pid: pin.pid, cpus: pin.after.clone() }))
    }
}

/// Returns the drop-in that a unit is to have, if any, with its present text.
fn drop_in(desired: &DesiredProgram, unit: &str, bounds: Bounds<'_>) -> Result<Option<DropIn>, ReconcileError> {
    let units = bounds.units;
    let library = if desired.library.is_passive() { PathBuf::new() } else { library()? };
    let Some(after) = desired.drop_in(&library) else { return Ok(None) };
    if !units.is_dir() {
        let (origin, units) = (&desired.origin, units.display());
        return Err(ReconcileError::Impossible(format!(
            "{origin}: cannot write a drop-in for {unit}: there is no {units}, so systemd does not run here; use `executable`"
        )));
    }
    let path = units.join(format!("{unit}.d")).join(DROP_IN);
    let before = fs::read_to_string(&path).ok();
    if let Some(line) = before.as_deref().and_then(|text| foreign_line(text, is_library)) {
        let (origin, path) = (&desired.origin, path.display());
        return Err(ReconcileError::Impossible(format!(
            "{origin}: {path} was not written by abey (it has the line {line:?}): give that file another name"
        )));
    }
    Ok(Some(DropIn { unit: unit.to_owned(), path, before, after }))
}

/// Returns the path of the library. It is searched for once, because the search executes it.
fn library() -> Result<PathBuf, ReconcileError> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.clone());
    }
    let failed = |error| ReconcileError::Failed(format!("cannot find the path of this command: {error}"));
    let exe = std::env::current_exe().map_err(failed)?;
    let library = find_library(&exe).map_err(|error| ReconcileError::Impossible(error.to_string()))?;
    Ok(FOUND.get_or_init(|| library).clone())
}

/// Returns the IDs of the processes of a program, ascending.
pub fn processes_of(program: &Program) -> Vec<u32> {
    match program {
        Program::Unit(unit) => processes(|pid| is_of_unit(pid, unit)),
        Program::Executable(file) => {
            let real = fs::canonicalize(file).unwrap_or_else(|_| file.into());
            processes(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == real))
        }
    }
}

fn processes(wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.retain(|pid| wanted(*pid));
    pids.sort_unstable();
    pids
}

/// Whether a process is in a unit's control group, or in one below it.
fn is_of_unit(pid: u32, unit: &str) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| line.rsplit(':').next().is_some_and(|path| path.split('/').any(|part| part == unit)))
}

fn has_library(pid: u32) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    Some(maps.lines().any(|line| line.ends_with(FILE_NAME)))
}
