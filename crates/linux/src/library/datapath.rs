//! The datapath of a program: one JSON document in one variable, as `abey run --world datapath` writes it:
//!
//! ```text
//! ABEY_DATAPATH={"nic":"memory:kv","mode":"suspend20","addresses":["10.0.0.1/24"],"gateways":[],"queues":1,"cpus":[]}
//! ```

use std::net::IpAddr;

use abey_delivery::Mode;
use serde::{Deserialize, Serialize};

/// The configuration of the datapath that the library builds in the program when the first socket needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathConfig {
    /// The NIC: `memory:NAME`, `memory:self`, `tap:DEV` or `af_xdp:DEV`.
    pub nic: String,
    /// The delivery mode.
    pub mode: Mode,
    /// The host's own addresses, with the length of their prefixes; under AF_XDP those of the interface. Sockets on these
    /// addresses belong to the datapath.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The gateways for destinations on no prefix, at most one for each version of IP.
    pub gateways: Vec<IpAddr>,
    /// The number of queue pairs, for NICs on which this end decides it.
    pub queues: Option<usize>,
    /// The CPUs of the service threads, one for each queue pair, or none.
    pub cpus: Vec<usize>,
    /// The broker that hands out the NIC's queue pairs; without one the process opens the NIC itself.
    pub broker: Option<BrokerAddress>,
}

/// The address of the broker of a NIC, and the secret that authorises a process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BrokerAddress {
    /// The name of its abstract Unix socket.
    pub socket: String,
    /// A secret of 32 characters, passed to the program only.
    pub token: String,
}

/// The JSON form.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    nic: String,
    mode: String,
    addresses: Vec<String>,
    #[serde(default)]
    gateways: Vec<IpAddr>,
    #[serde(default)]
    queues: Option<usize>,
    #[serde(default)]
    cpus: Vec<usize>,
    #[serde(default)]
    broker: Option<BrokerAddress>,
}

impl DatapathConfig {
    /// Returns the variable's value.
    pub(super) fn to_text(&self) -> String {
        let document = Document {
            nic: self.nic.clone(),
            mode: self.mode.to_string(),
            addresses: self.addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect(),
            gateways: self.gateways.clone(),
            queues: self.queues,
            cpus: self.cpus.clone(),
            broker: self.broker.clone(),
        };
        serde_json::to_string(&document).expect("texts and numbers")
    }

    /// Parses the variable's value. The error is a clause that follows a colon.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let addresses = document.addresses.iter().map(|text| {
            let (address, prefix) = text.split_once('/')?;
            Some((address.parse().ok()?, prefix.parse().ok()?))
        });
        let addresses: Option<Vec<(IpAddr, u8)>> = addresses.collect();
        Ok(Self {
            nic: document.nic,
            mode: document.mode.parse::<Mode>().map_err(|error| error.to_string())?,
            addresses: addresses.ok_or("write addresses with their prefixes, such as 10.0.0.1/24")?,
            gateways: document.gateways,
            queues: document.queues,
            cpus: document.cpus,
            broker: document.broker,
        })
    }
}
