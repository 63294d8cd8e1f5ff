//! Programs that belong to queues: drop-ins for units, CPUs for processes, and whether they have the library.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use abey_linux::cpu::{CpuList, process_affinity, set_process_affinity, set_thread_affinity, thread_affinity};
use abey_linux::library::{FILE_NAME, find_library};
use abey_linux::process::threads;
use abey_linux::spawn::CommandPlace;
use abey_policy::{Program, ProgramWish};
use serde::Serialize;

use super::{UNITS, permission};
use crate::failure::Failure;
use crate::signals::Signals;

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

/// What was done for programs, and how it is undone.
#[derive(Default)]
pub(super) struct Undo {
    files: Vec<(PathBuf, Option<String>)>,
    threads: Vec<(u32, CpuList)>,
    reload: bool,
}

impl Programs {
    /// Looks what has to be done.
    pub(super) fn look(wishes: &[ProgramWish], units: &Path) -> Result<Self, Failure> {
        let mut found = Self::default();
        for wish in wishes {
            let name = match &wish.program {
                Program::Unit(unit) => {
                    found.files.extend(drop_in(wish, unit, units)?);
                    unit
                }
                Program::Executable(file) => file,
            };
            for pid in processes_of(&wish.program) {
                let wanted = !wish.library.is_passive();
                found.running.push(ProgramState { program: name.clone(), pid, library: has_library(pid), wanted });
                let Some(after) = &wish.cpus else { continue };
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
        Ok(found)
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

    /// Makes the changes, all or none.
    pub(super) fn make(&self) -> Result<(), Failure> {
        let mut undo = Undo::default();
        let made = self.files.iter().try_for_each(|file| file.write(&mut undo));
        let made = made.and_then(|()| self.pins.iter().try_for_each(|pin| pin.make(&mut undo)));
        let made = made.and_then(|()| if undo.reload { reload() } else { Ok(()) });
        made.inspect_err(|_| undo.back())
    }
}

impl DropIn {
    fn write(&self, undo: &mut Undo) -> Result<(), Failure> {
        let cannot = |error: io::Error| {
            let path = self.path.display();
            Failure::lacks(format!("cannot write {path}, which gives {} its library and CPUs: {error}", self.unit))
        };
        replace(&self.path, &self.after).map_err(cannot)?;
        undo.files.push((self.path.clone(), self.before.clone()));
        undo.reload |= self.path.starts_with(UNITS);
        Ok(())
    }
}

impl Pin {
    fn make(&self, undo: &mut Undo) -> Result<(), Failure> {
        let Ok(tids) = threads(self.pid) else { return Ok(()) };
        undo.threads.extend(tids.into_iter().filter_map(|tid| Some((tid, thread_affinity(tid).ok()?))));
        match set_process_affinity(self.pid, &self.after) {
            Ok(()) | Err(abey_linux::cpu::CpuError::NoProcess(_)) => Ok(()),
            Err(error) => Err(Failure::check(format!("{} (pid {}): {error}", self.program, self.pid))),
        }
    }
}

impl Undo {
    /// Puts back as much as possible.
    fn back(&self) {
        for (path, before) in &self.files {
            let done = match before {
                Some(text) => replace(path, text),
                None => fs::remove_file(path),
            };
            if let Err(error) = done {
                eprintln!("abey: {} could not be put back: {error}", path.display());
            }
        }
        for (tid, cpus) in &self.threads {
            // One that has ended needs nothing.
            let _ = set_thread_affinity(*tid, cpus);
        }
        if self.reload {
            let _ = reload();
        }
    }
}

/// The drop-in of a unit, if it has to be written.
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
    let differs = before.as_ref() != Some(&after);
    Ok(differs.then(|| DropIn { unit: unit.to_owned(), path, before, after }))
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

/// Replaces a file, so that a reader sees the old one or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let beside = directory.join(format!(".{DROP_IN}.{}", std::process::id()));
    let written = fs::File::create(&beside).and_then(|mut file| file.write_all(text.as_bytes()));
    let moved = written.and_then(|()| fs::rename(&beside, path));
    if moved.is_err() {
        let _ = fs::remove_file(&beside);
    }
    moved
}

/// Lets systemd read the drop-ins; running programs are left alone.
fn reload() -> Result<(), Failure> {
    let mut command = Command::new("systemctl");
    command.arg("daemon-reload").stdin(Stdio::null()).stdout(Stdio::null()).with_signals(&Signals::caught());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::check(format!(
            "`systemctl daemon-reload` failed ({status}): systemd does not know the drop-ins"
        ))),
        Err(error) => Err(Failure::lacks(format!("cannot run `systemctl daemon-reload`: {error}"))),
    }
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
