//! What a shard's sockets are ready for, and telling those who watch them.

use abey_tcpip::{Readiness, SocketId};

use super::core::Core;
use super::watch::Watches;

impl Core {
    /// Every thread that waits for a socket of this shard looks at it again.
    pub(super) fn wake_everybody(&mut self) {
        let mut calls = 0;
        for watches in self.watches.values_mut() {
            calls += watches.post(Readiness::READABLE | Readiness::WRITABLE | Readiness::ERROR | Readiness::HANG_UP);
        }
        self.calls(calls);
    }

    /// Tells those who watch what is new about their sockets.
    pub(super) fn post_events(&mut self) {
        let mut calls = 0;
        while let Some(event) = self.stack.poll_event() {
            self.note_event(event.socket, event.edges);
            if let Some(watches) = self.watches.get_mut(event.socket) {
                calls += watches.post(event.edges);
            }
        }
        let (stack, watches) = (&self.stack, &mut self.watches);
        self.room.retain(|&socket| {
            let Some(watches) = watches.get_mut(socket) else { return false };
            let has_room = stack.readiness(socket).contains(Readiness::WRITABLE);
            if has_room {
                watches.wants_room = false;
                calls += watches.post(Readiness::WRITABLE);
            }
            !has_room
        });
        self.calls(calls);
    }

    /// The watches of a socket, which is known from now on.
    pub(crate) fn watches(&mut self, socket: SocketId) -> Option<&mut Watches> {
        if !self.watches.contains_key(socket) {
            self.watches.insert(socket, Watches::default());
        }
        self.watches.get_mut(socket)
    }

    pub(crate) fn remove_watches(&mut self, socket: SocketId) -> Watches {
        self.watches.remove(socket).unwrap_or_default()
    }

    pub(crate) fn sockets(&self) -> Vec<SocketId> {
        self.watches.keys().collect()
    }

    /// What a socket is ready for. Who wants to write and cannot is told when that changes.
    pub(crate) fn readiness(&mut self, socket: SocketId, wants_room: bool) -> Readiness {
        if self.failed.is_some() || self.over {
            return Readiness::READABLE | Readiness::WRITABLE | Readiness::ERROR | Readiness::HANG_UP;
        }
        let readiness = self.stack.readiness(socket);
        if wants_room
            && !readiness.contains(Readiness::WRITABLE)
            && let Some(watches) = self.watches.get_mut(socket)
            && !std::mem::replace(&mut watches.wants_room, true)
        {
            self.room.push(socket);
        }
        readiness
    }
}
