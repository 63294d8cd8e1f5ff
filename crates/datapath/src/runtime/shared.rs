//! What the parts of a runtime share, and its sockets and epolls keep.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use abey_delivery::{EpollBusyPoll, ModeSettings, Nanos, NapiId, NapiSettings, SocketBusyPoll, Store};
use abey_nic::rss::Rss;
use abey_nic::{Protocol, Warning};
use abey_tcpip::SocketId;

use crate::clock::Clock;
use crate::control::Waits;
use crate::epoll::Queue;
use crate::error::{OpenError, SetError, number};
use crate::kernel::{Kernel, Lease};
use crate::shard::{Core, Shard};
use crate::threads::Threads;

/// "None" in a word of nanoseconds.
pub(super) const NEVER: u64 = u64::MAX;

/// What sockets and epolls keep.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) shards: Arc<[Arc<Shard>]>,
    /// What the NIC is called.
    pub(crate) device: String,
    pub(crate) threads: Arc<Threads>,
    pub(super) addresses: Vec<(std::net::IpAddr, u8)>,
    pub(super) rss: Option<Rss>,
    pub(super) is_part: bool,
    /// Where the device is shared with the kernel.
    pub(crate) kernel: Option<Arc<Kernel>>,
    /// Those that were told.
    pub(super) warnings: Mutex<Vec<Warning>>,
    pub(super) store: Mutex<Store>,
    /// For epolls to come.
    pub(super) busy_poll: Mutex<Option<EpollBusyPoll>>,
    pub(super) epolls: Mutex<Vec<Weak<Queue>>>,
    pub(super) max_wait: AtomicU64,
    pub(super) socket_busy_poll: AtomicU64,
    pub(super) next: AtomicUsize,
    pub(super) over: AtomicBool,
}

impl Shared {
    pub(crate) fn new_queue(&self) -> Arc<Queue> {
        let busy = *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::new(Queue::new(self.shards.clone(), busy));
        let mut epolls = self.epolls.lock().unwrap_or_else(PoisonError::into_inner);
        epolls.retain(|epoll| epoll.strong_count() > 0);
        epolls.push(Arc::downgrade(&queue));
        queue
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = (std::net::IpAddr, u8)> {
        self.addresses.iter().copied()
    }

    pub(crate) fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, napi: u32) -> Result<NapiId, SetError> {
        let shard = self.shards.iter().find(|shard| number(shard.id) == napi);
        shard.map(|shard| shard.id).ok_or(SetError::NoSuchNapi(napi))
    }

    /// See [`Runtime::set`](super::Runtime::set).
    pub(crate) fn set(&self, ids: &[NapiId], change: impl FnMut(&mut NapiSettings)) -> Result<(), SetError> {
        let mut store = self.store();
        let change = store.prepare(ids.iter().copied(), change)?;
        // Every shard has its thread from the beginning.
        let threads = change.threads_needed().to_vec();
        for (napi, settings) in store.commit(change, &threads)? {
            self.shards[napi.as_usize()].apply_settings(settings);
        }
        Ok(())
    }

    /// What [`Self::set_waits`] set.
    pub(crate) fn waits(&self) -> Waits {
        Waits {
            epoll: *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner),
            max_wait: self.max_wait(),
            socket_busy_poll: span(&self.socket_busy_poll),
        }
    }

    pub(crate) fn set_waits(&self, settings: &ModeSettings) {
        let word = |span: Option<Nanos>| span.map_or(NEVER, Nanos::as_nanos);
        self.max_wait.store(word(settings.max_wait), Ordering::Relaxed);
        self.socket_busy_poll.store(word(settings.socket_busy_poll), Ordering::Relaxed);
        *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner) = settings.epoll;
        for queue in self.live_epolls() {
            queue.set_busy_poll(settings.epoll);
        }
    }

    pub(crate) fn live_epolls(&self) -> Vec<Arc<Queue>> {
        self.epolls.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn max_wait(&self) -> Option<Nanos> {
        span(&self.max_wait)
    }

    pub(crate) fn socket_busy_poll(&self) -> Option<SocketBusyPoll> {
        span(&self.socket_busy_poll).map(SocketBusyPoll::new)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn next_shard(&self) -> &Arc<Shard> {
        &self.shards[self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len()]
    }

    /// Reserves a port where it is shared with the kernel; port 0: one that the kernel chooses.
    pub(crate) fn reserve(&self, protocol: Protocol, port: u16) -> Result<Option<Lease>, OpenError> {
        let Some(kernel) = &self.kernel else { return Ok(None) };
        let lease = if port == 0 { kernel.reserve_any(protocol, |_| true) } else { kernel.reserve(protocol, port) };
        lease.map(Some)
    }

    /// Opens a socket in a shard.
    pub(crate) fn open<R>(
        &self,
        shard: &Shard,
        open: impl FnOnce(&mut Core) -> Result<R, abey_tcpip::OpenError>,
    ) -> Result<R, OpenError>
    where
        R: Opened,
    {
        shard.with(|core| {
            if core.over {
                return Err(OpenError::RuntimeGone);
            }
            if let Some(failed) = &core.failed {
                return Err(OpenError::Nic(failed.clone()));
            }
            let opened = open(core)?;
            // Known before the lock is let go, so that no event is lost.
            core.watches(opened.socket());
            Ok(opened)
        })
    }
}

/// A word of nanoseconds.
fn span(word: &AtomicU64) -> Option<Nanos> {
    let nanos = word.load(Ordering::Relaxed);
    (nanos != NEVER).then(|| Nanos::from_nanos(nanos))
}

/// What opening gives: a socket, perhaps with something beside it.
pub(crate) trait Opened {
    fn socket(&self) -> SocketId;
}

impl Opened for SocketId {
    fn socket(&self) -> SocketId {
        *self
    }
}

impl<T> Opened for (SocketId, T) {
    fn socket(&self) -> SocketId {
        self.0
    }
}
