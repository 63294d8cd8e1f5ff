//! The state that a runtime shares with its control socket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use abey_delivery::{ModeSettings, NapiId, NapiSettings, Store};
use abey_nic::Warning;

use crate::epoll::{Epoll, ReadyQueue};
use crate::error::SetError;
use crate::host::{Host, WaitSettings};
use crate::threads::Threads;

/// The shared state.
#[derive(Debug)]
pub(crate) struct RuntimeState {
    pub(crate) host: Arc<Host>,
    pub(crate) threads: Arc<Threads>,
    store: Mutex<Store>,
    epolls: Mutex<Vec<Weak<ReadyQueue>>>,
    /// The warnings that were returned already.
    warnings: Mutex<Vec<Warning>>,
}

impl RuntimeState {
    pub(super) fn new(host: Host, store: Store) -> Self {
        Self {
            host: Arc::new(host),
            threads: Arc::default(),
            store: Mutex::new(store),
            epolls: Mutex::default(),
            warnings: Mutex::default(),
        }
    }

    /// Creates an epoll with the busy-poll parameters of the mode.
    pub(super) fn new_epoll(&self) -> Epoll {
        let queue = Arc::new(ReadyQueue::new(self.host.shards().clone(), self.host.wait_settings().epoll));
        let mut epolls = self.epolls.lock().unwrap_or_else(PoisonError::into_inner);
        epolls.retain(|epoll| epoll.strong_count() > 0);
        epolls.push(Arc::downgrade(&queue));
        Epoll::new(queue, self.host.clone())
    }

    /// Returns the epolls that exist.
    pub(crate) fn epolls(&self) -> Vec<Arc<ReadyQueue>> {
        self.epolls.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ID of an instance by its number.
    pub(crate) fn find(&self, napi: u32) -> Result<NapiId, SetError> {
        let shard = self.host.shards().iter().find(|shard| shard.id.get() == napi);
        shard.map(|shard| shard.id).ok_or(SetError::NoSuchNapi(napi))
    }

    /// Changes the settings of instances: see [`Runtime::set`](super::Runtime::set).
    pub(crate) fn set(&self, ids: &[NapiId], change: impl FnMut(&mut NapiSettings)) -> Result<(), SetError> {
        let mut store = self.store();
        let change = store.prepare(ids.iter().copied(), change)?;
        // Every shard has had a service thread from the beginning.
        let threads = change.threads_needed().to_vec();
        for (napi, settings) in store.commit(change, &threads)? {
            self.host.shards()[napi.as_usize()].apply_settings(settings);
        }
        Ok(())
    }

    /// Sets the settings of sockets and of all epolls.
    pub(crate) fn set_waits(&self, settings: &ModeSettings) {
        self.host.set_wait_settings(WaitSettings::from(settings));
        for epoll in self.epolls() {
            epoll.set_busy_poll(settings.epoll);
        }
    }

    /// Returns the warnings of the NIC that no earlier call returned.
    pub(super) fn new_warnings(&self) -> Vec<Warning> {
        let mut returned = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let before = returned.len();
        for warning in self.host.shards().iter().filter_map(|shard| shard.with(|core| core.nic_warning())) {
            if !returned.contains(&warning) {
                returned.push(warning);
            }
        }
        returned[before..].to_vec()
    }
}
