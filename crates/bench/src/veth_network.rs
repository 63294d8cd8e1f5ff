//! The test network: a veth pair between two anonymous network namespaces, with one CPU for each side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use abey_linux::device::{Device, DeviceError, device_named, has_xdp};
use abey_linux::napi::{Napi, napis};
use abey_linux::netlink::{Netlink, NetlinkError};
use abey_linux::netns::NetNs;
use abey_testbed::veth::{End, compute_checksums, create, set_up};

use crate::BenchError;
use crate::load_driver::Cpus;

// Addresses of the range that RFC 2544 reserves for benchmarks.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

/// The receivers of a test network's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// The kernel at both ends. Checksums are left out.
    KernelOnly,
    /// A stack in user space at one end or both. Every packet has its checksum.
    Any,
}

/// A test network, which the kernel removes after this value and the processes in it have ended.
#[derive(Debug)]
pub struct VethNetwork {
    pub(crate) server: NetNs,
    pub(crate) client: NetNs,
    pub(crate) device: Device,
    pub(crate) client_device: String,
    pub(crate) cpus: Cpus,
    receivers: Receivers,
}

impl VethNetwork {
    /// Prefix length of the addresses, in bits.
    pub(crate) const PREFIX: u8 = 30;

    /// Creates a test network.
    ///
    /// # Errors
    /// [`BenchError`] without the privilege to create network namespaces, or on a kernel without support.
    pub fn new(cpus: Cpus, receivers: Receivers) -> Result<Self, BenchError> {
        let (server, client) = (NetNs::create()?, NetNs::create()?);
        // The poll tracepoint identifies devices by name across namespaces, so that the name must be unique.
        let pid = std::process::id();
        let (server_device, client_device) = (format!("abs{pid}"), format!("abc{pid}"));
        create(
            &End { netns: &server, name: &server_device, address: (SERVER, Self::PREFIX) },
            &End { netns: &client, name: &client_device, address: (CLIENT, Self::PREFIX) },
            1,
        )?;
        if receivers == Receivers::Any {
            for (netns, device) in [(&server, &server_device), (&client, &client_device)] {
                compute_checksums(netns, device)?;
            }
        }
        // A server may connect to itself over loopback.
        set_up(&server, "lo")?;
        let mut netlink = Netlink::open(&server)?;
        let device = device_named(&mut netlink, &server_device, "the test network").map_err(device_error)?;
        Ok(Self { server, client, device, client_device, cpus, receivers })
    }

    /// Returns the server's namespace.
    pub fn server(&self) -> &NetNs {
        &self.server
    }

    /// Returns the load's namespace.
    pub fn client(&self) -> &NetNs {
        &self.client
    }

    /// Returns the server's end of the pair.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the server's address with this port. All ports are free, since the namespace has no other program.
    pub fn address(port: u16) -> SocketAddr {
        SocketAddr::new(SERVER, port)
    }

    /// Returns the NAPI instances of the server's device.
    pub(crate) fn napis(&self) -> Result<Vec<Napi>, NetlinkError> {
        napis(&mut Netlink::open(&self.server)?, Some(self.device.ifindex))
    }

    /// Checks that no XDP program of an earlier server diverts packets from the kernel.
    pub(crate) fn check_no_xdp(&self) -> Result<(), BenchError> {
        for (netns, device) in [(&self.server, &self.device.name), (&self.client, &self.client_device)] {
            let mut netlink = Netlink::open(netns)?;
            let found = device_named(&mut netlink, device, netns.description()).map_err(device_error)?;
            if has_xdp(&mut netlink, found.ifindex)? {
                return Err(BenchError::XdpLeft(device.clone()));
            }
        }
        Ok(())
    }

    /// Describes the network for the report.
    pub(crate) fn description(&self) -> &'static str {
        match self.receivers {
            Receivers::KernelOnly => "veth pair between two network namespaces, GRO on, TSO off, one queue",
            Receivers::Any => {
                "veth pair between two network namespaces, GRO on, TSO off, transmit checksums made by the sender, one queue"
            }
        }
    }
}

fn device_error(error: DeviceError) -> BenchError {
    match error {
        DeviceError::Netlink(error) => BenchError::Netlink(error),
        other => BenchError::Lacks { what: other.to_string(), advice: "try again" },
    }
}
