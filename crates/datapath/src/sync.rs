//! The synchronisation primitives of the files that loom checks: the test target `interleavings` compiles those files with
//! loom's primitives instead.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
