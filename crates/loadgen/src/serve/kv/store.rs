//! The stored items: a hash table in shards, each with its own lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::append_value_reply;
use super::request::Expires;

/// Bytes of keys and values that the server stores; above it, a `set` fails.
pub const MEMORY_LIMIT: usize = 1 << 30;
const SHARDS: usize = 64;

struct Item {
    flags: u32,
    expires: Expires,
    cas: u64,
    value: Box<[u8]>,
}

type Shard = HashMap<Box<[u8]>, Item>;

pub(super) struct Store {
    shards: [Mutex<Shard>; SHARDS],
    cas: AtomicU64,
    bytes: AtomicUsize,
}

impl Default for Store {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| Mutex::new(Shard::new()));
        Self { shards, cas: AtomicU64::new(1), bytes: AtomicUsize::new(0) }
    }
}

impl Store {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // The ends of keys differ most. The shard may be predictable, since the tables inside use a keyed hash.
        let sum = key.iter().rev().take(8).fold(0usize, |sum, &b| sum.wrapping_mul(31).wrapping_add(usize::from(b)));
        self.shards[sum % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a value; `false` when there is no room.
    pub(super) fn set(&self, key: &[u8], flags: u32, expires: Expires, value: &[u8]) -> bool {
        let cas = self.cas.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shard(key);
        if let Some(item) = shard.get_mut(key)
            && item.value.len() == value.len()
        {
            item.value.copy_from_slice(value);
            (item.flags, item.expires, item.cas) = (flags, expires, cas);
            return true;
        }
        let size = key.len() + value.len();
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > MEMORY_LIMIT {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        if let Some(old) = shard.insert(key.into(), Item { flags, expires, cas, value: value.into() }) {
            self.bytes.fetch_sub(key.len() + old.value.len(), Ordering::Relaxed);
        }
        true
    }

    /// Appends the reply for `key`, if it is stored.
    pub(super) fn append_value(&self, key: &[u8], with_cas: bool, out: &mut Vec<u8>) {
        let mut shard = self.shard(key);
        let Some(item) = shard.get(key) else { return };
        if let Expires::At(time) = item.expires
            && time <= Instant::now()
        {
            self.remove(&mut shard, key);
            return;
        }
        append_value_reply(out, key, item.flags, with_cas.then_some(item.cas), &item.value);
    }

    /// Removes `key`. Returns `false` if it was not stored.
    pub(super) fn delete(&self, key: &[u8]) -> bool {
        let mut shard = self.shard(key);
        self.remove(&mut shard, key)
            .is_some_and(|item| !matches!(item.expires, Expires::At(time) if time <= Instant::now()))
    }

    fn remove(&self, shard: &mut Shard, key: &[u8]) -> Option<Item> {
        let item = shard.remove(key)?;
        self.bytes.fetch_sub(key.len() + item.value.len(), Ordering::Relaxed);
        Some(item)
    }
}
