//! `abey run --world linux`: settings of the kernel's NAPI instances, and of the program's epoll instances and sockets.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::device::Device;
use abey_linux::engagement::Needs;
use abey_linux::library::{LibraryConfig, Steering};
use abey_reconcile::{RUNTIME_UNITS, Target, restore_abandoned};
use abey_supervise::broker::Claim;
use abey_supervise::devices::{ListenWait, devices_of};
use abey_supervise::guard::Guard;
use abey_supervise::program::{find_program, why_not_preloaded};
use abey_supervise::settings::{DeviceSettings, check_epoll};
use abey_supervise::signals::Signals;
use abey_supervise::supervisor::Next;
use abey_tuner::selection::KernelSubject;

use super::auto::{Auto, ModeChoice};
use super::engagement::Judge;
use super::{Args, catch_forwarded, find_library, report_background, start};
use crate::commands::guard;
use crate::failure::Failure;
use crate::linux_world::Wanted;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.nic.refuse()?;
    let program = find_program(&args.command[0])?;
    let mut auto = args.auto.wanted(args.mode, false)?;
    let wanted = wanted(args)?;
    if let Some(parameters) = &wanted.settings.epoll {
        check_epoll(parameters)?;
    }
    let library = library_for(args, &wanted)?;
    if let Some(why) = library.as_ref().and_then(|_| why_not_preloaded(&program)) {
        let reason = format!("{} {why}, so {} cannot reach its event loop", program.display(), wanted.name);
        if args.strict {
            return Err(Failure::lacks(format!(
                "{reason}: use a mode that needs nothing of the program, such as defer50"
            )));
        }
        eprintln!("abey: {reason}; only the settings of the device are in force");
    }
    let target = if args.queues.is_empty() { Target::Device } else { Target::Queues(args.queues.clone()) };
    let netns = args.namespace.open()?;
    let settings = DeviceSettings::new(netns, target, &wanted.settings.napi, args.journals.clone());
    let named = settings.devices_named(&args.devices)?;
    let library = library.map(|path| (path, library_config(args, &wanted, &named)));
    let needs = library.as_ref().and_then(|(_, config)| Needs::of_kernel(config));
    let judge = Judge::new(args, &wanted.name, &program, needs, settings.netns())?;
    let mut run = Run { args, name: wanted.name, settings, named, judge };

    // Otherwise what a killed Abey left would be restored as the state before this run.
    if !restore_abandoned(&args.journals, Path::new(RUNTIME_UNITS))?.is_empty() {
        eprintln!("abey: put back the settings of an abey that was killed");
    }
    let signals = catch_forwarded()?;
    let mut guard = guard::start(&args.journals)?;
    let outcome = run.program(&program, library.as_ref(), &mut auto, signals, &mut guard);
    let restored = auto.map_or(Ok(()), Auto::finish).and(run.restore());
    guard.dismiss();
    let code = outcome?;
    restored?;
    Ok(ExitCode::from(code))
}

/// Returns the settings that the arguments ask for.
fn wanted(args: &Args) -> Result<Wanted, Failure> {
    let mut wanted = match (args.mode, &args.settings) {
        (Some(ModeChoice::Mode(mode)), _) => Wanted::mode(mode)?,
        // The tuner changes settings while the program runs, and needs none at its start.
        (Some(ModeChoice::Auto), _) => {
            if args.budget.is_some() {
                return Err(Failure::usage("--budget has no effect with --mode auto, which sets it: leave it out"));
            }
            Wanted { name: "auto".to_owned(), ..Wanted::mode(Mode::Base)? }
        }
        (None, Some(file)) => Wanted::file(file)?,
        (None, None) => return Err(Failure::usage("no settings: give --mode or --settings")),
    };
    if let Some(budget) = args.budget {
        let Some(epoll) = &mut wanted.settings.epoll else {
            let what = if args.settings.is_some() { "with" } else { "in mode" };
            let name = &wanted.name;
            return Err(Failure::usage(format!(
                "--budget has no effect {what} `{name}`, which does not busy poll: leave it out"
            )));
        };
        epoll.budget = budget;
    }
    wanted.settings.validate().map_err(Failure::usage)?;
    Ok(wanted)
}

/// Returns the path of the library, if the settings need it.
fn library_for(args: &Args, wanted: &Wanted) -> Result<Option<PathBuf>, Failure> {
    let config = LibraryConfig {
        poll_on_zero_timeout: args.poll_on_zero_timeout,
        steering: args.steer.then(Steering::default),
        ..LibraryConfig::new(wanted.mode, &wanted.settings)
    };
    if config.is_passive() {
        return Ok(None);
    }
    config.validate().map_err(Failure::usage)?;
    find_library().map(Some)
}

fn library_config(args: &Args, wanted: &Wanted, devices: &[Device]) -> LibraryConfig {
    // Workers beyond the number of queues share them; several devices have no common number.
    let queues = match devices {
        [device] => NonZeroU32::new(device.rx_queues),
        _ => None,
    };
    LibraryConfig {
        poll_on_zero_timeout: args.poll_on_zero_timeout,
        steering: args.steer.then_some(Steering { queues }),
        strict: args.strict,
        allows_io_uring: args.allow_io_uring,
        skip: args.skip.clone(),
        ..LibraryConfig::new(wanted.mode, &wanted.settings)
    }
}

/// Interval at which a program is checked until it listens.
const LISTEN_POLL: Duration = Duration::from_millis(20);

/// One `abey run`.
struct Run<'a> {
    args: &'a Args,
    /// Name of the mode or settings file.
    name: String,
    settings: DeviceSettings,
    /// The devices that the arguments name.
    named: Vec<Device>,
    judge: Judge,
}

impl Run<'_> {
    /// Runs the program to its end, and returns its exit status.
    fn program(
        &mut self,
        program: &Path,
        library: Option<&(PathBuf, LibraryConfig)>,
        auto: &mut Option<Auto<'_>>,
        signals: Signals,
        guard: &mut Guard,
    ) -> Result<u8, Failure> {
        // The tuner changes nothing until the program listens.
        if auto.is_none() {
            for device in self.named.clone() {
                self.apply(&device)?;
            }
        }
        let command = self.args.command(program, self.settings.netns(), library)?;
        let mut supervisor = start(command, program, signals, guard)?;
        let mut listen = (self.named.is_empty() || auto.is_some()).then(ListenWait::begin);
        let mut failure = None;
        let check = |members: &[u32]| {
            let next = match self.check(&mut listen, auto, members) {
                Ok(next) => next,
                Err(error) if self.args.strict => {
                    failure = Some(error);
                    Next::Stop
                }
                Err(error) => {
                    eprintln!("abey: {} is not active: {error}", self.name);
                    self.judge.stop();
                    listen = None;
                    if let Some(Err(error)) = auto.take().map(Auto::finish) {
                        eprintln!("abey: {error}");
                    }
                    Next::Wait
                }
            };
            self.judge.judge(members, |_| Claim::None, next)
        };
        let code = supervisor.wait(guard, check, report_background);
        failure.or(self.judge.take_failure()).map_or(Ok(code), Err)
    }

    /// Waits for the program to listen, then applies the settings or starts the tuner; from then on runs the tuner.
    fn check(
        &mut self,
        listen: &mut Option<ListenWait>,
        auto: &mut Option<Auto<'_>>,
        members: &[u32],
    ) -> Result<Next, Failure> {
        let Some(wait) = listen else {
            return auto.as_mut().map_or(Ok(Next::Wait), |auto| auto.end_interval(members));
        };
        let Some(listening) = wait.poll(members)? else { return Ok(Next::CheckAfter(LISTEN_POLL)) };
        *listen = None;
        let devices =
            if self.named.is_empty() { devices_of(self.settings.netns(), &listening)? } else { self.named.clone() };
        let Some(auto) = auto else {
            devices.iter().try_for_each(|device| self.apply(device))?;
            return Ok(Next::Wait);
        };
        for device in devices {
            auto.engage_kernel(self.subject(device, members)?, &self.args.namespace)?;
        }
        auto.end_interval(members)
    }

    /// Returns what the tuner tunes on a device.
    fn subject(&self, device: Device, members: &[u32]) -> Result<KernelSubject, Failure> {
        Ok(KernelSubject {
            netns: self.args.namespace.open()?,
            device,
            target: self.settings.target().clone(),
            server: members.to_vec(),
            cpus: None,
            journals: self.args.journals.clone(),
        })
    }

    fn apply(&mut self, device: &Device) -> Result<(), Failure> {
        for warning in self.settings.apply(device)? {
            eprintln!("abey: {warning}");
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Failure> {
        let (messages, outcome) = self.settings.restore();
        messages.iter().for_each(|message| eprintln!("abey: {message}"));
        outcome.map_err(|error| {
            Failure::check(format!("settings could not be put back: {error}; `abey set --restore` tries again"))
        })
    }
}
