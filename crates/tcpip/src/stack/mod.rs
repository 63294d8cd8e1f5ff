//! One shard's TCP/IP: frames and time in, frames, deadlines and events out.
//!
//! [`Stack`] joins the policies of the other modules: it finds whom a packet is for, hands it over, and afterwards
//! *settles* the socket: is its timer right, has it something to send, is there news for the application, is it over?
//! Everything that touches a connection ends in `settle`, so there is one place where these can be wrong.

mod audit;
mod datagrams;
mod input;
mod link;
mod listing;
mod opening;
mod options;
mod output;
mod sockets;
mod streams;

use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};

use foldhash::quality::FixedState;
use slotmap::SlotMap;

pub use datagrams::Message;
pub use listing::{Holder, SocketInfo, SocketState, Transport};
pub use opening::Local;
pub use output::{FrameSink, Frames};
pub use sockets::Shutdown;

use self::link::Link;
use crate::{
    config::Config,
    counters::Counters,
    event::{Event, Readiness, SocketId},
    flow::{Flow, FlowTable, PortTable, Secret, Target},
    limiter::Limiter,
    listener::Listener,
    neighbor::Neighbors,
    packet::Station,
    paths::Paths,
    tcp::{
        connection::{Connection, Context, Owner, State},
        cookies::Cookies,
        isn::Numbers,
        time_wait::TimeWaits,
    },
    time::{Instant, earliest, nanos},
    udp::UdpSocket,
    wheel::{Step, Wheel},
};

/// Steps of time one call of `handle_timeout` takes at most: what remains is due at once.
const TIMEOUT_BUDGET: usize = 1024;

#[derive(Debug)]
enum Socket {
    Listener(Box<Listener>),
    Stream(Box<Connection>),
    Datagram(Box<UdpSocket>),
}

#[derive(Debug)]
struct Entry {
    socket: Socket,
    /// Whether it is in the queue of sockets with news, and in that of sockets with something to send.
    has_event: bool,
    is_sending: bool,
}

/// The protocol state of one shard. See the [crate's documentation](crate) for the order of calls.
#[derive(Debug)]
pub struct Stack {
    link: Link,
    sockets: SlotMap<SocketId, Entry>,
    flows: FlowTable,
    paths: Paths,
    listening: PortTable,
    bound: PortTable,
    /// UDP sockets that hear one peer only.
    connected: HashMap<Flow, SocketId, FixedState>,
    wheel: Wheel<SocketId>,
    time_waits: TimeWaits,
    sending: VecDeque<SocketId>,
    events: VecDeque<SocketId>,
    orphans: usize,
    numbers: Numbers,
    cookies: Cookies,
    ports: Secret,
    port_counter: u32,
    replies: Limiter,
    challenges: Limiter,
    counters: Counters,
}

impl Stack {
    /// A shard without sockets. `seed` is the source of every secret (sequence numbers, cookies, ports, hashes): it must
    /// be random, and the same one repeats a run exactly.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let settings = config.settings();
        let neighbors = Neighbors::new(settings.neighbors, Secret::derive(seed, 4).hash(0));
        Self {
            sockets: SlotMap::with_key(),
            flows: FlowTable::new(Secret::derive(seed, 5).hash(0)),
            paths: Paths::new(Secret::derive(seed, 7).hash(0)),
            listening: PortTable::default(),
            bound: PortTable::default(),
            connected: HashMap::with_hasher(FixedState::with_seed(Secret::derive(seed, 8).hash(0))),
            wheel: Wheel::new(),
            time_waits: TimeWaits::new(nanos(settings.time_wait), settings.time_waits),
            sending: VecDeque::new(),
            events: VecDeque::new(),
            orphans: 0,
            numbers: Numbers::new(seed),
            cookies: Cookies::new(seed),
            ports: Secret::derive(seed, 6),
            port_counter: 0,
            replies: Limiter::new(settings.icmp_rate),
            challenges: Limiter::new(settings.challenge_rate),
            counters: Counters::default(),
            link: Link::new(config, neighbors),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.link.config
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sockets that exist, those included that nobody holds any more but that still finish.
    #[must_use]
    pub fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    /// Connections in TIME-WAIT.
    #[must_use]
    pub fn time_wait_count(&self) -> usize {
        self.time_waits.len()
    }

    /// Flows that are known: connections and those in TIME-WAIT.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Whether a connection from `local` to `remote` is known, be it in TIME-WAIT.
    #[must_use]
    pub fn has_flow(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let (address, peer) = (local.ip(), remote.ip());
        let flow = Flow { local: address, remote: peer, local_port: local.port(), remote_port: remote.port() };
        self.flows.find(&flow).is_some()
    }

    /// Whether any connection with this local port is known, be it in TIME-WAIT. Looks at all of them.
    #[must_use]
    pub fn has_flow_at(&self, port: u16) -> bool {
        self.flows.local_ports().any(|own| own == port)
    }

    /// Sockets in the timer wheel: with a timer running, or with one that was stopped and did not come to its time yet.
    #[must_use]
    pub fn timer_count(&self) -> usize {
        self.wheel.len()
    }

    /// Neighbours in the cache.
    #[must_use]
    pub fn neighbor_count(&self) -> usize {
        self.link.neighbors.len()
    }

    /// Bytes that socket `id` takes, its buffers included; `None` if it is gone.
    #[must_use]
    pub fn memory(&self, id: SocketId) -> Option<usize> {
        let held = match &self.sockets.get(id)?.socket {
            Socket::Stream(connection) => size_of::<Connection>() + connection.memory(),
            Socket::Datagram(socket) => size_of::<UdpSocket>() + socket.memory(),
            Socket::Listener(listener) => size_of::<Listener>() + listener.queue.capacity() * size_of::<SocketId>(),
        };
        Some(size_of::<Entry>() + held)
    }

    /// Tells that `station` has `address`, for good.
    pub fn insert_neighbor(&mut self, now: Instant, address: core::net::IpAddr, station: Station) {
        self.link.set(now, address, station, &mut self.counters);
    }

    /// Forgets the station of `address`.
    pub fn remove_neighbor(&mut self, address: core::net::IpAddr) {
        self.link.neighbors.forget(address, &mut self.counters);
    }

    /// Answers [`Stack::poll_neighbor_request`]: `station` has `address`. Believed for 30 seconds; the first packet after
    /// that asks again, and meanwhile goes to the old station. Nobody who was not asked for is remembered.
    pub fn answer_neighbor(&mut self, now: Instant, address: core::net::IpAddr, station: Station) {
        self.link.learn(now, address, station, false, &mut self.counters);
    }

    /// Tells that `address` does not answer: it is forgotten, and connections that are being made to it fail.
    pub fn fail_neighbor(&mut self, now: Instant, address: core::net::IpAddr) {
        for frame in self.link.neighbors.fail(address, &mut self.counters) {
            self.notice_undeliverable(now, &frame);
        }
    }

    /// With [`crate::Resolution::External`]: the next address whose station is wanted. Asked for again every second, three
    /// times, until [`Stack::answer_neighbor`] or [`Stack::insert_neighbor`] tells.
    pub fn poll_neighbor_request(&mut self) -> Option<core::net::IpAddr> {
        self.link.neighbors.next_request()
    }

    /// The next piece of news. Events of one socket that were not taken yet are one.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let id = self.events.pop_front()?;
            let Some(entry) = self.sockets.get_mut(id) else { continue };
            entry.has_event = false;
            let edges = core::mem::take(entry.socket.edges());
            if !edges.is_empty() {
                return Some(Event { socket: id, edges });
            }
        }
    }

    /// When [`Stack::handle_timeout`] must be called next, if nothing else happens before. May be earlier than there is
    /// anything to do. `None`: never.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = earliest(self.wheel.next_wake(), self.time_waits.deadline());
        earliest(own, self.link.neighbors.next_wake())
    }

    /// Lets time pass. Harmless too early; bounded: what it does not get to is due at once by [`Stack::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..TIMEOUT_BUDGET {
            if !self.step_timeout(now) {
                return;
            }
        }
    }

    /// One step; false when nothing is due.
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
        let Some(given_up) = self.link.neighbors.handle_timeout(now, &mut self.counters) else { return false };
        for frame in given_up {
            self.notice_undeliverable(now, &frame);
        }
        true
    }

    fn expire(&mut self, now: Instant, id: SocketId) {
        let Some((connection, mut cx)) = self.connection_mut(now, id) else { return };
        if connection.handle_timeout(&mut cx) {
            self.abort_connection(now, id);
        }
        self.settle(now, id);
    }

    /// A connection, and what its methods need beside it.
    fn connection_mut(&mut self, now: Instant, id: SocketId) -> Option<(&mut Connection, Context<'_>)> {
        let Socket::Stream(connection) = &mut self.sockets.get_mut(id)?.socket else { return None };
        let cx = Context {
            now,
            settings: self.link.config.settings(),
            counters: &mut self.counters,
            challenges: &mut self.challenges,
        };
        Some((connection, cx))
    }

    /// Puts everything right after a socket was touched.
    fn settle(&mut self, now: Instant, id: SocketId) {
        let Some(entry) = self.sockets.get_mut(id) else { return };
        if let Socket::Stream(connection) = &mut entry.socket {
            match connection.state {
                State::TimeWait => return self.remember(now, id),
                State::Closed => return self.retire(id),
                _ => {}
            }
            self.wheel.set(id, connection.deadline());
            if let Owner::HalfOpen(listener) = connection.owner
                && connection.is_synchronized()
            {
                connection.owner = Owner::Queued(listener);
                self.enqueue_accepted(listener, id);
            }
        }
        self.announce(id);
    }

    /// Queues a socket that has something to send, or news.
    fn announce(&mut self, id: SocketId) {
        let Some(entry) = self.sockets.get_mut(id) else { return };
        if !entry.is_sending && entry.socket.wants_to_send() {
            entry.is_sending = true;
            self.sending.push_back(id);
        }
        if !entry.has_event && entry.socket.is_held() && !entry.socket.edges().is_empty() {
            entry.has_event = true;
            self.events.push_back(id);
        }
    }

    fn enqueue_accepted(&mut self, listener: SocketId, id: SocketId) {
        self.counters.tcp_passive_opens += 1;
        if let Some(Entry { socket: Socket::Listener(listening), .. }) = self.sockets.get_mut(listener) {
            listening.half_open -= 1;
            listening.queue.push_back(id);
            listening.edges |= Readiness::READABLE;
            self.announce(listener);
        }
    }

    /// A connection entered TIME-WAIT: the table takes it over, and acknowledges what is owed.
    fn remember(&mut self, now: Instant, id: SocketId) {
        let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) else { return };
        self.counters.tcp_time_waits += 1;
        let flow = connection.flow;
        let owes = connection.ack.is_owed();
        let (entry, header, evicted) = self.time_waits.insert(now, connection);
        connection.state = State::Closed;
        connection.edges |= Readiness::HANG_UP;
        if let Some((evicted_id, evicted)) = evicted {
            self.counters.tcp_time_wait_overflows += 1;
            self.flows.remove(&evicted.flow, Target::TimeWait(evicted_id));
        }
        if owes {
            self.send_header(now, &flow, &header);
        }
        self.retire(id);
        self.flows.insert(flow, Target::TimeWait(entry));
    }

    /// A connection is over: its flow is free, and it is gone unless somebody still holds it.
    fn retire(&mut self, id: SocketId) {
        let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get_mut(id) else { return };
        self.flows.remove(&connection.flow, Target::Connection(id));
        self.wheel.remove(id);
        match connection.owner {
            Owner::Application | Owner::Queued(_) => {
                self.announce(id);
                return;
            }
            Owner::Nobody => self.orphans -= 1,
            Owner::HalfOpen(listener) => {
                if let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.get_mut(listener) {
                    listener.half_open -= 1;
                }
            }
        }
        self.sockets.remove(id);
    }

    /// Ends a connection with a reset.
    fn abort_connection(&mut self, now: Instant, id: SocketId) {
        let Some((connection, cx)) = self.connection_mut(now, id) else { return };
        if connection.is_closed() {
            return;
        }
        let reset = (connection.state != State::SynSent).then(|| connection.reset(&cx));
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
        }
    }

    fn wants_to_send(&self) -> bool {
        match self {
            Self::Listener(_) => false,
            Self::Stream(connection) => connection.wants_to_send(),
            Self::Datagram(socket) => socket.wants_to_send(),
        }
    }

    /// Whether an application has it, and so wants to know of news.
    fn is_held(&self) -> bool {
        match self {
            Self::Stream(connection) => connection.owner == Owner::Application,
            Self::Listener(_) | Self::Datagram(_) => true,
        }
    }
}
