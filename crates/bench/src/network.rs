//! The test network: two namespaces without names, one veth pair, one CPU for either side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use abey_linux::device::{Device, DeviceError, device_named, has_xdp};
use abey_linux::napi::{Napi, napis};
use abey_linux::netlink::{Netlink, NetlinkError};
use abey_linux::netns::NetNs;
use abey_linux::veth::{End, compute_checksums, create, set_up};

use crate::BenchError;
use crate::load_run::Cpus;

/// The range that RFC 2544 sets aside for benchmarks.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

/// Who gets the packets of a test network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takers {
    /// The kernel at both ends, which knows that a veth leaves checksums out.
    Kernel,
    /// A stack in user space as well, which has to see them: every packet has its checksum, whoever gets it.
    Any,
}

/// A test network; it vanishes with this value and the processes in it.
#[derive(Debug)]
pub struct TestBed {
    pub(crate) server: NetNs,
    pub(crate) client: NetNs,
    pub(crate) device: Device,
    pub(crate) client_device: String,
    pub(crate) cpus: Cpus,
    takers: Takers,
}

impl TestBed {
    /// The length of the prefix that both ends are on, in bits.
    pub(crate) const PREFIX: u8 = 30;

    /// Makes one.
    ///
    /// # Errors
    /// This user may not make network namespaces, or the kernel lacks what is needed.
    pub fn new(cpus: Cpus, takers: Takers) -> Result<Self, BenchError> {
        let (server, client) = (NetNs::create()?, NetNs::create()?);
        // The poll tracepoint knows devices by name only, across namespaces: the name must be nobody else's.
        let pid = std::process::id();
        let (server_device, client_device) = (format!("abs{pid}"), format!("abc{pid}"));
        create(
            &End { netns: &server, name: &server_device, address: (SERVER, Self::PREFIX) },
            &End { netns: &client, name: &client_device, address: (CLIENT, Self::PREFIX) },
            1,
        )?;
        if takers == Takers::Any {
            for (netns, device) in [(&server, &server_device), (&client, &client_device)] {
                compute_checksums(netns, device)?;
            }
        }
        let mut netlink = Netlink::open(&server)?;
        // A server may look for itself on loopback.
        set_up(&mut netlink, "lo")?;
        let device = device_named(&mut netlink, &server_device, "the test network").map_err(gone)?;
        Ok(Self { server, client, device, client_device, cpus, takers })
    }

    /// The namespace of the server.
    pub fn server(&self) -> &NetNs {
        &self.server
    }

    /// The namespace of the load.
    pub fn client(&self) -> &NetNs {
        &self.client
    }

    /// The server's end of the pair.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where a server listens on this port; nobody else is in its namespace.
    pub fn address(port: u16) -> SocketAddr {
        SocketAddr::new(SERVER, port)
    }

    /// The NAPI instances that the server receives from.
    pub(crate) fn napis(&self) -> Result<Vec<Napi>, NetlinkError> {
        napis(&mut Netlink::open(&self.server)?, Some(self.device.ifindex))
    }

    /// That no XDP program of a server before takes the packets away from the kernel.
    pub(crate) fn check_is_the_kernels(&self) -> Result<(), BenchError> {
        for (netns, device) in [(&self.server, &self.device.name), (&self.client, &self.client_device)] {
            let mut netlink = Netlink::open(netns)?;
            let found = device_named(&mut netlink, device, netns.description()).map_err(gone)?;
            if has_xdp(&mut netlink, found.ifindex)? {
                return Err(BenchError::XdpLeft(device.clone()));
            }
        }
        Ok(())
    }

    /// The test bed in words, for the report.
    pub(crate) fn description(&self) -> &'static str {
        match self.takers {
            Takers::Kernel => "veth pair between two network namespaces, GRO on, TSO off, one queue",
            Takers::Any => {
                "veth pair between two network namespaces, GRO on, TSO off, transmit checksums made by the sender, one queue"
            }
        }
    }
}

fn gone(error: DeviceError) -> BenchError {
    match error {
        DeviceError::Netlink(error) => BenchError::Netlink(error),
        other => BenchError::Lacks { what: other.to_string(), advice: "try again" },
    }
}
