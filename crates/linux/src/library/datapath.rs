//! The datapath that a program is to use: one document in one variable.
//!
//! It is JSON, as `abey run --world datapath` writes it:
//!
//! ```text
//! ABEY_DATAPATH={"nic":"memory:kv","mode":"suspend20","addresses":["10.0.0.1/24"],"gateways":[],"queues":1,"cpus":[]}
//! ```

use std::net::IpAddr;

use abey_delivery::Mode;
use serde::{Deserialize, Serialize};

/// A runtime of the datapath, as the library builds it in the program when the first socket needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathConfig {
    /// The NIC: `memory:NAME`, `tap:DEV` or `af_xdp:DEV`.
    pub nic: String,
    /// The delivery mode.
    pub mode: Mode,
    /// The host's own addresses, with the length of their prefixes. Under AF_XDP those of the interface: they say which
    /// sockets are ours.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Where packets go whose destination is on no prefix, at most one for each version of IP.
    pub gateways: Vec<IpAddr>,
    /// How many queue pairs, where that is for the program's end to say.
    pub queues: Option<usize>,
    /// The CPUs of the service threads, one for each queue pair, or none.
    pub cpus: Vec<usize>,
    /// Who gives the NIC's queue pairs out; without one the process opens the NIC itself.
    pub broker: Option<BrokerAddress>,
}

/// Where the broker of a NIC is reached, and how it knows whom to give queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BrokerAddress {
    /// The name of its abstract Unix socket.
    pub socket: String,
    /// 32 characters that only the program is told.
    pub token: String,
}

/// What is written.
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
    /// The variable's value.
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

    /// Reads the variable's value; what is wrong with it, in words that follow a colon.
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
