//! The environment of the threads of a play, and its events.

use std::collections::VecDeque;
use std::sync::Arc;

use abey_delivery::Nanos;

use super::model::{Model, PORTS, number};
use crate::epoll::Waker;
use crate::replay::ring::Ring;
use crate::replay::{NOW, worker_turn};
use crate::shard::Shard;
use crate::work_queue::WorkQueue;

/// How long events continue after the last choice: more than twice the longest timeout of every mode.
const REST: Nanos = Nanos::from_millis(50);

/// The time of one poll of a context that polls without end, after the last choice.
const TURN: Nanos = Nanos::from_micros(200);

/// A thread of the play.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) is_there: bool,
    /// It sleeps until this time.
    pub(super) asleep: Option<Option<Nanos>>,
}

/// The result of a request for the next event.
pub(super) enum Happened {
    /// An event happened; the thread asks again.
    Something,
    /// The thread makes its next step.
    GoOn,
    /// Another thread makes its next step.
    Another,
}

pub(super) struct World {
    pub(super) now: Nanos,
    /// The choices that are left.
    pub(super) choices: std::vec::IntoIter<u16>,
    pub(super) shards: Vec<Arc<Shard>>,
    /// The shards whose service threads poll.
    pub(super) polls: Vec<bool>,
    pub(super) rings: Vec<Ring>,
    pub(super) queue: Arc<WorkQueue>,
    pub(super) wakers: Vec<Waker>,
    pub(super) threads: Vec<Thread>,
    pub(super) running: usize,
    /// A descriptor of the application is ready; a signal is due.
    pub(super) outside: bool,
    pub(super) signal: bool,
    pub(super) model: Model,
    /// Datagrams after the last choice: after this many steps, at a shard, for a socket.
    pub(super) late: VecDeque<(u8, usize, usize)>,
    /// When the last choice was used.
    rests_since: Option<Nanos>,
    /// How many times in a row a thread asked without an event.
    idle: usize,
    pub(super) is_over: bool,
    pub(super) failure: Option<String>,
    /// The log, for the message of a failure.
    pub(super) log: Vec<String>,
}

impl World {
    pub(super) fn new(choices: Vec<u16>, shards: Vec<Arc<Shard>>, rings: Vec<Ring>, queue: Arc<WorkQueue>) -> Self {
        Self {
            now: Nanos::ZERO,
            choices: choices.into_iter(),
            polls: vec![false; shards.len()],
            shards,
            rings,
            queue,
            wakers: Vec::new(),
            threads: Vec::new(),
            running: 0,
            outside: false,
            signal: false,
            model: Model::default(),
            late: VecDeque::new(),
            rests_since: None,
            idle: 0,
            is_over: false,
            failure: None,
            log: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        self.log.push(format!("{now}: {}", what()));
    }

    pub(super) fn end(&mut self, why: Option<String>) {
        self.is_over = true;
        self.failure = self.failure.take().or(why);
    }

    pub(super) fn is_resting(&self) -> bool {
        self.rests_since.is_some()
    }

    /// Lets a poll take time; after the last choice a longer one, so that busy polling ends.
    pub(super) fn takes_time(&mut self) {
        self.now = self.now + if self.is_resting() { TURN } else { Nanos::from_micros(2) };
    }

    /// Gives the turn to the next thread.
    pub(super) fn pass_on(&mut self, me: usize) {
        let count = self.threads.len();
        let mut others = (1..=count).map(|by| (me + by) % count);
        self.running = others.find(|other| self.threads[*other].is_there).unwrap_or(me);
    }

    /// Returns the event before the next step of thread `me`.
    pub(super) fn happen(&mut self, me: usize) -> Happened {
        let Some(choice) = self.choices.next() else { return self.rest(me) };
        let (kind, of) = (choice % 8, usize::from(choice / 8));
        let shard = of % self.shards.len();
        match kind {
            0 | 1 => return Happened::GoOn,
            2 => return Happened::Another,
            3 | 4 => {
                let port = (of / self.shards.len()) % PORTS;
                self.arrive(shard, port);
            }
            5 => self.serve(shard),
            6 => {
                self.now = self.now + Nanos::from_nanos([900, 7_000, 25_000, 210_000, 5_100_000][of % 5]);
                NOW.set(Some(self.now));
                self.note(|| "time has passed".to_owned());
            }
            _ => match of % 4 {
                0 => {
                    self.note(|| "a wake-up".to_owned());
                    self.wakers[of / 4 % self.wakers.len()].wake();
                }
                1 => self.outside = !self.outside,
                2 => self.signal = true,
                _ => _ = worker_turn(&self.queue, &self.shards),
            },
        }
        Happened::Something
    }

    fn arrive(&mut self, shard: usize, port: usize) {
        self.note(|| format!("a datagram for {port} arrives at {shard}"));
        self.model.sockets[port].arrived += 1;
        self.rings[shard].arrive_at(number(port));
    }

    fn serve(&mut self, shard: usize) {
        if self.shards[shard].service_turn(&mut self.polls[shard]) {
            self.note(|| format!("the service thread of {shard} had a turn"));
        }
    }

    /// Makes all events that are due, then lets time pass up to the next one. At the end all datagrams are reported, or a test
    /// fails.
    fn rest(&mut self, me: usize) -> Happened {
        (self.signal, self.outside) = (false, false);
        let since = *self.rests_since.get_or_insert(self.now);
        let mut is_due = false;
        for shard in 0..self.shards.len() {
            let did = self.shards[shard].service_turn(&mut self.polls[shard]);
            is_due |= did;
            // A shard that polls without end counts as a busy thread.
            self.now = self.now + if did && self.polls[shard] { TURN } else { Nanos::ZERO };
        }
        is_due |= worker_turn(&self.queue, &self.shards);
        if let Some((steps, shard, port)) = self.late.pop_front() {
            match steps {
                0 => self.arrive(shard % self.shards.len(), port),
                _ => self.late.push_front((steps - 1, shard, port)),
            }
            (is_due, self.rests_since) = (true, Some(self.now));
        }
        NOW.set(Some(self.now));
        let there = self.threads.iter().filter(|thread| thread.is_there).count();
        self.idle = if is_due || self.threads[me].asleep.is_none() { 0 } else { self.idle + 1 };
        // Each thread has asked twice since the last event.
        if self.idle > 2 * there {
            self.idle = 0;
            let sleeps =
                self.threads.iter().filter(|thread| thread.is_there).filter_map(|thread| thread.asleep.flatten());
            let timers = self.shards.iter().filter_map(|shard| shard.service_timer());
            match sleeps.chain(timers).min() {
                Some(next) => self.now = self.now.max(next),
                None => self.finish(),
            }
        }
        if self.now > since + REST {
            self.finish();
        }
        if there > 1 { Happened::Another } else { Happened::GoOn }
    }

    fn finish(&mut self) {
        let unreported = self.model.unreported();
        self.end(unreported.map(|socket| format!("datagrams for {socket} arrived, and are not reported")));
    }
}
