//! One thread's connections: epoll, storing the key space, and the loop that sends on time and receives.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::clock::Clock;
use crate::config::Options;
use crate::connection::Connection;
use crate::error::LoadError;
use crate::schedule::random_stream;
use crate::workload::{Kind, Material};

/// Events taken from epoll at once: few, so that due requests are looked at often when answers flood in.
pub(crate) const EVENTS: usize = 16;
/// Bytes that one read takes.
const READ_SIZE: usize = 64 << 10;
/// While the key space is stored: requests outstanding on a connection, and bytes above which no more are added.
const STORE_DEPTH: usize = 64;
const STORE_BYTES: usize = 256 << 10;

pub(crate) type Events = [Event; EVENTS];

pub(crate) fn no_events() -> Events {
    [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS]
}

/// Raised from outside: by the caller, or by another thread of the load that failed.
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
pub(crate) struct Engine {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) material: Arc<Material>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) buffer: Box<[u8]>,
    epoll: OwnedFd,
}

impl Engine {
    /// Makes connections number `numbers` (from 1).
    pub(crate) fn connect(
        options: &Options,
        clock: Clock,
        material: Arc<Material>,
        numbers: Range<usize>,
        stop: &Stop,
    ) -> Result<Self, LoadError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| LoadError::Epoll(e.into()))?;
        let open = |number| if stop.is_raised() { Err(LoadError::Stopped) } else { Connection::open(options, number) };
        let connections = numbers.map(open).collect::<Result<Vec<_>, _>>()?;
        let buffer = vec![0; READ_SIZE].into_boxed_slice();
        let engine = Self { options: options.clone(), clock, material, connections, buffer, epoll };
        for index in 0..engine.connections.len() {
            engine.watch_new(index)?;
        }
        Ok(engine)
    }

    /// Starts to watch the socket of connection `index`; a closed socket was forgotten by the kernel.
    pub(crate) fn watch_new(&self, index: usize) -> Result<(), LoadError> {
        let data = EventData::new_u64(index as u64);
        epoll::add(&self.epoll, &self.connections[index], data, EventFlags::IN).map_err(|e| LoadError::Epoll(e.into()))
    }

    /// Sends what is buffered on connection `index`; watches for room in the socket exactly while it has none.
    pub(crate) fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        connection.flush()?;
        let stuck = connection.unwritten() > 0;
        if stuck != connection.watched_for_room {
            connection.watched_for_room = stuck;
            let flags = if stuck { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &*connection, data, flags).map_err(|e| LoadError::Epoll(e.into()))?;
        }
        Ok(())
    }

    /// Waits for events; no timeout returns at once.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Duration) -> Result<usize, LoadError> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match epoll::wait(&self.epoll, events.as_mut_slice(), Some(&timeout)) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(LoadError::Epoll(error.into())),
        }
    }

    /// Stores every key once, as fast as the server takes them.
    pub(crate) fn store_keys(&mut self, stop: &Stop) -> Result<(), LoadError> {
        let keys = self.material.stored_keys();
        let mut rng = random_stream(0, 0, 3);
        let (mut next, mut stored) = (0, 0);
        let mut events = no_events();
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
            let count = self.wait(&mut events, self.options.timeout.min(Duration::from_millis(100)))?;
            let stored_before = stored;
            for event in &events[..count] {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                if flags.contains(EventFlags::OUT) {
                    self.flush(index)?;
                }
                if flags != EventFlags::OUT {
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
