//! Recording of a queue's external events and of the calls of its NAPI instance, to be replayed in another world.

use abey_delivery::Nanos;
use abey_delivery::record::Transition;

/// Recorded run with one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// External events in order.
    pub events: Vec<External>,
    /// Calls of the delivery core with their results.
    pub transitions: Vec<Transition>,
}

/// External event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    /// Time.
    pub at: Nanos,
    /// Event.
    pub what: What,
}

/// Kind of an external event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Packets arrived in the ring: `others`, then `requests`.
    Arrival {
        /// Acknowledgements and parts of requests.
        others: u32,
        /// Packets that make a socket ready.
        requests: u32,
    },
    /// The NIC's interrupt was handled.
    Interrupt,
    /// The instance's timer expired.
    Timer,
    /// The scheduler ran a polling thread: the instance's own, a worker, or the softirq thread.
    Turn,
    /// The sleeping thread of the application was woken.
    Woken,
    /// The application's thread entered a wait, or continued one after a poll or a wake-up.
    Step,
}
