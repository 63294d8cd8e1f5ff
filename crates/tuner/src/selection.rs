//! The instances that are tuned together, their server, and the CPUs whose time is counted.

use std::path::PathBuf;

use abey_linux::cpu::CpuList;
use abey_linux::device::Device;
use abey_linux::netns::NetNs;
use abey_reconcile::Target;

use crate::TuneError;
use crate::server::Server;

/// Instances of a device to tune together, as `abey run` requests it.
pub struct KernelSubject {
    /// The network namespace of the device.
    pub netns: NetNs,
    /// The device.
    pub device: Device,
    /// Its instances.
    pub target: Target,
    /// The server's processes, whose epoll instances get the mode's busy-poll parameters. Their descendants are included.
    pub server: Vec<u32>,
    /// The CPUs whose time is counted; `None`: those that the server may run on.
    pub cpus: Option<CpuList>,
    /// Directory of the journals.
    pub journals: PathBuf,
}

/// Instances of a device that are tuned together.
pub struct Selection {
    /// The device.
    pub device: Device,
    /// Its instances.
    pub target: Target,
    /// The server that receives from them.
    pub server: Server,
    /// The CPUs whose time is counted.
    pub cpus: CpuAccount,
}

/// The CPUs whose time is counted.
#[derive(Clone, Debug, PartialEq)]
pub enum CpuAccount {
    /// These CPUs.
    Listed(CpuList),
    /// The CPUs that the server may run on; while it does not run, those that poll.
    Server,
    /// The CPUs that poll the instances.
    Polling,
}

impl CpuAccount {
    /// Returns the CPUs that were `listed`, else the server's, else all online ones.
    ///
    /// # Errors
    /// When a listed CPU is offline, or the online CPUs cannot be read.
    pub fn of(listed: Option<CpuList>, server: &Server) -> Result<Self, TuneError> {
        match listed {
            Some(cpus) => {
                cpus.check_online().map_err(TuneError::usage)?;
                Ok(Self::Listed(cpus))
            }
            None if server.cpus().is_empty() => Ok(Self::Listed(CpuList::online().map_err(TuneError::unsupported)?)),
            None => Ok(Self::Listed(server.cpus().clone())),
        }
    }
}
