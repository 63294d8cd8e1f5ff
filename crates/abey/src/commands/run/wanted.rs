//! What the arguments ask for, and whether this kernel and this user can have it at all.

use std::os::fd::AsFd;
use std::path::PathBuf;

use abey_delivery::{EpollBusyPoll, Mode};
use abey_linux::epoll;
use abey_linux::library::{self, LibraryConfig, Steering};
use nix::sys::epoll::{Epoll, EpollCreateFlags};

use super::Args;
use super::auto::ModeChoice;
use crate::failure::Failure;
use crate::linux_world::Wanted;

/// The settings that the arguments ask for.
pub(super) fn wanted(args: &Args) -> Result<Wanted, Failure> {
    let mut wanted = match (args.mode, &args.settings) {
        (Some(ModeChoice::Mode(mode)), _) => Wanted::mode(mode)?,
        // It needs nothing of the program when it starts: what it changes there it changes while the program runs.
        (Some(ModeChoice::Auto), _) => {
            if args.budget.is_some() {
                return Err(Failure::usage("--budget is a mode's, and auto chooses among several: leave it out"));
            }
            Wanted { name: "auto".to_owned(), ..Wanted::mode(Mode::Base)? }
        }
        (None, Some(file)) => Wanted::file(file)?,
        (None, None) => return Err(Failure::usage("say which settings: give --mode or --settings")),
    };
    if let Some(budget) = args.budget {
        let Some(epoll) = &mut wanted.settings.epoll else {
            let what = if args.settings.is_some() { "with" } else { "in mode" };
            let name = &wanted.name;
            return Err(Failure::usage(format!("--budget has no meaning {what} `{name}`: it does not busy poll")));
        };
        epoll.budget = budget;
    }
    wanted.settings.validate().map_err(Failure::usage)?;
    Ok(wanted)
}

/// Whether this kernel and this user can have the epoll parameters at all.
pub(super) fn check_epoll(wanted: Option<EpollBusyPoll>) -> Result<(), Failure> {
    let Some(wanted) = wanted else { return Ok(()) };
    if !epoll::supported().map_err(Failure::lacks)? {
        return Err(Failure::lacks(
            "this kernel has no busy-poll parameters per epoll instance (Linux 6.9): use base, deferX or threaded here",
        ));
    }
    // The kernel's own answer, from an instance made for the question.
    let probe = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
        .map_err(|error| Failure::lacks(format!("cannot make an epoll instance: {error}")))?;
    epoll::set(probe.0.as_fd(), &wanted).map_err(Failure::lacks)?;
    Ok(())
}

/// The library, where the mode needs something of the program itself.
pub(super) fn library_for(args: &Args, wanted: &Wanted) -> Result<Option<PathBuf>, Failure> {
    let config = LibraryConfig {
        poll_on_zero_timeout: args.poll_on_zero_timeout,
        steering: args.steer.then(Steering::default),
        ..LibraryConfig::new(wanted.mode, &wanted.settings)
    };
    if config.is_passive() {
        return Ok(None);
    }
    config.validate().map_err(Failure::usage)?;
    let exe = std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
    library::find_library(&exe).map(Some).map_err(Failure::lacks)
}
