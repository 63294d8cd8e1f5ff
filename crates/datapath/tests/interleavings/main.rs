//! The hand-overs between threads under loom: every interleaving that the memory model of C11 allows. The files are those
//! of the crate, compiled here with loom's primitives.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

#[path = "../../src/cover.rs"]
#[allow(dead_code)]
mod cover;
#[path = "../../src/lock.rs"]
#[allow(dead_code)]
mod lock;
#[path = "../../src/parking.rs"]
mod parking;

mod hand_over;
mod pending;
