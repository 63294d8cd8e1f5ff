//! How long requests take, as this end of the wire sees it: from the arrival of a request to the program's answer.
//!
//! Measured only while somebody asks ([`Wanted::Latency`](crate::control::Wanted::Latency)); otherwise a shard pays for it
//! with one look at a word per poll, per event and per write.
//!
//! *A request* is data that makes a socket readable again, *its answer* the next write on the same socket. Connections that
//! this end opened are left out: there the peer answers.
//!
//! *When it arrived* no frame says. A queue that was found empty at one time and not at the next got its frames in between,
//! and if they come independently of each other each came at any moment in between with the same probability (the
//! arrival times of a Poisson process, given their number, are uniform). So one such moment is drawn. Where an interrupt
//! or the descriptor woke somebody, the frame had just come: what the wake-up itself took is not seen, nor is the wire.
//!
//! *Which are measured.* One in so many that about [`WANTED`] answers fall between two questions; at low rates all. At
//! most [`OPEN`] are under way at a time, and one that is not answered within [`PATIENCE`] is given up.

use abey_delivery::Nanos;
use abey_tcpip::{Readiness, SocketId};
use hdrhistogram::Histogram;

use super::core::Core;

/// Answers that are wanted between two questions.
const WANTED: u64 = 4096;
/// Most requests that are watched at a time.
const OPEN: usize = 32;
/// How long a request is watched.
const PATIENCE: Nanos = Nanos::from_millis(1_000);
/// The longest time that is told apart, in nanoseconds.
const LONGEST: u64 = 2 * PATIENCE.as_nanos();
/// A sleep past a deferral that ends later than this after it was ended by a frame.
const PROMPT: Nanos = Nanos::from_micros(50);

/// A request that has not been answered yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    socket: SocketId,
    arrived: Nanos,
}

/// What is measured of one shard, since somebody first asked.
#[derive(Debug)]
pub(crate) struct Latencies {
    /// When it ends, unless somebody asks again.
    until: Nanos,
    /// When the queue was last seen empty, or was known to have got its first frame.
    empty_at: Nanos,
    /// Between which times the frames of the last poll came.
    came: (Nanos, Nanos),
    one_in: u64,
    /// Requests to pass over before the next is watched.
    pass: u64,
    requests: u64,
    requests_when_asked: u64,
    random: u64,
    open: Vec<Open>,
    answered: Histogram<u64>,
}

/// What was measured so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyView {
    /// Requests, measured or not.
    pub(crate) requests: u64,
    /// Pairs of a time in nanoseconds and how many answers took about so long, ascending.
    pub(crate) answered: Vec<(u64, u64)>,
}

impl Latencies {
    fn new(now: Nanos, until: Nanos) -> Self {
        Self {
            until,
            empty_at: now,
            came: (now, now),
            one_in: 1,
            pass: 0,
            requests: 0,
            requests_when_asked: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            open: Vec::with_capacity(OPEN),
            answered: Histogram::new_with_bounds(1, LONGEST, 2).expect("bounds that HDR histograms take"),
        }
    }

    /// A frame came just now, to a queue that was empty.
    fn frame_came(&mut self, now: Nanos) {
        self.empty_at = now;
    }

    fn polled(&mut self, now: Nanos, found: bool, emptied: bool) {
        if found {
            self.came = (self.empty_at.min(now), now);
        }
        if emptied {
            self.empty_at = now;
        }
    }

    /// Whether this request is one of those to be watched.
    fn is_wanted(&mut self) -> bool {
        self.requests += 1;
        if self.pass > 0 {
            self.pass -= 1;
            return false;
        }
        self.pass = self.one_in - 1;
        true
    }

    fn begin(&mut self, socket: SocketId) {
        let now = self.came.1;
        if self.open.len() == OPEN {
            self.open.retain(|open| open.arrived + PATIENCE > now);
        }
        // Of a pipeline the first counts, until it is answered.
        if self.open.len() == OPEN || self.open.iter().any(|open| open.socket == socket) {
            return;
        }
        let arrived = self.moment();
        self.open.push(Open { socket, arrived });
    }

    /// A moment drawn from those at which the frames may have come.
    fn moment(&mut self) -> Nanos {
        // xorshift64 (Marsaglia 2003): nothing more is asked of it than to be even.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (from, to) = self.came;
        let share = u128::from(to.saturating_sub(from).as_nanos()) * u128::from(self.random >> 32);
        from + Nanos::from_nanos((share >> 32) as u64)
    }

    fn answered(&mut self, socket: SocketId, now: Nanos) {
        let Some(at) = self.open.iter().position(|open| open.socket == socket) else { return };
        let Open { arrived, .. } = self.open.swap_remove(at);
        self.answered.saturating_record(now.saturating_sub(arrived).as_nanos().max(1));
    }

    /// Somebody asks: how long it goes on, and how many are to be measured until the next time.
    fn asked(&mut self, until: Nanos) -> LatencyView {
        self.until = self.until.max(until);
        let new = self.requests - std::mem::replace(&mut self.requests_when_asked, self.requests);
        // Odd, so that it does not keep step with batches of an even length.
        self.one_in = (new / WANTED) | 1;
        self.pass = self.pass.min(self.one_in - 1);
        let counts = self.answered.iter_recorded();
        let pairs = counts.map(|value| (value.value_iterated_to(), value.count_at_value()));
        LatencyView { requests: self.requests, answered: pairs.collect() }
    }
}

impl Core {
    /// What is measured until then, and what was measured so far.
    pub(crate) fn watch_latency(&mut self, span: Nanos) -> LatencyView {
        let now = self.now();
        let until = now + span;
        self.latency.get_or_insert_with(|| Box::new(Latencies::new(now, until))).asked(until)
    }

    /// An interrupt, or a descriptor that tells of frames while it is masked.
    pub(super) fn note_frame_came(&mut self) {
        if self.latency.is_some() {
            let now = self.now();
            self.latency.iter_mut().for_each(|latency| latency.frame_came(now));
        }
    }

    /// A sleep past a deferral ended. If that was not when the deferral's time was over, a frame ended it.
    pub(super) fn note_overslept(&mut self) {
        let deferred_until = self.napi.get().timer();
        if self.latency.is_some() && deferred_until.is_some_and(|at| self.now() > at + PROMPT) {
            self.note_frame_came();
        }
    }

    pub(super) fn note_polled(&mut self, now: Nanos, work: u16, budget: u16) {
        if let Some(latency) = &mut self.latency {
            latency.polled(now, work > 0, work < budget);
        }
    }

    /// Something happened to a socket.
    pub(super) fn note_event(&mut self, socket: SocketId, edges: Readiness) {
        let Some(latency) = &mut self.latency else { return };
        let now = latency.came.1;
        if now > latency.until {
            self.latency = None;
            return;
        }
        let answers = self.watches.get(socket).is_some_and(|watches| !watches.outgoing);
        if answers && edges.contains(Readiness::READABLE) && latency.is_wanted() {
            let data = self.stack.readable_bytes(socket).is_ok_and(|bytes| bytes > 0);
            let mut datagram = || matches!(self.stack.next_datagram_bytes(socket), Ok(Some(_)));
            if data || datagram() {
                latency.begin(socket);
            }
        }
    }

    /// The program wrote to a socket.
    #[inline]
    pub(crate) fn note_answer(&mut self, socket: SocketId) {
        if self.latency.is_some() {
            let now = self.now();
            self.latency.iter_mut().for_each(|latency| latency.answered(socket, now));
        }
    }

    /// This end opened the connection.
    pub(crate) fn note_outgoing(&mut self, socket: SocketId) {
        if let Some(watches) = self.watches(socket) {
            watches.outgoing = true;
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

    /// Answers by time, with the total.
    fn measured(latency: &mut Latencies) -> (Vec<(u64, u64)>, u64) {
        let view = latency.asked(us(0));
        let count = view.answered.iter().map(|(_, count)| count).sum();
        (view.answered, count)
    }

    #[test]
    fn a_frame_that_woke_somebody_had_just_come_and_others_waited_since_any_time_after_the_last_look() {
        let ids = sockets(1);
        let mut latency = Latencies::new(us(0), us(1_000_000));
        latency.frame_came(us(500));
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
    fn what_a_poll_leaves_in_the_ring_goes_on_waiting() {
        let mut latency = Latencies::new(us(0), us(1_000_000));
        latency.polled(us(100), true, true);
        latency.polled(us(200), true, false);
        latency.polled(us(300), true, true);
        assert_eq!(latency.came, (us(100), us(300)));
    }

    #[test]
    fn about_as_many_as_wanted_are_measured() {
        let mut latency = Latencies::new(us(0), us(1_000_000));
        let wanted = |latency: &mut Latencies, of: u64| (0..of).filter(|_| latency.is_wanted()).count() as u64;
        assert_eq!(wanted(&mut latency, 1_000), 1_000, "all of few");
        latency.asked(us(0));
        assert_eq!(wanted(&mut latency, 100_000), 100_000, "one in one as of the time before");
        latency.asked(us(0));
        assert!((WANTED * 9 / 10..=WANTED * 11 / 10).contains(&wanted(&mut latency, 100_000)));
        assert_eq!(latency.asked(us(0)).requests, 201_000);
    }

    #[test]
    fn unanswered_requests_make_room_in_time() {
        let ids = sockets(OPEN + 1);
        let mut latency = Latencies::new(us(0), us(100_000_000));
        latency.polled(us(10), true, true);
        ids.iter().for_each(|id| latency.begin(*id));
        assert_eq!(latency.open.len(), OPEN);
        latency.polled(us(5_000_000), true, true);
        latency.begin(ids[OPEN]);
        assert_eq!(latency.open.len(), 1);
        latency.answered(ids[0], us(5_000_100));
        assert_eq!(measured(&mut latency).1, 0, "given up");
    }
}
