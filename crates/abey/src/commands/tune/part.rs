//! Which of the kernel's NAPI instances are steered together, for whom, and whose CPU time counts.

use std::path::PathBuf;

use abey_linux::apply::Target;
use abey_linux::cpu::CpuList;
use abey_linux::device::Device;
use abey_linux::netns::NetNs;

use super::server::Server;
use crate::failure::Failure;

/// What is to be tuned, all of it together.
pub(crate) struct Subject {
    pub(crate) netns: NetNs,
    pub(crate) device: Device,
    pub(crate) target: Target,
    /// The server, whose epoll parameters go with the mode. What is below these processes belongs to it.
    pub(crate) server: Vec<u32>,
    /// The CPUs whose time counts; without any named, those that the server may run on.
    pub(crate) cpus: Option<CpuList>,
    pub(crate) journals: PathBuf,
}

/// Some instances of a device that are steered together.
pub(crate) struct Part {
    pub(crate) device: Device,
    pub(crate) target: Target,
    pub(crate) server: Server,
    pub(crate) cpus: Cpus,
}

/// Whose CPU time counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cpus {
    /// These CPUs'.
    These(CpuList),
    /// That of the CPUs that the server may run on; while none runs, of those that poll.
    Server,
    /// That of the CPUs that poll the instances, wherever those are.
    Polling,
}

impl Cpus {
    /// Those that were named, or the server's; all where nothing is known.
    pub(crate) fn of(named: Option<CpuList>, server: &Server) -> Result<Self, Failure> {
        match named {
            Some(cpus) => {
                cpus.check_online().map_err(Failure::usage)?;
                Ok(Self::These(cpus))
            }
            None if server.cpus().is_empty() => Ok(Self::These(CpuList::online().map_err(Failure::lacks)?)),
            None => Ok(Self::These(server.cpus().clone())),
        }
    }
}
