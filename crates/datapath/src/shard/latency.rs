//! Request latency as this end of the wire sees it: the time from the arrival of a request to the program's answer.
//!
//! A shard measures only while a client asks ([`Query::Latency`](crate::control::Query::Latency)). Otherwise it checks one
//! word per poll, per event and per write.
//!
//! *A request* is data that makes a socket readable again; *its answer* is the next write on the same socket. Connections
//! that this end opened are not measured, because there the peer answers.
//!
//! *The arrival time* is in no frame. A queue that was empty at one poll and not at the next received its frames in
//! between. If they arrive independently of each other, every moment in between is equally likely (the arrival times of a
//! Poisson process, given their number, are uniform). So the arrival time is drawn from that interval. If an interrupt or
//! the descriptor woke a thread, the frame had just arrived; the time that the wake-up took and the wire are not included.
//!
//! *Sampling.* One request in so many is measured that about [`TARGET_SAMPLES`] answers fall between two queries; at low
//! rates every request is. At most [`MAX_PENDING`] are measured at a time, and one that is not answered within [`EXPIRY`]
//! is dropped.

use abey_delivery::Nanos;
use abey_tcpip::{Readiness, SocketId};
use hdrhistogram::Histogram;

/// The number of samples between two queries.
const TARGET_SAMPLES: u64 = 4096;
/// The most requests that are measured at a time.
const MAX_PENDING: usize = 32;
/// How long a request is measured.
const EXPIRY: Nanos = Nanos::from_millis(1_000);
/// The upper bound of the histogram, in nanoseconds.
const MAX_LATENCY: u64 = 2 * EXPIRY.as_nanos();
/// A sleep past a deferral that ends at least this much after the deferral was ended by a frame.
const TIMER_TOLERANCE: Nanos = Nanos::from_micros(50);

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
struct Pending {
    socket: SocketId,
    arrived: Nanos,
}

/// The measurements of one shard since the first query.
#[derive(Debug)]
struct Latencies {
    /// When the measurement ends without another query.
    until: Nanos,
    /// When the queue was last empty, or its first frame arrived.
    empty_at: Nanos,
    /// The interval in which the frames of the last poll arrived.
    arrival: (Nanos, Nanos),
    /// One request in this number is measured.
    sample_every: u64,
    /// The number of requests to skip before the next that is measured.
    skip: u64,
    requests: u64,
    requests_at_query: u64,
    random: u64,
    pending: Vec<Pending>,
    answered: Histogram<u64>,
}

/// The measurements so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyView {
    /// The number of requests, measured or not.
    pub(crate) requests: u64,
    /// Pairs of a latency in nanoseconds and the number of answers that took about that long, ascending.
    pub(crate) answered: Vec<(u64, u64)>,
}

impl Latencies {
    fn new(now: Nanos, until: Nanos) -> Self {
        Self {
            until,
            empty_at: now,
            arrival: (now, now),
            sample_every: 1,
            skip: 0,
            requests: 0,
            requests_at_query: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            pending: Vec::with_capacity(MAX_PENDING),
            answered: Histogram::new_with_bounds(1, MAX_LATENCY, 2).expect("the bounds are valid"),
        }
    }

    /// Records that a frame has just arrived at an empty queue.
    fn frame_arrived(&mut self, now: Nanos) {
        self.empty_at = now;
    }

    fn polled(&mut self, now: Nanos, found: bool, emptied: bool) {
        if found {
            self.arrival = (self.empty_at.min(now), now);
        }
        if emptied {
            self.empty_at = now;
        }
    }

    /// Counts a request. Returns whether to measure it.
    fn is_sampled(&mut self) -> bool {
        self.requests += 1;
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.skip = self.sample_every - 1;
        true
    }

    fn begin(&mut self, socket: SocketId) {
        let now = self.arrival.1;
        if self.pending.len() == MAX_PENDING {
            self.pending.retain(|pending| pending.arrived + EXPIRY > now);
        }
        // Of pipelined requests only the first is measured, until it is answered.
        if self.pending.len() == MAX_PENDING || self.pending.iter().any(|pending| pending.socket == socket) {
            return;
        }
        let arrived = self.random_arrival();
        self.pending.push(Pending { socket, arrived });
    }

    /// Returns a random moment of the arrival interval.
    fn random_arrival(&mut self) -> Nanos {
        // xorshift64 (Marsaglia 2003). The numbers need only be uniform.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (from, to) = self.arrival;
        let share = u128::from(to.saturating_sub(from).as_nanos()) * u128::from(self.random >> 32);
        from + Nanos::from_nanos((share >> 32) as u64)
    }

    fn answered(&mut self, socket: SocketId, now: Nanos) {
        let Some(at) = self.pending.iter().position(|pending| pending.socket == socket) else { return };
        let Pending { arrived, .. } = self.pending.swap_remove(at);
        self.answered.saturating_record(now.saturating_sub(arrived).as_nanos().max(1));
    }

    /// Extends the measurement to `until`, adapts the sampling, and returns the measurements so far.
    fn query(&mut self, until: Nanos) -> LatencyView {
        self.until = self.until.max(until);
        let new = self.requests - std::mem::replace(&mut self.requests_at_query, self.requests);
        // An odd number, so that the samples do not align with batches of an even length.
        self.sample_every = (new / TARGET_SAMPLES) | 1;
        self.skip = self.skip.min(self.sample_every - 1);
        let counts = self.answered.iter_recorded();
        let answered = counts.map(|value| (value.value_iterated_to(), value.count_at_value())).collect();
        LatencyView { requests: self.requests, answered }
    }
}

/// The place in a shard where latencies are measured, while a client asks.
#[derive(Debug, Default)]
pub(super) struct LatencyProbe(Option<Box<Latencies>>);

impl LatencyProbe {
    /// Measures until `now + span`. Returns the measurements so far.
    pub(super) fn query(&mut self, now: Nanos, span: Nanos) -> LatencyView {
        let until = now + span;
        self.0.get_or_insert_with(|| Box::new(Latencies::new(now, until))).query(until)
    }

    /// Records an interrupt, or a descriptor that reports frames while the interrupt is masked.
    pub(super) fn frame_arrived(&mut self, now: impl FnOnce() -> Nanos) {
        if let Some(latencies) = &mut self.0 {
            latencies.frame_arrived(now());
        }
    }

    /// Records that a sleep past a deferral ended. If it ended later than the deferral, a frame ended it.
    pub(super) fn woke_from_deferral(&mut self, deferred_until: Option<Nanos>, now: impl FnOnce() -> Nanos) {
        if let Some(latencies) = &mut self.0
            && let Some(at) = deferred_until
        {
            let now = now();
            if now > at + TIMER_TOLERANCE {
                latencies.frame_arrived(now);
            }
        }
    }

    /// Records a poll that received `work` packets of at most `budget`.
    pub(super) fn polled(&mut self, now: Nanos, work: u16, budget: u16) {
        if let Some(latencies) = &mut self.0 {
            latencies.polled(now, work > 0, work < budget);
        }
    }

    /// Records an event of a socket. It is a request if the socket `is_incoming` and `has_data`.
    pub(super) fn event(
        &mut self,
        socket: SocketId,
        edges: Readiness,
        is_incoming: impl FnOnce() -> bool,
        has_data: impl FnOnce() -> bool,
    ) {
        let Some(latencies) = &mut self.0 else { return };
        if latencies.arrival.1 > latencies.until {
            self.0 = None;
            return;
        }
        if is_incoming() && edges.contains(Readiness::READABLE) && latencies.is_sampled() && has_data() {
            latencies.begin(socket);
        }
    }

    /// Records that the program wrote to a socket.
    #[inline]
    pub(super) fn answered(&mut self, socket: SocketId, now: impl FnOnce() -> Nanos) {
        if let Some(latencies) = &mut self.0 {
            latencies.answered(socket, now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotmap::SlotMap;

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    fn sockets(count: usize) -> Vec<SocketId> {
        let mut map = SlotMap::<SocketId, ()>::with_key();
        (0..count).map(|_| map.insert(())).collect()
    }

    /// Returns the answers by latency, and their number.
    fn measured(latency: &mut Latencies) -> (Vec<(u64, u64)>, u64) {
        let view = latency.query(us(0));
        let count = view.answered.iter().map(|(_, count)| count).sum();
        (view.answered, count)
    }

    #[test]
    fn arrival_is_the_wake_up_or_uniform_since_the_last_empty_poll() {
        let ids = sockets(1);
        let mut latency = Latencies::new(us(0), us(1_000_000));
        latency.frame_arrived(us(500));
        latency.polled(us(510), true, true);
        latency.begin(ids[0]);
        latency.answered(ids[0], us(520));
        let (times, count) = measured(&mut latency);
        assert!(count == 1 && (9_900..=20_200).contains(&times[0].0), "{times:?}");
        let mut latency = Latencies::new(us(0), us(1_000_000));
        for round in 1..=4000 {
            let now = us(round * 100);
            latency.polled(now, true, true);
            latency.begin(ids[0]);
            latency.answered(ids[0], now);
        }
        let (times, count) = measured(&mut latency);
        let below = |limit: u64| times.iter().filter(|(time, _)| *time <= limit).map(|(_, count)| count).sum::<u64>();
        assert_eq!((count, below(101_000)), (4000, 4000));
        assert!((1_800..2_200).contains(&below(50_000)), "half of them waited for less than half: {}", below(50_000));
    }

    #[test]
    fn frames_that_a_poll_leaves_in_the_ring_keep_their_arrival_interval() {
        let mut latency = Latencies::new(us(0), us(1_000_000));
        latency.polled(us(100), true, true);
        latency.polled(us(200), true, false);
        latency.polled(us(300), true, true);
        assert_eq!(latency.arrival, (us(100), us(300)));
    }

    #[test]
    fn the_number_of_samples_adapts_to_the_rate() {
        let mut latency = Latencies::new(us(0), us(1_000_000));
        let sampled = |latency: &mut Latencies, of: u64| (0..of).filter(|_| latency.is_sampled()).count() as u64;
        assert_eq!(sampled(&mut latency, 1_000), 1_000, "few requests are all measured");
        latency.query(us(0));
        assert_eq!(sampled(&mut latency, 100_000), 100_000, "the rate follows that before the last query");
        latency.query(us(0));
        assert!((TARGET_SAMPLES * 9 / 10..=TARGET_SAMPLES * 11 / 10).contains(&sampled(&mut latency, 100_000)));
        assert_eq!(latency.query(us(0)).requests, 201_000);
    }

    #[test]
    fn unanswered_requests_expire() {
        let ids = sockets(MAX_PENDING + 1);
        let mut latency = Latencies::new(us(0), us(100_000_000));
        latency.polled(us(10), true, true);
        ids.iter().for_each(|id| latency.begin(*id));
        assert_eq!(latency.pending.len(), MAX_PENDING);
        latency.polled(us(5_000_000), true, true);
        latency.begin(ids[MAX_PENDING]);
        assert_eq!(latency.pending.len(), 1);
        latency.answered(ids[0], us(5_000_100));
        assert_eq!(measured(&mut latency).1, 0, "the request has expired");
    }
}
