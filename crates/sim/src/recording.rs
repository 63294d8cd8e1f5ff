//! What happened to a queue from outside, and what was asked of its instance: to be played to another world.

use abey_delivery::Nanos;
use abey_record::Transition;

/// A run, as it went for its one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// What happened from outside, in its order.
    pub events: Vec<External>,
    /// What was asked of the delivery core, and what it answered.
    pub transitions: Vec<Transition>,
}

/// One thing that happened from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    /// When.
    pub at: Nanos,
    /// What.
    pub what: What,
}

/// What can happen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Packets came into the ring: such as the application has nothing of, then requests.
    Arrival {
        /// Acknowledgements and parts of a request.
        others: u32,
        /// Packets that make a socket ready.
        requests: u32,
    },
    /// The NIC's interrupt was taken.
    Interrupt,
    /// The instance's timer went off.
    Timer,
    /// The scheduler gave a thread that polls its turn: the instance's own, a worker, or the softirq's.
    Turn,
    /// Something woke the application's thread, which slept.
    Woken,
    /// The application's thread went into a wait, or on with one: after a poll, or when it had been woken.
    Step,
}
