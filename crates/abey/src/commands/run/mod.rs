//! `abey run`: an unmodified program under a delivery mode.

mod auto;
mod datapath;
mod engagement;
mod kernel;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use abey_linux::library::{self, LibraryConfig};
use abey_linux::netns::NetNs;
use abey_linux::spawn::CommandSetup;
use abey_reconcile::JOURNAL_DIRECTORY;
use abey_supervise::guard::Guard;
use abey_supervise::signals::Signals;
use abey_supervise::supervisor::{StartError, Supervisor, catch_signals};

use crate::failure::Failure;
use crate::linux_world::Namespace;

use auto::{AutoArgs, ModeChoice};

/// Run an unmodified program under a delivery mode, and restore every setting when it ends
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use this mode: base, deferX, napibusy, fullbusy, suspendX, threaded, threaded-busy or sockbusyX, X in microseconds;
    /// or auto, which changes settings with the load to meet a --goal
    #[arg(long, value_name = "MODE", required_unless_present = "settings")]
    mode: Option<ModeChoice>,
    /// Use the settings in this file, as `abey plan --output` writes it, instead of a mode
    #[arg(long, value_name = "FILE", conflicts_with = "mode")]
    settings: Option<PathBuf>,
    /// Change this device; may be repeated [default: the device with the address that the program listens on]
    #[arg(long = "dev", value_name = "DEV")]
    devices: Vec<String>,
    /// Change only the NAPI instances of these receive queues
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "devices")]
    queues: Vec<u32>,
    /// Give each SO_REUSEPORT listener of the program the connections of one receive queue
    #[arg(long)]
    steer: bool,
    /// Let an epoll wait with timeout 0 poll the NIC once, which the kernel does not do
    #[arg(long)]
    poll_on_zero_timeout: bool,
    /// Set the number of packets that one busy poll may take, instead of the mode's own (above 64 needs CAP_NET_ADMIN)
    #[arg(long, value_name = "N")]
    budget: Option<u16>,
    /// Leave programs of these names alone when CMD starts them
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    skip: Vec<String>,
    /// Let the program have an io_uring, in which its sockets and waits stay the kernel's
    #[arg(long)]
    allow_io_uring: bool,
    /// End the program, with exit status 3, if any setting does not take effect in one of its processes
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    auto: AutoArgs,
    /// Choose the owner of the NIC's queues
    #[arg(long, value_enum, default_value_t = World::Linux)]
    world: World,
    #[command(flatten)]
    nic: datapath::NicChoice,
    #[command(flatten)]
    namespace: Namespace,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Directory of the journals
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
}

/// Where packets are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum World {
    /// The kernel's own NAPI
    Linux,
    /// Abey's own TCP/IP, in the program's process; needs --nic
    Datapath,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.world {
        World::Linux => kernel::run(&args),
        World::Datapath => datapath::run(&args),
    }
}

impl Args {
    /// Returns the command that starts the program, with the library preloaded into it, if it gets one.
    fn command(
        &self,
        program: &Path,
        netns: &NetNs,
        library: Option<&(PathBuf, LibraryConfig)>,
    ) -> Result<Command, Failure> {
        let mut command = Command::new(program);
        command.arg0(&self.command[0]).args(&self.command[1..]);
        // To enter a namespace takes a capability, even if it is the namespace of this process.
        if NetNs::current()?.inode() != netns.inode() {
            command.in_netns(netns);
        }
        let library = library.map(|(path, config)| (path.as_path(), config));
        library::equip(&mut command, library, std::env::var_os("LD_PRELOAD").as_deref());
        Ok(command)
    }
}

/// Catches the signals that are forwarded to the program. From here on they do not end this process.
fn catch_forwarded() -> Result<Signals, Failure> {
    catch_signals().map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))
}

/// Returns the path of the library.
fn find_library() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
    library::find_library(&exe).map_err(Failure::lacks)
}

fn start(command: Command, program: &Path, signals: Signals, guard: &Guard) -> Result<Supervisor, Failure> {
    Supervisor::start_guarded(command, signals, guard).map_err(|error| match error {
        StartError::Guard(_) => Failure::lacks(error),
        StartError::Program(error) => Failure::usage(format!("cannot start {}: {error}", program.display())),
    })
}

fn report_background() {
    eprintln!("abey: the program went to the background; its settings stay until it ends");
}
