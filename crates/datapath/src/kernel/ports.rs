//! The runtime's ports: reserved in the kernel by a bound socket, and redirected by the XDP program.
//!
//! The XDP program matches ports and not addresses, so a reservation is for all addresses of the interface. The socket is
//! bound to the interface, which leaves the port free on others. A port on which a kernel socket of the program listens
//! needs no reservation: that socket holds it ([`Reservations::adopt`]).
//!
//! A port is needed for longer than the socket for which it was opened. The last segments of a connection, and those in
//! TIME-WAIT, must still arrive here; the kernel would answer them with resets. So the port of a dropped [`Lease`] *lingers*
//! until the stack has forgotten all its connections. The kernel thread checks that.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use abey_delivery::NapiIndex;
use abey_nic::{Ports, Protocol};
use nix::libc;
use socket2::{Domain, Socket, Type};

use crate::error::OpenError;
use crate::shard::{KernelLink, Shard};

/// The most ports that are tried for one that the NIC steers to the wanted shard.
const MAX_TRIES: usize = 1024;
/// How long the reservation of a port in use is tried again. A child process has copies of all descriptors until `execve`,
/// and so holds a port that was just released.
const EXEC_TIMEOUT: Duration = Duration::from_millis(50);
/// The first and the longest time between two checks of a lingering port. The time doubles after each check.
const LINGER_CHECK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A port of a protocol.
type PortKey = (Protocol, u16);

/// The ports of one runtime.
#[derive(Debug)]
pub(crate) struct Reservations {
    device: String,
    /// The ports that the XDP program redirects.
    redirected: Ports,
    link: Arc<KernelLink>,
    table: Mutex<Table>,
    /// Number of ports that are paused.
    paused: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    reserved: HashMap<PortKey, Reserved>,
    lingering: Vec<Lingering>,
    /// UDP ports that were passed to the kernel, where another process may have a socket of them.
    passed: BTreeSet<u16>,
    is_shut_down: bool,
}

#[derive(Debug)]
struct Reserved {
    /// The runtime's kernel socket that holds the port; `None` if a socket of the program does.
    socket: Option<Arc<OwnedFd>>,
    leases: usize,
    /// No socket listens any more. New connections go to the kernel, where another process may listen.
    is_drained: bool,
    /// The shards in which the listener has no room or no time. New connections go to the kernel, where the program's socket
    /// listens: the NIC may steer the next one to any shard.
    paused_in: BTreeSet<u32>,
}

#[derive(Debug)]
struct Lingering {
    key: PortKey,
    users: PortUsers,
    next_check: Instant,
    interval: Duration,
}

/// The connections that need a port after its lease is dropped.
#[derive(Debug)]
pub(crate) enum PortUsers {
    /// None.
    None,
    /// One connection.
    Flow { shard: Weak<Shard>, local: SocketAddr, remote: SocketAddr },
    /// Every connection with this local port.
    Port { shards: Vec<Weak<Shard>>, port: u16 },
}

impl PortUsers {
    fn have_ended(&self) -> bool {
        match self {
            Self::None => true,
            Self::Flow { shard, local, remote } => shard
                .upgrade()
                .is_none_or(|shard| shard.with(|core| core.is_shut_down || !core.stack.has_flow(*local, *remote))),
            Self::Port { shards, port } => shards
                .iter()
                .filter_map(Weak::upgrade)
                .all(|shard| shard.with(|core| core.is_shut_down || !core.stack.has_flow_at(*port))),
        }
    }
}

/// A port that stays reserved and redirected until this is dropped and its users have ended.
#[derive(Debug)]
pub(crate) struct Lease {
    ports: Arc<Reservations>,
    key: PortKey,
    users: PortUsers,
}

impl Lease {
    fn new(ports: &Arc<Reservations>, key: PortKey) -> Self {
        Self { ports: ports.clone(), key, users: PortUsers::None }
    }

    pub(crate) fn port(&self) -> u16 {
        self.key.1
    }

    /// Sets the connections that need the port after the lease is dropped.
    pub(crate) fn set_users(&mut self, users: PortUsers) {
        self.users = users;
    }

    /// Redirects new connections again, after [`Reservations::pause`].
    pub(crate) fn resume(&self) {
        self.ports.resume(self.port(), None);
    }

    /// Returns whether new connections go to the kernel until [`Self::resume`].
    pub(crate) fn is_paused(&self) -> bool {
        self.ports.paused.load(Ordering::Relaxed) > 0
            && self.ports.table().reserved.get(&self.key).is_some_and(|reserved| !reserved.paused_in.is_empty())
    }

    /// Passes new connections to the kernel, until [`Self::resume`].
    pub(crate) fn pause(&self, shard: NapiIndex) {
        self.ports.pause(self.port(), shard);
    }

    /// Returns the ports of the runtime.
    pub(crate) fn ports(&self) -> &Reservations {
        &self.ports
    }

    /// Sets the shard in which connections from this port live. Must precede their first packet.
    pub(crate) fn set_shard(&self, shard: NapiIndex) {
        self.ports.set_owner(self.port(), Some(shard));
    }

    /// Returns the runtime's kernel socket that holds the port, bound and not listening. `None` if the runtime was dropped,
    /// or a socket of the program holds the port.
    pub(crate) fn kernel_socket(&self) -> Option<Arc<OwnedFd>> {
        self.ports.table().reserved.get(&self.key)?.socket.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let users = std::mem::replace(&mut self.users, PortUsers::None);
        if users.have_ended() {
            self.ports.release(self.key);
        } else {
            self.ports.linger(self.key, users);
        }
    }
}

impl Reservations {
    pub(super) fn new(device: &str, redirected: Ports, link: Arc<KernelLink>) -> Self {
        Self { device: device.to_owned(), redirected, link, table: Mutex::default(), paused: AtomicUsize::new(0) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_table(&self) -> Result<MutexGuard<'_, Table>, OpenError> {
        let table = self.table();
        if table.is_shut_down { Err(OpenError::RuntimeDropped) } else { Ok(table) }
    }

    /// Reserves `port`, which the runtime may have reserved already.
    pub(crate) fn reserve(self: &Arc<Self>, protocol: Protocol, port: u16) -> Result<Lease, OpenError> {
        let end = Instant::now() + EXEC_TIMEOUT;
        loop {
            match self.try_reserve((protocol, port)) {
                Err(OpenError::PortInUse { .. }) if Instant::now() < end => std::thread::sleep(EXEC_TIMEOUT / 25),
                result => return result,
            }
        }
    }

    fn try_reserve(self: &Arc<Self>, key: PortKey) -> Result<Lease, OpenError> {
        let mut table = self.open_table()?;
        if let Some(reserved) = table.reserved.get_mut(&key) {
            self.add_lease(reserved, key)?;
        } else {
            let socket = self.bind(key)?;
            self.redirect(&mut table, key, (Some(socket), None))?;
        }
        Ok(Lease::new(self, key))
    }

    /// Redirects `port`, which a kernel socket of the program holds. A broker requires that socket.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        protocol: Protocol,
        port: u16,
        holder: Option<BorrowedFd<'_>>,
    ) -> Result<Lease, OpenError> {
        let mut table = self.open_table()?;
        let key = (protocol, port);
        match table.reserved.get_mut(&key) {
            Some(reserved) => self.add_lease(reserved, key)?,
            None => self.redirect(&mut table, key, (None, holder))?,
        }
        Ok(Lease::new(self, key))
    }

    /// Reserves a port that the kernel chooses, and that `accepts` allows.
    pub(crate) fn reserve_any(
        self: &Arc<Self>,
        protocol: Protocol,
        accepts: impl Fn(u16) -> bool,
    ) -> Result<Lease, OpenError> {
        // Rejected ports stay bound until the end, or the kernel would choose them again.
        let mut rejected = Vec::new();
        let (socket, port) = loop {
            let socket = self.bind((protocol, 0))?;
            let port = port_of(&socket).map_err(|source| self.error((protocol, 0), source))?;
            if accepts(port) {
                break (socket, port);
            }
            if rejected.len() >= MAX_TRIES {
                return Err(OpenError::NoKernelPort { device: self.device.clone() });
            }
            rejected.push(socket);
        };
        self.redirect(&mut *self.open_table()?, (protocol, port), (Some(socket), None))?;
        Ok(Lease::new(self, (protocol, port)))
    }

    /// Returns another lease of a reserved port.
    pub(crate) fn share(self: &Arc<Self>, protocol: Protocol, port: u16) -> Option<Lease> {
        let key = (protocol, port);
        self.table().reserved.get_mut(&key)?.leases += 1;
        Some(Lease::new(self, key))
    }

    /// Returns whether a TCP port is reserved from which more connections in `shard` can be made.
    pub(crate) fn can_connect_from(&self, shard: NapiIndex, port: u16) -> bool {
        let arrives = self.link.port_owners.as_ref().is_none_or(|owners| owners.get(port) == Some(shard));
        arrives && self.table().reserved.contains_key(&(Protocol::Tcp, port))
    }

    /// Passes new connections to a TCP port to the kernel, because the listener in a shard has no room or no time, until
    /// [`Self::resume`]. Connections that began here stay.
    pub(crate) fn pause(&self, port: u16, shard: NapiIndex) {
        let mut table = self.table();
        let key = (Protocol::Tcp, port);
        let Some(reserved) = table.reserved.get_mut(&key).filter(|reserved| reserved.socket.is_none()) else { return };
        if reserved.paused_in.insert(shard.0) && reserved.paused_in.len() == 1 {
            self.paused.fetch_add(1, Ordering::Relaxed);
            if !reserved.is_drained {
                // If this fails, SYNs continue to be held.
                let _ = self.redirected.drain(key.0, key.1);
            }
        }
    }

    /// Redirects new connections again, if the listener has room and time in all shards; without a shard, it has in all.
    pub(crate) fn resume(&self, port: u16, shard: Option<NapiIndex>) {
        let mut table = self.table();
        let key = (Protocol::Tcp, port);
        let Some(reserved) = table.reserved.get_mut(&key).filter(|reserved| !reserved.paused_in.is_empty()) else {
            return;
        };
        match shard {
            Some(shard) => reserved.paused_in.retain(|paused| *paused != shard.0),
            None => reserved.paused_in.clear(),
        }
        if reserved.paused_in.is_empty() {
            self.paused.fetch_sub(1, Ordering::Relaxed);
            if !reserved.is_drained {
                // If this fails, new connections stay with the kernel.
                let _ = self.redirected.register(key.0, key.1);
            }
        }
    }

    /// Returns the ports that are redirected, which also pass single connections.
    pub(crate) fn redirected(&self) -> &Ports {
        &self.redirected
    }

    /// Returns the number of reserved ports.
    pub(crate) fn count(&self) -> usize {
        self.table().reserved.len()
    }

    /// Releases every port.
    pub(super) fn shut_down(&self) {
        let mut table = self.table();
        table.is_shut_down = true;
        self.redirected.detach();
        table.lingering.clear();
        table.reserved.clear();
    }

    fn set_owner(&self, port: u16, shard: Option<NapiIndex>) {
        if let Some(owners) = &self.link.port_owners {
            owners.set(port, shard);
        }
    }

    /// Releases one lease.
    fn release(&self, key: PortKey) {
        let mut table = self.table();
        if self.remove_lease(&mut table, key) {
            self.set_owner(key.1, None);
        }
    }

    /// Keeps the port of a dropped lease until its users have ended.
    fn linger(&self, key: PortKey, users: PortUsers) {
        let mut table = self.table();
        let is_first = table.lingering.is_empty();
        let interval = LINGER_CHECK.0;
        table.lingering.push(Lingering { key, users, next_check: Instant::now() + interval, interval });
        let lingering = table.lingering.iter().filter(|one| one.key == key).count();
        if let Some(reserved) = table.reserved.get_mut(&key)
            && reserved.leases == lingering
        {
            // If this fails, the stack resets new connections until the port is released.
            reserved.is_drained = self.redirected.drain(key.0, key.1).is_ok();
        }
        drop(table);
        if is_first {
            self.link.parker.unpark();
        }
    }

    /// Releases the lingering ports whose users have ended. Returns when to check again.
    pub(super) fn release_lingering(&self, now: Instant) -> Option<Instant> {
        // The users are checked without the table's lock: a thread that opens a socket locks the shard, then the table.
        let due: Vec<_> = self.table().lingering.extract_if(.., |lingering| lingering.next_check <= now).collect();
        let mut in_use = Vec::new();
        for mut lingering in due {
            if lingering.users.have_ended() {
                self.release(lingering.key);
            } else {
                self.hold(lingering.key);
                lingering.interval = (2 * lingering.interval).min(LINGER_CHECK.1);
                lingering.next_check = now + lingering.interval;
                in_use.push(lingering);
            }
        }
        let mut table = self.table();
        table.lingering.append(&mut in_use);
        table.lingering.iter().map(|lingering| lingering.next_check).min()
    }

    fn error(&self, (protocol, port): PortKey, source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) if port == 0 => OpenError::NoKernelPort { device: self.device.clone() },
            Some(libc::EADDRINUSE) => OpenError::PortInUse { protocol, port },
            _ => OpenError::Reserve { protocol, port, device: self.device.clone(), source },
        }
    }

    /// Binds a kernel socket for both versions of IP on the interface. For port 0 the kernel chooses one.
    fn bind(&self, key: PortKey) -> Result<Socket, OpenError> {
        self.try_bind(key).map_err(|source| self.error(key, source))
    }

    fn try_bind(&self, (protocol, port): PortKey) -> io::Result<Socket> {
        let kind = match protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        };
        let (socket, address) = match Socket::new(Domain::IPV6, kind, None) {
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
        // The option lets the socket bind a port with connections in TIME-WAIT, which an earlier program left in the
        // kernel. It is cleared after the bind, because with it another program could bind the same port.
        let over_time_wait = protocol == Protocol::Tcp && port != 0;
        socket.set_reuse_address(over_time_wait)?;
        socket.bind(&address.into())?;
        if over_time_wait {
            socket.set_reuse_address(false)?;
        }
        Ok(socket)
    }

    /// Redirects a port that a socket of the runtime holds, or one of the program.
    fn redirect(
        &self,
        table: &mut Table,
        key: PortKey,
        (socket, holder): (Option<Socket>, Option<BorrowedFd<'_>>),
    ) -> Result<(), OpenError> {
        self.redirected.register_bound(key.0, key.1, socket.as_ref().map(AsFd::as_fd).or(holder))?;
        let socket = socket.map(|socket| Arc::new(socket.into()));
        table.reserved.insert(key, Reserved { socket, leases: 1, is_drained: false, paused_in: BTreeSet::new() });
        Ok(())
    }

    /// Adds a lease, and redirects new connections again if the port was drained.
    fn add_lease(&self, reserved: &mut Reserved, key: PortKey) -> Result<(), OpenError> {
        if reserved.is_drained {
            self.forget_pauses(reserved);
            self.redirected.register(key.0, key.1)?;
            reserved.is_drained = false;
        }
        reserved.leases += 1;
        Ok(())
    }

    fn forget_pauses(&self, reserved: &mut Reserved) {
        if !reserved.paused_in.is_empty() {
            reserved.paused_in.clear();
            self.paused.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Checks that a lease is the only one of its port.
    ///
    /// # Errors
    /// There are others.
    pub(crate) fn check_single(&self, lease: &Lease) -> io::Result<()> {
        let is_single = self.table().reserved.get(&lease.key).is_some_and(|reserved| reserved.leases == 1);
        if is_single { Ok(()) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    /// Passes the packets of a lease's port to the kernel, although the lease lives on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn pass(&self, lease: &Lease) -> io::Result<()> {
        let (protocol, port) = lease.key;
        self.redirected.release(protocol, port).map_err(abey_nic::PortsError::into_source)?;
        self.table().passed.insert(port);
        Ok(())
    }

    /// Returns whether a UDP port was [passed](Self::pass) to the kernel.
    pub(crate) fn was_passed(&self, port: u16) -> bool {
        self.table().passed.contains(&port)
    }

    /// Removes a lease. Returns whether it was the last one.
    fn remove_lease(&self, table: &mut Table, key: PortKey) -> bool {
        let Some(reserved) = table.reserved.get_mut(&key) else { return false };
        reserved.leases -= 1;
        if reserved.leases > 0 {
            return false;
        }
        // If this fails, the port stays redirected until the runtime is dropped.
        let _ = self.redirected.release(key.0, key.1);
        self.forget_pauses(reserved);
        table.reserved.remove(&key);
        true
    }

    /// Holds a port that a socket of the program held, after the program has closed that socket.
    ///
    /// As in Linux, only a socket with SO_REUSEADDR can then listen there while connections are left. While the program's
    /// socket is open, this finds the port in use and does nothing.
    fn hold(&self, key: PortKey) {
        let mut table = self.table();
        let Some(reserved) = table.reserved.get_mut(&key) else { return };
        if reserved.socket.is_none()
            && let Ok(socket) = self.try_bind(key)
            && (key.0 == Protocol::Udp || socket.set_reuse_address(true).is_ok())
        {
            reserved.socket = Some(Arc::new(socket.into()));
        }
    }
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    address.map(|address| address.port()).ok_or_else(|| io::Error::other("the socket has no port"))
}
