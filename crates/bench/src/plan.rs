//! The test beds of a bench, with their modes and loads.

use std::path::PathBuf;
use std::sync::Arc;

use abey_delivery::Mode;
use abey_linux::cpu::CpuList;
use abey_linux::library::find_library;

use crate::datapath::{Memory, Preloaded, Wire};
use crate::linux::Linux;
use crate::{App, BenchError, ClientKind, Cpus, Load, Receivers, Suite, TestBed, VethNetwork, World};

const LINUX_MODES: [&str; 6] = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"];
const DATAPATH_MODES: [&str; 9] =
    ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded", "threaded-busy", "workqueue", "hold20"];
const LINUX_LOADS: [&str; 2] = ["20k", "50k"];
const DATAPATH_LOADS: [&str; 3] = ["20k", "50k", "max"];
const SIDE_BY_SIDE_MODES: [&str; 4] = ["base", "defer20", "fullbusy", "suspend20"];
const SIDE_BY_SIDE_LOADS: [&str; 3] = ["1k", "50k", "max"];

/// The worlds of a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worlds {
    /// The datapath, and the kernel if this user and this kernel can; only the kernel for an installed program.
    Default,
    /// The kernel.
    Linux,
    /// The datapath.
    Datapath,
    /// Both, each with its own server and wire.
    All,
    /// Both, with the same program over the same wire.
    SideBySide {
        /// The network stack of the load.
        client: ClientKind,
        /// Whether to measure the program over a shared-memory NIC as well.
        memory: bool,
    },
}

/// A request for a bench. Empty modes and loads mean the defaults of each world.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// The worlds.
    pub worlds: Worlds,
    /// The server.
    pub app: App,
    /// Whether the user named the server.
    pub is_app_named: bool,
    /// The CPU of the server; by default the last one.
    pub server_cpu: Option<u32>,
    /// Path of the `abey` command.
    pub abey: PathBuf,
    /// The modes.
    pub modes: Vec<Mode>,
    /// The loads.
    pub loads: Vec<Load>,
}

/// Whether the kernel's world is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinuxWorld {
    No,
    /// If possible, otherwise with a note.
    IfPossible,
    Required,
}

impl Worlds {
    fn linux(self, is_installed: bool) -> LinuxWorld {
        match self {
            // An installed program over the datapath needs --world both.
            Self::Default if is_installed => LinuxWorld::Required,
            Self::Default => LinuxWorld::IfPossible,
            Self::Linux | Self::All => LinuxWorld::Required,
            Self::Datapath | Self::SideBySide { .. } => LinuxWorld::No,
        }
    }
}

impl BenchRequest {
    /// Checks the request, as far as possible without starting anything.
    ///
    /// # Errors
    /// [`BenchError::Request`] for modes or worlds that contradict each other, [`BenchError::Lacks`] without root.
    pub fn validate(&self) -> Result<(), BenchError> {
        if self.worlds == Worlds::Datapath && self.is_installed_app() {
            return Err(BenchError::Request(
                "over a shared-memory NIC alone the server is the built-in one: leave --app out, or use --world both"
                    .to_owned(),
            ));
        }
        check_modes(&self.modes, self.requires_linux())?;
        if self.requires_linux() && !nix::unistd::geteuid().is_root() {
            return Err(BenchError::Lacks {
                what: "the linux world needs root for its network namespaces".to_owned(),
                advice: "run it with sudo, for example `sudo -E cargo run --release -- bench`, or use --world datapath",
            });
        }
        Ok(())
    }

    /// Returns whether the bench fails without the kernel's world.
    pub fn requires_linux(&self) -> bool {
        self.linux() == LinuxWorld::Required || self.is_side_by_side()
    }

    /// Returns whether the worlds can be compared.
    pub fn is_side_by_side(&self) -> bool {
        matches!(self.worlds, Worlds::SideBySide { .. })
    }

    fn is_installed_app(&self) -> bool {
        self.is_app_named && !matches!(self.app, App::BuiltIn(_))
    }

    fn linux(&self) -> LinuxWorld {
        self.worlds.linux(self.is_installed_app())
    }

    /// Creates the test beds with their modes and loads, and adds notes for the document to `notes`.
    ///
    /// # Errors
    /// [`BenchError`] if a test bed cannot be created, or cannot measure a mode that was named.
    pub fn suites(&self, notes: &mut Vec<String>) -> Result<Vec<Suite>, BenchError> {
        if let Worlds::SideBySide { client, memory } = self.worlds {
            return self.side_by_side_suites(client, memory, notes);
        }
        let mut suites = Vec::new();
        match self.linux() {
            LinuxWorld::No => {}
            LinuxWorld::Required => suites.push(self.linux_suite(notes)?),
            LinuxWorld::IfPossible => match self.linux_suite(notes) {
                Ok(suite) => suites.push(suite),
                Err(error) => notes.push(format!("the linux world is left out: {error}")),
            },
        }
        let has_datapath = match self.worlds {
            Worlds::Default => !self.is_installed_app(),
            worlds => matches!(worlds, Worlds::Datapath | Worlds::All),
        };
        if has_datapath {
            let test_bed = Memory::new(self.abey.clone())?;
            suites.push(self.suite(Box::new(test_bed), &DATAPATH_MODES, &DATAPATH_LOADS, notes)?);
            notes.push(SYSTEM_CALLS_NOTE.to_owned());
        }
        suites.retain(|suite| !suite.is_empty());
        if suites.len() > 1 {
            notes.push(
                "the worlds use different servers, wires and clients: compare modes within a world, not worlds"
                    .to_owned(),
            );
        }
        Ok(suites)
    }

    fn side_by_side_suites(
        &self,
        client: ClientKind,
        memory: bool,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Suite>, BenchError> {
        let library = find_library(&self.abey)?;
        let cpus = self.cpus()?;
        let network = Arc::new(VethNetwork::new(cpus, Receivers::Any)?);
        let linux = Linux::new(Arc::clone(&network), self.app.clone(), library.clone(), client)?;
        let mut test_beds: Vec<Box<dyn TestBed>> = vec![Box::new(linux)];
        let wires = [Some(Wire::Veth(network, client)), memory.then_some(Wire::Memory(cpus))];
        for wire in wires.into_iter().flatten() {
            test_beds.push(Box::new(Preloaded::new(wire, self.app.clone(), library.clone())?));
        }
        notes.push(SYSTEM_CALLS_NOTE.to_owned());
        if memory {
            notes.push(
                "memory: the wire has no network device and no driver, and the client runs on the datapath".to_owned(),
            );
        }
        let suites = test_beds.into_iter().map(|bed| self.suite(bed, &SIDE_BY_SIDE_MODES, &SIDE_BY_SIDE_LOADS, notes));
        suites.collect()
    }

    fn linux_suite(&self, notes: &mut Vec<String>) -> Result<Suite, BenchError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(BenchError::Lacks {
                what: "it needs root for its network namespaces".to_owned(),
                advice: "run it with sudo, for example `sudo -E cargo run --release -- bench`",
            });
        }
        let library = find_library(&self.abey)?;
        let network = Arc::new(VethNetwork::new(self.cpus()?, Receivers::KernelOnly)?);
        let test_bed = Linux::new(network, self.app.clone(), library, ClientKind::Kernel)?;
        self.suite(Box::new(test_bed), &LINUX_MODES, &LINUX_LOADS, notes)
    }

    /// A mode that the user named must be possible, unless the user did not name the world.
    fn suite(
        &self,
        test_bed: Box<dyn TestBed>,
        modes: &[&str],
        loads: &[&str],
        notes: &mut Vec<String>,
    ) -> Result<Suite, BenchError> {
        let is_optional = test_bed.setup().world == World::Linux && self.linux() == LinuxWorld::IfPossible;
        let left_out = (self.modes.is_empty() || is_optional).then_some(notes);
        let mut own_loads = self.loads.clone();
        own_loads.sort_unstable();
        own_loads.dedup();
        Suite::new(test_bed, &or_default(&self.modes, modes), &or_default(&own_loads, loads), left_out)
    }

    fn cpus(&self) -> Result<Cpus, BenchError> {
        Cpus::choose(&CpuList::online()?, self.server_cpu)
    }
}

const SYSTEM_CALLS_NOTE: &str = "the datapath counts its own system calls, without the futexes of contended locks, of which threaded, \
                                 workqueue and hold make some";

/// Returns the named values, or the defaults if there are none.
fn or_default<T: Copy + std::str::FromStr<Err: std::fmt::Debug>>(named: &[T], default: &[&str]) -> Vec<T> {
    if !named.is_empty() {
        return named.to_vec();
    }
    default.iter().map(|name| name.parse().expect("a valid default")).collect()
}

/// Checks that a mode exists in the kernel.
///
/// # Errors
/// [`BenchError::Request`].
pub fn check_kernel_mode(mode: Mode) -> Result<(), BenchError> {
    match mode.settings().only_ours() {
        None => Ok(()),
        Some(_) => Err(BenchError::Request(format!(
            "the Linux kernel has no mode `{mode}`: it exists in the datapath and sim worlds only"
        ))),
    }
}

fn check_modes(modes: &[Mode], requires_linux: bool) -> Result<(), BenchError> {
    for (at, mode) in modes.iter().enumerate() {
        if requires_linux {
            check_kernel_mode(*mode)?;
        }
        if matches!(mode, Mode::SockBusy(_)) {
            return Err(BenchError::Request(format!(
                "mode `{mode}` is for blocking receives, and the measured servers wait in epoll: leave it out"
            )));
        }
        if modes[..at].contains(mode) {
            return Err(BenchError::Request(format!("mode `{mode}` is named twice: name it once")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(worlds: Worlds, modes: &[&str]) -> BenchRequest {
        BenchRequest {
            worlds,
            app: App::BuiltIn("abey".into()),
            is_app_named: false,
            server_cpu: None,
            abey: "abey".into(),
            modes: modes.iter().map(|mode| mode.parse().expect("a mode")).collect(),
            loads: Vec::new(),
        }
    }

    #[test]
    fn contradicting_requests_are_refused() {
        let refused = |request: BenchRequest| matches!(request.validate(), Err(BenchError::Request(_)));
        assert!(refused(request(Worlds::Linux, &["hold20"])));
        assert!(refused(request(Worlds::Datapath, &["base", "base"])));
        assert!(refused(request(Worlds::Datapath, &["sockbusy50"])));
        let installed = App::Memcached("memcached".into());
        assert!(refused(BenchRequest { app: installed, is_app_named: true, ..request(Worlds::Datapath, &[]) }));
        assert!(request(Worlds::Datapath, &["hold20", "base"]).validate().is_ok());
    }

    #[test]
    fn an_installed_program_is_measured_over_the_kernel_by_default() {
        let app = App::Memcached("memcached".into());
        assert!(!request(Worlds::Default, &[]).requires_linux());
        assert!(BenchRequest { app, is_app_named: true, ..request(Worlds::Default, &[]) }.requires_linux());
    }
}
