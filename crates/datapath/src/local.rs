//! What every application thread that calls into a runtime has: a number under which it busy polls and drives, and
//! something to sleep with.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abey_delivery::Poller;

use crate::epoll::Scratch;
use crate::lateness::Lateness;
use crate::sleeper::Sleeper;

#[derive(Debug)]
pub(crate) struct Local {
    /// The thread's number, unique in the process.
    pub(crate) thread: u32,
    pub(crate) sleeper: Arc<Sleeper>,
    /// How late its sleeps end.
    pub(crate) lateness: Cell<Lateness>,
    /// Its waits on epolls, one after the other; kept so that waiting does not allocate.
    pub(crate) wait: RefCell<Option<Scratch>>,
}

impl Local {
    pub(crate) fn poller(&self) -> Poller {
        Poller(self.thread)
    }

    /// The calling thread's. The first call makes the thread's sleeps exact (`PR_SET_TIMERSLACK`).
    ///
    /// # Errors
    /// When no descriptor is left for it to sleep on.
    pub(crate) fn get() -> io::Result<Rc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        thread_local! {
            static LOCAL: OnceCell<Rc<Local>> = const { OnceCell::new() };
        }
        let new = || {
            let sleeper = Arc::new(Sleeper::new()?);
            // Unless told otherwise the kernel ends a sleep up to 50 us late, which is longer than a deferral; its own
            // NAPI timers are exact. It cannot refuse a thread its own slack.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            let thread = NEXT.fetch_add(1, Ordering::Relaxed);
            Ok(Rc::new(Self { thread, sleeper, lateness: Cell::default(), wait: RefCell::new(None) }))
        };
        let kept = LOCAL.try_with(|cell| match cell.get() {
            Some(local) => Ok(local.clone()),
            None => new().map(|local| cell.get_or_init(|| local).clone()),
        });
        // What a thread still does when its own are gone (at a program's exit) has one for each call.
        kept.unwrap_or_else(|_| new())
    }
}
