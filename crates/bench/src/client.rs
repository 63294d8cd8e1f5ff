//! The load's side of a test network: the kernel's sockets or the datapath's.

use abey_datapath::Runtime;
use abey_delivery::Mode;
use abey_nic::Options;

use crate::datapath::Datapath;
use crate::load_run::Cpus;
use crate::{BenchError, TestBed};

/// Whose sockets the load has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// The kernel's.
    Kernel,
    /// The datapath's, which leaves the server more to do: a kernel client is saturated first.
    Datapath,
}

/// How the load waits on a datapath: it sees an answer as soon as it is there.
pub(crate) const CLIENT_MODE: Mode = Mode::FullBusy;

impl ClientKind {
    /// In words, for the report.
    pub(crate) fn description(self, cpus: Cpus) -> String {
        match self {
            Self::Kernel => format!("over the kernel's sockets, from CPU {}", cpus.client),
            Self::Datapath => format!("over the datapath under {CLIENT_MODE}, from CPU {}", cpus.client),
        }
    }
}

/// The datapath's sockets on the client's end of the pair. The calling thread is in the client's namespace.
pub(crate) fn over_af_xdp(bed: &TestBed) -> Result<Datapath, BenchError> {
    let builder = Runtime::builder().nic(&format!("af_xdp:{}", bed.client_device), Options::default());
    let runtime = builder.mode(CLIENT_MODE).pin(vec![bed.cpus.client as usize]).build()?;
    Ok(Datapath::new(runtime))
}
