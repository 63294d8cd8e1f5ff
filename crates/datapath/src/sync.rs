//! The synchronisation primitives that the checked files use, in one place: the test target `interleavings` compiles the
//! same files with loom's in their stead.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
