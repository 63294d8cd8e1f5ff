//! Clients: connections with one request outstanding each, in an open or a closed loop, and everything between them and
//! the server's NIC.

use std::collections::VecDeque;

use hdrhistogram::Histogram;

use super::World;
use crate::events::Event;
use crate::nic::Packet;
use crate::profile::Profile;
use crate::random::Random;
use crate::scenario::{Load, Responder, Scenario};

/// A lost request is sent again after this long (Linux `TCP_RTO_MIN`).
const RETRANSMIT_NS: u64 = 200_000_000;

#[derive(Debug, Default)]
struct Connection {
    queue: u32,
    /// A request is under way, or waits for the answer before it.
    outstanding: bool,
    /// The request under way was sent as soon as the answer before it had come.
    back_to_back: bool,
    sent_at: u64,
    /// The first host has had something to answer (round trips only).
    answered: bool,
    /// When the last answer reaches the client.
    free_at: u64,
    /// When the requests that wait for the connection were due.
    due: VecDeque<u64>,
}

#[derive(Debug)]
pub(super) struct Clients {
    connections: Vec<Connection>,
    arrivals: Random,
    delays: Random,
    /// Mean time of a late answer in the client's queues.
    queue_ns: f64,
    /// Mean time between two requests of the open loop.
    gap_ns: Option<f64>,
    pub(super) latency: Histogram<u64>,
    pub(super) requests: u64,
    pub(super) answers: u64,
}

impl Clients {
    pub(super) fn new(profile: &Profile, scenario: &Scenario) -> Self {
        let mut hashing = Random::new(scenario.seed, 1);
        let queues = u64::from(scenario.queues);
        let connection = |_| Connection { queue: hashing.below(queues) as u32, ..Connection::default() };
        Self {
            connections: (0..scenario.connections).map(connection).collect(),
            arrivals: Random::new(scenario.seed, 2),
            delays: Random::new(scenario.seed, 3),
            queue_ns: match scenario.load {
                Load::Open(rate) => {
                    profile.client.late_ns_per_connection_rps as f64 * rate / f64::from(scenario.connections)
                }
                Load::Closed => 0.0,
            },
            gap_ns: match scenario.load {
                Load::Open(rate) => Some(1e9 / rate),
                Load::Closed => None,
            },
            latency: Histogram::new(3).expect("three digits are allowed"),
            requests: 0,
            answers: 0,
        }
    }

    pub(super) fn queue(&self, conn: u32) -> usize {
        self.connections[conn as usize].queue as usize
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.connections.iter().filter(|connection| connection.outstanding).count() as u64
    }

    /// How long an answer takes from the server's NIC to the client's measurement, beyond the minimum.
    fn delay(&mut self, profile: &Profile, back_to_back: bool) -> u64 {
        let client = &profile.client;
        let mut delay = self.delays.exponential(client.jitter_ns as f64);
        if self.delays.chance(client.late_millionths) {
            delay += self.delays.below(client.late_ns) + self.delays.exponential(self.queue_ns);
        }
        if back_to_back && self.delays.chance(client.stall_millionths) {
            delay += client.stall_ns;
        }
        delay
    }
}

impl World<'_> {
    /// From the client to the server's NIC; the way back has the rest of the minimum, and all that varies.
    fn way_out(&self) -> u64 {
        self.profile.client.base_ns / 2
    }

    pub(super) fn start_clients(&mut self) {
        if self.clients.gap_ns.is_some() {
            return self.schedule_due();
        }
        // The closed loop begins spread over 20 ms.
        for conn in 0..self.clients.connections.len() {
            let at = self.clients.arrivals.below(20_000_000);
            self.clients.connections[conn].outstanding = true;
            self.clients.connections[conn].sent_at = at;
            self.clients.requests += 1;
            self.events.push(at + self.way_out(), Event::Request { conn: conn as u32 });
        }
    }

    fn schedule_due(&mut self) {
        if let Some(gap) = self.clients.gap_ns {
            let at = self.now + self.clients.arrivals.exponential(gap);
            self.events.push(at, Event::Due);
        }
    }

    /// A request that was due one way before now reaches the NIC, if its connection was free.
    pub(super) fn request_due(&mut self) {
        self.schedule_due();
        let way = self.way_out();
        let count = self.clients.connections.len() as u64;
        let conn = self.clients.arrivals.below(count) as u32;
        let due = self.now.saturating_sub(way);
        let connection = &mut self.clients.connections[conn as usize];
        if connection.outstanding {
            connection.due.push_back(due);
            return;
        }
        connection.outstanding = true;
        self.clients.requests += 1;
        if connection.free_at > due {
            connection.back_to_back = true;
            connection.sent_at = connection.free_at;
            let at = connection.free_at + way;
            return self.events.push(at, Event::Request { conn });
        }
        connection.back_to_back = false;
        connection.sent_at = due;
        self.request_arrives(conn);
    }

    pub(super) fn request_arrives(&mut self, conn: u32) {
        let queue = self.clients.queue(conn);
        self.receive(queue, Packet::Request(conn));
    }

    pub(super) fn retransmit(&mut self, conn: u32) {
        self.events.push(self.now + RETRANSMIT_NS, Event::Request { conn });
    }

    /// A host of a round trip sends to the other; what leaves the second is on its way to being an answer.
    fn turn_round(&mut self, conn: u32) {
        let connection = &mut self.clients.connections[conn as usize];
        let from = connection.queue as usize;
        connection.queue ^= 1;
        if from == 0 {
            if connection.answered {
                let latency = self.now - connection.sent_at;
                self.clients.latency.record(latency).expect("a resizing histogram takes everything");
                self.clients.answers += 1;
                self.clients.requests += 1;
                self.counts.answers += 1;
            }
            connection.answered = true;
            connection.sent_at = self.now;
        }
        self.events.push(self.now + self.profile.client.base_ns, Event::Request { conn });
        self.completes(from);
    }

    fn completes(&mut self, queue: usize) {
        match self.profile.nic.tx_complete_ns {
            0 => self.transmitted(queue),
            span => self.events.push(self.now + span, Event::Transmitted { queue: queue as u32 }),
        }
    }

    /// The server sends its answer.
    pub(super) fn answer(&mut self, conn: u32) {
        if self.scenario.responder == Responder::RoundTrip {
            return self.turn_round(conn);
        }
        let way = self.way_out();
        let profile = self.profile;
        let clients = &mut self.clients;
        let back_to_back = clients.connections[conn as usize].back_to_back;
        let free_at = self.now + profile.client.base_ns - way + clients.delay(profile, back_to_back);
        let connection = &mut clients.connections[conn as usize];
        clients.latency.record(free_at - connection.sent_at).expect("a resizing histogram takes everything");
        clients.answers += 1;
        self.counts.answers += 1;
        if self.scenario.responder == Responder::EventLoop {
            self.events.push(self.now + profile.client.ack_ns, Event::Ack { queue: connection.queue });
        }
        let queue = connection.queue as usize;
        let closed = clients.gap_ns.is_none();
        while connection.due.front().is_some_and(|due| due + profile.client.skip_ns < free_at) {
            connection.due.pop_front();
        }
        if closed || connection.due.pop_front().is_some() {
            connection.sent_at = free_at;
            connection.back_to_back = true;
            clients.requests += 1;
            self.events.push(free_at + way, Event::Request { conn });
        } else {
            connection.outstanding = false;
            connection.free_at = free_at;
        }
        self.completes(queue);
    }
}
