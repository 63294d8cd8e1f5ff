//! What a shard did, counted as the kernel counts it: polls by context, interrupts, timers, suspensions, system calls.

use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one shard since it was started, or of several together.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them, with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Counters from what `value` gives for each name, as in a [`Shard`](crate::control::Shard)'s document.
            pub fn from_named(mut value: impl FnMut(&'static str) -> u64) -> Self {
                Self { $($name: value(stringify!($name)),)* }
            }

            /// What was counted since `earlier`.
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
    /// Interrupts taken, by a waiting thread, the service thread, or whoever held the shard.
    interrupts,
    /// Polls in the softirq: after an interrupt, a timer, a resume, or the end of a busy poll.
    softirq_polls,
    /// Polls in the service thread because a softirq run was over its budget or only held on.
    softirq_thread_polls,
    /// Polls in the instance's own thread (`threaded`).
    thread_polls,
    /// Polls by a worker of the pool (`workqueue`).
    worker_polls,
    /// Polls by a waiting application, the last poll of each busy poll included.
    busy_polls,
    /// Polls, of all the above, that found nothing.
    empty_polls,
    /// Packets received.
    packets,
    /// Packets that busy polls received.
    busy_poll_packets,
    /// Frames transmitted.
    transmitted,
    /// Times the instance's timer went off and scheduled it.
    timer_polls,
    /// Times the safety timer was moved out because an application took events.
    suspensions,
    /// Times an application that found nothing had the instance scheduled.
    resumes,
    /// Softirq runs that ended because their packets or time were spent.
    squeezes,
    /// Times a busy lock left an interrupt, timer or command to its holder.
    marks,
    /// Sleeps of application threads that had this shard's interrupt in them.
    driven_sleeps,
    /// System calls for this shard by application threads, those in the NIC included that they made.
    application_calls,
    /// System calls by the service thread, those in the NIC included that it made.
    service_calls,
    /// System calls by workers of the pool in the NIC.
    worker_calls,
    /// Times the device failed.
    device_errors,
}

impl Counters {
    /// Polls in all.
    pub fn polls(&self) -> u64 {
        self.softirq_polls + self.softirq_thread_polls + self.thread_polls + self.worker_polls + self.busy_polls
    }

    /// System calls in all.
    pub fn system_calls(&self) -> u64 {
        self.application_calls + self.service_calls + self.worker_calls
    }
}
