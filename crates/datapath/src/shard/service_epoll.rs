//! The kernel epoll in which a shard's service thread sleeps: on the NIC's descriptor, a timer and the thread's parker.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::parker::Parker;

const NIC: u64 = 0;
const TIMER: u64 = 1;
const PARKER: u64 = 2;

/// The reasons for which the service thread woke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WakeCauses {
    /// The NIC's descriptor is readable.
    pub(crate) irq: bool,
    /// The timer fired.
    pub(crate) timer: bool,
    /// Another thread woke it.
    pub(crate) unparked: bool,
}

/// The epoll and its descriptors.
#[derive(Debug)]
pub(crate) struct ServiceEpoll {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// A duplicate of the NIC's descriptor, on which a thread can sleep without the shard's lock.
    pub(crate) nic: OwnedFd,
}

impl ServiceEpoll {
    pub(crate) fn new(nic: OwnedFd, parker: &Parker) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &nic, EventData::new_u64(NIC), EventFlags::ONESHOT)?;
        // Edge-triggered, and never read: setting the timer again clears it.
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&epoll, parker, EventData::new_u64(PARKER), EventFlags::IN)?;
        Ok(Self { epoll, timer, nic })
    }

    /// Arms the NIC's descriptor for one event, or disarms it. One system call.
    pub(super) fn arm(&self, on: bool) {
        let flags = if on { EventFlags::IN | EventFlags::ONESHOT } else { EventFlags::ONESHOT };
        epoll::modify(&self.epoll, &self.nic, EventData::new_u64(NIC), flags)
            .expect("`new` has added this descriptor to this epoll");
    }

    /// Sets the timer to fire after `span`. One system call.
    pub(super) fn set_timer(&self, span: Duration) {
        // Zero would stop the timer.
        let span = span.max(Duration::from_nanos(1));
        let value = Timespec::try_from(span).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let value = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value).expect("the descriptor is a timer");
    }

    /// Sleeps until a descriptor is ready, for at most `timeout`. One system call; `events` is its buffer.
    pub(crate) fn wait(&self, events: &mut Vec<Event>, timeout: Option<&Timespec>) -> WakeCauses {
        let mut causes = WakeCauses::default();
        events.clear();
        if epoll::wait(&self.epoll, spare_capacity(events), timeout).is_err() {
            return causes;
        }
        for event in events.iter() {
            match event.data.u64() {
                NIC => causes.irq = true,
                TIMER => causes.timer = true,
                _ => causes.unparked = true,
            }
        }
        causes
    }
}
