//! An eventfd that mirrors the readiness of an epoll, for programs that wait by the kernel's system calls alone.

use std::os::fd::OwnedFd;

/// The eventfd.
#[derive(Debug)]
pub(super) struct ReadyFd {
    event: OwnedFd,
    is_set: bool,
}

impl ReadyFd {
    pub(super) fn new(event: OwnedFd) -> Self {
        Self { event, is_set: false }
    }

    /// Makes the descriptor readable. Returns the number of system calls.
    ///
    /// It writes even if the descriptor is readable, because an edge-triggered epoll reports each write.
    pub(super) fn set(&mut self) -> u64 {
        self.is_set = true;
        // EAGAIN means that the counter is at its maximum. Then the descriptor is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        1
    }

    /// Makes the descriptor unreadable.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_set) {
            // The program never reads the descriptor, so this does not fail.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }
}
