//! The client side: sockets of the kernel or of the datapath.

use abey_datapath::Runtime;
use abey_delivery::Mode;
use abey_nic::Options;

use crate::datapath::Datapath;
use crate::load_driver::Cpus;
use crate::{BenchError, VethNetwork};

/// The network stack of the load's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// The kernel.
    Kernel,
    /// The datapath, which can saturate a server that a kernel client cannot.
    Datapath,
}

/// The mode of a datapath client, which polls without sleeping and so sees a response as soon as it arrives.
pub(crate) const CLIENT_MODE: Mode = Mode::FullBusy;

impl ClientKind {
    /// Describes the client for the report.
    pub(crate) fn description(self, cpus: Cpus) -> String {
        match self {
            Self::Kernel => format!("over the kernel's sockets, from CPU {}", cpus.client),
            Self::Datapath => format!("over the datapath under {CLIENT_MODE}, from CPU {}", cpus.client),
        }
    }
}

/// Opens a datapath on the client's end of the veth pair. The calling thread must be in the client's namespace.
pub(crate) fn over_af_xdp(network: &VethNetwork) -> Result<Datapath, BenchError> {
    let builder = Runtime::builder().nic(&format!("af_xdp:{}", network.client_device), Options::default());
    let runtime = builder.mode(CLIENT_MODE).pin(vec![network.cpus.client as usize]).build()?;
    Ok(Datapath::new(runtime))
}
