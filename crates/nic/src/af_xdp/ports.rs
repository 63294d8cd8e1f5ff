//! Which ports come to us: loads and attaches the XDP program, and changes its map of ports while it runs.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{HashMap, MapData, MapError, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, xdp::XdpMode};
use aya::{Ebpf, EbpfLoader};

use super::filter;
use super::socket::Socket;
use crate::headers::{TCP, UDP};
use crate::open::OpenError;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP over IPv4 and IPv6.
    Tcp,
    /// UDP over IPv4 and IPv6.
    Udp,
}

/// Why a port could not be registered or released.
#[derive(Debug, thiserror::Error)]
#[error("cannot change which ports {device} redirects ({protocol:?} {port}): {source}")]
pub struct PortsError {
    device: String,
    protocol: Protocol,
    port: u16,
    source: io::Error,
}

/// The ports that are redirected to an AF_XDP NIC. Clones are handles of the same set.
///
/// At first there are none. When the last handle and the last queue pair go, the program is detached.
#[derive(Clone, Debug)]
pub struct Ports {
    device: String,
    program: Arc<Program>,
}

struct Program {
    ports: Mutex<HashMap<MapData, u32, u32>>,
    /// Keeps the sockets in the map.
    _sockets: XskMap<MapData>,
    /// Detaches when dropped, and when the process ends.
    link: Mutex<Option<FdLink>>,
    _loaded: Ebpf,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Ports {
    /// Redirects what is sent to `port` to us, from now on.
    ///
    /// # Errors
    /// When the kernel refuses, most likely because 65,536 ports are registered.
    pub fn register(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.change(protocol, port, |ports, key| ports.insert(key, 1, 0))
    }

    /// Leaves what is sent to `port` to the kernel again. A port that was not registered stays so.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn release(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.change(protocol, port, |ports, key| match ports.remove(&key) {
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        })
    }

    /// Detaches the program now, whatever handles there still are: every frame goes to the kernel from here on.
    pub fn detach(&self) {
        self.program.link.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn change(
        &self,
        protocol: Protocol,
        port: u16,
        change: impl FnOnce(&mut HashMap<MapData, u32, u32>, u32) -> Result<(), MapError>,
    ) -> Result<(), PortsError> {
        let number = match protocol {
            Protocol::Tcp => TCP,
            Protocol::Udp => UDP,
        };
        let mut ports = self.program.ports.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut ports, filter::key(number, port)).map_err(|error| PortsError {
            device: self.device.clone(),
            protocol,
            port,
            source: map_error(error),
        })
    }

    /// Loads the program, gives it the sockets and attaches it.
    pub(super) fn attach(device: &str, index: u32, generic: bool, sockets: &[Socket]) -> Result<Self, OpenError> {
        let system = |action| {
            let device = device.to_owned();
            move |source| OpenError::System { action, device, source }
        };
        let load = |error: String| system("load the XDP program of")(io::Error::other(error));
        let mut loaded = EbpfLoader::new().load(&filter::object_file()).map_err(|error| load(chain(&error)))?;
        let mut map = |name| loaded.take_map(name).ok_or_else(|| load(format!("it has no map {name}")));
        let ports = HashMap::try_from(map(filter::PORTS)?).map_err(|error| load(chain(&error)))?;
        let mut queues = XskMap::try_from(map(filter::SOCKETS)?).map_err(|error| load(chain(&error)))?;
        for (queue, socket) in sockets.iter().enumerate() {
            let set = queues.set(queue as u32, socket.as_fd().as_raw_fd(), 0);
            set.map_err(map_error).map_err(system("give its sockets to"))?;
        }
        let link = attach(&mut loaded, device, index, generic)?;
        let program =
            Program { ports: Mutex::new(ports), _sockets: queues, link: Mutex::new(Some(link)), _loaded: loaded };
        Ok(Self { device: device.to_owned(), program: Arc::new(program) })
    }
}

/// Loads the program into the kernel and attaches it by a link.
fn attach(loaded: &mut Ebpf, device: &str, index: u32, generic: bool) -> Result<FdLink, OpenError> {
    let refused = |action: &'static str, error: ProgramError| {
        let number = match &error {
            ProgramError::LoadError { io_error, .. } => io_error.raw_os_error(),
            ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
            _ => None,
        };
        let device = device.to_owned();
        match number {
            Some(libc::EPERM | libc::EACCES) => OpenError::Permission { device, needs: "CAP_BPF and CAP_NET_ADMIN" },
            Some(libc::EBUSY | libc::EEXIST) => OpenError::Refused {
                device,
                reason: "another XDP program is attached to it; detach that one first".to_owned(),
            },
            Some(libc::ENOSPC) => OpenError::Refused {
                device,
                reason: "it is a veth with fewer receive queues than its peer has transmit queues".to_owned(),
            },
            Some(libc::EOPNOTSUPP) => {
                OpenError::Refused { device, reason: "its driver has no XDP; ask for a generic program".to_owned() }
            }
            _ => OpenError::System { action, device, source: io::Error::other(chain(&error)) },
        }
    };
    let program = loaded.program_mut(filter::PROGRAM).expect("the object has the program");
    let program: &mut Xdp = program.try_into().expect("it is an XDP program");
    program.load().map_err(|error| refused("load the XDP program of", error))?;
    let mode = if generic { XdpMode::Skb } else { XdpMode::Driver };
    let id = program.attach_to_if_index(index, mode).map_err(|error| refused("attach the XDP program to", error))?;
    let link = program.take_link(id).map_err(|error| refused("attach the XDP program to", error))?;
    // Before Linux 5.9 there are only attachments that outlive their process.
    link.try_into().map_err(|_| OpenError::Refused {
        device: device.to_owned(),
        reason: "the kernel has no BPF links for XDP (it needs Linux 5.9)".to_owned(),
    })
}

fn map_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        other => io::Error::other(chain(&other)),
    }
}

/// An error and what it was caused by, in one sentence.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::interface::Interface;

    #[test]
    fn a_program_that_is_there_already_is_left_alone() {
        if !nix::unistd::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: needs root and the `ip` program to make a device");
            return;
        }
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace");
            let words = ["link", "add", "v0", "type", "veth", "peer", "name", "v1"];
            assert!(Command::new("ip").args(words).status().expect("ip").success());
            let index = Interface::new("v0").expect("a socket").index().expect("a device");
            let first = Ports::attach("af_xdp:v0", index, false, &[]).expect("attach");
            let second = Ports::attach("af_xdp:v0", index, false, &[]).expect_err("one program at a time").to_string();
            assert!(second.contains("another XDP program is attached to it"), "{second}");
            first.register(Protocol::Tcp, 80).expect("the first still works");
            let handle = first.clone();
            drop(first);
            Ports::attach("af_xdp:v0", index, false, &[]).expect_err("a handle keeps it");
            handle.detach();
            Ports::attach("af_xdp:v0", index, false, &[]).expect("and makes room when it goes");
        };
        std::thread::spawn(test).join().expect("the test");
    }
}
