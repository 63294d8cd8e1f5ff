//! Epoll: an interest list of sockets of one runtime, on any of its shards, and waiting for their events.

mod interest;
mod ready_fd;
mod ready_queue;
mod wait;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use abey_delivery::EpollBusyPoll;

pub use interest::{Event, Interest};
pub(crate) use ready_queue::{EpollView, ReadyQueue};

use crate::error::EpollError;
use crate::host::Host;
use crate::kernel_wait::{KernelWait, WaitOutcome};
use crate::shard::{InterestKey, Notify, Observer, ShardSocket, SocketKey};
use crate::source::{Source, SourceInfo};

/// An epoll context, with the semantics of `epoll(7)`.
///
/// Level- and edge-triggered, one-shot and exclusive entries are supported. Any number of threads may wait at the same time.
/// Closing a socket removes it.
#[derive(Debug)]
pub struct Epoll {
    queue: Arc<ReadyQueue>,
    host: Arc<Host>,
}

impl Epoll {
    pub(crate) fn new(queue: Arc<ReadyQueue>, host: Arc<Host>) -> Self {
        Self { queue, host }
    }

    /// Adds a socket, whose events are reported under `token`.
    ///
    /// # Errors
    /// The socket is in this epoll, belongs to another runtime, or would be both exclusive and one-shot.
    pub fn add(&self, socket: &(impl Source + ?Sized), token: u64, interest: Interest) -> Result<(), EpollError> {
        self.add_as(socket, 0, token, interest)
    }

    /// Adds a socket under an alias, as [`Self::add`] does under alias 0.
    ///
    /// A socket with several descriptors (after `dup`) may be in the epoll once for each alias.
    ///
    /// # Errors
    /// Those of [`Self::add`]; the socket is in this epoll under this alias.
    pub fn add_as(
        &self,
        socket: &(impl Source + ?Sized),
        alias: u32,
        token: u64,
        interest: Interest,
    ) -> Result<(), EpollError> {
        let is_listener = socket.info().is_listener;
        let sockets = self.keys(socket)?;
        let exclusive = interest.contains(Interest::EXCLUSIVE);
        if exclusive && interest.contains(Interest::ONESHOT) {
            return Err(EpollError::Exclusive);
        }
        let key = {
            let mut inner = self.queue.inner();
            if inner.by_socket.contains_key(&(sockets[0], alias)) {
                return Err(EpollError::AlreadyAdded);
            }
            for socket in sockets.iter().filter(|_| !is_listener) {
                inner.context.handle_add(self.queue.shard_of(*socket).id);
            }
            inner.insert(alias, token, interest, sockets.clone(), is_listener)
        };
        for socket in sockets {
            let observer = Observer::Epoll { epoll: self.queue.clone(), key, exclusive };
            self.queue.shard_of(socket).with(|core| core.sockets.observe(socket.socket, observer));
            self.notify_present(socket, key, interest);
        }
        Ok(())
    }

    /// Changes the interest and the token of a socket. Re-arms a one-shot entry.
    ///
    /// # Errors
    /// The socket is not in this epoll, or its old or new interest is exclusive.
    pub fn modify(&self, socket: &(impl Source + ?Sized), token: u64, interest: Interest) -> Result<(), EpollError> {
        self.modify_as(socket, 0, token, interest)
    }

    /// Changes an entry that was added by [`Self::add_as`].
    ///
    /// # Errors
    /// Those of [`Self::modify`].
    pub fn modify_as(
        &self,
        socket: &(impl Source + ?Sized),
        alias: u32,
        token: u64,
        interest: Interest,
    ) -> Result<(), EpollError> {
        let sockets = self.keys(socket)?;
        let key = {
            let mut inner = self.queue.inner();
            let key = *inner.by_socket.get(&(sockets[0], alias)).ok_or(EpollError::NotAdded)?;
            let before = inner.entries.get(key).map_or(Interest::NONE, |entry| entry.interest);
            if before.contains(Interest::EXCLUSIVE) || interest.contains(Interest::EXCLUSIVE) {
                return Err(EpollError::Exclusive);
            }
            inner.modify(key, token, interest);
            key
        };
        for socket in sockets {
            self.notify_present(socket, key, interest);
        }
        Ok(())
    }

    /// Removes a socket.
    ///
    /// # Errors
    /// The socket is not in this epoll.
    pub fn remove(&self, socket: &(impl Source + ?Sized)) -> Result<(), EpollError> {
        self.remove_as(socket, 0)
    }

    /// Removes an entry that was added by [`Self::add_as`].
    ///
    /// # Errors
    /// Those of [`Self::remove`].
    pub fn remove_as(&self, socket: &(impl Source + ?Sized), alias: u32) -> Result<(), EpollError> {
        let sockets = self.keys(socket)?;
        let key = *self.queue.inner().by_socket.get(&(sockets[0], alias)).ok_or(EpollError::NotAdded)?;
        self.stop_observing(sockets.into_iter().map(|socket| (socket, key)));
        self.queue.remove(key);
        Ok(())
    }

    /// Returns the token and the interest of an entry that was added by [`Self::add_as`]. The interest of a one-shot entry that
    /// has reported its event is only [`Interest::ONESHOT`].
    pub fn entry_as(&self, socket: &(impl Source + ?Sized), alias: u32) -> Option<(u64, Interest)> {
        let sockets = self.keys(socket).ok()?;
        let inner = self.queue.inner();
        let entry = inner.entries.get(*inner.by_socket.get(&(*sockets.first()?, alias))?)?;
        Some((entry.token, if entry.is_disarmed { Interest::ONESHOT } else { entry.interest }))
    }

    /// Waits until sockets have events, for at most `timeout`, and fills `events` with up to `max` of them. Returns their
    /// number.
    ///
    /// Without a timeout it waits for ever. With a timeout of zero it polls the queues once and does not wait. It clears
    /// `events` first.
    ///
    /// # Errors
    /// `max` is 0, the runtime was dropped, or the process has no file descriptor left.
    pub fn wait(&self, events: &mut Vec<Event>, max: usize, timeout: Option<Duration>) -> Result<usize, EpollError> {
        // A signal does not end a wait without a `KernelWait`.
        wait::run(&self.queue, &self.host, (events, max), timeout, None).map(|_| events.len())
    }

    /// Waits as [`Self::wait`] does, and also for the descriptors and signals of `kernel`.
    ///
    /// The wait checks `kernel` when it sleeps, and after each round of a wait that the mode divides into rounds
    /// (`fullbusy`: 1 ms). It does not check `kernel` if there are events, or if the timeout is zero; so a busy program
    /// must check its own descriptors now and then.
    ///
    /// # Errors
    /// Those of [`Self::wait`].
    pub fn wait_with(
        &self,
        events: &mut Vec<Event>,
        max: usize,
        timeout: Option<Duration>,
        kernel: &dyn KernelWait,
    ) -> Result<WaitOutcome, EpollError> {
        wait::run(&self.queue, &self.host, (events, max), timeout, Some(kernel))
    }

    /// Sets the busy-poll parameters of this epoll (`EPIOCSPARAMS`); `None` disables busy polling.
    ///
    /// # Errors
    /// Parameters out of range.
    pub fn set_busy_poll(&self, busy: Option<EpollBusyPoll>) -> Result<(), EpollError> {
        busy.map_or(Ok(()), |busy| busy.validate())?;
        self.queue.set_busy_poll(busy);
        Ok(())
    }

    /// Returns the busy-poll parameters.
    pub fn busy_poll(&self) -> Option<EpollBusyPoll> {
        self.queue.inner().context.busy_poll()
    }

    /// Returns whether a wait would report events at once. Polls no queue and takes no events.
    pub fn is_ready(&self) -> bool {
        self.queue.is_ready()
    }

    /// Sets an eventfd that becomes readable when there may be events; `None` removes it.
    ///
    /// It serves programs that wait by the kernel's means alone, such as an epoll or a `poll` that contains this epoll's
    /// descriptor. Each event then costs a system call.
    pub fn set_ready_fd(&self, event: Option<OwnedFd>) {
        self.queue.set_ready_fd(event);
    }

    /// Makes the eventfd of [`Self::set_ready_fd`] readable exactly if there are events. Until this is called, it stays
    /// readable after the last event was taken.
    pub fn sync_ready_fd(&self) {
        self.queue.sync_ready_fd();
    }

    /// Returns a handle that ends waits early.
    pub fn waker(&self) -> Waker {
        Waker(self.queue.clone())
    }

    /// Returns the time that waits spent in busy polls that found nothing.
    pub fn time_spun(&self) -> Duration {
        self.queue.time_spun().into()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.queue.inner().entries.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn keys(&self, socket: &(impl Source + ?Sized)) -> Result<Vec<SocketKey>, EpollError> {
        let SourceInfo { host, sockets, .. } = socket.info();
        if !Arc::ptr_eq(host, &self.host) {
            return Err(EpollError::OtherRuntime);
        }
        Ok(sockets.iter().map(ShardSocket::key).collect())
    }

    /// Notifies the queue of the conditions that hold already.
    fn notify_present(&self, socket: SocketKey, key: InterestKey, interest: Interest) {
        let wants_room = interest.contains(Interest::OUT);
        let readiness = self.queue.shard_of(socket).with(|core| core.readiness(socket.socket, wants_room));
        self.queue.notify(key, readiness);
    }

    fn stop_observing(&self, entries: impl Iterator<Item = (SocketKey, InterestKey)>) {
        let epoll: Arc<dyn Notify> = self.queue.clone();
        for (socket, key) in entries {
            self.queue.shard_of(socket).with(|core| core.sockets.remove_entry(socket.socket, &epoll, key));
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let (entries, resume) = {
            let mut inner = self.queue.inner();
            let entries = std::mem::take(&mut inner.entries);
            inner.by_socket.clear();
            (entries, inner.context.close())
        };
        self.stop_observing(
            entries.iter().flat_map(|(key, entry)| entry.sockets.iter().map(move |socket| (*socket, key))),
        );
        self.queue.resume(resume);
    }
}

/// A handle that ends waits on an [`Epoll`] early, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<ReadyQueue>);

impl Waker {
    /// Ends a wait, or else the next one. If that wait finds no events, it returns none. Of several waiting threads one
    /// returns.
    pub fn wake(&self) {
        self.0.wake_one();
    }
}
