//! An eventfd that tells those who wait by the kernel's means alone that an epoll has events.

use std::os::fd::OwnedFd;

use super::Queue;

#[derive(Debug)]
pub(super) struct Bell {
    event: OwnedFd,
    rings: bool,
}

impl Bell {
    /// Rings, also if it does already: an edge-triggered member is told each time. How many system calls that took.
    pub(super) fn ring(&mut self) -> u64 {
        self.rings = true;
        // Would-block means that the counter is full: then it is readable anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        1
    }

    fn quiet(&mut self) {
        if std::mem::take(&mut self.rings) {
            // Nobody else reads it.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }
}

impl Queue {
    pub(super) fn set_bell(&self, bell: Option<OwnedFd>) {
        self.inner().bell = bell.map(|event| Bell { event, rings: false });
        self.settle_bell();
    }

    pub(super) fn settle_bell(&self) {
        let mut inner = self.inner();
        let Some(bell) = &mut inner.bell else { return };
        // First, so that an event that comes meanwhile rings again.
        bell.quiet();
        drop(inner);
        if self.is_ready()
            && let Some(bell) = &mut self.inner().bell
        {
            bell.ring();
        }
    }

    /// Whether a wait would find something at once.
    pub(super) fn is_ready(&self) -> bool {
        let mut candidates = Vec::new();
        self.inner().peek(&mut candidates);
        self.ask(&mut candidates);
        candidates.iter().any(|candidate| !candidate.told().is_empty())
    }
}
