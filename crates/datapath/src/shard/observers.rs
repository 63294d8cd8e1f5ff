//! The observers of a shard's sockets: the epolls in whose interest lists a socket is, and the threads that wait for it in
//! a blocking call.

use std::fmt::Debug;
use std::sync::Arc;

use abey_tcpip::{Readiness, SocketId, Stack};
use slotmap::SecondaryMap;

use crate::parker::Parker;

slotmap::new_key_type! {
    /// An entry of an epoll's interest list. Keys of removed entries are never reused.
    pub(crate) struct InterestKey;
}

/// The result of a notification.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notified {
    /// The number of system calls.
    pub(crate) calls: u64,
    /// A sleeping thread was woken.
    pub(crate) woke: bool,
}

/// A receiver of notifications about sockets: an epoll.
pub(crate) trait Notify: Debug + Send + Sync {
    /// Reports that something happened to a socket. The caller holds the lock of the socket's shard.
    fn notify(&self, key: InterestKey, edges: Readiness) -> Notified;

    /// Removes the entry of a socket that was closed. The caller holds no lock.
    fn remove_closed(&self, key: InterestKey);
}

/// An observer of one socket.
#[derive(Clone, Debug)]
pub(crate) enum Observer {
    /// An epoll that has the socket in its interest list.
    Epoll { epoll: Arc<dyn Notify>, key: InterestKey, exclusive: bool },
    /// A thread that waits for the socket in a blocking call.
    Thread { parker: Arc<Parker>, interest: Readiness },
}

/// The observers of one socket.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    list: Vec<Observer>,
    /// The index at which the search for an exclusive observer to wake begins.
    next_exclusive: usize,
    /// An observer found the socket not writable. The stack itself reports room only after it refused a write.
    awaits_room: bool,
    /// This end opened the connection, so data on it is an answer and not a request.
    is_outgoing: bool,
}

impl Observers {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Observer> {
        self.list.iter()
    }

    /// Notifies the observers of `edges`. Returns the number of system calls.
    ///
    /// Among exclusive observers (EPOLLEXCLUSIVE), the notification stops after the first that woke a thread.
    fn notify(&mut self, edges: Readiness) -> u64 {
        let mut calls = 0;
        for observer in &self.list {
            match observer {
                Observer::Epoll { epoll, key, exclusive: false } => calls += epoll.notify(*key, edges).calls,
                Observer::Thread { parker, interest }
                    if edges.intersects(*interest | Readiness::ERROR | Readiness::HANG_UP) =>
                {
                    calls += parker.unpark();
                }
                _ => {}
            }
        }
        let count = self.list.len();
        for at in (self.next_exclusive..self.next_exclusive + count).map(|at| at % count.max(1)) {
            if let Observer::Epoll { epoll, key, exclusive: true } = &self.list[at] {
                let notified = epoll.notify(*key, edges);
                calls += notified.calls;
                if notified.woke {
                    self.next_exclusive = (at + 1) % count;
                    break;
                }
            }
        }
        calls
    }
}

/// The sockets that applications hold in a shard, with their observers.
#[derive(Debug, Default)]
pub(crate) struct SocketTable {
    observers: SecondaryMap<SocketId, Observers>,
    /// Sockets with [`Observers::awaits_room`].
    awaiting_room: Vec<SocketId>,
}

impl SocketTable {
    /// Returns the observers of a socket, which is in the table from now on.
    fn entry(&mut self, socket: SocketId) -> Option<&mut Observers> {
        if !self.observers.contains_key(socket) {
            self.observers.insert(socket, Observers::default());
        }
        self.observers.get_mut(socket)
    }

    /// Adds a socket without observers, so that its events are not lost.
    pub(crate) fn register(&mut self, socket: SocketId) {
        self.entry(socket);
    }

    /// Removes a socket. Returns its observers.
    pub(crate) fn unregister(&mut self, socket: SocketId) -> Observers {
        self.observers.remove(socket).unwrap_or_default()
    }

    /// Adds an observer of a socket.
    pub(crate) fn observe(&mut self, socket: SocketId, observer: Observer) {
        if let Some(observers) = self.entry(socket) {
            observers.list.push(observer);
        }
    }

    /// Removes a thread from the observers of a socket.
    pub(crate) fn remove_thread(&mut self, socket: SocketId, parker: &Arc<Parker>) {
        self.remove_if(
            socket,
            |observer| matches!(observer, Observer::Thread { parker: other, .. } if Arc::ptr_eq(other, parker)),
        );
    }

    /// Removes an epoll's entry from the observers of a socket.
    pub(crate) fn remove_entry(&mut self, socket: SocketId, epoll: &Arc<dyn Notify>, entry: InterestKey) {
        self.remove_if(socket, |observer| {
            matches!(observer, Observer::Epoll { epoll: other, key, .. } if *key == entry && Arc::ptr_eq(other, epoll))
        });
    }

    fn remove_if(&mut self, socket: SocketId, is_removed: impl Fn(&Observer) -> bool) {
        if let Some(observers) = self.observers.get_mut(socket) {
            observers.list.retain(|observer| !is_removed(observer));
        }
    }

    pub(super) fn ids(&self) -> Vec<SocketId> {
        self.observers.keys().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.observers.len()
    }

    /// Records that this end opened the connection.
    pub(super) fn set_outgoing(&mut self, socket: SocketId) {
        if let Some(observers) = self.entry(socket) {
            observers.is_outgoing = true;
        }
    }

    /// Returns whether the peer opened the connection of `socket`, or sent the first datagram.
    pub(crate) fn is_incoming(&self, socket: SocketId) -> bool {
        self.observers.get(socket).is_some_and(|observers| !observers.is_outgoing)
    }

    /// Notifies the observers of a socket when it becomes writable.
    pub(super) fn await_room(&mut self, socket: SocketId) {
        if let Some(observers) = self.observers.get_mut(socket)
            && !std::mem::replace(&mut observers.awaits_room, true)
        {
            self.awaiting_room.push(socket);
        }
    }

    /// Notifies the observers of a socket. Returns the number of system calls.
    pub(super) fn notify(&mut self, socket: SocketId, edges: Readiness) -> u64 {
        self.observers.get_mut(socket).map_or(0, |observers| observers.notify(edges))
    }

    /// Notifies the observers of the sockets that have become writable. Returns the number of system calls.
    pub(super) fn notify_room(&mut self, stack: &Stack) -> u64 {
        let mut calls = 0;
        let all = &mut self.observers;
        self.awaiting_room.retain(|&socket| {
            let Some(observers) = all.get_mut(socket) else { return false };
            let has_room = stack.readiness(socket).contains(Readiness::WRITABLE);
            if has_room {
                observers.awaits_room = false;
                calls += observers.notify(Readiness::WRITABLE);
            }
            !has_room
        });
        calls
    }

    /// Notifies every observer of every socket. Returns the number of system calls.
    pub(super) fn notify_all(&mut self) -> u64 {
        let edges = Readiness::READABLE | Readiness::WRITABLE | Readiness::ERROR | Readiness::HANG_UP;
        self.observers.values_mut().map(|observers| observers.notify(edges)).sum()
    }
}
