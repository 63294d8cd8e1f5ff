//! The link: state shared by the queue pairs of one end, and the thread that connects it to peers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use super::session::Session;
use super::shape::MemoryShape;
use crate::queue::LinkState;
use crate::rss::Rss;

/// State of one end.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) shape: MemoryShape,
    pub(super) rss: Rss,
    pub(super) device: String,
    /// The eventfds of the queues of this end. They are the same for all peers, so that callers can wait on them.
    events: Vec<OwnedFd>,
    session: Mutex<Option<Arc<Session>>>,
    /// Changes with the session and with its state; queue pairs read it in every call.
    generation: AtomicU64,
}

impl Shared {
    pub(super) fn new(shape: MemoryShape, device: &str) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            shape,
            rss: Rss::new(shape.key, shape.queues as u32),
            device: device.to_owned(),
            events: (0..shape.queues).map(|_| event()).collect::<io::Result<_>>()?,
            session: Mutex::new(None),
            generation: AtomicU64::new(0),
        }))
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn state(&self) -> LinkState {
        match self.session() {
            Some(session) if session.is_up() => LinkState::Up,
            _ => LinkState::Down,
        }
    }

    pub(super) fn event(&self, queue: usize) -> BorrowedFd<'_> {
        self.events[queue].as_fd()
    }

    /// Duplicates the eventfds, for the peer.
    pub(super) fn share_events(&self) -> io::Result<Vec<OwnedFd>> {
        self.events.iter().map(OwnedFd::try_clone).collect()
    }

    /// Begins a session with a peer.
    pub(super) fn install(&self, session: Arc<Session>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        self.changed();
    }

    /// Marks the peer as gone. Frames that it sent before can still be received.
    pub(super) fn set_down(&self) {
        if let Some(session) = self.session() {
            session.set_down();
        }
        self.changed();
    }

    /// Wakes every queue, armed or not, after a change of the link: a sleeping queue must arm the interrupt of its new ring.
    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        for event in &self.events {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

/// Ends the link's thread when dropped.
#[derive(Debug)]
pub(super) struct Guard {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Runs `work` in a thread named after the NIC. It must return soon after its descriptor has become readable.
    pub(super) fn spawn(name: &str, work: impl FnOnce(&OwnedFd) + Send + 'static) -> io::Result<Arc<Self>> {
        let stop = Arc::new(event()?);
        let thread = std::thread::Builder::new().name(format!("link/{name}")).spawn({
            let stop = stop.clone();
            move || work(&stop)
        })?;
        Ok(Arc::new(Self { stop, thread: Some(thread) }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates a non-blocking eventfd.
pub(super) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
