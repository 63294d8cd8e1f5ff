//! What this process is: the one that loaded the library, a forked child, or the child of a process with a runtime.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::config;
use crate::report::Topic;

/// True in a process that was forked from one that has the runtime.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// True once the descriptor table has an entry, and false again in a forked child. While false, lookups return at once.
static TABLE_IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// The process that loaded the library. Forked children inherit the value.
static LOADED_IN: AtomicU32 = AtomicU32::new(0);

/// Records the process. Called before `main`.
pub(crate) fn prepare() {
    LOADED_IN.store(std::process::id(), Ordering::Relaxed);
}

/// Returns whether this process is a forked child of the one that loaded the library.
pub(super) fn is_forked() -> bool {
    LOADED_IN.load(Ordering::Relaxed) != std::process::id()
}

/// Returns whether this process was forked from one that has the runtime.
pub(super) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Records that this process was forked from one that has the runtime, and disables the descriptor table. The entries are
/// not dropped, since their threads do not exist in the child. Only stores words, as a fork handler must.
pub(super) fn become_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    TABLE_IS_ACTIVE.store(false, Ordering::Release);
}

/// Returns whether the descriptor table may have entries.
#[inline]
pub(super) fn is_table_active() -> bool {
    TABLE_IS_ACTIVE.load(Ordering::Acquire)
}

/// Enables the descriptor table, which has its first entry.
pub(super) fn activate_table() {
    TABLE_IS_ACTIVE.store(true, Ordering::Release);
}

/// Reports that a forked child uses a socket of its parent.
#[cold]
pub(super) fn report_orphaned_socket() {
    config::failed(
        Topic::Datapath,
        &"a forked process used a datapath socket of its parent, which does not work: open the socket after the fork",
    );
}
