//! `abey run`: an unmodified program under a delivery mode.

mod auto;
mod broker;
mod datapath;
mod search;
mod wanted;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use abey_linux::apply::{Applied, JOURNAL_DIRECTORY, Place, Plan, Restored, Target, restore_abandoned};
use abey_linux::device::{Device, device_named};
use abey_linux::library::{self, LibraryConfig, Steering};
use abey_linux::napi::NapiChange;
use abey_linux::netns::NetNs;
use abey_linux::probe::napi_capabilities;
use abey_linux::spawn::CommandPlace;

use crate::commands::guard::Guard;
use crate::commands::tune::Subject;
use crate::failure::Failure;
use crate::linux_world::{Namespace, Wanted, World};
use crate::program::{find_program, why_not_preloaded};
use crate::supervise::{Signals, Supervised, Watch};

use auto::{Auto, AutoArgs, ModeChoice};
use search::{Search, devices_of};
use wanted::{check_epoll, library_for, wanted};

/// Run an unmodified program under a delivery mode, and put every setting back when it ends
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The mode: base, deferX, napibusy, fullbusy, suspendX, threaded, threaded-busy or sockbusyX, X in microseconds; or
    /// auto, which follows the load within a --goal
    #[arg(long, value_name = "MODE", required_unless_present = "settings")]
    mode: Option<ModeChoice>,
    /// A settings file in place of a mode, as `abey plan --output` writes it
    #[arg(long, value_name = "FILE", conflicts_with = "mode")]
    settings: Option<PathBuf>,
    /// The devices the program receives from; without it, the one that has the address it listens on
    #[arg(long = "dev", value_name = "DEV")]
    devices: Vec<String>,
    /// Only the NAPI instances that serve these receive queues
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "devices")]
    queues: Vec<u32>,
    /// Give each SO_REUSEPORT listener of the program the connections of one receive queue
    #[arg(long)]
    steer: bool,
    /// Let a wait with timeout 0 poll once; the kernel's own returns without polling
    #[arg(long)]
    poll_on_zero_timeout: bool,
    /// Packets that one busy poll may take, in place of the mode's own (above 64 needs CAP_NET_ADMIN)
    #[arg(long, value_name = "N")]
    budget: Option<u16>,
    /// Leave programs of these names alone that CMD starts
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    skip: Vec<String>,
    /// Stop the program if anything that was asked for does not engage
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    auto: AutoArgs,
    #[command(flatten)]
    world: World,
    #[command(flatten)]
    nic: datapath::NicChoice,
    #[command(flatten)]
    namespace: Namespace,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Where journals are kept
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.world.is_datapath() {
        return datapath::run(&args);
    }
    args.world.only_linux()?;
    args.nic.refuse()?;
    let program = find_program(&args.command[0])?;
    let mut auto = args.auto.wanted(args.mode, false)?;
    let wanted = wanted(&args)?;
    check_epoll(wanted.settings.epoll)?;
    let library = library_for(&args, &wanted)?;
    if let Some(why) = library.as_ref().and_then(|_| why_not_preloaded(&program)) {
        let said = format!("{} {why}, so {} cannot reach its event loop", program.display(), wanted.name);
        if args.strict {
            return Err(Failure::lacks(format!(
                "{said}: use a mode that needs nothing of the program, such as defer50"
            )));
        }
        eprintln!("abey: {said}; only the settings of the device are in force");
    }
    let netns = args.namespace.open()?;
    let mut run = Run { args: &args, wanted, netns, applied: Vec::new() };
    let named = run.named_devices()?;
    let library = library.map(|path| (path, run.library_config(&named)));

    // What a killed Abey left would otherwise be taken for what was there before.
    if !restore_abandoned(&args.journals)?.is_empty() {
        eprintln!("abey: put back the settings that an abey that was killed had left");
    }
    // From here on something is changed, so SIGINT and SIGTERM no longer end this process by themselves.
    let signals = Signals::catch().map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    let mut guard = Guard::start(&args.journals)
        .map_err(|error| Failure::lacks(format!("cannot start the guard process: {error}")))?;
    let outcome = run.program(&program, library, (&named, &mut auto), signals, &mut guard);
    let restored = auto.map_or(Ok(()), Auto::finish).and(run.restore());
    guard.dismiss();
    let code = outcome?;
    restored?;
    Ok(ExitCode::from(code))
}

/// One `abey run`.
struct Run<'a> {
    args: &'a Args,
    wanted: Wanted,
    netns: NetNs,
    applied: Vec<Applied>,
}

impl Run<'_> {
    fn named_devices(&self) -> Result<Vec<Device>, Failure> {
        let mut place = Place::open(&self.netns)?;
        let find = |name: &String| Ok(device_named(place.netlink(), name, self.netns.description())?);
        self.args.devices.iter().map(find).collect()
    }

    fn library_config(&self, devices: &[Device]) -> LibraryConfig {
        // The number of queues lets more workers than queues share them; with several devices there is no one number.
        let queues = match devices {
            [device] => NonZeroU32::new(device.rx_queues),
            _ => None,
        };
        LibraryConfig {
            poll_on_zero_timeout: self.args.poll_on_zero_timeout,
            steering: self.args.steer.then_some(Steering { queues }),
            strict: self.args.strict,
            skip: self.args.skip.clone(),
            ..LibraryConfig::new(self.wanted.mode, &self.wanted.settings)
        }
    }

    fn program(
        &mut self,
        program: &Path,
        library: Option<(PathBuf, LibraryConfig)>,
        (named, auto): (&[Device], &mut Option<Auto<'_>>),
        signals: Signals,
        guard: &mut Guard,
    ) -> Result<u8, Failure> {
        // The tuner changes nothing until there is a server to tune for.
        for device in named.iter().filter(|_| auto.is_none()) {
            self.apply(device)?;
        }
        let mut command = command_of(self.args, program, &self.netns)?;
        let library = library.as_ref().map(|(path, config)| (path.as_path(), config));
        library::equip(&mut command, library, std::env::var_os("LD_PRELOAD").as_deref());
        let mut supervised = start_guarded(command, program, signals, guard)?;
        let searches = named.is_empty() || auto.is_some();
        let mut search = searches.then(Search::begin);
        let mut failure = None;
        let code = supervised.wait(guard, |members| match self.look(&mut search, (named, auto), members) {
            Ok(watch) => watch,
            Err(error) if self.args.strict => {
                failure = Some(error);
                Watch::Stop
            }
            Err(error) => {
                eprintln!("abey: {} is not active: {error}", self.wanted.name);
                (search, failure) = (None, None);
                auto.take().map_or(Watch::Signals, |auto| {
                    if let Err(error) = auto.finish() {
                        eprintln!("abey: {error}");
                    }
                    Watch::Signals
                })
            }
        });
        failure.map_or(Ok(code), Err)
    }

    /// Looks for the device until the program listens; from then on the tuner is at work, if there is one.
    fn look(
        &mut self,
        search: &mut Option<Search>,
        (named, auto): (&[Device], &mut Option<Auto<'_>>),
        members: &[u32],
    ) -> Result<Watch, Failure> {
        let Some(looking) = search else {
            return auto.as_mut().map_or(Ok(Watch::Signals), |auto| auto.look(members));
        };
        let Some(listening) = looking.look(members)? else { return Ok(Watch::After(Duration::from_millis(20))) };
        *search = None;
        let devices = if named.is_empty() { devices_of(&self.netns, &listening)? } else { named.to_vec() };
        let Some(auto) = auto else {
            devices.iter().try_for_each(|device| self.apply(device))?;
            return Ok(Watch::Signals);
        };
        for device in devices {
            auto.engage_kernel(self.subject(device, members)?, &self.args.namespace)?;
        }
        auto.look(members)
    }

    fn subject(&self, device: Device, members: &[u32]) -> Result<Subject, Failure> {
        Ok(Subject {
            netns: self.args.namespace.open()?,
            device,
            target: self.target(),
            server: members.to_vec(),
            cpus: None,
            journals: self.args.journals.clone(),
        })
    }

    fn target(&self) -> Target {
        if self.args.queues.is_empty() { Target::Device } else { Target::Queues(self.args.queues.clone()) }
    }

    fn apply(&mut self, device: &Device) -> Result<(), Failure> {
        let mut place = Place::open(&self.netns)?;
        let target = self.target();
        let able = napi_capabilities(place.netlink())?;
        let wanted = NapiChange::to(&self.wanted.settings.napi);
        let plan = Plan::new(&mut place, device, &target, &wanted, able)?;
        for warning in plan.warnings() {
            eprintln!("abey: {warning}");
        }
        self.applied.push(plan.apply(place, Some(&self.args.journals))?);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Failure> {
        let mut failed = None;
        for applied in self.applied.drain(..) {
            match applied.restore() {
                Ok(restored) => restored.iter().filter_map(left_to_others).for_each(|line| eprintln!("abey: {line}")),
                Err(error) => failed = Some(error),
            }
        }
        let explain = |error| {
            Failure::check(format!("settings could not be put back: {error}; `abey set --restore` tries again"))
        };
        failed.map_or(Ok(()), |error| Err(explain(error)))
    }
}

/// Starts the program, which the guard ends if this process is killed.
fn start_guarded(
    mut command: Command,
    program: &Path,
    signals: Signals,
    guard: &mut Guard,
) -> Result<Supervised, Failure> {
    let pipe = guard.pipe().map_err(|error| Failure::lacks(format!("cannot reach the guard process: {error}")))?;
    command.announces_itself(pipe);
    let started = Supervised::start(&mut command, signals, [guard.pid()]);
    // The command holds a copy of the pipe, which would keep the guard from seeing the end.
    drop(command);
    started.map_err(|error| Failure::usage(format!("cannot start {}: {error}", program.display())))
}

/// The program with its arguments, in its namespace.
fn command_of(args: &Args, program: &Path, netns: &NetNs) -> Result<Command, Failure> {
    let mut command = Command::new(program);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    // Entering a namespace needs a capability, even the one that this process is in.
    if NetNs::current()?.inode() != netns.inode() {
        command.in_netns(netns);
    }
    Ok(command)
}

/// What is not as it was before, because it is no longer what this run made it.
fn left_to_others(restored: &Restored) -> Option<String> {
    let Restored::LeftToOthers(step) = restored else { return None };
    let change = step.changes().into_iter().next()?;
    let what = change.napi.map_or_else(String::new, |id| format!("NAPI {id} of "));
    Some(format!("somebody else changed {what}{} meanwhile: what they set stays", change.device))
}
