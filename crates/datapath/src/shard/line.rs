//! The kernel objects of a shard: the epoll in which its service thread sleeps, with the NIC's descriptor, a timer and
//! the descriptor that wakes it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::sleeper::Sleeper;

const NIC: u64 = 0;
const TIMER: u64 = 1;
const WAKE: u64 = 2;

/// Why the service thread woke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Causes {
    pub(crate) nic: bool,
    pub(crate) timer: bool,
    pub(crate) woken: bool,
}

/// The descriptors.
#[derive(Debug)]
pub(crate) struct Line {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// A duplicate of the NIC's: it can be slept on without the shard's lock.
    pub(crate) nic: OwnedFd,
}

impl Line {
    pub(crate) fn new(nic: OwnedFd, sleeper: &Sleeper) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &nic, EventData::new_u64(NIC), EventFlags::ONESHOT)?;
        // Edge-triggered: setting the timer again clears it, so it is never read.
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&epoll, sleeper, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self { epoll, timer, nic })
    }

    /// Arms the NIC's descriptor for one signal, or disarms it.
    pub(crate) fn arm(&self, on: bool) {
        let flags = if on { EventFlags::IN | EventFlags::ONESHOT } else { EventFlags::ONESHOT };
        epoll::modify(&self.epoll, &self.nic, EventData::new_u64(NIC), flags)
            .expect("both descriptors are ours and the one was added to the other");
    }

    /// Sets the timer to go off after `span`.
    pub(crate) fn set_timer(&self, span: Duration) {
        // Zero would stop it.
        let span = span.max(Duration::from_nanos(1));
        let value = Timespec::try_from(span).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let value = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value).expect("the descriptor is a timer's");
    }

    /// Sleeps until something happens. One system call.
    pub(crate) fn sleep(&self, events: &mut Vec<Event>) -> Causes {
        self.wait(events, None)
    }

    /// Whether the NIC's descriptor, armed, is readable; if so it is armed no more.
    #[cfg(test)]
    pub(crate) fn fires(&self) -> bool {
        self.wait(&mut Vec::with_capacity(4), Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).nic
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Option<&Timespec>) -> Causes {
        let mut causes = Causes::default();
        events.clear();
        if epoll::wait(&self.epoll, spare_capacity(events), timeout).is_err() {
            return causes;
        }
        for event in events.iter() {
            match event.data.u64() {
                NIC => causes.nic = true,
                TIMER => causes.timer = true,
                _ => causes.woken = true,
            }
        }
        causes
    }
}
