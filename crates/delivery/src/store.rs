//! The settings store: what was set for a queue stays set when the queue is torn down and created again, ID included.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::{NapiSettings, PollContext, SettingsError};

/// Where an instance is in its caller's plain array of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NapiIndex(pub u32);

impl NapiIndex {
    /// As an index.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// The ID of an instance, as sockets carry it (`SO_INCOMING_NAPI_ID`).
///
/// It belongs to a (device, queue) for ever and is never given to another one, so a stale ID finds either nothing or the
/// same queue's present instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NapiId(NonZeroU32);

impl NapiId {
    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A receive queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// The device, by a number that the caller chooses, such as its ifindex.
    pub device: u32,
    /// The queue's number on that device.
    pub queue: u32,
}

/// The settings of all queues, present and past, and the instances that live on them now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    by_key: BTreeMap<QueueKey, NapiId>,
    slots: Vec<Slot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    key: QueueKey,
    settings: NapiSettings,
    live: Option<NapiIndex>,
    /// The instance's thread exists; once made it is kept until the instance goes.
    thread: bool,
}

/// Why the store refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The settings make no sense together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Two instances cannot live on one queue.
    #[error("queue {queue} of device {device} has a NAPI instance already: detach that first", device = .0.device, queue = .0.queue)]
    AlreadyAttached(QueueKey),
    /// A thread that the change needs was not created, so nothing was changed.
    #[error("the polling thread of NAPI {id} was not created, so nothing was changed: create it and commit again", id = .0.get())]
    ThreadMissing(NapiId),
}

/// Settings that were checked but not made yet.
///
/// Create the threads it [needs](Self::threads_needed), then hand it to [`Store::commit`]; or drop it, and nothing has
/// changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a change has no effect until it is committed"]
pub struct Change {
    settings: Vec<(NapiId, NapiSettings)>,
    threads_needed: Vec<NapiId>,
}

impl Change {
    /// The live instances that need a thread which does not exist yet.
    pub fn threads_needed(&self) -> &[NapiId] {
        &self.threads_needed
    }
}

impl Store {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The ID of a queue; one that was never heard of gets a new ID and the default settings.
    pub fn id(&mut self, key: QueueKey) -> NapiId {
        if let Some(id) = self.by_key.get(&key) {
            return *id;
        }
        self.slots.push(Slot { key, settings: NapiSettings::default(), live: None, thread: false });
        let count = u32::try_from(self.slots.len()).expect("fewer than 2^32 queues");
        let id = NapiId(NonZeroU32::new(count).expect("a slot was pushed"));
        self.by_key.insert(key, id);
        id
    }

    /// An instance was created for a queue. Give it the settings, and if they say so its thread
    /// ([`Store::handle_thread_created`]), before it is enabled.
    ///
    /// # Errors
    /// If an instance lives there already.
    pub fn attach(&mut self, key: QueueKey, napi: NapiIndex) -> Result<(NapiId, NapiSettings), StoreError> {
        let id = self.id(key);
        let slot = &mut self.slots[id.slot()];
        if slot.live.is_some() {
            return Err(StoreError::AlreadyAttached(key));
        }
        slot.live = Some(napi);
        Ok((id, slot.settings))
    }

    /// The instance is about to be disabled and destroyed: from now on its ID finds nothing.
    pub fn detach(&mut self, id: NapiId) {
        if let Some(slot) = self.slots.get_mut(id.slot()) {
            slot.live = None;
            slot.thread = false;
        }
    }

    /// The thread of an instance exists.
    pub fn handle_thread_created(&mut self, id: NapiId) {
        if let Some(slot) = self.slots.get_mut(id.slot()) {
            slot.thread = slot.live.is_some();
        }
    }

    /// The instance that has this ID, if it lives.
    pub fn lookup(&self, id: NapiId) -> Option<NapiIndex> {
        self.slots.get(id.slot())?.live
    }

    /// The settings of a queue, whether an instance lives there or not.
    pub fn settings(&self, id: NapiId) -> Option<&NapiSettings> {
        self.slots.get(id.slot()).map(|slot| &slot.settings)
    }

    /// The queue that an ID belongs to.
    pub fn key(&self, id: NapiId) -> Option<QueueKey> {
        self.slots.get(id.slot()).map(|slot| slot.key)
    }

    /// The IDs of a device's queues, in the order of the queues.
    pub fn device(&self, device: u32) -> impl Iterator<Item = NapiId> + '_ {
        let range = QueueKey { device, queue: 0 }..=QueueKey { device, queue: u32::MAX };
        self.by_key.range(range).map(|(_, id)| *id)
    }

    /// Checks a change of the settings of some queues, all or nothing. Unknown IDs are left out.
    ///
    /// # Errors
    /// The first rule that any of the new settings breaks.
    pub fn prepare(
        &self,
        ids: impl IntoIterator<Item = NapiId>,
        mut change: impl FnMut(&mut NapiSettings),
    ) -> Result<Change, StoreError> {
        let mut prepared = Change { settings: Vec::new(), threads_needed: Vec::new() };
        for id in ids {
            let Some(slot) = self.slots.get(id.slot()) else { continue };
            let mut settings = slot.settings;
            change(&mut settings);
            settings.validate()?;
            let threaded = matches!(settings.context, PollContext::Thread | PollContext::BusyThread);
            if threaded && slot.live.is_some() && !slot.thread {
                prepared.threads_needed.push(id);
            }
            prepared.settings.push((id, settings));
        }
        Ok(prepared)
    }

    /// Makes a prepared change. `created` are the threads that the caller created for it. The answer lists the live
    /// instances and what to give to each one's [`handle_settings`](crate::Napi::handle_settings).
    ///
    /// # Errors
    /// If a thread is missing; then nothing was changed.
    pub fn commit(&mut self, change: Change, created: &[NapiId]) -> Result<Vec<(NapiIndex, NapiSettings)>, StoreError> {
        let missing = |id: &&NapiId| !created.contains(id) && !self.slots[id.slot()].thread;
        if let Some(id) = change.threads_needed.iter().find(missing) {
            return Err(StoreError::ThreadMissing(*id));
        }
        for id in created {
            self.handle_thread_created(*id);
        }
        let mut live = Vec::new();
        for (id, settings) in change.settings {
            let slot = &mut self.slots[id.slot()];
            slot.settings = settings;
            live.extend(slot.live.map(|napi| (napi, settings)));
        }
        Ok(live)
    }
}
