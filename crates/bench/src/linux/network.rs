//! The test network: two namespaces without names, one veth pair, one CPU for either side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, device_named};
use abey_linux::napi::{Napi, napis};
use abey_linux::netlink::{Netlink, NetlinkError};
use abey_linux::netns::NetNs;
use abey_linux::veth::{End, create, set_up};

use crate::BenchError;
use crate::load_run::two_cpus;

/// The range that RFC 2544 sets aside for benchmarks.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
const PREFIX: u8 = 30;

/// The server's port; nobody else is in its namespace.
const PORT: u16 = 11_211;

/// A test network; it vanishes with this value and the processes in it.
pub(super) struct TestBed {
    pub(super) server: NetNs,
    pub(super) client: NetNs,
    pub(super) device: Device,
    pub(super) server_cpu: u32,
    pub(super) client_cpu: u32,
}

impl TestBed {
    pub(super) fn new() -> Result<Self, BenchError> {
        let (client_cpu, server_cpu) = two_cpus(&CpuList::online()?)?;
        let (server, client) = (NetNs::create()?, NetNs::create()?);
        // The poll tracepoint knows devices by name only, across namespaces: the name must be nobody else's.
        let pid = std::process::id();
        let (server_device, client_device) = (format!("abs{pid}"), format!("abc{pid}"));
        create(
            &End { netns: &server, name: &server_device, address: (SERVER, PREFIX) },
            &End { netns: &client, name: &client_device, address: (CLIENT, PREFIX) },
            1,
        )?;
        let mut netlink = Netlink::open(&server)?;
        // A server may look for itself on loopback.
        set_up(&mut netlink, "lo")?;
        let device = device_named(&mut netlink, &server_device, "the test network").map_err(|error| match error {
            abey_linux::device::DeviceError::Netlink(error) => BenchError::Netlink(error),
            other => BenchError::Lacks { what: other.to_string(), advice: "try again" },
        })?;
        Ok(Self { server, client, device, server_cpu, client_cpu })
    }

    /// Where the server listens.
    pub(super) fn address() -> SocketAddr {
        SocketAddr::new(SERVER, PORT)
    }

    /// The NAPI instances that the server receives from.
    pub(super) fn napis(&self) -> Result<Vec<Napi>, NetlinkError> {
        napis(&mut Netlink::open(&self.server)?, Some(self.device.ifindex))
    }

    /// The test bed in words, for the report.
    pub(super) fn description() -> &'static str {
        "veth pair between two network namespaces, GRO on, TSO off, one queue"
    }
}
