//! `abey guard` (hidden): outlives an `abey run` that was killed, ends its program and puts its settings back.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use abey_linux::apply::restore_abandoned;
use abey_linux::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use crate::failure::Failure;

/// Wait for an `abey run` to end, and clean up after it if it was killed
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    journals: PathBuf,
}

const PROGRAM: &str = "program ";
const DONE: &str = "done";

/// How long the program may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The guard of this process: told what to look after, dismissed at the end.
pub(crate) struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    pub(crate) fn start(journals: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("guard").arg("--journals").arg(journals);
        // A process group of its own: Ctrl-C at the terminal is not for the guard.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take().expect("stdin is piped");
        Ok(Self { child, pipe })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Names the program to end if this process is killed.
    pub(crate) fn look_after(&mut self, program: u32) {
        // A guard that is gone leaves the journal, which `abey set --restore` reads.
        let _ = writeln!(self.pipe, "{PROGRAM}{program}");
    }

    /// There is nothing left to clean up.
    pub(crate) fn dismiss(mut self) {
        let _ = writeln!(self.pipe, "{DONE}");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // A session of its own: a terminal that hangs up, or a kill of the whole group, does not reach the guard.
    let _ = setsid();
    let mut program = None;
    for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
        if line == DONE {
            return Ok(ExitCode::SUCCESS);
        }
        program = line.strip_prefix(PROGRAM).and_then(|pid| pid.parse::<u32>().ok()).or(program);
    }
    // The pipe closed without the word: the process that held it was killed.
    if let Some(program) = program {
        end(program);
    }
    restore_abandoned(&args.journals)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends a program that lost its `abey run`: asks first, then kills what is left of it.
fn end(program: u32) {
    let mut members = process::descendants(program).unwrap_or_default();
    members.push(program);
    let _ = kill(Pid::from_raw(program.cast_signed()), Signal::SIGTERM);
    let asked = Instant::now();
    while asked.elapsed() < PATIENCE {
        members.retain(|pid| process::start_time(*pid).is_some());
        if members.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in members {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}
