//! Clients: connections with outstanding requests, in an open or a closed loop.

use hdrhistogram::Histogram;

use super::World;
use super::arrivals::Process;
use super::reply::Download;
use super::request::Upload;
use crate::distribution::Sampler;
use crate::events::Event;
use crate::fifo::Fifo;
use crate::profile::Profile;
use crate::random::Random;
use crate::scenario::{Load, Responder, Scenario};
use crate::topology::Spread;
use crate::wire::{Framing, Message, Wire};

/// Waiting for the wire up to this long is part of `client.jitter_ns`, if messages have the profile's sizes.
const USUAL_WAIT_NS: u64 = 1_000;

/// Request in flight, from its sending to that of its answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    pub(super) sent_at: u64,
    /// Sent as soon as the previous answer arrived.
    pub(super) back_to_back: bool,
    pub(super) segments: u32,
    /// Service time in the application (scenarios with a service time).
    pub(super) service_ns: u64,
    /// Time on the device; once the device has started, when it finishes.
    device: u64,
    /// Bytes without headers (scenarios with sizes).
    pub(super) request_bytes: u32,
    pub(super) response_bytes: u32,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) queue: u32,
    /// Requests in flight that are in their socket.
    pub(super) delivered: u32,
    /// Delivered requests that the application has finished.
    served: u32,
    /// Received segments that do not make a whole request yet.
    pub(super) received: u32,
    /// Segments that were dropped and not retransmitted yet; later segments wait for them.
    pub(super) lost: u32,
    /// Whether the first host has sent an answer (round trips only).
    answered: bool,
    /// When the client receives the latest answer. Answers do not overtake each other.
    answered_at: u64,
    /// Requests in flight, oldest first.
    pub(super) flights: Fifo<Flight>,
    /// Times from which further requests can be sent: one for each request that is not outstanding.
    free: Fifo<u64>,
    /// When the requests that wait for the connection were due.
    due: Fifo<u64>,
    /// Requests of several segments, after the first one.
    pub(super) upload: Option<Box<Upload>>,
    /// Answers of several segments, after the first one.
    pub(super) download: Option<Box<Download>>,
}

/// Distributions and random numbers of what differs between requests.
#[derive(Debug)]
struct Draws {
    service: Option<(Sampler, Random)>,
    device: Option<(Sampler, Random)>,
    request: Option<(Sampler, Random)>,
    response: Option<(Sampler, Random)>,
    window: Option<(Sampler, Random)>,
    think: Option<(Sampler, Random)>,
}

fn draw(from: &mut Option<(Sampler, Random)>) -> u64 {
    from.as_mut().map_or(0, |(sampler, random)| sampler.draw(random))
}

#[derive(Debug)]
pub(super) struct Clients {
    pub(super) connections: Vec<Connection>,
    spread: Spread,
    arrivals: Random,
    delays: Random,
    draws: Draws,
    /// Whether requests differ.
    pub(super) varied: bool,
    pub(super) framing: Framing,
    /// Request and answer of the profile's sizes.
    usual: (Message, Message),
    pub(super) wire_in: Wire,
    pub(super) wire_out: Wire,
    /// Mean time of a late answer in the client's queues.
    queue_ns: f64,
    /// Arrival process of an open loop.
    process: Option<Process>,
    /// Due requests that waited too long and were not sent.
    pub(super) skipped: u64,
    pub(super) latency: Histogram<u64>,
    pub(super) requests: u64,
    pub(super) answers: u64,
}

/// Returns the mean time of a late answer in the client's queues.
fn queue_ns(profile: &Profile, scenario: &Scenario, rate: f64) -> f64 {
    profile.client.late_ns_per_connection_rps as f64 * rate / f64::from(scenario.connections)
}

impl Clients {
    pub(super) fn new(profile: &Profile, scenario: &Scenario) -> Self {
        let mut hashing = Random::new(scenario.seed, 1);
        let queues = u64::from(scenario.queues);
        let mut free = Fifo::default();
        if scenario.load != Load::Closed {
            (0..scenario.outstanding).for_each(|_| free.push(0));
        }
        let connection =
            |_| Connection { queue: hashing.below(queues) as u32, free: free.clone(), ..Connection::default() };
        let client = &profile.client;
        let tolerance_ns = if scenario.sizes.is_none() { USUAL_WAIT_NS } else { 0 };
        let wire = |usual_bytes| Wire::new(&profile.nic, usual_bytes, tolerance_ns);
        let stream = |sampler, stream| (sampler, Random::new(scenario.seed, stream));
        let sizes = scenario.sizes.as_ref();
        let draws = Draws {
            service: scenario.service.map(|service| stream(service.sampler(), 4)),
            device: scenario.device.map(|device| stream(device.sampler(), 5)),
            request: sizes.map(|sizes| stream(sizes.request.sampler(), 6)),
            response: sizes.map(|sizes| stream(sizes.response.sampler(), 7)),
            think: scenario.think.map(|think| stream(think.sampler(), 9)),
            window: sizes.map(|_| stream(Framing::windows(), 8)),
        };
        Self {
            connections: (0..scenario.connections).map(connection).collect(),
            spread: scenario.topology.spread(scenario.queues),
            arrivals: Random::new(scenario.seed, 2),
            delays: Random::new(scenario.seed, 3),
            draws,
            varied: scenario.service.is_some() || scenario.device.is_some() || scenario.sizes.is_some(),
            framing: Framing::new(&profile.nic),
            usual: (Message::packet(client.request_bytes), Message::packet(client.response_bytes)),
            wire_in: wire(client.request_bytes),
            wire_out: wire(client.response_bytes),
            queue_ns: match scenario.load {
                Load::Open(rate) => queue_ns(profile, scenario, rate),
                Load::Closed => 0.0,
            },
            process: match scenario.load {
                Load::Open(rate) => Some(Process::new(scenario.arrivals, rate, 0)),
                Load::Closed => None,
            },
            skipped: 0,
            latency: Histogram::new(3).expect("three digits are allowed"),
            requests: 0,
            answers: 0,
        }
    }

    /// Changes the rate of an open loop.
    pub(super) fn set_rate(&mut self, profile: &Profile, scenario: &Scenario, rate: f64, now: u64) {
        self.queue_ns = queue_ns(profile, scenario, rate);
        self.process = Some(Process::new(scenario.arrivals, rate, now));
    }

    pub(super) fn queue(&self, conn: u32) -> usize {
        self.connections[conn as usize].queue as usize
    }

    /// Returns the server of a connection.
    pub(super) fn server(&self, conn: u32) -> usize {
        self.spread.server(conn, self.connections[conn as usize].queue)
    }

    /// Returns the queue and the server of each connection.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.connections.len() as u32).map(|conn| (self.queue(conn), self.server(conn)))
    }

    pub(super) fn outstanding(&self) -> u64 {
        let replies = |connection: &Connection| connection.download.as_ref().map_or(0, |download| download.replies());
        self.connections.iter().map(|connection| (connection.flights.len() + replies(connection)) as u64).sum()
    }

    /// Returns the oldest request of a connection that the application has not finished.
    pub(super) fn unserved(&self, conn: u32) -> &Flight {
        let connection = &self.connections[conn as usize];
        connection.flights.get(connection.served as usize).expect("what is served was asked")
    }

    /// Starts the device for a request that the application has finished. Returns when it finishes, in the order of
    /// the requests.
    pub(super) fn start_device(&mut self, conn: u32, now: u64) -> u64 {
        let connection = &mut self.connections[conn as usize];
        let index = connection.served as usize;
        let before =
            index.checked_sub(1).and_then(|index| connection.flights.get(index)).map_or(0, |flight| flight.device);
        let flight = connection.flights.get_mut(index).expect("what is served was asked");
        flight.device = before.max(now + flight.device);
        connection.served += 1;
        flight.device
    }

    /// Creates a request. Returns it with its size.
    #[inline]
    pub(super) fn new_flight(&mut self, sent_at: u64, back_to_back: bool) -> (Flight, Message) {
        let mut flight = Flight { sent_at, back_to_back, segments: 1, ..Flight::default() };
        if !self.varied {
            return (flight, self.usual.0);
        }
        flight.service_ns = draw(&mut self.draws.service);
        flight.device = draw(&mut self.draws.device);
        if self.draws.request.is_none() {
            return (flight, self.usual.0);
        }
        flight.request_bytes = draw(&mut self.draws.request).max(1) as u32;
        flight.response_bytes = draw(&mut self.draws.response).max(1) as u32;
        let message = self.framing.message(flight.request_bytes.into());
        flight.segments = message.segments;
        (flight, message)
    }

    /// Returns how many segments of a message may be in flight.
    pub(super) fn new_window(&mut self) -> u32 {
        self.framing.window(draw(&mut self.draws.window))
    }

    /// Returns the size of the answer to a request.
    pub(super) fn answer_message(&self, flight: &Flight) -> Message {
        if self.draws.response.is_none() { self.usual.1 } else { self.framing.message(flight.response_bytes.into()) }
    }

    /// Removes the oldest request of a connection, whose answer is sent.
    #[inline]
    pub(super) fn take_flight(&mut self, conn: u32) -> Flight {
        let connection = &mut self.connections[conn as usize];
        connection.delivered -= 1;
        connection.served = connection.served.saturating_sub(1);
        connection.flights.pop().expect("what is answered was asked")
    }

    /// Returns the delay of an answer from the server's NIC to the client's measurement, beyond the minimum.
    #[inline]
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
    /// Returns the time from the client to the server's NIC. The way back takes the rest of the minimum, and all
    /// random delays.
    pub(super) fn way_out(&self) -> u64 {
        self.profile.client.base_ns / 2
    }

    pub(super) fn start_clients(&mut self) {
        if self.clients.process.is_some() {
            return self.schedule_due();
        }
        // A closed loop starts spread over 20 ms.
        for conn in 0..self.clients.connections.len() as u32 {
            for _ in 0..self.scenario.outstanding {
                let at = self.clients.arrivals.below(20_000_000);
                self.events.push(at + self.way_out(), Event::Request { conn, back_to_back: false });
            }
        }
    }

    /// Starts requests that arrive at these times, each on its own connection.
    pub(super) fn start_script(&mut self, arrivals: &[u64]) {
        for (conn, at) in arrivals.iter().enumerate() {
            self.events.push(*at, Event::Request { conn: conn as u32, back_to_back: false });
        }
    }

    fn schedule_due(&mut self) {
        let clients = &mut self.clients;
        if let Some(process) = &mut clients.process {
            self.events.push(process.next(self.now, &mut clients.arrivals), Event::Due);
        }
    }

    /// Sends the requests that are due, if their connections are free.
    pub(super) fn requests_due(&mut self) {
        self.schedule_due();
        for _ in 0..self.clients.process.as_ref().map_or(0, |process| process.burst) {
            self.request_due();
        }
    }

    fn request_due(&mut self) {
        let way = self.way_out();
        let count = self.clients.connections.len() as u64;
        let conn = self.clients.arrivals.below(count) as u32;
        let due = self.now.saturating_sub(way);
        let connection = &mut self.clients.connections[conn as usize];
        match connection.free.pop() {
            None => connection.due.push(due),
            Some(at) if at > due => self.events.push(at + way, Event::Request { conn, back_to_back: true }),
            Some(_) => self.send_request(conn, false),
        }
    }

    /// Sends from one host of a round trip to the other. A packet of the second host completes an answer.
    fn turn_round(&mut self, conn: u32) {
        let (flight, _) = self.clients.new_flight(self.now, false);
        let connection = &mut self.clients.connections[conn as usize];
        let from = connection.queue as usize;
        connection.queue ^= 1;
        connection.delivered = 0;
        connection.served = 0;
        let current = connection.flights.get_mut(0).expect("a round trip is under way");
        let sent_at = std::mem::replace(current, flight).sent_at;
        if from != 0 {
            current.sent_at = sent_at;
        } else if std::mem::replace(&mut connection.answered, true) {
            self.clients.latency.record(self.now - sent_at).expect("a resizing histogram takes everything");
            self.clients.answers += 1;
            self.clients.requests += 1;
            self.counts.answers += 1;
            self.counts.sent += 1;
        }
        self.events.push(self.now + self.profile.client.base_ns, Event::Data { conn, segments: 1 });
        self.completes(from);
    }

    pub(super) fn completes(&mut self, queue: usize) {
        match self.profile.nic.tx_complete_ns {
            0 => self.transmitted(queue),
            span => self.events.push(self.now + span, Event::Transmitted { queue: queue as u32 }),
        }
    }

    /// Sends the server's answer to the oldest request of a connection.
    pub(super) fn answer(&mut self, conn: u32) {
        if self.scenario.responder == Responder::RoundTrip {
            return self.turn_round(conn);
        }
        let flight = self.clients.take_flight(conn);
        let message = self.clients.answer_message(&flight);
        if message.segments > 1 || self.clients.connections[conn as usize].download.is_some() {
            return self.reply(conn, &flight, message);
        }
        let extra = self.clients.wire_out.carry(self.now, message.wire_bytes);
        self.counts.sent += 1;
        let queue = self.clients.connections[conn as usize].queue;
        // The segment of the next request also acknowledges the answer.
        let client = &self.profile.client;
        let piggybacked = client.delayed_acks || client.piggybacked_acks && self.clients.process.is_none();
        if self.scenario.responder == Responder::EventLoop && !piggybacked {
            self.events.push(self.now + extra + client.ack_ns, Event::Ack { queue });
        }
        self.answered(conn, &flight, extra);
        self.completes(queue as usize);
    }

    /// Completes an answer whose last byte is on the wire, delayed by `extra`: the client measures it, and may send
    /// again.
    pub(super) fn answered(&mut self, conn: u32, flight: &Flight, extra: u64) {
        let way = self.way_out();
        self.trace_answered(conn, flight.sent_at + way);
        let profile = self.profile;
        let clients = &mut self.clients;
        let free_at = self.now + extra + profile.client.base_ns - way + clients.delay(profile, flight.back_to_back);
        let connection = &mut clients.connections[conn as usize];
        let free_at = free_at.max(connection.answered_at);
        connection.answered_at = free_at;
        clients.latency.record(free_at - flight.sent_at).expect("a resizing histogram takes everything");
        clients.answers += 1;
        self.counts.answers += 1;
        while connection.due.first().is_some_and(|due| due + profile.client.skip_ns < free_at) {
            connection.due.pop();
            clients.skipped += 1;
        }
        if clients.process.is_none() {
            let back_to_back = clients.draws.think.is_none();
            let at = free_at + draw(&mut clients.draws.think);
            self.events.push(at + way, Event::Request { conn, back_to_back });
        } else if connection.due.pop().is_some() {
            self.events.push(free_at + way, Event::Request { conn, back_to_back: true });
        } else {
            connection.free.push(free_at);
        }
    }
}
