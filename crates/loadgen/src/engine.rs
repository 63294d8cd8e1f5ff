//! The connections of one thread with their epoll instance, and storing the key space.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Options;
use crate::connection::Connection;
use crate::error::LoadError;
use crate::network::{Epoll, Event, Interest, Network, Seat};
use crate::schedule::random_stream;
use crate::workload::{Kind, Material};

/// Events taken from epoll at once: few, so that due requests are sent in time while many answers arrive.
const EVENTS: usize = 16;
/// The size of a read, bytes.
const READ_SIZE: usize = 64 << 10;
/// Requests outstanding on a connection while the key space is stored, and unsent bytes above which no more are added.
const STORE_DEPTH: usize = 64;
const STORE_BYTES: usize = 256 << 10;

/// The stop flags of a load: the caller's, and one that a failed thread sets for the others.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) asked: Option<Arc<AtomicBool>>,
    pub(crate) abort: Arc<AtomicBool>,
}

impl Stop {
    pub(crate) fn is_raised(&self) -> bool {
        self.abort.load(Ordering::Relaxed) || self.asked.as_ref().is_some_and(|asked| asked.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub(crate) struct Engine<N: Network> {
    pub(crate) network: N,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) material: Arc<Material>,
    pub(crate) connections: Vec<Connection<N>>,
    pub(crate) buffer: Box<[u8]>,
    epoll: N::Epoll,
}

impl<N: Network> Engine<N> {
    /// Makes the connections with these `numbers` (from 1) for thread `thread`.
    pub(crate) fn connect(
        network: &N,
        options: &Options,
        clock: Clock,
        material: Arc<Material>,
        thread: usize,
        numbers: Range<usize>,
        stop: &Stop,
    ) -> Result<Self, LoadError> {
        let epoll = network.epoll(EVENTS).map_err(LoadError::Epoll)?;
        let open = |number| {
            if stop.is_raised() {
                return Err(LoadError::Stopped);
            }
            Connection::open(network, options, Seat { thread, threads: options.threads, number })
        };
        let connections = numbers.map(open).collect::<Result<Vec<_>, _>>()?;
        let buffer = vec![0; READ_SIZE].into_boxed_slice();
        let (network, options) = (network.clone(), options.clone());
        let engine = Self { network, options, clock, material, connections, buffer, epoll };
        for index in 0..engine.connections.len() {
            engine.watch_new(index)?;
        }
        Ok(engine)
    }

    /// Registers the socket of connection `index`; a closed socket was removed.
    pub(crate) fn watch_new(&self, index: usize) -> Result<(), LoadError> {
        self.connections[index].watch(&self.epoll, index as u64).map_err(LoadError::Epoll)
    }

    /// Sends what is buffered on connection `index`. Its interest includes writing exactly while the socket is full.
    pub(crate) fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        connection.flush()?;
        let stuck = connection.unwritten() > 0;
        if stuck != connection.watched_for_room {
            connection.watched_for_room = stuck;
            let interest = if stuck { Interest::ReadWrite } else { Interest::Read };
            connection.rewatch(&self.epoll, index as u64, interest).map_err(LoadError::Epoll)?;
        }
        Ok(())
    }

    /// Waits for events; a timeout of zero returns at once.
    pub(crate) fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration) -> Result<(), LoadError> {
        self.epoll.wait(events, Some(timeout)).map_err(LoadError::Epoll)
    }

    /// Returns [`Epoll::time_spun`], ns.
    pub(crate) fn time_spun(&self) -> Option<u64> {
        self.epoll.time_spun().map(|time| time.as_nanos() as u64)
    }

    /// Stores every key once, as fast as the server accepts them.
    pub(crate) fn store_keys(&mut self, stop: &Stop) -> Result<(), LoadError> {
        let keys = self.material.stored_keys();
        let mut rng = random_stream(0, 0, 3);
        let (mut next, mut stored) = (0, 0);
        let mut events = Vec::with_capacity(EVENTS);
        let mut last_answer = self.clock.now();
        while stored < keys {
            if stop.is_raised() {
                return Err(LoadError::Stopped);
            }
            for index in 0..self.connections.len() {
                let connection = &mut self.connections[index];
                let before = next;
                while next < keys && connection.outstanding() < STORE_DEPTH && connection.unwritten() < STORE_BYTES {
                    let material = &self.material;
                    connection.push(0, 0, |out| {
                        material.append_store(out, next, &mut rng);
                        Kind::Set
                    });
                    next += 1;
                }
                if next > before {
                    self.flush(index)?;
                }
            }
            self.wait(&mut events, self.options.timeout.min(Duration::from_millis(100)))?;
            let stored_before = stored;
            for event in &events {
                let index = event.token as usize;
                if event.writable {
                    self.flush(index)?;
                }
                if event.readable {
                    self.connections[index].receive(&mut self.buffer, || 0, |_, _, _| stored += 1)?;
                }
            }
            let now = self.clock.now();
            if stored > stored_before {
                last_answer = now;
            }
            let silent = Duration::from_nanos(now - last_answer);
            if stored < keys && silent > self.options.timeout {
                return Err(LoadError::Silent { target: self.options.target, outstanding: next - stored, silent });
            }
        }
        Ok(())
    }
}
