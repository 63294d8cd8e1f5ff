//! The settings store: the settings and the ID of a queue survive its removal and re-creation.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::{NapiSettings, SettingsError};

/// The index of an instance in its caller's array of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NapiIndex(pub u32);

impl NapiIndex {
    /// Returns the index.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// The ID of an instance, as sockets carry it (`SO_INCOMING_NAPI_ID`).
///
/// It belongs to one (device, queue) and is never reused for another, so a stale ID finds either no instance or the present
/// instance of the same queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NapiId(NonZeroU32);

impl NapiId {
    /// Returns the number.
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

/// The settings of all queues, present and past, and their present instances.
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
    /// The instance's thread exists; once created it stays until the instance is detached.
    thread: bool,
}

/// Why the store rejected a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The settings are not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The queue has an instance.
    #[error("queue {queue} of device {device} has a NAPI instance already: detach that first", device = .0.device, queue = .0.queue)]
    AlreadyAttached(QueueKey),
    /// A thread that the change needs was not created, so nothing was changed.
    #[error("the polling thread of NAPI {id} was not created, so nothing was changed: create it and commit again", id = .0.get())]
    ThreadMissing(NapiId),
}

/// A change of settings that was checked and not made yet.
///
/// Create the threads it [needs](Self::threads_needed), then pass it to [`Store::commit`]. Dropping it changes no
/// setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a change has no effect until it is committed"]
pub struct Change {
    settings: Vec<(NapiId, NapiSettings)>,
    threads_needed: Vec<NapiId>,
}

impl Change {
    /// Returns the instances that need a thread which does not exist yet.
    pub fn threads_needed(&self) -> &[NapiId] {
        &self.threads_needed
    }
}

impl Store {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the ID of a queue; an unknown queue gets a new ID and the default settings.
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

    /// Registers a new instance of a queue. Returns its ID and settings. If the settings need a thread, create it
    /// ([`Store::handle_thread_created`]) before the instance is enabled.
    ///
    /// # Errors
    /// If the queue has an instance.
    pub fn attach(&mut self, key: QueueKey, napi: NapiIndex) -> Result<(NapiId, NapiSettings), StoreError> {
        let id = self.id(key);
        let slot = &mut self.slots[id.slot()];
        if slot.live.is_some() {
            return Err(StoreError::AlreadyAttached(key));
        }
        slot.live = Some(napi);
        Ok((id, slot.settings))
    }

    /// Removes an instance that is about to be disabled and destroyed: its ID finds no instance from now on.
    pub fn detach(&mut self, id: NapiId) {
        if let Some(slot) = self.slots.get_mut(id.slot()) {
            slot.live = None;
            slot.thread = false;
        }
    }

    /// Records that the thread of an instance exists.
    pub fn handle_thread_created(&mut self, id: NapiId) {
        if let Some(slot) = self.slots.get_mut(id.slot()) {
            slot.thread = slot.live.is_some();
        }
    }

    /// Returns the instance with this ID, if there is one.
    pub fn lookup(&self, id: NapiId) -> Option<NapiIndex> {
        self.slots.get(id.slot())?.live
    }

    /// Returns the settings of a queue, with or without an instance.
    pub fn settings(&self, id: NapiId) -> Option<&NapiSettings> {
        self.slots.get(id.slot()).map(|slot| &slot.settings)
    }

    /// Returns the queue of an ID.
    pub fn key(&self, id: NapiId) -> Option<QueueKey> {
        self.slots.get(id.slot()).map(|slot| slot.key)
    }

    /// Returns the IDs of a device's queues, in the order of the queues.
    pub fn device(&self, device: u32) -> impl Iterator<Item = NapiId> + '_ {
        let range = QueueKey { device, queue: 0 }..=QueueKey { device, queue: u32::MAX };
        self.by_key.range(range).map(|(_, id)| *id)
    }

    /// Checks a change of the settings of some queues. Unknown IDs are left out.
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
            if settings.context.is_thread() && slot.live.is_some() && !slot.thread {
                prepared.threads_needed.push(id);
            }
            prepared.settings.push((id, settings));
        }
        Ok(prepared)
    }

    /// Makes a prepared change. `created` are the threads that the caller created for it. Returns the present instances with
    /// the settings to pass to their [`handle_settings`](crate::Napi::handle_settings).
    ///
    /// # Errors
    /// If a thread is missing; no setting was changed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Nanos, PollContext};

    fn key(device: u32, queue: u32) -> QueueKey {
        QueueKey { device, queue }
    }

    fn threaded(settings: &mut NapiSettings) {
        settings.context = PollContext::Thread;
    }

    #[test]
    fn settings_and_id_survive_the_queue() {
        let mut store = Store::new();
        let (id, settings) = store.attach(key(2, 0), NapiIndex(0)).expect("free");
        assert_eq!(settings, NapiSettings::default());
        let change = store.prepare([id], |settings| settings.defer_hard_irqs = 7).expect("valid");
        let live = store.commit(change, &[]).expect("no threads needed");
        assert_eq!(
            live.iter().map(|(napi, settings)| (*napi, settings.defer_hard_irqs)).collect::<Vec<_>>(),
            [(NapiIndex(0), 7)]
        );
        store.detach(id);
        assert_eq!(store.lookup(id), None);
        let change = store.prepare([id], |settings| settings.gro_flush_timeout = Nanos::from_micros(9)).expect("valid");
        assert_eq!(store.commit(change, &[]), Ok(Vec::new()), "set while the queue has no instance");
        let (again, settings) = store.attach(key(2, 0), NapiIndex(5)).expect("free again");
        assert_eq!((again, settings.defer_hard_irqs, settings.gro_flush_timeout), (id, 7, Nanos::from_micros(9)));
        assert_eq!(store.lookup(id), Some(NapiIndex(5)));
    }

    #[test]
    fn an_id_is_never_given_to_another_queue() {
        let mut store = Store::new();
        let (first, _) = store.attach(key(1, 0), NapiIndex(0)).expect("free");
        store.detach(first);
        let (second, _) = store.attach(key(1, 1), NapiIndex(0)).expect("free");
        assert_ne!(first, second);
        assert_eq!((store.lookup(first), store.lookup(second)), (None, Some(NapiIndex(0))));
        assert_eq!(store.attach(key(1, 1), NapiIndex(3)), Err(StoreError::AlreadyAttached(key(1, 1))));
        assert_eq!(store.device(1).collect::<Vec<_>>(), [first, second]);
    }

    #[test]
    fn threads_come_first_and_without_all_of_them_nothing_changes() {
        let mut store = Store::new();
        let ids: Vec<NapiId> = (0..3).map(|n| store.attach(key(1, n), NapiIndex(n)).expect("free").0).collect();
        let before = store.clone();
        let change = store.prepare(ids.clone(), threaded).expect("valid");
        assert_eq!(change.threads_needed(), ids);
        assert_eq!(store.commit(change.clone(), &ids[..2]), Err(StoreError::ThreadMissing(ids[2])));
        assert_eq!(store, before);
        assert_eq!(store.commit(change, &ids).expect("all threads exist").len(), 3);
        let again = store.prepare(ids, |settings| settings.context = PollContext::BusyThread).expect("valid");
        assert!(again.threads_needed().is_empty(), "the same threads do");
    }

    #[test]
    fn invalid_settings_change_nothing() {
        let mut store = Store::new();
        let (id, _) = store.attach(key(1, 0), NapiIndex(0)).expect("free");
        let refused = store.prepare([id], |settings| settings.irq_suspend_timeout = Nanos::from_millis(20));
        assert!(matches!(refused, Err(StoreError::Settings(SettingsError::SuspendWithoutDeferral { .. }))));
        assert_eq!(store.settings(id), Some(&NapiSettings::default()));
    }
}
