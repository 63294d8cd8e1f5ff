//! Epoll: the sockets of one runtime, whichever shards they live on, and waiting for events of any of them.

mod bell;
mod interest;
mod queue;
mod view;
mod wait;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_delivery::EpollBusyPoll;

pub use interest::{Event, Interest};
pub(crate) use queue::{EntryKey, Place, Queue};
pub(crate) use view::QueueView;
pub(crate) use wait::Scratch;

use crate::error::EpollError;
use crate::runtime::Shared;
use crate::shard::Watch;
use crate::socket::{Parts, Source};

/// An epoll context, with the semantics of `epoll(7)`.
///
/// Level- and edge-triggered, one-shot, exclusive. Any number of threads may wait at the same time. Closing a socket takes
/// it out.
#[derive(Debug)]
pub struct Epoll {
    queue: Arc<Queue>,
    runtime: Arc<Shared>,
}

impl Epoll {
    pub(crate) fn new(runtime: &Arc<Shared>) -> Self {
        Self { queue: runtime.new_queue(), runtime: runtime.clone() }
    }

    /// Adds a socket, whose events are told under `token`.
    ///
    /// # Errors
    /// If it is in already, is of another runtime, or is to be both exclusive and one-shot.
    pub fn add(&self, socket: &(impl Source + ?Sized), token: u64, interest: Interest) -> Result<(), EpollError> {
        self.add_as(socket, 0, token, interest)
    }

    /// As [`Self::add`], for a socket that has several names (descriptors, after `dup`) and may be in once under each.
    ///
    /// # Errors
    /// As [`Self::add`]; it is in already under this name.
    pub fn add_as(
        &self,
        socket: &(impl Source + ?Sized),
        name: u32,
        token: u64,
        interest: Interest,
    ) -> Result<(), EpollError> {
        let listens = socket.parts().listens;
        let parts = self.parts(socket)?;
        let exclusive = interest.contains(Interest::EXCLUSIVE);
        if exclusive && interest.contains(Interest::ONESHOT) {
            return Err(EpollError::Exclusive);
        }
        let key = {
            let mut inner = self.queue.inner();
            if inner.by_place.contains_key(&(parts[0], name)) {
                return Err(EpollError::AlreadyAdded);
            }
            for place in parts.iter().filter(|_| !listens) {
                inner.context.handle_add(self.queue.shards[place.shard as usize].id);
            }
            inner.insert(name, token, interest, parts.clone(), listens)
        };
        for place in parts {
            let watch = Watch::Epoll { queue: self.queue.clone(), key, exclusive };
            self.queue.shards[place.shard as usize].with(|core| {
                if let Some(watches) = core.watches(place.socket) {
                    watches.add(watch);
                }
            });
            self.look(place, key, interest);
        }
        Ok(())
    }

    /// Changes what is told of a socket, and under which token. Rearms a one-shot.
    ///
    /// # Errors
    /// If it is not in, or is or is to be exclusive.
    pub fn modify(&self, socket: &(impl Source + ?Sized), token: u64, interest: Interest) -> Result<(), EpollError> {
        self.modify_as(socket, 0, token, interest)
    }

    /// As [`Self::modify`], for what was added by [`Self::add_as`].
    ///
    /// # Errors
    /// As [`Self::modify`].
    pub fn modify_as(
        &self,
        socket: &(impl Source + ?Sized),
        name: u32,
        token: u64,
        interest: Interest,
    ) -> Result<(), EpollError> {
        let parts = self.parts(socket)?;
        let key = {
            let mut inner = self.queue.inner();
            let key = *inner.by_place.get(&(parts[0], name)).ok_or(EpollError::NotAdded)?;
            let was = inner.entries.get(key).map_or(Interest::NONE, |entry| entry.interest);
            if was.contains(Interest::EXCLUSIVE) || interest.contains(Interest::EXCLUSIVE) {
                return Err(EpollError::Exclusive);
            }
            inner.set(key, token, interest);
            key
        };
        for place in parts {
            self.look(place, key, interest);
        }
        Ok(())
    }

    /// Takes a socket out.
    ///
    /// # Errors
    /// If it is not in.
    pub fn remove(&self, socket: &(impl Source + ?Sized)) -> Result<(), EpollError> {
        self.remove_as(socket, 0)
    }

    /// As [`Self::remove`], for what was added by [`Self::add_as`].
    ///
    /// # Errors
    /// As [`Self::remove`].
    pub fn remove_as(&self, socket: &(impl Source + ?Sized), name: u32) -> Result<(), EpollError> {
        let parts = self.parts(socket)?;
        let key = *self.queue.inner().by_place.get(&(parts[0], name)).ok_or(EpollError::NotAdded)?;
        for place in parts {
            self.unwatch(place, key);
        }
        let resume = self.queue.remove(key);
        self.queue.resume(resume);
        Ok(())
    }

    /// Sets the busy-poll parameters of this epoll alone (`EPIOCSPARAMS`); `None` never busy polls.
    ///
    /// # Errors
    /// Parameters out of range.
    pub fn set_busy_poll(&self, busy: Option<EpollBusyPoll>) -> Result<(), EpollError> {
        busy.map_or(Ok(()), |busy| busy.validate())?;
        self.queue.set_busy_poll(busy);
        Ok(())
    }

    /// The busy-poll parameters.
    pub fn busy_poll(&self) -> Option<EpollBusyPoll> {
        self.queue.inner().context.busy_poll()
    }

    /// Whether a wait would find something at once, without a poll of the queues; nothing is taken.
    pub fn is_ready(&self) -> bool {
        self.queue.is_ready()
    }

    /// Gives it an eventfd that is readable while there may be events, for whoever waits by the kernel's means alone (an
    /// epoll or a `poll` that this epoll's descriptor is in); `None` takes it away. Each event then costs a system call.
    pub fn set_bell(&self, bell: Option<OwnedFd>) {
        self.queue.set_bell(bell);
    }

    /// Makes the bell say what is so: it goes on ringing after the last event was taken until somebody looks.
    pub fn settle_bell(&self) {
        self.queue.settle_bell();
    }

    /// Something to end waits with.
    pub fn waker(&self) -> Waker {
        Waker(self.queue.clone())
    }

    /// How long its waits were in busy polls that found nothing: what of a busy thread's time was not work.
    pub fn time_spun(&self) -> Duration {
        self.queue.time_spun().into()
    }

    /// How many sockets are in.
    pub fn len(&self) -> usize {
        self.queue.inner().entries.len()
    }

    /// Whether no socket is in.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parts(&self, socket: &(impl Source + ?Sized)) -> Result<Vec<Place>, EpollError> {
        let Parts { runtime, parts, .. } = socket.parts();
        if !Arc::ptr_eq(runtime, &self.runtime) {
            return Err(EpollError::OtherRuntime);
        }
        Ok(parts.iter().map(|part| Place { shard: part.shard.index.0, socket: part.socket }).collect())
    }

    /// What is already so is told as if it had just happened.
    fn look(&self, place: Place, key: EntryKey, interest: Interest) {
        let readiness = self.queue.shards[place.shard as usize]
            .with(|core| core.readiness(place.socket, interest.contains(Interest::OUT)));
        self.queue.post(key, readiness);
    }

    fn unwatch(&self, place: Place, key: EntryKey) {
        self.queue.shards[place.shard as usize].with(|core| {
            if let Some(watches) = core.watches(place.socket) {
                watches.remove_epoll(&self.queue, key);
            }
        });
    }
}

/// Ends waits on an [`Epoll`] early, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Queue>);

impl Waker {
    /// Ends the wait that goes on, or else the next one: it returns without events if it finds none. Of several threads
    /// that wait one returns.
    pub fn wake(&self) {
        self.0.interrupt();
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let (places, resume) = {
            let mut inner = self.queue.inner();
            let entries = std::mem::take(&mut inner.entries);
            inner.by_place.clear();
            let places: Vec<_> =
                entries.iter().flat_map(|(key, entry)| entry.parts.iter().map(move |place| (*place, key))).collect();
            (places, inner.context.close())
        };
        for (place, key) in places {
            self.unwatch(place, key);
        }
        self.queue.resume(resume);
    }
}
