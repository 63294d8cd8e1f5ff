//! `--nic` and related arguments: a server or a load over Abey's own datapath instead of the kernel's sockets.

mod opened;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use abey_bench::Datapath;
use abey_datapath::{BuildError, Runtime};
use abey_delivery::Mode;
use abey_loadgen::pin_to_cpus;
use abey_nic::{MemoryEnd, NicName, OpenError, Options};

use crate::failure::Failure;
pub(crate) use opened::Opened;
use opened::{Record, Warnings};

#[derive(clap::Args)]
#[command(next_help_heading = "Over Abey's own datapath")]
pub(crate) struct NicArgs {
    /// Use this NIC and Abey's own TCP/IP instead of the kernel's sockets: memory:NAME (which `serve` creates and `load`
    /// attaches to; memory:NAME,user=USER if the other end runs as another user), tap:DEV or af_xdp:DEV.
    #[arg(long, value_name = "NAME")]
    nic: Option<NicName>,
    /// Use this delivery mode at this end [default: `base` to serve, `fullbusy` to load].
    #[arg(long, value_name = "MODE", requires = "nic")]
    mode: Option<Mode>,
    /// Give this end this address and prefix length; may be repeated [default on memory:NAME: 10.0.0.1/24 and
    /// fd00:abe::1/64 to serve, 10.0.0.2/24 and fd00:abe::2/64 to load].
    #[arg(long = "address", value_name = "ADDR/PREFIX", requires = "nic")]
    addresses: Vec<OwnAddress>,
    /// Send packets to destinations outside these prefixes to this gateway; one for IPv4, one for IPv6.
    #[arg(long = "gateway", value_name = "ADDR", requires = "nic")]
    gateways: Vec<IpAddr>,
    /// Number of queue pairs of the NIC [default: one for each serving thread].
    #[arg(long, value_name = "N", requires = "nic")]
    queues: Option<usize>,
    /// Run the NIC's service threads on these CPUs, one for each queue pair [default: the CPUs of `--cpu`].
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "nic")]
    napi_cpu: Vec<usize>,
    /// Record every frame in a pcap file; the checksums of a memory NIC are then computed.
    #[arg(long, value_name = "FILE", requires = "nic")]
    pcap: Option<PathBuf>,
}

/// An end of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Server,
    Client,
}

/// An address of this end and the length of its prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnAddress(pub(crate) IpAddr, pub(crate) u8);

impl FromStr for OwnAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(address, prefix)| {
            let address: IpAddr = address.parse().ok()?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            Some(Self(address, prefix.parse().ok().filter(|prefix| *prefix <= longest)?))
        });
        parsed.ok_or_else(|| {
            format!("`{text}` is not an address with a prefix length: write one such as 10.0.0.1/24 or fd00:abe::1/64")
        })
    }
}

impl NicArgs {
    /// Opens the NIC, if there is one among the arguments, and pins this thread to `cpus`.
    pub(crate) fn open(&self, end: End, threads: usize, cpus: &[usize]) -> Result<Option<Opened>, Failure> {
        let pin = || if cpus.is_empty() { Ok(()) } else { pin_to_cpus(cpus).map_err(Failure::usage) };
        // Service threads without `--napi-cpu` inherit this thread's CPUs.
        if self.napi_cpu.is_empty() {
            pin()?;
        }
        let opened = self.nic.as_ref().map(|nic| self.open_nic(nic, end, threads)).transpose()?;
        if !self.napi_cpu.is_empty() {
            pin()?;
        }
        Ok(opened)
    }

    /// Returns the address to listen on by default: the first one of this end.
    pub(crate) fn default_listen(&self, port: u16) -> SocketAddr {
        match &self.nic {
            None => (Ipv4Addr::LOCALHOST, port).into(),
            // The interface has addresses of its own.
            Some(NicName::AfXdp(_)) => (Ipv4Addr::UNSPECIFIED, port).into(),
            Some(nic) => {
                let first = self.own_addresses(nic, End::Server).first().map(|own| own.0);
                (first.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port).into()
            }
        }
    }

    /// Refuses an address to listen on that this end does not have, as far as its addresses are known.
    pub(crate) fn check_listen(&self, listen: SocketAddr) -> Result<(), Failure> {
        let Some(nic @ (NicName::Memory(_) | NicName::Tap(_))) = &self.nic else { return Ok(()) };
        let own = self.own_addresses(nic, End::Server);
        if listen.ip().is_unspecified() || own.iter().any(|own| own.0 == listen.ip()) {
            return Ok(());
        }
        let own = own.iter().map(|own| own.0.to_string()).collect::<Vec<_>>().join(", ");
        let message = format!(
            "{} is not an address of this end ({own}): add it with --address, or listen on one of these",
            listen.ip()
        );
        Err(Failure::usage(message))
    }

    fn own_addresses(&self, nic: &NicName, end: End) -> Vec<OwnAddress> {
        if !self.addresses.is_empty() || !matches!(nic, NicName::Memory(_)) {
            return self.addresses.clone();
        }
        memory_addresses(end)
    }

    fn open_nic(&self, nic: &NicName, end: End, threads: usize) -> Result<Opened, Failure> {
        self.check(nic, end, threads)?;
        let default = match end {
            End::Server => "base",
            End::Client => "fullbusy",
        };
        let mode = self.mode.unwrap_or_else(|| default.parse().expect("a mode"));
        let mut builder = Runtime::builder().mode(mode).pin(self.napi_cpu.clone());
        for OwnAddress(address, prefix) in self.own_addresses(nic, end) {
            builder = builder.address(address, prefix);
        }
        for gateway in &self.gateways {
            builder = match gateway {
                IpAddr::V4(v4) => builder.gateway_v4(*v4),
                IpAddr::V6(v6) => builder.gateway_v6(*v6),
            };
        }
        builder = builder.nic(&nic.to_string(), self.options(end, threads));
        let record = self.pcap.as_deref().map(Record::new);
        if let Some(record) = record.clone() {
            builder = builder.decorate(move |_, queue| record.wrap(queue));
        }
        let datapath = Datapath::new(builder.build().map_err(build_failure)?);
        record.iter().try_for_each(Record::check)?;
        let queues = datapath.runtime().shards();
        if end == End::Server && threads > queues {
            return Err(too_few_queues(queues, threads));
        }
        Ok(Opened { warnings: Warnings::watch(datapath.clone())?, datapath, record })
    }

    /// Refuses arguments that contradict each other, before anything is opened.
    fn check(&self, nic: &NicName, end: End, threads: usize) -> Result<(), Failure> {
        let refuse = |message: String| Err(Failure::usage(message));
        match nic {
            NicName::Hairpin => {
                return refuse(format!(
                    "{nic} is for a program that connects to itself: use `abey run --world datapath --nic {nic}`, or memory:NAME"
                ));
            }
            NicName::Memory(_) if end == End::Client && self.queues.is_some() => {
                return refuse(format!(
                    "--queues has no effect here, as the process that creates {nic} sets it: leave it out"
                ));
            }
            NicName::Tap(_) if self.addresses.is_empty() => {
                return refuse(format!(
                    "{nic} needs an address of its own: give --address, on the prefix of the kernel's end"
                ));
            }
            NicName::AfXdp(_) if !self.addresses.is_empty() || !self.gateways.is_empty() => {
                return refuse(format!(
                    "{nic} has the addresses and routes of its interface: leave out --address and --gateway"
                ));
            }
            _ => {}
        }
        for version in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
            if self.gateways.iter().filter(|gateway| version(gateway)).count() > 1 {
                return refuse(
                    "two gateways for one IP version: give one for IPv4 and one for IPv6 at most".to_owned(),
                );
            }
        }
        match self.queues {
            Some(queues) if end == End::Server && queues < threads => Err(too_few_queues(queues, threads)),
            _ => Ok(()),
        }
    }

    fn options(&self, end: End, threads: usize) -> Options {
        let mut options = Options::default();
        let queues = self.queues.unwrap_or(if end == End::Server { threads } else { 1 });
        options.memory.queues = queues;
        options.memory.checksum_offload = self.pcap.is_none();
        options.tap_queues = queues;
        options.xdp.queues = self.queues;
        options.end = if end == End::Server { MemoryEnd::Create } else { MemoryEnd::Attach };
        options
    }
}

/// Returns the default addresses of an end of a shared-memory NIC.
pub(crate) fn memory_addresses(end: End) -> Vec<OwnAddress> {
    let last = match end {
        End::Server => 1,
        End::Client => 2,
    };
    let v6 = Ipv6Addr::new(0xfd00, 0xabe, 0, 0, 0, 0, 0, last.into());
    vec![OwnAddress([10, 0, 0, last].into(), 24), OwnAddress(v6.into(), 64)]
}

/// Returns the default addresses of `memory:self`.
pub(crate) fn hairpin_addresses() -> Vec<OwnAddress> {
    vec![OwnAddress(Ipv4Addr::LOCALHOST.into(), 8), OwnAddress(Ipv6Addr::LOCALHOST.into(), 128)]
}

fn too_few_queues(queues: usize, threads: usize) -> Failure {
    Failure::usage(format!(
        "{threads} threads cannot share {queues} queues: give --queues {threads}, or fewer --threads"
    ))
}

fn build_failure(error: BuildError) -> Failure {
    match &error {
        BuildError::Nic(OpenError::InUse { .. }) => Failure::check(error),
        BuildError::Nic(OpenError::Name(_) | OpenError::Options { .. })
        | BuildError::Count { .. }
        | BuildError::Config(_)
        | BuildError::Settings(_)
        | BuildError::Pin { .. } => Failure::usage(error),
        _ => Failure::lacks(error),
    }
}

/// Resolves an address and port. `example` is one for the error message.
pub(crate) fn resolve(text: &str, example: &str) -> Result<SocketAddr, Failure> {
    let hint = format!("write an address and a port, such as {example}");
    let mut addresses = text
        .to_socket_addrs()
        .map_err(|error| Failure::usage(format!("`{text}` is not an address ({error}): {hint}")))?;
    addresses.next().ok_or_else(|| Failure::usage(format!("`{text}` has no address: {hint}")))
}
