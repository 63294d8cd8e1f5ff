//! Opening of TCP sockets: listen, accept and connect.

use core::net::{IpAddr, SocketAddr};

use super::{Entry, Socket, Stack};
use crate::{
    TcpOptions,
    demux::Target,
    error::{IoError, OpenError},
    event::SocketId,
    flow::Flow,
    listener::Listener,
    tcp::{
        connection::{Connection, Owner},
        handshake::InitialParameters,
        seq::Seq,
    },
    time::Instant,
};

/// Local endpoint of a connection to be opened; the stack chooses what is `None`. With the options that the connection has
/// from its SYN on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// One of the host's addresses.
    pub address: Option<IpAddr>,
    /// Local port.
    pub port: Option<u16>,
    /// Options of the connection.
    pub options: TcpOptions,
}

impl Stack {
    /// Listens on `at`, whose port must not be 0. `[::]` also receives IPv4 unless another socket listens on
    /// `0.0.0.0`. The accept queue holds at most `backlog` connections; beyond `backlog` half-open connections, SYNs
    /// are answered with cookies.
    ///
    /// # Errors
    ///
    /// The address is in use or is not the host's, or there are too many sockets.
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

    /// Accepts the first connection in the queue of `listener`.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if the queue is empty.
    pub fn accept(&mut self, listener: SocketId) -> Result<SocketId, IoError> {
        let entry = self.sockets.get_mut(listener).ok_or(IoError::NoSuchSocket)?;
        let Socket::Listener(listening) = &mut entry.socket else { return Err(IoError::WrongKind) };
        let id = listening.queue.pop_front().ok_or(IoError::WouldBlock)?.id;
        if let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) {
            connection.owner = Owner::Application;
        }
        self.enqueue(id);
        self.resume_listener(listener);
        Ok(id)
    }

    /// Starts to connect to `remote`. The socket becomes writable when the connection is established or has failed.
    ///
    /// # Errors
    ///
    /// The destination is invalid or unreachable, no port is free, or there are too many sockets.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<SocketId, OpenError> {
        self.connect_from(now, LocalEndpoint::default(), remote, |_| true)
    }

    /// Like [`Stack::connect`], from `local`. An ephemeral port is chosen among those for which `accepts` returns
    /// true, so that a NIC with several queues delivers the answers to this shard.
    ///
    /// # Errors
    ///
    /// As [`Stack::connect`]; the local address is in use or is not the host's.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: LocalEndpoint,
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
            || config.is_local(ip) && !config.is_hairpin(ip)
        {
            return Err(OpenError::BadDestination(remote));
        }
        config.next_hop(ip).ok_or(OpenError::NoRoute(ip))?;
        let address = match local.address {
            Some(address) if config.is_local(address) && address.is_ipv4() == ip.is_ipv4() => address,
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
        Ok(self.open(now, flow, from, &local.options))
    }

    fn open(&mut self, now: Instant, flow: Flow, from: Option<Seq>, options: &TcpOptions) -> SocketId {
        let start = self.initial_parameters(now, &flow);
        let start =
            InitialParameters { initial: from.map_or(start.initial, |from| start.initial.later(from)), ..start };
        if let Some(Target::TimeWait(id)) = self.flows.find(&flow) {
            self.time_waits.remove(id);
        }
        self.counters.tcp_active_opens += 1;
        let settings = self.config().settings();
        let mut connection = Connection::active(settings, flow, start);
        connection.configure(now, settings, options);
        let id = self.insert(Socket::Stream(Box::new(connection)));
        self.flows.insert(flow, Target::Connection(id));
        self.sync_socket(now, id);
        id
    }

    /// Returns whether `flow` is free: `None` if it is in use, `Some(None)` if it is free, and `Some(Some(seq))` if
    /// it is in TIME-WAIT and may be reused with sequence numbers from `seq` on.
    #[expect(clippy::option_option, reason = "in use, free, or free from a sequence number on")]
    fn claim(&self, now: Instant, flow: &Flow) -> Option<Option<Seq>> {
        match self.flows.find(flow) {
            // A connection from an endpoint to itself would have one entry for both of its ends.
            None => (flow.local() != flow.remote()).then_some(None),
            Some(Target::TimeWait(id)) => self.time_waits.reuse(now, id).map(Some),
            Some(Target::Connection(_) | Target::Moved(_)) => None,
        }
    }

    /// Chooses a free ephemeral port for which `accepts` returns true.
    fn choose_port(
        &mut self,
        now: Instant,
        flow: Flow,
        mut accepts: impl FnMut(u16) -> bool,
    ) -> Option<(Flow, Option<Seq>)> {
        for (step, port) in self.ephemeral.candidates(flow).enumerate() {
            let flow = Flow { local_port: port, ..flow };
            if !accepts(port) {
                continue;
            }
            if let Some(from) = self.claim(now, &flow) {
                self.ephemeral.advance(step as u32 + 1);
                return Some((flow, from));
            }
        }
        None
    }
}
