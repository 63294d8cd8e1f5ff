//! What this process is: the one that loaded the library, a forked child, or the child of a process with a runtime.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::config;
use crate::report::Topic;

/// True in a process that was forked from one that has the runtime.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// True once the descriptor table has an entry, and false again in a forked child. While false, lookups return at once.
static TABLE_IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// The process that filled the table. A forked child owns its copy.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The process that loaded the library. Forked children inherit the value.
static LOADED_IN: AtomicU32 = AtomicU32::new(0);

/// This process has forked since it has made a socket.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// Records the process. Called before `main`.
pub(crate) fn prepare() {
    super::sandbox::prepare();
    LOADED_IN.store(std::process::id(), Ordering::Relaxed);
}

/// Returns whether this process is a forked child of the one that loaded the library.
pub(super) fn is_forked() -> bool {
    LOADED_IN.load(Ordering::Relaxed) != std::process::id()
}

/// Records a fork of a process that has a socket in the table.
pub(super) extern "C" fn after_fork() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

/// Returns whether this process has forked since it has made a socket.
pub(super) fn has_forked() -> bool {
    HAS_FORKED.load(Ordering::Relaxed)
}

/// Returns whether this process was forked from one that has the runtime.
pub(super) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed) && !super::sandbox::is_off()
}

/// Records that this process was forked from one that has the runtime, and disables the descriptor table. The entries are
/// not dropped, since their threads do not exist in the child. Only stores words, as a fork handler must.
pub(super) fn become_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    TABLE_IS_ACTIVE.store(false, Ordering::Release);
}

/// Makes this process the owner of the descriptor table, unless it shares the memory of the owner. Returns whether it is the
/// owner.
pub(super) fn own_table() -> bool {
    let own = std::process::id();
    let owner = OWNER.load(Ordering::Relaxed);
    if owner == 0 {
        OWNER.store(own, Ordering::Relaxed);
    }
    owner == 0 || owner == own
}

/// Makes a forked child the owner of its copy of the table.
pub(super) extern "C" fn own_copy() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    HAS_FORKED.store(false, Ordering::Relaxed);
}

/// Returns whether this process shares the memory of the one that owns the table, as a child of `vfork(2)` does until it
/// executes a program. Such a process must not change the table. Makes a system call.
pub(super) fn is_vforked() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != std::process::id()
}

/// Returns whether the descriptor table may have entries.
#[inline]
pub(super) fn is_table_active() -> bool {
    TABLE_IS_ACTIVE.load(Ordering::Acquire)
}

/// Returns whether this process or its parent may have entries in the descriptor table.
#[inline]
pub(super) fn may_have_entries() -> bool {
    is_table_active() || is_child()
}

/// Enables the descriptor table, which has its first entry.
pub(super) fn activate_table() {
    TABLE_IS_ACTIVE.store(true, Ordering::Release);
}

/// Disables the descriptor table, whose entries stay.
pub(super) fn deactivate_table() {
    TABLE_IS_ACTIVE.store(false, Ordering::Release);
}

/// Reports that a forked child uses a UDP socket of its parent that could not be handed over.
#[cold]
pub(super) fn report_orphaned_socket() {
    config::failed(
        Topic::Datapath,
        &"a forked process used a UDP socket of its parent, which does not work on this NIC: open the socket after the fork",
    );
}
