//! The state of an application's thread that calls into a runtime: the number under which it busy polls and waits, and the
//! parker on which it sleeps.

use std::cell::{Cell, OnceCell};
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abey_delivery::Poller;
use abey_delivery::lateness::Lateness;

use crate::parker::Parker;

/// The thread-local state.
#[derive(Debug)]
pub(crate) struct AppThread {
    /// The thread's number, unique in the process.
    pub(crate) number: u32,
    pub(crate) parker: Arc<Parker>,
    /// How late the thread's timed sleeps end.
    pub(crate) lateness: Cell<Lateness>,
}

impl AppThread {
    pub(crate) fn poller(&self) -> Poller {
        Poller(self.number)
    }

    /// Returns the calling thread's state. The first call sets the thread's timer slack to 1 ns (`PR_SET_TIMERSLACK`).
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub(crate) fn current() -> io::Result<Rc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        thread_local! {
            static CURRENT: OnceCell<Rc<AppThread>> = const { OnceCell::new() };
        }
        let new = || {
            let parker = Arc::new(Parker::new()?);
            // With the default slack the kernel ends a sleep up to 50 us late, which is longer than a deferral; the
            // kernel's own NAPI timers have none. The call cannot fail for the calling thread.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            Ok(Rc::new(Self { number, parker, lateness: Cell::default() }))
        };
        let current = CURRENT.try_with(|cell| match cell.get() {
            Some(thread) => Ok(thread.clone()),
            None => new().map(|thread| cell.get_or_init(|| thread).clone()),
        });
        // When the program exits and the thread's locals are destroyed already, each call gets a state of its own.
        current.unwrap_or_else(|_| new())
    }
}
