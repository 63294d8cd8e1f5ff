//! Groups of listeners that share a port (SO_REUSEPORT) within a process.
//!
//! Each has shards of its own: when one is opened, it takes its part of the shards that are free, as many as leave some for
//! those of the group that listen and are not opened yet. One that finds none, because there are more listeners than
//! shards or because it comes later, shares the listener of another, and connections go to whoever asks first: nobody
//! starves, and nobody has them for himself. When a listener with shards of its own is closed, what arrives there is
//! refused until another one is opened.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use abey_datapath::{OpenError, TcpListener};

use super::table::{self, Object};

/// What its members have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) at: SocketAddr,
    /// IPV6_V6ONLY.
    pub(crate) only_v6: bool,
}

#[derive(Debug)]
struct Opened {
    group: Group,
    shards: Vec<usize>,
    listener: Weak<TcpListener>,
}

/// Of all groups.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// A listener for one more member, of `shards`: its own, or that of another.
pub(crate) fn join(
    group: &Group,
    shards: usize,
    open: impl Fn(&[usize]) -> Result<TcpListener, OpenError>,
) -> Result<Arc<TcpListener>, OpenError> {
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|opened| opened.listener.strong_count() > 0);
    let others: Vec<_> = all.iter().filter(|opened| opened.group == *group).collect();
    let mut free: Vec<_> = (0..shards).filter(|shard| !others.iter().any(|one| one.shards.contains(shard))).collect();
    if free.is_empty()
        && let Some(shared) = others.iter().filter_map(|one| one.listener.upgrade()).min_by_key(Arc::strong_count)
    {
        return Ok(shared);
    }
    free.truncate(free.len().div_ceil(waiting(group)));
    let listener = Arc::new(open(&free)?);
    all.push(Opened { group: *group, shards: free, listener: Arc::downgrade(&listener) });
    Ok(listener)
}

/// Members that listen and are not opened, the one included that is being opened.
fn waiting(group: &Group) -> usize {
    let is_waiting = |object: &Object| {
        let Object::Socket(socket) = object else { return false };
        let listening = socket.listening.get().filter(|one| one.group.as_ref() == Some(group));
        socket.role.get().is_none() && listening.is_some_and(|one| !one.is_shut.load(Ordering::Relaxed))
    };
    table::count(is_waiting).max(1)
}
