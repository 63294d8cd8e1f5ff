//! The lock, the parking of threads and the hand-over of a shard under loom: every interleaving that the C11 memory model
//! allows. The two files with atomics are those of the crate, compiled here with loom's primitives. The hand-over policy
//! is `abey_delivery::handoff`, a plain value inside the lock.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

#[path = "../../src/lock.rs"]
#[allow(dead_code)]
mod lock;
#[path = "../../src/park_state.rs"]
mod park_state;

mod handoff;
mod pending;
