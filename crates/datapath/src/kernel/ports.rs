//! Ports that are ours: reserved by a kernel socket, and redirected by the XDP program.
//!
//! The program looks at ports and not at addresses, so a reservation is for all of the interface's. The socket is bound to
//! the interface, which leaves the port free on others. A listener that stands beside one of the program's own kernel
//! sockets reserves nothing: that socket holds the port (`adopt`).
//!
//! A port is needed longer than the socket it was opened for: the connection's last segments, and TIME-WAIT, must still
//! come to us, as the kernel would answer them with resets. So the port of a [`Lease`] that is dropped *lingers* until the
//! stack knows no connection of it any more; the control thread looks.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abey_delivery::NapiIndex;
use abey_nic::{Ports, Protocol};
use nix::libc;
use socket2::{Domain, Socket, Type};

use super::Kernel;
use super::lease::{Lease, Users};
use crate::error::OpenError;

/// Ports that are tried at most for one that the NIC steers to the wanted shard.
const TRIES: usize = 1024;
/// How long a port that seems taken is tried again: a program that this process starts has copies of all descriptors until
/// its own image is loaded, and so keeps a port that was just given back.
const STARTING: Duration = Duration::from_millis(50);
/// When a lingering port is looked at again: first, and at most. The time between doubles.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

pub(super) type Key = (Protocol, u16);

/// The reservations of one runtime.
#[derive(Debug)]
pub(super) struct Reservations {
    device: String,
    redirected: Ports,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    reserved: HashMap<Key, Reserved>,
    lingering: Vec<Lingering>,
    over: bool,
}

#[derive(Debug)]
struct Reserved {
    /// Ours that holds the port. `None`: one of the program's does.
    socket: Option<Arc<OwnedFd>>,
    leases: usize,
    /// Nobody listens any more: new connections are left to the kernel, where another process may.
    is_drained: bool,
}

#[derive(Debug)]
struct Lingering {
    key: Key,
    users: Users,
    due: Instant,
    wait: Duration,
}

impl Kernel {
    /// Reserves `port`, which may be ours already.
    pub(crate) fn reserve(self: &Arc<Self>, protocol: Protocol, port: u16) -> Result<Lease, OpenError> {
        let end = Instant::now() + STARTING;
        loop {
            match self.try_reserve(protocol, port) {
                Err(OpenError::PortInUse { .. }) if Instant::now() < end => std::thread::sleep(STARTING / 25),
                result => return result,
            }
        }
    }

    fn try_reserve(self: &Arc<Self>, protocol: Protocol, port: u16) -> Result<Lease, OpenError> {
        let mut table = self.ports.table();
        if table.over {
            return Err(OpenError::RuntimeGone);
        }
        let key = (protocol, port);
        if let Some(reserved) = table.reserved.get_mut(&key) {
            self.ports.join(reserved, key)?;
        } else {
            let socket = self.ports.bind(protocol, port)?;
            self.ports.redirect(&mut table, key, Some(socket))?;
        }
        Ok(Lease::new(self, key))
    }

    /// Takes `port`, which a socket of the program's holds in the kernel.
    pub(crate) fn adopt(self: &Arc<Self>, protocol: Protocol, port: u16) -> Result<Lease, OpenError> {
        let mut table = self.ports.table();
        if table.over {
            return Err(OpenError::RuntimeGone);
        }
        let key = (protocol, port);
        match table.reserved.get_mut(&key) {
            Some(reserved) => self.ports.join(reserved, key)?,
            None => self.ports.redirect(&mut table, key, None)?,
        }
        Ok(Lease::new(self, key))
    }

    /// Reserves a port that the kernel chooses and `accepts` likes.
    pub(crate) fn reserve_any(
        self: &Arc<Self>,
        protocol: Protocol,
        accepts: impl Fn(u16) -> bool,
    ) -> Result<Lease, OpenError> {
        // Those that do not fit are kept until one is found, or the kernel would choose them again.
        let mut misfits = Vec::new();
        let (socket, port) = loop {
            let socket = self.ports.bind(protocol, 0)?;
            let port = port_of(&socket).map_err(|source| self.ports.failed(protocol, 0, source))?;
            if accepts(port) {
                break (socket, port);
            }
            if misfits.len() >= TRIES {
                return Err(OpenError::NoKernelPort { device: self.ports.device.clone() });
            }
            misfits.push(socket);
        };
        let mut table = self.ports.table();
        if table.over {
            return Err(OpenError::RuntimeGone);
        }
        self.ports.redirect(&mut table, (protocol, port), Some(socket))?;
        drop(table);
        Ok(Lease::new(self, (protocol, port)))
    }

    /// Shares a reservation, if there is one.
    pub(crate) fn share(self: &Arc<Self>, protocol: Protocol, port: u16) -> Option<Lease> {
        let key = (protocol, port);
        self.ports.table().reserved.get_mut(&key)?.leases += 1;
        Some(Lease::new(self, key))
    }

    /// Whether a TCP port is reserved that further connections in `shard` can be made from.
    pub(crate) fn has_in(&self, shard: NapiIndex, port: u16) -> bool {
        let arrives = self.handover.as_ref().is_none_or(|handover| handover.get(port) == Some(shard));
        arrives && self.ports.table().reserved.contains_key(&(Protocol::Tcp, port))
    }

    pub(super) fn give_back(&self, key: Key) {
        let mut table = self.ports.table();
        if self.ports.release(&mut table, key)
            && let Some(handover) = &self.handover
        {
            handover.set(key.1, None);
        }
    }

    pub(super) fn linger(&self, key: Key, users: Users) {
        let mut table = self.ports.table();
        let is_first = table.lingering.is_empty();
        table.lingering.push(Lingering { key, users, due: Instant::now() + LOOK.0, wait: LOOK.0 });
        let lingering = table.lingering.iter().filter(|one| one.key == key).count();
        if let Some(reserved) = table.reserved.get_mut(&key)
            && reserved.leases == lingering
        {
            // Were it refused, new connections would be reset for a while.
            reserved.is_drained = self.ports.redirected.drain(key.0, key.1).is_ok();
        }
        drop(table);
        if is_first {
            self.sleeper.wake();
        }
    }

    /// Gives back lingering ports that nobody needs any more. When to look again.
    pub(super) fn look_at_lingering(&self, now: Instant) -> Option<Instant> {
        // The shards are looked at without the table's lock: whoever opens a socket has it the other way round.
        let due: Vec<_> = self.ports.table().lingering.extract_if(.., |lingering| lingering.due <= now).collect();
        let mut kept = Vec::new();
        for mut lingering in due {
            if lingering.users.are_gone() {
                self.give_back(lingering.key);
            } else {
                self.ports.hold(lingering.key);
                lingering.wait = (2 * lingering.wait).min(LOOK.1);
                lingering.due = now + lingering.wait;
                kept.push(lingering);
            }
        }
        let mut table = self.ports.table();
        table.lingering.append(&mut kept);
        table.lingering.iter().map(|lingering| lingering.due).min()
    }
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    let at = socket.local_addr()?.as_socket();
    at.map(|at| at.port()).ok_or_else(|| io::Error::other("the socket has no port"))
}

impl Reservations {
    pub(super) fn new(device: &str, redirected: Ports) -> Self {
        Self { device: device.to_owned(), redirected, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, protocol: Protocol, port: u16, source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) if port == 0 => OpenError::NoKernelPort { device: self.device.clone() },
            Some(libc::EADDRINUSE) => OpenError::PortInUse { protocol, port },
            _ => OpenError::Reserve { protocol, port, device: self.device.clone(), source },
        }
    }

    /// A socket for both versions of IP, bound on the interface; port 0: one that the kernel chooses.
    fn bind(&self, protocol: Protocol, port: u16) -> Result<Socket, OpenError> {
        self.try_bind(protocol, port).map_err(|source| self.failed(protocol, port, source))
    }

    fn try_bind(&self, protocol: Protocol, port: u16) -> io::Result<Socket> {
        let kind = match protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        };
        let (socket, at) = match Socket::new(Domain::IPV6, kind, None) {
            Ok(socket) => {
                socket.set_only_v6(false)?;
                (socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
            }
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                (Socket::new(Domain::IPV4, kind, None)?, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
            }
            Err(error) => return Err(error),
        };
        socket.bind_device(Some(self.device.as_bytes()))?;
        // Connections in TIME-WAIT that a program before us left in the kernel are no obstacle. For binding only: with the
        // option left on, another program could bind the port beside us.
        let over_time_wait = protocol == Protocol::Tcp && port != 0;
        socket.set_reuse_address(over_time_wait)?;
        socket.bind(&at.into())?;
        if over_time_wait {
            socket.set_reuse_address(false)?;
        }
        Ok(socket)
    }

    fn redirect(&self, table: &mut Table, key: Key, socket: Option<Socket>) -> Result<(), OpenError> {
        self.redirected.register(key.0, key.1)?;
        table.reserved.insert(
            key,
            Reserved { socket: socket.map(|socket| Arc::new(socket.into())), leases: 1, is_drained: false },
        );
        Ok(())
    }

    /// One lease more.
    fn join(&self, reserved: &mut Reserved, key: Key) -> Result<(), OpenError> {
        if reserved.is_drained {
            self.redirected.register(key.0, key.1)?;
            reserved.is_drained = false;
        }
        reserved.leases += 1;
        Ok(())
    }

    /// Holds a port that was the program's to hold, now that the program has closed its socket: as Linux does it, so that
    /// only who says SO_REUSEADDR can listen there while connections are left. As long as the program's is open this finds
    /// the port taken, which is as good.
    fn hold(&self, key: Key) {
        let mut table = self.table();
        let Some(reserved) = table.reserved.get_mut(&key) else { return };
        if reserved.socket.is_none()
            && let Ok(socket) = self.try_bind(key.0, key.1)
            && (key.0 == Protocol::Udp || socket.set_reuse_address(true).is_ok())
        {
            reserved.socket = Some(Arc::new(socket.into()));
        }
    }

    /// One lease less; whether it was the last one.
    fn release(&self, table: &mut Table, key: Key) -> bool {
        let Some(reserved) = table.reserved.get_mut(&key) else { return false };
        reserved.leases -= 1;
        if reserved.leases > 0 {
            return false;
        }
        // Nothing can be done about a refusal; the program goes with the runtime at the latest.
        let _ = self.redirected.release(key.0, key.1);
        table.reserved.remove(&key);
        true
    }

    pub(super) fn shut_down(&self) {
        let mut table = self.table();
        table.over = true;
        self.redirected.detach();
        table.lingering.clear();
        table.reserved.clear();
    }

    /// The socket of ours that holds a port.
    pub(super) fn socket(&self, key: Key) -> Option<Arc<OwnedFd>> {
        self.table().reserved.get(&key)?.socket.clone()
    }

    /// How many ports are reserved.
    pub(super) fn count(&self) -> usize {
        self.table().reserved.len()
    }
}
