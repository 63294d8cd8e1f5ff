//! Which worlds a bench measures, and in each of them which modes at which loads.

use std::path::{Path, PathBuf};

use abey_bench::datapath::Memory;
use abey_bench::linux::{App, Linux};
use abey_bench::{Bed, BenchError, Load, Part, World};
use abey_delivery::Mode;
use abey_linux::library::find_library;

use super::{AppChoice, Args, WorldChoice, failure};
use crate::failure::Failure;
use crate::linux_world::Wanted;

/// What is measured of each world when it is not said.
const LINUX_MODES: [&str; 6] = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"];
const DATAPATH_MODES: [&str; 9] =
    ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded", "threaded-busy", "workqueue", "hold20"];
const LINUX_LOADS: [&str; 2] = ["20k", "50k"];
const DATAPATH_LOADS: [&str; 3] = ["20k", "50k", "max"];

/// Whether the linux world is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    No,
    /// If this user and this kernel can, and otherwise there is a note.
    IfPossible,
    Required,
}

/// What is asked for, checked as far as it can be without starting anything.
pub(super) struct Plan {
    datapath: bool,
    linux: Wish,
    app: App,
    exe: PathBuf,
    modes: Vec<Mode>,
    loads: Vec<Load>,
}

impl Plan {
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        let exe =
            std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
        let memcached = args.app == Some(AppChoice::Memcached);
        let (datapath, linux) = match args.world {
            // Only the kernel can run it, so that naming it names the world.
            None if memcached => (false, Wish::Required),
            None => (true, Wish::IfPossible),
            Some(WorldChoice::Linux) => (false, Wish::Required),
            Some(WorldChoice::All) => (true, Wish::Required),
            Some(WorldChoice::Datapath) if memcached => {
                return Err(Failure::usage(
                    "memcached does not run over the datapath yet: leave --app out, or say --world linux",
                ));
            }
            Some(WorldChoice::Datapath) => (true, Wish::No),
        };
        check_modes(&args.modes, linux)?;
        let mut loads = args.loads.clone();
        loads.sort_unstable();
        loads.dedup();
        let app = if linux == Wish::No { App::BuiltIn(exe.clone()) } else { app(args.app, &exe)? };
        if linux == Wish::Required && !nix::unistd::geteuid().is_root() {
            return Err(Failure::lacks(format!("the linux world {NEEDS_ROOT}; or say --world datapath")));
        }
        if args.app.is_none() && linux == Wish::Required && matches!(app, App::BuiltIn(_)) {
            eprintln!("abey: memcached is not installed: measuring the built-in `abey serve kv` instead");
        }
        Ok(Self { datapath, linux, app, exe, modes: args.modes.clone(), loads })
    }

    /// The test beds with their modes and loads; what has to be said of them goes into `notes`.
    pub(super) fn parts(self, notes: &mut Vec<String>) -> Result<Vec<Part>, Failure> {
        let mut parts = Vec::new();
        match self.linux {
            Wish::No => {}
            Wish::Required => parts.push(self.linux(notes)?),
            Wish::IfPossible => match self.linux(notes) {
                Ok(part) => parts.push(part),
                Err(why) => notes.push(format!("the linux world is left out: {why}")),
            },
        }
        if self.datapath {
            let bed = Memory::new(self.exe.clone()).map_err(failure)?;
            parts.push(self.part(Box::new(bed), &DATAPATH_MODES, &DATAPATH_LOADS, notes).map_err(failure)?);
            notes.push(
                "datapath: system calls are as it counts them, without the futexes of contended locks, of which \
                 threaded, workqueue and hold make some"
                    .to_owned(),
            );
        }
        parts.retain(|part| !part.is_empty());
        if parts.len() > 1 {
            notes.push(
                "server, wire and client differ between these worlds: compare modes within a world, and not worlds"
                    .to_owned(),
            );
        }
        Ok(parts)
    }

    fn linux(&self, notes: &mut Vec<String>) -> Result<Part, Failure> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::lacks(format!("it {NEEDS_ROOT}")));
        }
        let library = find_library(&self.exe).map_err(Failure::lacks)?;
        let bed = Linux::new(self.app.clone(), library).map_err(failure)?;
        self.part(Box::new(bed), &LINUX_MODES, &LINUX_LOADS, notes).map_err(failure)
    }

    /// A mode that was named must be possible, where the world was named as well.
    fn part(
        &self,
        bed: Box<dyn Bed>,
        modes: &[&str],
        loads: &[&str],
        notes: &mut Vec<String>,
    ) -> Result<Part, BenchError> {
        let beside = bed.setup().world == World::Linux && self.linux == Wish::IfPossible;
        let left_out = (self.modes.is_empty() || beside).then_some(notes);
        Part::new(bed, &or_else(&self.modes, modes), &or_else(&self.loads, loads), left_out)
    }
}

const NEEDS_ROOT: &str = "needs root, to make its network namespaces: run it with sudo, for example `sudo -E cargo run \
                          --release -- bench`";

/// What was named, and otherwise the default.
fn or_else<T: Copy + std::str::FromStr<Err: std::fmt::Debug>>(named: &[T], default: &[&str]) -> Vec<T> {
    if !named.is_empty() {
        return named.to_vec();
    }
    default.iter().map(|name| name.parse().expect("a name of our own")).collect()
}

fn check_modes(modes: &[Mode], linux: Wish) -> Result<(), Failure> {
    for (at, mode) in modes.iter().enumerate() {
        if linux == Wish::Required {
            Wanted::mode(*mode)?;
        }
        if matches!(mode, Mode::SockBusy(_)) {
            return Err(Failure::usage(format!(
                "mode `{mode}` is for blocking receives, and the measured servers wait in epoll: leave it out"
            )));
        }
        if modes[..at].contains(mode) {
            return Err(Failure::usage(format!("mode `{mode}` is named twice: name it once")));
        }
    }
    Ok(())
}

fn app(choice: Option<AppChoice>, exe: &Path) -> Result<App, Failure> {
    match (choice, App::find(exe)) {
        (Some(AppChoice::Kv), _) => Ok(App::BuiltIn(exe.to_owned())),
        (Some(AppChoice::Memcached), App::BuiltIn(_)) => {
            Err(Failure::lacks("memcached is not installed: install it, or use --app kv"))
        }
        (_, found) => Ok(found),
    }
}
