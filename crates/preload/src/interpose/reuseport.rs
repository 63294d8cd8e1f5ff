//! Groups of listeners that share a port (SO_REUSEPORT, `socket(7)`) within a process.
//!
//! Each listener has shards of its own. When one is opened, it takes an equal part of the free shards, and leaves the rest
//! to the members that listen and are not opened yet. A listener that finds no free shard, because there are more
//! listeners than shards or because it is opened later, shares the datapath listener of another member; either may then
//! accept each connection. When a listener with shards of its own is closed, connections that arrive there are refused
//! until another one is opened.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use abey_datapath::{OpenError, TcpListener};

use super::fd_table::{self, Entry};
use super::listen_state::Group;

#[derive(Debug)]
struct OpenListener {
    group: Group,
    shards: Vec<usize>,
    listener: Weak<TcpListener>,
}

/// The open listeners of all groups.
static OPEN_LISTENERS: Mutex<Vec<OpenListener>> = Mutex::new(Vec::new());

/// Returns a listener for another member of the group: a new one on its part of the shards, or that of another member.
pub(crate) fn join(
    group: &Group,
    shards: usize,
    open: impl Fn(&[usize]) -> Result<TcpListener, OpenError>,
) -> Result<Arc<TcpListener>, OpenError> {
    let mut all = OPEN_LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|opened| opened.listener.strong_count() > 0);
    let others: Vec<_> = all.iter().filter(|opened| opened.group == *group).collect();
    let mut free: Vec<_> = (0..shards).filter(|shard| !others.iter().any(|one| one.shards.contains(shard))).collect();
    if free.is_empty()
        && let Some(shared) = others.iter().filter_map(|one| one.listener.upgrade()).min_by_key(Arc::strong_count)
    {
        return Ok(shared);
    }
    free.truncate(free.len().div_ceil(unopened_members(group)));
    let listener = Arc::new(open(&free)?);
    all.push(OpenListener { group: *group, shards: free, listener: Arc::downgrade(&listener) });
    Ok(listener)
}

/// Returns the number of members that listen and are not opened, including the one that is being opened.
fn unopened_members(group: &Group) -> usize {
    let is_unopened = |object: &Entry| {
        let Entry::Socket(socket) = object else { return false };
        let listening = socket.listening.get().filter(|one| one.group.as_ref() == Some(group));
        socket.role.get().is_none() && listening.is_some_and(|one| !one.is_shut_down.load(Ordering::Relaxed))
    };
    fd_table::count(is_unopened).max(1)
}
