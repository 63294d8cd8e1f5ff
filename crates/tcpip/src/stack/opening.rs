//! How TCP sockets come about: listening, accepting, connecting.

use core::net::{IpAddr, SocketAddr};

use super::{Entry, Socket, Stack};
use crate::{
    config::EPHEMERAL_LAST,
    error::{IoError, OpenError},
    event::SocketId,
    flow::{Flow, Target},
    listener::Listener,
    tcp::{
        connection::{Connection, Owner},
        handshake::Start,
        seq::Seq,
    },
    time::Instant,
};

/// The local end of a connection to be made; what is `None` is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// One of the host's addresses.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: Option<u16>,
}

impl Stack {
    /// Listens at `at`; port 0 is not chosen for you. `[::]` takes IPv4 too, unless another socket listens on `0.0.0.0`.
    /// At most `backlog` connections wait to be accepted, and as many are half open before SYNs are answered with cookies.
    ///
    /// # Errors
    ///
    /// An address that is taken or not the host's, or too many sockets.
    pub fn listen(&mut self, at: SocketAddr, backlog: usize) -> Result<SocketId, OpenError> {
        self.check_room()?;
        self.check_local(at.ip())?;
        if self.listening.is_taken(at) || at.port() == 0 {
            return Err(OpenError::AddressInUse(at));
        }
        let id = self.insert(Socket::Listener(Box::new(Listener::new(at, backlog))));
        self.listening.insert(at, id);
        Ok(id)
    }

    /// Takes the first connection that waits at `listener`.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if none does.
    pub fn accept(&mut self, listener: SocketId) -> Result<SocketId, IoError> {
        let entry = self.sockets.get_mut(listener).ok_or(IoError::NoSuchSocket)?;
        let Socket::Listener(listening) = &mut entry.socket else { return Err(IoError::WrongKind) };
        let id = listening.queue.pop_front().ok_or(IoError::WouldBlock)?;
        if let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) {
            connection.owner = Owner::Application;
        }
        self.announce(id);
        Ok(id)
    }

    /// Begins a connection to `remote`, which is established, or failed, when the socket becomes writable.
    ///
    /// # Errors
    ///
    /// What is known to be impossible at once.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<SocketId, OpenError> {
        self.connect_from(now, Local::default(), remote, |_| true)
    }

    /// As [`Stack::connect`], from `local`, with a port that `accepts` likes if it is chosen: a NIC with several queues
    /// must bring the answers to this shard.
    ///
    /// # Errors
    ///
    /// What is known to be impossible at once.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: Local,
        remote: SocketAddr,
        accepts: impl FnMut(u16) -> bool,
    ) -> Result<SocketId, OpenError> {
        self.check_room()?;
        let ip = remote.ip();
        let config = self.config();
        if remote.port() == 0
            || ip.is_unspecified()
            || ip.is_multicast()
            || config.is_broadcast(ip)
            || config.is_own(ip)
        {
            return Err(OpenError::BadDestination(remote));
        }
        config.next_hop(ip).ok_or(OpenError::NoRoute(ip))?;
        let address = match local.address {
            Some(address) if config.is_own(address) && address.is_ipv4() == ip.is_ipv4() => address,
            Some(address) => return Err(OpenError::AddressNotAvailable(address)),
            None => config.source_for(ip).ok_or(OpenError::NoRoute(ip))?,
        };
        let flow = Flow { local: address, remote: ip, local_port: 0, remote_port: remote.port() };
        let (flow, from) = match local.port {
            Some(port) => {
                let flow = Flow { local_port: port, ..flow };
                let from = self.claim(now, &flow).ok_or(OpenError::AddressInUse(flow.local()))?;
                (flow, from)
            }
            None => self.choose_port(now, flow, accepts).ok_or(OpenError::NoPort(remote))?,
        };
        Ok(self.open(now, flow, from))
    }

    fn open(&mut self, now: Instant, flow: Flow, from: Option<Seq>) -> SocketId {
        let start = self.start(now, &flow);
        let start = Start { initial: from.map_or(start.initial, |from| start.initial.later(from)), ..start };
        if let Some(Target::TimeWait(id)) = self.flows.find(&flow) {
            self.time_waits.remove(id);
        }
        self.counters.tcp_active_opens += 1;
        let connection = Connection::active(self.config().settings(), flow, start);
        let id = self.insert(Socket::Stream(Box::new(connection)));
        self.flows.insert(flow, Target::Connection(id));
        self.settle(now, id);
        id
    }

    /// Whether `flow` is free, and from which number on if it was used before.
    #[expect(clippy::option_option, reason = "taken; free; free from a number on")]
    fn claim(&self, now: Instant, flow: &Flow) -> Option<Option<Seq>> {
        match self.flows.find(flow) {
            None => Some(None),
            Some(Target::TimeWait(id)) => self.time_waits.reuse(now, id).map(Some),
            Some(Target::Connection(_)) => None,
        }
    }

    /// RFC 6056, algorithm 3: a start that is a keyed hash of the flow, and a counter.
    fn choose_port(
        &mut self,
        now: Instant,
        flow: Flow,
        mut accepts: impl FnMut(u16) -> bool,
    ) -> Option<(Flow, Option<Seq>)> {
        let first = self.config().settings().ephemeral_from;
        let count = u32::from(EPHEMERAL_LAST - first) + 1;
        let start = (self.ports.hash(flow) as u32).wrapping_add(self.port_counter);
        for step in 0..count {
            let port = first + (start.wrapping_add(step) % count) as u16;
            let flow = Flow { local_port: port, ..flow };
            if !accepts(port) {
                continue;
            }
            if let Some(from) = self.claim(now, &flow) {
                self.port_counter = self.port_counter.wrapping_add(step + 1);
                return Some((flow, from));
            }
        }
        None
    }
}
