//! The loaded XDP program: attaching it, and changing its maps while it runs.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use abey_bpf::error_chain;
use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, xdp::XdpMode};

use super::addresses::Addresses;
use super::filter::{self, Port, Queues};
use super::flows::HeldFlows;
use super::holder::holder;
use super::inject;
use super::offers::{self, Handshake, Offers};
use crate::error::OpenError;
use crate::headers::{TCP, UDP};
use crate::redirect::Protocol;

/// A loaded program and its maps.
pub(super) struct Program {
    device: String,
    ports: Mutex<HashMap<MapData, u32, Port>>,
    sockets: Mutex<XskMap<MapData>>,
    addresses: Mutex<Addresses>,
    held: Mutex<HeldFlows>,
    /// The program that passes injected frames to the kernel, once it was needed.
    pass: OnceLock<Option<OwnedFd>>,
    /// The program for offered connections, once it was needed; `None` if the kernel has not what it needs.
    offers: Mutex<Option<Option<Offers>>>,
    /// Detaches the program when dropped; the kernel does so when the process ends.
    link: Mutex<Option<FdLink>>,
    loaded: Mutex<Ebpf>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Program").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Program {
    /// Loads the program without attaching it.
    pub(super) fn load(device: &str) -> Result<Self, OpenError> {
        let load = |error: String| OpenError::System {
            action: "load the XDP program of",
            device: device.to_owned(),
            source: io::Error::other(error),
        };
        let mut loaded = abey_bpf::load(&filter::object()).map_err(|error| load(error_chain(&error)))?;
        let mut map = |name| loaded.take_map(name).ok_or_else(|| load(format!("it has no map {name}")));
        let ports = HashMap::try_from(map(filter::PORTS)?).map_err(|error| load(error_chain(&error)))?;
        let sockets = XskMap::try_from(map(filter::SOCKETS)?).map_err(|error| load(error_chain(&error)))?;
        let addresses = HashMap::try_from(map(filter::ADDRESSES)?).map_err(|error| load(error_chain(&error)))?;
        let held = HashMap::try_from(map(filter::HELD_FLOWS)?).map_err(|error| load(error_chain(&error)))?;
        Ok(Self {
            device: device.to_owned(),
            ports: Mutex::new(ports),
            sockets: Mutex::new(sockets),
            addresses: Mutex::new(Addresses::new(addresses)),
            held: Mutex::new(HeldFlows::new(held)),
            pass: OnceLock::new(),
            offers: Mutex::default(),
            link: Mutex::new(None),
            loaded: Mutex::new(loaded),
        })
    }

    /// Attaches the program to the device of this index.
    pub(super) fn attach(&self, index: u32, generic: bool) -> Result<(), OpenError> {
        let link = attach(&mut lock(&self.loaded), &self.device, index, generic)?;
        *lock(&self.link) = Some(link);
        Ok(())
    }

    /// Detaches the program.
    pub(super) fn detach(&self) {
        lock(&self.offers).take();
        lock(&self.link).take();
    }

    /// Redirects frames of `queue` to a socket, or with `None` to the kernel.
    pub(super) fn set_socket(&self, queue: u32, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut sockets = lock(&self.sockets);
        match socket {
            Some(socket) => sockets.set(queue, socket.as_raw_fd(), 0).map_err(map_error),
            None => match sockets.unset(queue).map_err(map_error) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
        }
    }

    /// Changes the queues on which a port is open and has flows.
    pub(super) fn change_port(&self, protocol: Protocol, port: u16, change: impl FnOnce(&mut Port)) -> io::Result<()> {
        let number = match protocol {
            Protocol::Tcp => TCP,
            Protocol::Udp => UDP,
        };
        let key = filter::key(number, port);
        let mut ports = lock(&self.ports);
        let nowhere = [filter::NO_QUEUE; 3];
        let has_held = u8::from(lock(&self.held).has_port(port) && protocol == Protocol::Tcp);
        let mut entry = match ports.get(&key, 0) {
            Ok(entry) => entry,
            Err(MapError::KeyNotFound) => nowhere,
            Err(error) => return Err(map_error(error)),
        };
        let before = entry;
        change(&mut entry);
        entry[filter::HELD][0] = if entry[..filter::HELD] == nowhere[..filter::HELD] { 0 } else { has_held };
        if entry == before {
            return Ok(());
        }
        let changed = if entry == nowhere { ports.remove(&key) } else { ports.insert(key, entry, 0) };
        changed.map_err(map_error)
    }
}

/// Addresses, and connections that are handed over to the kernel.
impl Program {
    /// Changes the queues where an address is served.
    pub(super) fn change_address(&self, address: IpAddr, change: impl FnOnce(&mut Queues)) -> io::Result<()> {
        lock(&self.addresses).change(address, change)
    }

    /// Redirects the segments of a TCP connection even if the kernel has a socket of it.
    pub(super) fn hold_flow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        lock(&self.held).insert(local, remote)?;
        self.change_port(Protocol::Tcp, local.port(), |_| ())
    }

    /// Offers a connection to the kernel's listener. `ack` is the segment that ended its handshake; without it, that segment has
    /// still to arrive. After an error nothing has changed.
    pub(super) fn offer(
        &self,
        index: u32,
        (local, remote): (SocketAddr, SocketAddr),
        handshake: &Handshake,
        ack: Option<&[u8]>,
    ) -> io::Result<()> {
        let mut offers = lock(&self.offers);
        let offers = offers.get_or_insert_with(|| Offers::attach(index).ok()).as_mut();
        let offers = offers.ok_or_else(unsupported)?;
        offers.insert(local, remote, handshake)?;
        let taken = ack.map_or(Ok(()), |ack| {
            self.inject(index, ack)?;
            offers::await_socket(local, remote)
        });
        taken.inspect_err(|_| offers.remove(local, remote))
    }

    /// Attaches the program for offers to the device of this index, unless it is.
    pub(super) fn prepare_offers(&self, index: u32) -> io::Result<()> {
        let mut offers = lock(&self.offers);
        offers.get_or_insert_with(|| Offers::attach(index).ok()).as_ref().map(|_| ()).ok_or_else(unsupported)
    }

    /// Ends [`Self::hold_flow`].
    pub(super) fn release_flow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        lock(&self.held).remove(local, remote)?;
        self.change_port(Protocol::Tcp, local.port(), |_| ())
    }

    /// Runs the program on a frame without any effect. Returns its verdict and the duration of a run in nanoseconds.
    #[cfg(test)]
    pub(super) fn try_on(&self, index: u32, frame: &[u8], repeat: u32) -> io::Result<(u32, u32)> {
        let loaded = lock(&self.loaded);
        let program: &Xdp = loaded.program(filter::PROGRAM).expect("it is loaded").try_into().expect("an XDP program");
        inject::run(program.fd().expect("it is attached").as_fd(), index, frame, 0, repeat)
    }

    /// Gives a frame to the kernel as if the device of this index had received it.
    pub(super) fn inject(&self, index: u32, frame: &[u8]) -> io::Result<()> {
        let pass = self.pass.get_or_init(|| load_pass(&mut lock(&self.loaded)).ok());
        let pass = pass.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        inject::inject(pass.as_fd(), index, frame)
    }
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// Loads the program that passes every frame.
fn load_pass(loaded: &mut Ebpf) -> Result<OwnedFd, ProgramError> {
    let program = loaded.program_mut(filter::PASS_PROGRAM).expect("the object has the program");
    let program: &mut Xdp = program.try_into().expect("it is an XDP program");
    program.load()?;
    program.fd()?.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
                reason: match holder(index) {
                    Some((name, pid)) => {
                        format!("the XDP program of {name} (pid {pid}) is attached to it; end that process first")
                    }
                    None => "another XDP program is attached to it; detach that one first".to_owned(),
                },
            },
            Some(libc::ENOSPC) => OpenError::Refused {
                device,
                reason: "it is a veth with fewer receive queues than its peer has transmit queues".to_owned(),
            },
            Some(libc::EOPNOTSUPP) => {
                OpenError::Refused { device, reason: "its driver has no XDP; ask for a generic program".to_owned() }
            }
            _ => OpenError::System { action, device, source: io::Error::other(error_chain(&error)) },
        }
    };
    let program = loaded.program_mut(filter::PROGRAM).expect("the object has the program");
    let program: &mut Xdp = program.try_into().expect("it is an XDP program");
    program.load().map_err(|error| refused("load the XDP program of", error))?;
    let mode = if generic { XdpMode::Skb } else { XdpMode::Driver };
    let id = program.attach_to_if_index(index, mode).map_err(|error| refused("attach the XDP program to", error))?;
    let link = program.take_link(id).map_err(|error| refused("attach the XDP program to", error))?;
    // Before Linux 5.9 attachments outlive their process.
    link.try_into().map_err(|_| OpenError::Refused {
        device: device.to_owned(),
        reason: "the kernel has no BPF links for XDP (it needs Linux 5.9)".to_owned(),
    })
}

pub(super) fn map_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        other => io::Error::other(error_chain(&other)),
    }
}
