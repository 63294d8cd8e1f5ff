//! Which worlds a bench measures, and in each of them which modes at which loads.

use std::path::PathBuf;
use std::sync::Arc;

use abey_bench::datapath::{Memory, Preloaded, Wire};
use abey_bench::linux::Linux;
use abey_bench::{App, Bed, BenchError, ClientKind, Cpus, Load, Part, Takers, TestBed, World};
use abey_delivery::Mode;
use abey_linux::cpu::CpuList;
use abey_linux::library::find_library;

use super::{Args, ClientChoice, WorldChoice, failure, program};
use crate::failure::Failure;
use crate::linux_world::Wanted;

/// What is measured of each world when it is not said.
const LINUX_MODES: [&str; 6] = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"];
const DATAPATH_MODES: [&str; 9] =
    ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded", "threaded-busy", "workqueue", "hold20"];
const LINUX_LOADS: [&str; 2] = ["20k", "50k"];
const DATAPATH_LOADS: [&str; 3] = ["20k", "50k", "max"];
const BOTH_MODES: [&str; 4] = ["base", "defer20", "fullbusy", "suspend20"];
const BOTH_LOADS: [&str; 3] = ["1k", "50k", "max"];

/// Whether the linux world is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    No,
    /// If this user and this kernel can, and otherwise there is a note.
    IfPossible,
    Required,
}

/// One program in both worlds.
#[derive(Clone, Copy)]
struct SideBySide {
    client: ClientKind,
    memory: bool,
}

/// What is asked for, checked as far as it can be without starting anything.
pub(super) struct Plan {
    datapath: bool,
    linux: Wish,
    both: Option<SideBySide>,
    app: App,
    server_cpu: Option<u32>,
    exe: PathBuf,
    modes: Vec<Mode>,
    loads: Vec<Load>,
}

/// What the document says of the whole.
pub(super) struct Facts {
    pub(super) side_by_side: bool,
    pub(super) request: &'static str,
}

impl Plan {
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        let exe =
            std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
        let app = program::app(args, &exe)?;
        let both = both(args)?;
        let installed = args.app.is_some() && !matches!(app, App::BuiltIn(_));
        let (datapath, linux) = match args.world {
            // Only the kernel can run it, so that naming it names the world.
            None if installed => (false, Wish::Required),
            None => (true, Wish::IfPossible),
            Some(WorldChoice::Linux) => (false, Wish::Required),
            Some(WorldChoice::All) => (true, Wish::Required),
            Some(WorldChoice::Both) => (false, Wish::No),
            Some(WorldChoice::Datapath) if installed => {
                return Err(Failure::usage(
                    "over a shared-memory NIC alone the server is the built-in one: leave --app out, or say --world both",
                ));
            }
            Some(WorldChoice::Datapath) => (true, Wish::No),
        };
        check_modes(&args.modes, linux == Wish::Required || both.is_some())?;
        let mut loads = args.loads.clone();
        loads.sort_unstable();
        loads.dedup();
        if (linux == Wish::Required || both.is_some()) && !nix::unistd::geteuid().is_root() {
            return Err(Failure::lacks(format!("the linux world {NEEDS_ROOT}; or say --world datapath")));
        }
        let needs_app = linux == Wish::Required || both.is_some();
        if args.app.is_none() && needs_app && matches!(app, App::BuiltIn(_)) {
            eprintln!("abey: memcached is not installed: measuring the built-in `abey serve kv` instead");
        }
        let (modes, server_cpu) = (args.modes.clone(), args.server_cpu);
        Ok(Self { datapath, linux, both, app, server_cpu, exe, modes, loads })
    }

    pub(super) fn facts(&self) -> Facts {
        Facts { side_by_side: self.both.is_some(), request: self.app.protocol().request() }
    }

    /// The test beds with their modes and loads; what has to be said of them goes into `notes`.
    pub(super) fn parts(self, notes: &mut Vec<String>) -> Result<Vec<Part>, Failure> {
        if let Some(both) = self.both {
            return self.side_by_side(both, notes);
        }
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
            notes.push(SYSTEM_CALLS.to_owned());
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

    /// The kernel's modes and the datapath's, of one program on one test network.
    fn side_by_side(self, both: SideBySide, notes: &mut Vec<String>) -> Result<Vec<Part>, Failure> {
        let library = find_library(&self.exe).map_err(Failure::lacks)?;
        let cpus = self.cpus()?;
        let bed = Arc::new(TestBed::new(cpus, Takers::Any).map_err(failure)?);
        let linux = Linux::new(Arc::clone(&bed), self.app.clone(), library.clone(), both.client).map_err(failure)?;
        let mut beds: Vec<Box<dyn Bed>> = vec![Box::new(linux)];
        let wires = [Some(Wire::Veth(bed, both.client)), both.memory.then_some(Wire::Memory(cpus))];
        for wire in wires.into_iter().flatten() {
            let preloaded = Preloaded::new(wire, self.app.clone(), library.clone());
            beds.push(Box::new(preloaded.map_err(failure)?));
        }
        notes.push(SYSTEM_CALLS.to_owned());
        if both.memory {
            notes.push(
                "memory: the wire has no network device and no driver at either end, and the client is the datapath's"
                    .to_owned(),
            );
        }
        let parts = beds.into_iter().map(|bed| self.part(bed, &BOTH_MODES, &BOTH_LOADS, notes));
        parts.collect::<Result<_, _>>().map_err(failure)
    }

    fn cpus(&self) -> Result<Cpus, Failure> {
        let online = CpuList::online().map_err(|error| failure(error.into()))?;
        Cpus::choose(&online, self.server_cpu).map_err(failure)
    }

    fn linux(&self, notes: &mut Vec<String>) -> Result<Part, Failure> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::lacks(format!("it {NEEDS_ROOT}")));
        }
        let library = find_library(&self.exe).map_err(Failure::lacks)?;
        let bed = Arc::new(TestBed::new(self.cpus()?, Takers::Kernel).map_err(failure)?);
        let bed = Linux::new(bed, self.app.clone(), library, ClientKind::Kernel).map_err(failure)?;
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

const SYSTEM_CALLS: &str = "the datapath's system calls are as it counts them, without the futexes of contended locks, of which threaded, \
                            workqueue and hold make some";

const NEEDS_ROOT: &str = "needs root, to make its network namespaces: run it with sudo, for example `sudo -E cargo run \
                          --release -- bench`";

/// What was named, and otherwise the default.
fn or_else<T: Copy + std::str::FromStr<Err: std::fmt::Debug>>(named: &[T], default: &[&str]) -> Vec<T> {
    if !named.is_empty() {
        return named.to_vec();
    }
    default.iter().map(|name| name.parse().expect("a name of our own")).collect()
}

fn check_modes(modes: &[Mode], linux: bool) -> Result<(), Failure> {
    for (at, mode) in modes.iter().enumerate() {
        if linux {
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

/// What `--world both` has of its own.
fn both(args: &Args) -> Result<Option<SideBySide>, Failure> {
    if args.world == Some(WorldChoice::Both) {
        let client = match args.client {
            Some(ClientChoice::Datapath) => ClientKind::Datapath,
            Some(ClientChoice::Kernel) | None => ClientKind::Kernel,
        };
        return Ok(Some(SideBySide { client, memory: args.with_memory }));
    }
    let own = [(args.client.is_some(), "--client"), (args.with_memory, "--with-memory")];
    match own.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => {
            Err(Failure::usage(format!("{option} is for one program in both worlds: add --world both")))
        }
        None => Ok(None),
    }
}
