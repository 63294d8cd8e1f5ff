//! `abey run --world datapath`: the program's sockets on the NIC's addresses run over Abey's own datapath.
//!
//! The library builds the datapath in the program itself, in each process whose sockets need it, from queue pairs that
//! the [broker](super::broker) gives out. What the datapath takes of the machine (an XDP program, a shared-memory NIC) goes
//! with this process or the program, however they end.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use abey_delivery::Mode;
use abey_linux::apply::Place;
use abey_linux::device::{device_named, prefixes};
use abey_linux::library::{self, DatapathConfig, LibraryConfig};
use abey_linux::netns::NetNs;
use abey_nic::{MemoryEnd, NicName, Options};

use super::auto::ModeChoice;
use super::broker::{Broker, Terms};
use super::{Args, command_of, start_guarded};
use crate::commands::guard::Guard;
use crate::failure::Failure;
use crate::nic_args::{End, OwnAddress, memory_addresses};
use crate::program::{find_program, why_not_preloaded};
use crate::supervise::{Signals, Watch};

/// The NIC of `--world datapath`.
#[derive(clap::Args)]
#[command(next_help_heading = "With --world datapath")]
pub(super) struct NicChoice {
    /// The NIC that the program's sockets are to use: memory:NAME (which the program creates), tap:DEV or af_xdp:DEV
    #[arg(long, value_name = "NAME")]
    nic: Option<NicName>,
    /// An address of the NIC, and the length of its prefix; may be repeated [default on memory:NAME: 10.0.0.1/24 and
    /// fd00:abe::1/64; on af_xdp:DEV the interface's own]
    #[arg(long = "address", value_name = "ADDR/PREFIX", requires = "nic")]
    addresses: Vec<OwnAddress>,
    /// Where packets go whose destination is on no prefix; one for IPv4, one for IPv6
    #[arg(long = "gateway", value_name = "ADDR", requires = "nic")]
    gateways: Vec<IpAddr>,
    /// Queue pairs of the NIC [default: 1, on af_xdp:DEV those of the device]
    #[arg(long, value_name = "N", requires = "nic")]
    nic_queues: Option<usize>,
    /// Queue pairs that each process of the program gets [default: all, and processes that were forked share them]
    #[arg(long, value_name = "N", requires = "nic")]
    nic_queues_per_process: Option<NonZeroUsize>,
    /// Run the NIC's service threads on these CPUs, one for each queue pair
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "nic")]
    napi_cpu: Vec<usize>,
}

impl NicChoice {
    /// In the linux world there is no NIC of ours.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        match &self.nic {
            Some(_) => Err(Failure::usage("--nic is the datapath's: add --world datapath")),
            None => Ok(()),
        }
    }

    /// How to open it.
    fn options(&self) -> Options {
        let mut options = Options::default();
        // A server's end; whoever loads it attaches.
        options.end = MemoryEnd::Create;
        if let Some(queues) = self.nic_queues {
            options.memory.queues = queues;
            options.tap_queues = queues;
            options.xdp.queues = Some(queues);
        }
        options
    }

    /// The addresses that say which sockets are the datapath's.
    fn own_addresses(&self, nic: &NicName, netns: &NetNs) -> Result<Vec<(IpAddr, u8)>, Failure> {
        let given = || self.addresses.iter().map(|OwnAddress(address, prefix)| (*address, *prefix)).collect();
        match nic {
            NicName::AfXdp(device) => {
                if !self.addresses.is_empty() || !self.gateways.is_empty() {
                    return Err(Failure::usage(format!(
                        "{nic} has the addresses and routes of its interface: leave out --address and --gateway"
                    )));
                }
                let mut place = Place::open(netns)?;
                let found = device_named(place.netlink(), device, netns.description())?;
                prefixes(place.netlink(), &found).map_err(Failure::lacks)
            }
            _ if !self.addresses.is_empty() => Ok(given()),
            NicName::Memory(_) => {
                Ok(memory_addresses(End::Server).into_iter().map(|OwnAddress(at, prefix)| (at, prefix)).collect())
            }
            _ => Err(Failure::usage(format!(
                "{nic} needs an address of its own: give --address, on the prefix of the kernel's end"
            ))),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut auto = args.auto.wanted(args.mode, true)?;
    let program = find_program(&args.command[0])?;
    let (nic, mut config) = library_config(args)?;
    if let Some(why) = why_not_preloaded(&program) {
        let said = format!("{} {why}, so its sockets cannot be reached", program.display());
        if args.strict {
            return Err(Failure::lacks(format!("{said}: leave --strict out to run it on the kernel's")));
        }
        eprintln!("abey: {said}; it runs on the kernel's");
    }
    let exe = std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
    let path = library::find_library(&exe).map_err(Failure::lacks)?;
    let netns = args.namespace.open()?;
    let mut command = command_of(args, &program, &netns)?;
    let signals = Signals::catch().map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    let broker = start_broker(args, nic, netns)?;
    if let Some(datapath) = &mut config.datapath {
        datapath.broker = broker.as_ref().map(|broker| broker.address().clone());
    }
    let library = broker.as_ref().map(|_| (path.as_path(), &config));
    library::equip(&mut command, library, std::env::var_os("LD_PRELOAD").as_deref());
    // If this process is killed the guard ends the program; there are no settings to put back.
    let mut guard = Guard::start(&args.journals)
        .map_err(|error| Failure::lacks(format!("cannot start the guard process: {error}")))?;
    let mut supervised = start_guarded(command, &program, signals, &mut guard)?;
    let code = supervised.wait(&mut guard, |members| {
        let Some(tuner) = &mut auto else { return Watch::Signals };
        tuner.look_at_datapaths(members).unwrap_or_else(|error| {
            eprintln!("abey: auto is not active: {error}");
            auto = None;
            Watch::Signals
        })
    });
    guard.dismiss();
    match broker.and_then(|broker| broker.failure()) {
        Some(why) => Err(Failure::lacks(format!("{why}; the program was ended, as --strict asks"))),
        None => Ok(ExitCode::from(code)),
    }
}

/// Who gives out the queue pairs; none, which is said, where the NIC cannot be had and the kernel will do.
fn start_broker(args: &Args, nic: NicName, netns: NetNs) -> Result<Option<Broker>, Failure> {
    let each = args.nic.nic_queues_per_process.map(NonZeroUsize::get);
    let terms = Terms { nic, options: args.nic.options(), each, strict: args.strict };
    match Broker::start(terms, netns) {
        Ok(broker) => Ok(Some(broker)),
        Err(error) if args.strict => Err(Failure::lacks(error)),
        Err(error) => {
            eprintln!("abey: {error}; the program runs on the kernel's sockets");
            Ok(None)
        }
    }
}

fn library_config(args: &Args) -> Result<(NicName, LibraryConfig), Failure> {
    let Some(nic) = &args.nic.nic else {
        return Err(Failure::usage("--world datapath needs a NIC: give --nic memory:NAME, tap:DEV or af_xdp:DEV"));
    };
    let mode = match args.mode {
        Some(ModeChoice::Mode(mode)) => Some(mode),
        // The tuner takes it from there.
        Some(ModeChoice::Auto) => Some(Mode::Base),
        None => None,
    };
    let Some(mode) = mode else {
        return Err(Failure::usage("--world datapath takes a mode by its name: give --mode, such as suspend20"));
    };
    let of_the_kernel = [
        (!args.devices.is_empty(), "--dev"),
        (args.steer, "--steer"),
        (args.poll_on_zero_timeout, "--poll-on-zero-timeout"),
        (args.budget.is_some(), "--budget"),
    ];
    if let Some((_, option)) = of_the_kernel.into_iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!("{option} is about the kernel's NAPI: leave it out with --world datapath")));
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
        skip: args.skip.clone(),
        ..LibraryConfig::default()
    };
    Ok((nic.clone(), config))
}
