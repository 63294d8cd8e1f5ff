//! Programs that belong to queues: drop-ins for units, CPUs for processes, and whether they have the library.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use abey_linux::apply::{Change, Kept, Step};
use abey_linux::cpu::{CpuList, process_affinity};
use abey_linux::library::{FILE_NAME, find_library};
use abey_linux::process::start_time;
use abey_policy::{Program, ProgramWish};
use serde::Serialize;

use super::permission;
use crate::failure::Failure;

/// The name of our drop-in, which is read after those of the distribution.
const DROP_IN: &str = "50-abey.conf";

/// Something about a program that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ProgramChange {
    /// Its unit or file.
    program: String,
    /// The process; `None` for a unit.
    pid: Option<u32>,
    setting: &'static str,
    before: String,
    after: String,
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

/// A program that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ProgramState {
    program: String,
    pid: u32,
    /// Whether the library is in it; `None` if this process may not look.
    library: Option<bool>,
    #[serde(skip)]
    wanted: bool,
}

impl fmt::Display for ProgramState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, pid, library, wanted } = self;
        let (is, then) = match (library, wanted) {
            (Some(true), _) => (format!("runs with {FILE_NAME}"), ""),
            (Some(false), true) if program.starts_with('/') => {
                (format!("runs without {FILE_NAME}"), ": start it with `abey run`, or from a unit of the policy")
            }
            (Some(false), true) => (format!("runs without {FILE_NAME}"), ": it has it from its next start on"),
            (Some(false), false) => (format!("runs without {FILE_NAME}"), ""),
            (None, _) => (format!("runs; whether with {FILE_NAME} only its user or CAP_SYS_PTRACE can see"), ""),
        };
        write!(f, "{program} (pid {pid}) {is}{then}")
    }
}

/// What is to be done for the programs.
#[derive(Default)]
pub(super) struct Programs {
    files: Vec<DropIn>,
    pins: Vec<Pin>,
    pub(super) running: Vec<ProgramState>,
    /// What was applied before and is not wanted any more, in the order in which it goes back.
    pub(super) backs: Vec<Kept>,
    /// What was applied to processes that have ended.
    pub(super) gone: Vec<Kept>,
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
    /// Looks what has to be done; `kept` is what was applied before, the last first.
    pub(super) fn look(wishes: &[ProgramWish], units: &Path, kept: &[Kept]) -> Result<Self, Failure> {
        let mut found = Self::default();
        let (mut drop_ins, mut pinned) = (BTreeSet::new(), BTreeSet::new());
        for wish in wishes {
            let name = match &wish.program {
                Program::Unit(unit) => {
                    if let Some(file) = drop_in(wish, unit, units)? {
                        drop_ins.insert(file.path.clone());
                        found.files.extend(Some(file).filter(|file| file.before.as_ref() != Some(&file.after)));
                    }
                    unit
                }
                Program::Executable(file) => file,
            };
            for pid in processes_of(&wish.program) {
                let wanted = !wish.library.is_passive();
                found.running.push(ProgramState { program: name.clone(), pid, library: has_library(pid), wanted });
                let Some(after) = &wish.cpus else { continue };
                pinned.insert(pid);
                // A process that has just ended needs no CPUs.
                let Ok(before) = process_affinity(pid) else { continue };
                if before != *after {
                    found.pins.push(Pin { program: name.clone(), pid, before, after: after.clone() });
                }
            }
        }
        if !found.pins.is_empty() {
            permission::check_pinning()?;
        }
        for kept in kept {
            match &kept.step {
                Step::DropIn { path, .. } if !drop_ins.contains(path) => found.backs.push(kept.clone()),
                Step::Process { pid, started, .. } if start_time(*pid) != Some(*started) => {
                    found.gone.push(kept.clone())
                }
                Step::Process { pid, .. } if !pinned.contains(pid) => found.backs.push(kept.clone()),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Whether there is nothing to be done.
    pub(super) fn is_done(&self) -> bool {
        self.files.is_empty() && self.pins.is_empty() && self.backs.is_empty() && self.gone.is_empty()
    }

    pub(super) fn changes(&self) -> Vec<ProgramChange> {
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

    /// What shall be: first the files, then the processes.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Change> {
        let files = self.files.iter().map(|DropIn { unit, path, after, .. }| Change::DropIn {
            unit: unit.clone(),
            path: path.clone(),
            text: after.clone(),
        });
        files.chain(self.pins.iter().map(|pin| Change::Process { pid: pin.pid, cpus: pin.after.clone() }))
    }
}

/// The drop-in of a unit, if it has one, and what is there.
fn drop_in(wish: &ProgramWish, unit: &str, units: &Path) -> Result<Option<DropIn>, Failure> {
    let library = if wish.library.is_passive() { PathBuf::new() } else { library()? };
    let Some(after) = wish.drop_in(&library) else { return Ok(None) };
    if !units.is_dir() {
        let units = units.display();
        return Err(Failure::lacks(format!(
            "{}: {unit} cannot be given anything: there is no {units}, so systemd does not run here; use `executable`",
            wish.origin
        )));
    }
    let path = units.join(format!("{unit}.d")).join(DROP_IN);
    let before = fs::read_to_string(&path).ok();
    Ok(Some(DropIn { unit: unit.to_owned(), path, before, after }))
}

/// Where the library is; looked for once, as it is executed for that.
fn library() -> Result<PathBuf, Failure> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.clone());
    }
    let exe = std::env::current_exe().map_err(|error| Failure::check(format!("where is this command? {error}")))?;
    let library = find_library(&exe).map_err(Failure::lacks)?;
    Ok(FOUND.get_or_init(|| library).clone())
}

/// The processes of a program, ascending.
pub(crate) fn processes_of(program: &Program) -> Vec<u32> {
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
