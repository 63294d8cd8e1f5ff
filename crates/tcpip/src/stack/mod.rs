//! TCP/IP of one shard: frames and time in, frames, deadlines and events out.
//!
//! [`Stack`] finds the socket of each packet and passes the packet to it. Each call that changes a connection ends
//! with `sync_socket`, which updates the connection's timer, the queues of sockets with output and with events, and
//! the tables.

mod audit;
mod datagrams;
mod ephemeral;
pub(crate) mod export;
mod info;
mod input;
mod link;
mod listing;
mod opening;
mod options;
mod output;
pub(crate) mod overflow;
mod sockets;
mod streams;
mod unaccepted;

use core::net::SocketAddr;
use std::collections::VecDeque;

use slotmap::SlotMap;

pub use datagrams::Message;
pub use export::{
    ExportedConnection, ExportedTimestamps, ReceiveSide, SendEnd, SendSide, datagram_frame, is_segment_of,
};
pub use info::TcpInfo;
pub use listing::{Holder, SocketInfo, SocketState, Transport};
pub use opening::LocalEndpoint;
pub use output::{FrameSink, Frames};
pub use overflow::{Overdue, Overflow, PassedSyn};
pub use sockets::Shutdown;
pub use unaccepted::UnacceptedConnection;

use self::{ephemeral::EphemeralPorts, export::MovedConnection, link::Link, overflow::Waiting};
use crate::{
    config::Config,
    counters::Counters,
    datagram_table::DatagramTable,
    demux::{FlowTable, PortTable, Target},
    event::{Event, Readiness, SocketId},
    flow::{Flow, Secret},
    limiter::ReplyLimiter,
    listener::Listener,
    neighbor::NeighborCache,
    packet::MacAddr,
    path_mtu::PathMtuCache,
    reassembly::Reassembly,
    tcp::{
        connection::{Connection, Context, Owner, State},
        cookies::Cookies,
        isn::IsnGenerator,
        time_wait::TimeWaitTable,
    },
    time::{Instant, earliest, nanos},
    udp::UdpSocket,
    wheel::{Step, Wheel},
};

/// Maximum number of steps of one call of `handle_timeout`; the rest stays due.
const TIMEOUT_BUDGET: usize = 1024;

#[derive(Debug)]
enum Socket {
    Listener(Box<Listener>),
    Stream(Box<Connection>),
    Datagram(Box<UdpSocket>),
    /// A connection that was moved to another owner, until the application closes it.
    Moved(Box<MovedConnection>),
}

#[derive(Debug)]
struct Entry {
    socket: Socket,
    /// Whether it is in the queue of sockets with events, and in that of sockets with output.
    in_event_queue: bool,
    in_send_queue: bool,
}

/// Protocol state of one shard. The [crate's documentation](crate) describes the order of calls.
#[derive(Debug)]
pub struct Stack {
    link: Link,
    sockets: SlotMap<SocketId, Entry>,
    flows: FlowTable,
    paths: PathMtuCache,
    listening: PortTable,
    datagrams: DatagramTable,
    wheel: Wheel<SocketId>,
    time_waits: TimeWaitTable,
    send_queue: VecDeque<SocketId>,
    event_queue: VecDeque<SocketId>,
    orphans: usize,
    numbers: IsnGenerator,
    cookies: Cookies,
    ephemeral: EphemeralPorts,
    reassembly: Reassembly,
    /// Numbers of fragmented datagrams.
    fragment_ids: (Secret, u64),
    replies: ReplyLimiter,
    resets: ReplyLimiter,
    budgets: Secret,
    counters: Counters,
    overflow: overflow::OverflowQueue,
}

impl Stack {
    /// Creates a stack without sockets. Every secret (sequence numbers, cookies, ports, hashes) derives from `seed`,
    /// which must be random. The same seed repeats a run exactly.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let settings = config.settings();
        let neighbors = NeighborCache::new(settings.neighbors, Secret::derive(seed, 4).hash(0));
        Self {
            sockets: SlotMap::with_key(),
            flows: FlowTable::new(Secret::derive(seed, 5).hash(0)),
            paths: PathMtuCache::new(Secret::derive(seed, 7).hash(0)),
            listening: PortTable::default(),
            datagrams: DatagramTable::new(Secret::derive(seed, 8).hash(0)),
            wheel: Wheel::new(),
            time_waits: TimeWaitTable::new(nanos(settings.time_wait), settings.time_waits),
            send_queue: VecDeque::new(),
            event_queue: VecDeque::new(),
            orphans: 0,
            numbers: IsnGenerator::new(seed),
            cookies: Cookies::new(seed),
            reassembly: Reassembly::default(),
            fragment_ids: (Secret::derive(seed, 30), 0),
            ephemeral: EphemeralPorts::new(Secret::derive(seed, 6), settings.ephemeral_from),
            replies: ReplyLimiter::new(Secret::derive(seed, 9), settings.icmp_rate),
            resets: ReplyLimiter::new(Secret::derive(seed, 11), settings.reset_rate),
            overflow: overflow::OverflowQueue::default(),
            budgets: Secret::derive(seed, 10),
            counters: Counters::default(),
            link: Link::new(config, neighbors),
        }
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.link.config
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of sockets, including orphaned connections, which the application closed and which still
    /// finish.
    #[must_use]
    pub fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    /// Returns descriptions of all sockets, in the order of their creation as long as none was closed. Connections in
    /// TIME-WAIT have no socket.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = SocketInfo> + '_ {
        self.sockets.values().map(|entry| SocketInfo::from(&entry.socket))
    }

    /// Returns the number of connections in TIME-WAIT.
    #[must_use]
    pub fn time_wait_count(&self) -> usize {
        self.time_waits.len()
    }

    /// Returns the number of flows: connections and entries in TIME-WAIT.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether there is a connection from `local` to `remote`, including in TIME-WAIT.
    #[must_use]
    pub fn has_flow(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let (address, peer) = (local.ip(), remote.ip());
        let flow = Flow { local: address, remote: peer, local_port: local.port(), remote_port: remote.port() };
        self.flows.find(&flow).is_some_and(|target| !matches!(target, Target::Moved(_)))
    }

    /// Returns whether there is a connection with this local port, including in TIME-WAIT. Visits all of them.
    #[must_use]
    pub fn has_flow_at(&self, port: u16) -> bool {
        self.flows.local_ports().any(|own| own == port)
    }

    /// Returns the number of sockets in the timer wheel: those with a deadline, and those whose cancelled deadline
    /// has not been reached.
    #[must_use]
    pub fn timer_count(&self) -> usize {
        self.wheel.len()
    }

    /// Returns the number of entries in the neighbour cache.
    #[must_use]
    pub fn neighbor_count(&self) -> usize {
        self.link.neighbors.len()
    }

    /// Returns the memory of socket `id` with its buffers in bytes, or `None` if the id is stale.
    #[must_use]
    pub fn memory(&self, id: SocketId) -> Option<usize> {
        let held = match &self.sockets.get(id)?.socket {
            Socket::Stream(connection) => size_of::<Connection>() + connection.memory(),
            Socket::Datagram(socket) => size_of::<UdpSocket>() + socket.memory(),
            Socket::Listener(listener) => size_of::<Listener>() + listener.queue.capacity() * size_of::<Waiting>(),
            Socket::Moved(_) => size_of::<MovedConnection>(),
        };
        Some(size_of::<Entry>() + held)
    }

    /// Adds a permanent entry to the neighbour cache.
    pub fn insert_neighbor(&mut self, now: Instant, address: core::net::IpAddr, mac: MacAddr) {
        self.link.insert_permanent(now, address, mac, &mut self.counters);
    }

    /// Removes the entry of `address` from the neighbour cache.
    pub fn remove_neighbor(&mut self, address: core::net::IpAddr) {
        self.link.neighbors.forget(address, &mut self.counters);
    }

    /// Answers [`Stack::poll_neighbor_request`]. The answer is valid for 30 seconds; the first packet after that
    /// requests the address again and uses the old one meanwhile. An answer that was not requested is ignored.
    pub fn answer_neighbor(&mut self, now: Instant, address: core::net::IpAddr, mac: MacAddr) {
        self.link.learn(now, address, mac, false, &mut self.counters);
    }

    /// Reports that `address` does not answer. Its entry is removed, and connection attempts through it fail.
    pub fn fail_neighbor(&mut self, now: Instant, address: core::net::IpAddr) {
        for frame in self.link.neighbors.fail(address, &mut self.counters) {
            self.report_unreachable(now, &frame);
        }
    }

    /// Returns the next address that the caller must resolve, with [`crate::Resolution::External`]. A request is
    /// repeated every second, up to three times, until [`Stack::answer_neighbor`] or [`Stack::insert_neighbor`] is
    /// called.
    pub fn poll_neighbor_request(&mut self) -> Option<core::net::IpAddr> {
        self.link.neighbors.next_request()
    }

    /// Returns the next event. Edges of one socket since its last event are merged.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let id = self.event_queue.pop_front()?;
            let Some(entry) = self.sockets.get_mut(id) else { continue };
            entry.in_event_queue = false;
            let edges = core::mem::take(entry.socket.edges());
            if !edges.is_empty() {
                return Some(Event { socket: id, edges });
            }
        }
    }

    /// Returns when [`Stack::handle_timeout`] must be called next, or `None` for never. The call may find nothing
    /// due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = earliest(self.wheel.next_wake(), self.time_waits.deadline());
        earliest(own, self.link.neighbors.next_wake())
    }

    /// Advances time. An early call is harmless. The work is bounded: what remains is due at once in
    /// [`Stack::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..TIMEOUT_BUDGET {
            if !self.step_timeout(now) {
                return;
            }
        }
    }

    /// Processes one due timer. Returns false if none is due.
    fn step_timeout(&mut self, now: Instant) -> bool {
        match self.wheel.pop(now) {
            Step::Expired(id) => {
                self.expire(now, id);
                return true;
            }
            Step::Moved => return true,
            Step::Idle => {}
        }
        if let Some(expired) = self.time_waits.expire(now) {
            if let Some((id, entry)) = expired {
                self.flows.remove(&entry.flow, Target::TimeWait(id));
            }
            return true;
        }
        let Some(unresolved) = self.link.neighbors.handle_timeout(now, &mut self.counters) else { return false };
        for frame in unresolved {
            self.report_unreachable(now, &frame);
        }
        true
    }

    fn expire(&mut self, now: Instant, id: SocketId) {
        let Some((connection, mut cx)) = self.connection_mut(now, id) else { return };
        if connection.handle_timeout(&mut cx) {
            self.abort_connection(now, id);
        }
        self.sync_socket(now, id);
    }

    /// Returns a connection, and the context of its methods.
    fn connection_mut(&mut self, now: Instant, id: SocketId) -> Option<(&mut Connection, Context<'_>)> {
        let Socket::Stream(connection) = &mut self.sockets.get_mut(id)?.socket else { return None };
        let cx = Context {
            now,
            settings: self.link.config.settings(),
            counters: &mut self.counters,
            budgets: &self.budgets,
        };
        Some((connection, cx))
    }

    /// Brings the timer, the queues and the tables in line with the state of a socket that may have changed.
    fn sync_socket(&mut self, now: Instant, id: SocketId) {
        let Some(entry) = self.sockets.get_mut(id) else { return };
        if let Socket::Stream(connection) = &mut entry.socket {
            match connection.state {
                State::TimeWait => return self.enter_time_wait(now, id),
                State::Closed => return self.remove_closed(id),
                _ => {}
            }
            let deadline = connection.deadline();
            self.wheel.set(id, deadline);
            if let Owner::HalfOpen(listener) = connection.owner
                && connection.is_synchronized()
                && !connection.defers_accept()
            {
                connection.defer_until = None;
                connection.owner = Owner::Queued(listener);
                self.enqueue_accepted(now, listener, id);
            }
        }
        self.enqueue(id);
    }

    /// Queues a socket that has output or pending edges.
    fn enqueue(&mut self, id: SocketId) {
        let Some(entry) = self.sockets.get_mut(id) else { return };
        if !entry.in_send_queue && entry.socket.has_output() {
            entry.in_send_queue = true;
            self.send_queue.push_back(id);
        }
        if !entry.in_event_queue && entry.socket.is_held() && !entry.socket.edges().is_empty() {
            entry.in_event_queue = true;
            self.event_queue.push_back(id);
        }
    }

    fn enqueue_accepted(&mut self, now: Instant, listener: SocketId, id: SocketId) {
        self.counters.tcp_passive_opens += 1;
        if let Some(Entry { socket: Socket::Listener(listening), .. }) = self.sockets.get_mut(listener) {
            listening.half_open -= 1;
            listening.queue.push_back(Waiting::new(now, id));
            listening.edges |= Readiness::READABLE;
            if listening.overflow.is_some() {
                self.note_waiting(listener);
            }
            self.enqueue(listener);
        }
    }

    /// Moves a connection to the TIME-WAIT table, and sends its pending acknowledgement.
    fn enter_time_wait(&mut self, now: Instant, id: SocketId) {
        let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) else { return };
        self.counters.tcp_time_waits += 1;
        let flow = connection.flow;
        let ack_pending = connection.ack.is_pending();
        let (entry, header, evicted) = self.time_waits.insert(now, connection);
        connection.state = State::Closed;
        connection.edges |= Readiness::HANG_UP;
        if let Some((evicted_id, evicted)) = evicted {
            self.counters.tcp_time_wait_overflows += 1;
            self.flows.remove(&evicted.flow, Target::TimeWait(evicted_id));
        }
        if ack_pending {
            self.send_header(now, &flow, &header);
        }
        self.remove_closed(id);
        self.flows.insert(flow, Target::TimeWait(entry));
    }

    /// Removes the flow of a closed connection, and its socket unless the application still owns it.
    fn remove_closed(&mut self, id: SocketId) {
        let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) else { return };
        self.flows.remove(&connection.flow, Target::Connection(id));
        self.wheel.remove(id);
        match connection.owner {
            Owner::Application | Owner::Queued(_) => {
                self.enqueue(id);
                return;
            }
            Owner::Orphan => self.orphans -= 1,
            Owner::HalfOpen(listener) => {
                if let Some(Entry { socket: Socket::Listener(listening), .. }) = self.sockets.get_mut(listener) {
                    listening.half_open -= 1;
                }
            }
        }
        self.sockets.remove(id);
    }

    /// Closes a connection, with a reset if the peer may know of it.
    fn abort_connection(&mut self, now: Instant, id: SocketId) {
        let Some((connection, cx)) = self.connection_mut(now, id) else { return };
        if connection.is_closed() {
            return;
        }
        let is_known = connection.state != State::SynSent && !connection.has_unsent_syn();
        let reset = is_known.then(|| connection.reset(&cx));
        let flow = connection.flow;
        connection.finish();
        if let Some(header) = reset {
            self.send_header(now, &flow, &header);
        }
    }
}

impl Socket {
    fn edges(&mut self) -> &mut Readiness {
        match self {
            Self::Listener(listener) => &mut listener.edges,
            Self::Stream(connection) => &mut connection.edges,
            Self::Datagram(socket) => &mut socket.edges,
            Self::Moved(moved) => &mut moved.edges,
        }
    }

    fn has_output(&self) -> bool {
        match self {
            Self::Listener(_) | Self::Moved(_) => false,
            Self::Stream(connection) => connection.has_output(),
            Self::Datagram(socket) => socket.has_output(),
        }
    }

    /// Returns whether the application owns the socket and receives its events.
    fn is_held(&self) -> bool {
        match self {
            Self::Stream(connection) => connection.owner == Owner::Application,
            Self::Listener(_) | Self::Datagram(_) | Self::Moved(_) => true,
        }
    }
}
