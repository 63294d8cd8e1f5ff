//! `abey run --world datapath`: the program's sockets on the NIC's addresses use Abey's own TCP/IP.
//!
//! The library builds the datapath in each process of the program that opens such a socket, from queue pairs of the
//! [broker](abey_supervise::broker). What a datapath occupies on the machine (an XDP program, a shared-memory NIC) is freed
//! when this process or the program ends, for whatever reason.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use abey_delivery::Mode;
use abey_linux::device::{device_named, prefixes};
use abey_linux::engagement::Needs;
use abey_linux::kernel::NetnsHandle;
use abey_linux::library::{DatapathConfig, LibraryConfig};
use abey_linux::netns::NetNs;
use abey_nic::{MemoryEnd, NicName, Options};
use abey_supervise::broker::{BrokerConfig, BrokerThread, Claim};
use abey_supervise::program::{find_program, why_not_preloaded};
use abey_supervise::supervisor::Next;

use super::auto::ModeChoice;
use super::engagement::Judge;
use super::{Args, catch_forwarded, find_library, report_background, start};
use crate::commands::guard;
use crate::failure::Failure;
use crate::nic_args::{End, OwnAddress, hairpin_addresses, memory_addresses};

/// The NIC of `--world datapath`.
#[derive(clap::Args)]
#[command(next_help_heading = "With --world datapath")]
pub(super) struct NicChoice {
    /// Use this NIC for the program's sockets: memory:NAME (which the program creates), tap:DEV, af_xdp:DEV, or memory:self
    /// (no peer: a program's connections to itself)
    #[arg(long, value_name = "NAME")]
    nic: Option<NicName>,
    /// Give the NIC this address and prefix length; may be repeated [default on memory:NAME: 10.0.0.1/24 and
    /// fd00:abe::1/64; on memory:self 127.0.0.1/8 and ::1/128; on af_xdp:DEV the interface's own]
    #[arg(long = "address", value_name = "ADDR/PREFIX", requires = "nic")]
    addresses: Vec<OwnAddress>,
    /// Send packets to destinations outside these prefixes to this gateway; one for IPv4, one for IPv6
    #[arg(long = "gateway", value_name = "ADDR", requires = "nic")]
    gateways: Vec<IpAddr>,
    /// Number of queue pairs of the NIC [default: 1; on af_xdp:DEV those of the device]
    #[arg(long, value_name = "N", requires = "nic")]
    nic_queues: Option<usize>,
    /// Number of queue pairs that each process of the program gets [default: all; forked processes share them]
    #[arg(long, value_name = "N", requires = "nic")]
    nic_queues_per_process: Option<NonZeroUsize>,
    /// Run the NIC's service threads on these CPUs, one for each queue pair
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "nic")]
    napi_cpu: Vec<usize>,
}

impl NicChoice {
    /// Refuses `--nic` in the linux world.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        match &self.nic {
            Some(_) => Err(Failure::usage("--nic has no effect without --world datapath: add `--world datapath`")),
            None => Ok(()),
        }
    }

    /// Returns the options for opening the NIC.
    fn options(&self) -> Options {
        let mut options = Options::default();
        // The program is a server: its clients attach.
        options.end = MemoryEnd::Create;
        if let Some(queues) = self.nic_queues {
            options.memory.queues = queues;
            options.tap_queues = queues;
            options.xdp.queues = Some(queues);
        }
        options
    }

    /// Returns the addresses of the sockets that the datapath handles, with their prefix lengths.
    fn own_addresses(&self, nic: &NicName, netns: &NetNs) -> Result<Vec<(IpAddr, u8)>, Failure> {
        let pairs =
            |own: Vec<OwnAddress>| own.into_iter().map(|OwnAddress(address, prefix)| (address, prefix)).collect();
        match nic {
            NicName::AfXdp(device) => {
                if !self.addresses.is_empty() || !self.gateways.is_empty() {
                    return Err(Failure::usage(format!(
                        "{nic} has the addresses and routes of its interface: leave out --address and --gateway"
                    )));
                }
                let mut place = NetnsHandle::open(netns)?;
                let found = device_named(place.netlink(), device, netns.description())?;
                prefixes(place.netlink(), &found).map_err(Failure::lacks)
            }
            _ if !self.addresses.is_empty() => Ok(pairs(self.addresses.clone())),
            NicName::Memory(_) => Ok(pairs(memory_addresses(End::Server))),
            NicName::Hairpin => Ok(pairs(hairpin_addresses())),
            _ => Err(Failure::usage(format!(
                "{nic} needs an address of its own: give --address, on the prefix of the kernel's end"
            ))),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut auto = args.auto.wanted(args.mode, true)?;
    let program = find_program(&args.command[0])?;
    let (nic, config) = library_config(args)?;
    if let Some(why) = why_not_preloaded(&program) {
        let reason = format!("{} {why}, so its sockets cannot be reached", program.display());
        if args.strict {
            return Err(Failure::lacks(format!("{reason}: leave out --strict to run it on the kernel's sockets")));
        }
        eprintln!("abey: {reason}; it runs on the kernel's sockets");
    }
    let path = find_library()?;
    let netns = args.namespace.open()?;
    let signals = catch_forwarded()?;
    let needs = needs(&nic, &config, &netns)?;
    // `memory:self` needs no broker: each process opens one of its own.
    let is_private = nic == NicName::Hairpin;
    let broker = if is_private { None } else { start_broker(args, nic, args.namespace.open()?)? };
    let mode = args.mode.map_or_else(String::new, |mode| mode.to_string());
    // Without a broker the program runs on the kernel's sockets, which was reported. Connections of a program to itself
    // may be the kernel's.
    let mut judge = Judge::new(args, &mode, &program, needs.filter(|_| broker.is_some()), &netns)?;
    let library = match &broker {
        Some(broker) => Some((path, with_broker(config, broker))),
        None => is_private.then_some((path, config)),
    };
    let command = args.command(&program, &netns, library.as_ref())?;
    // If this process is killed the guard ends the program; there are no settings to restore.
    let mut guard = guard::start(&args.journals)?;
    let mut supervisor = start(command, &program, signals, &guard)?;
    let check = |members: &[u32]| {
        let next = auto.as_mut().map_or(Ok(Next::Wait), |tuner| tuner.end_datapath_interval(members));
        let next = next.unwrap_or_else(|error| {
            eprintln!("abey: auto is not active: {error}");
            auto = None;
            Next::Wait
        });
        let claim = |pid| broker.as_ref().map_or(Claim::None, |broker| broker.claim(pid));
        judge.judge(members, claim, next)
    };
    let code = supervisor.wait(&mut guard, check, report_background);
    guard.dismiss();
    if let Some(failure) = judge.take_failure() {
        return Err(failure);
    }
    match broker.and_then(|broker| broker.failure()) {
        Some(reason) => Err(Failure::lacks(format!("{reason}; --strict has ended the program"))),
        None => Ok(ExitCode::from(code)),
    }
}

/// Returns what the datapath needs of the program's sockets; nothing if there is no broker and so no datapath.
fn needs(nic: &NicName, config: &LibraryConfig, netns: &NetNs) -> Result<Option<Needs>, Failure> {
    let Some(datapath) = &config.datapath else { return Ok(None) };
    let device = match nic {
        NicName::AfXdp(device) => {
            let mut place = NetnsHandle::open(netns)?;
            Some(device_named(place.netlink(), device, netns.description())?.ifindex)
        }
        _ => None,
    };
    let addresses = datapath.addresses.iter().map(|(address, _)| *address).collect();
    Ok(Some(Needs::Datapath { addresses, device }))
}

/// Starts the broker. Without `--strict`, a NIC that cannot be opened is a warning, and there is no broker.
fn start_broker(args: &Args, nic: NicName, netns: NetNs) -> Result<Option<BrokerThread>, Failure> {
    let config = BrokerConfig {
        nic,
        options: args.nic.options(),
        queues_per_process: args.nic.nic_queues_per_process.map(NonZeroUsize::get),
        strict: args.strict,
        report: Box::new(|message| eprintln!("abey: {message}")),
    };
    match BrokerThread::start(config, netns) {
        Ok(broker) => Ok(Some(broker)),
        Err(error) if args.strict => Err(Failure::lacks(error)),
        Err(error) => {
            eprintln!("abey: {error}; the program runs on the kernel's sockets");
            Ok(None)
        }
    }
}

fn with_broker(config: LibraryConfig, broker: &BrokerThread) -> LibraryConfig {
    let datapath =
        config.datapath.map(|datapath| DatapathConfig { broker: Some(broker.address().clone()), ..datapath });
    LibraryConfig { datapath, ..config }
}

/// Returns the NIC, and the library's configuration without a broker.
fn library_config(args: &Args) -> Result<(NicName, LibraryConfig), Failure> {
    let Some(nic) = &args.nic.nic else {
        return Err(Failure::usage("--world datapath needs a NIC: give --nic memory:NAME, tap:DEV or af_xdp:DEV"));
    };
    let mode = match args.mode {
        Some(ModeChoice::Mode(mode)) => Some(mode),
        // The tuner begins with base.
        Some(ModeChoice::Auto) => Some(Mode::Base),
        None => None,
    };
    let Some(mode) = mode else {
        return Err(Failure::usage("--world datapath takes a mode by its name: give --mode, such as suspend20"));
    };
    let kernel_options = [
        (!args.devices.is_empty(), "--dev"),
        (args.steer, "--steer"),
        (args.poll_on_zero_timeout, "--poll-on-zero-timeout"),
        (args.budget.is_some(), "--budget"),
    ];
    if let Some((_, option)) = kernel_options.into_iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!("{option} is for the kernel's NAPI: leave it out with --world datapath")));
    }
    let netns = args.namespace.open()?;
    let datapath = DatapathConfig {
        nic: nic.to_string(),
        mode,
        addresses: args.nic.own_addresses(nic, &netns)?,
        gateways: args.nic.gateways.clone(),
        queues: args.nic.nic_queues,
        cpus: args.nic.napi_cpu.clone(),
        broker: None,
    };
    let config = LibraryConfig {
        mode: Some(mode),
        datapath: Some(datapath),
        strict: args.strict,
        allows_io_uring: args.allow_io_uring,
        skip: args.skip.clone(),
        ..LibraryConfig::default()
    };
    Ok((nic.clone(), config))
}
