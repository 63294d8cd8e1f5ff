//! The counters of a shard, which count as the kernel does: polls by context, interrupts, timers, suspensions, system calls.

use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one shard since it was started, or the sums of several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns the counters with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Creates counters from a function of their names, as in a [`Shard`](crate::control::Shard)'s document.
            pub fn from_named(mut value: impl FnMut(&'static str) -> u64) -> Self {
                Self { $($name: value(stringify!($name)),)* }
            }

            /// Returns the differences from `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Interrupts, handled by a waiting thread, the service thread, or the thread that held the lock.
    interrupts,
    /// Polls in the softirq: after an interrupt, a timer, a resume, or the end of a busy poll.
    softirq_polls,
    /// Polls in the service thread because a softirq run exceeded its budget or only held instances.
    softirq_thread_polls,
    /// Polls in the instance's own thread (`threaded`).
    thread_polls,
    /// Polls by a worker of the pool (`workqueue`).
    worker_polls,
    /// Polls by a waiting application, including the last poll of each busy poll.
    busy_polls,
    /// Polls of all these kinds that found nothing.
    empty_polls,
    /// Packets received.
    packets,
    /// Packets that busy polls received.
    busy_poll_packets,
    /// Frames transmitted.
    transmitted,
    /// Frames from this host to its own addresses, which do not pass through the NIC.
    looped,
    /// Times the instance's timer expired and scheduled it.
    timer_polls,
    /// Times the timer was moved out to the suspend timeout because an application took events.
    suspensions,
    /// Times an application that found no events scheduled the instance.
    resumes,
    /// Softirq runs that ended because their budget of packets or time was used up.
    squeezes,
    /// Times the holder of a busy lock handled an interrupt, timer or frame that another thread left.
    marks,
    /// Sleeps of application threads that waited for this shard's interrupt and deadline.
    driven_sleeps,
    /// System calls for this shard by application threads, including those in the NIC.
    application_calls,
    /// System calls by the service thread, including those in the NIC.
    service_calls,
    /// System calls by workers in the NIC.
    worker_calls,
    /// Failures of the device.
    device_errors,
}

impl Counters {
    /// Returns the number of polls of all kinds.
    pub fn polls(&self) -> u64 {
        self.softirq_polls + self.softirq_thread_polls + self.thread_polls + self.worker_polls + self.busy_polls
    }

    /// Returns the number of system calls by all threads.
    pub fn system_calls(&self) -> u64 {
        self.application_calls + self.service_calls + self.worker_calls
    }
}
