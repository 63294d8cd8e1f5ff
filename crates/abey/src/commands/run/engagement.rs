//! Whether the mode has reached the program's sockets: the lines that are printed, and the end of a `--strict` run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use abey_linux::engagement::Needs;
use abey_linux::netns::NetNs;
use abey_supervise::broker::Claim;
use abey_supervise::engagement::{EngagementCheck, Exceptions};
use abey_supervise::program::why_not_preloaded;
use abey_supervise::supervisor::Next;

use super::Args;
use crate::failure::Failure;

/// The judge of one run.
pub(super) struct Judge {
    check: Option<EngagementCheck>,
    /// Name of the mode or settings file.
    mode: String,
    is_strict: bool,
    failure: Option<Failure>,
}

impl Judge {
    /// Creates the judge of a program that is about to start. Without needs it judges nothing.
    pub(super) fn new(
        args: &Args,
        mode: &str,
        program: &Path,
        needs: Option<Needs>,
        netns: &NetNs,
    ) -> Result<Self, Failure> {
        let exceptions = Exceptions { programs: args.skip.clone(), reported: reported(program) };
        let check = match needs.map(|needs| EngagementCheck::begin(needs, exceptions, netns)).transpose() {
            Err(error) if args.strict => return Err(Failure::lacks(error)),
            Err(error) => {
                eprintln!("abey: whether {mode} is active for the program is not checked: {error}");
                None
            }
            Ok(check) => check,
        };
        Ok(Self { check, mode: mode.to_owned(), is_strict: args.strict, failure: None })
    }

    /// Judges the program's processes, and returns what comes earlier: `next`, or the next judgement.
    pub(super) fn judge(&mut self, members: &[u32], claim: impl Fn(u32) -> Claim, next: Next) -> Next {
        let Some(check) = &mut self.check else { return next };
        let pause = match check.check(members, claim) {
            Err(error) => {
                eprintln!("abey: whether {} is active for the program is not checked any more: {error}", self.mode);
                self.stop();
                return next;
            }
            Ok((found, pause)) => {
                for one in found {
                    let line = format!("{} is not active for {one}", self.mode);
                    if self.is_strict && !one.is_handed_over() {
                        self.failure = Some(Failure::lacks(format!("{line}; --strict has ended the program")));
                        self.stop();
                        return Next::Stop;
                    }
                    eprintln!("abey: {line}");
                }
                pause
            }
        };
        earlier(next, pause)
    }

    /// Ends the judgement.
    pub(super) fn stop(&mut self) {
        self.check = None;
    }

    /// Returns why the program was ended, if it was.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

fn earlier(next: Next, pause: Duration) -> Next {
    match next {
        Next::Stop => Next::Stop,
        Next::CheckAfter(other) => Next::CheckAfter(other.min(pause)),
        Next::Wait => Next::CheckAfter(pause),
    }
}

/// Returns the program's file if its start has reported that the library is not in it.
fn reported(program: &Path) -> Option<PathBuf> {
    why_not_preloaded(program)?;
    program.canonicalize().ok()
}
