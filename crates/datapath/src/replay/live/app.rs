//! A thread of an application: its actions between waits, and its assertions on them.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Director;
use super::model::{PORTS, Socket, number};
use crate::{Epoll, Event, Interest, KernelWait, UdpSocket, WaitOutcome};

/// Returns the interests of a socket; all but the last two also occur after a change.
fn interests() -> [Interest; 7] {
    let read = Interest::IN;
    [
        read,
        read | Interest::EDGE,
        read | Interest::ONESHOT,
        read | Interest::EDGE | Interest::ONESHOT,
        read | Interest::OUT | Interest::EDGE,
        read | Interest::EXCLUSIVE,
        read | Interest::EDGE | Interest::EXCLUSIVE,
    ]
}

/// A thread with its epoll and sockets.
pub(super) struct App<'a> {
    pub(super) director: &'a Arc<Director>,
    pub(super) me: usize,
    /// No other thread waits or changes the epoll, so its events are known exactly.
    pub(super) is_alone: bool,
    /// It shares its epoll with another thread, and ends after its first events, whose datagrams it reads as needed.
    pub(super) leaves: bool,
    pub(super) is_leaving: bool,
    pub(super) epoll: &'a Epoll,
    pub(super) sockets: &'a [UdpSocket],
    pub(super) ready_fd: Option<&'a OwnedFd>,
    /// One-shot sockets that were reported to it and are not re-armed.
    pub(super) spent: Vec<usize>,
}

/// What the play has outside.
struct PlayWait<'a>(&'a Director);

impl KernelWait for PlayWait<'_> {
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
        assert_eq!(
            timeout.map(|time| (time.tv_sec, time.tv_nsec)),
            Some((0, 0)),
            "a play never sleeps in the system call"
        );
        if std::mem::take(&mut self.0.world().signal) {
            return Err(rustix::io::Errno::INTR);
        }
        poll(own, timeout)?;
        Ok(self.0.world().outside)
    }

    fn block_signals(&self) {}
}

/// The parameters of a wait: its timeout, and the largest number of events.
type Wait = (Option<Duration>, usize);

impl App<'_> {
    /// Runs the thread up to its end, or that of the play.
    pub(super) fn run(&mut self) {
        let mut events = Vec::new();
        while !self.is_leaving {
            self.director.step(self.me, None);
            let Some((kind, of)) = self.choose() else {
                std::mem::take(&mut self.spent).into_iter().for_each(|socket| self.arm(socket));
                self.wait(&mut events, (None, 2), false);
                continue;
            };
            match kind {
                0..8 => {
                    let timeout = [None, Some(0), Some(3), None, Some(2000)][of % 5].map(Duration::from_micros);
                    self.wait(&mut events, (timeout, [1, 2, 8][of / 5 % 3]), of / 15 % 2 == 0);
                }
                8..10 => self.change(of % PORTS, interests()[of / PORTS % 5]),
                10..12 => self.add_or_remove(of % PORTS, interests()[of / PORTS % 7]),
                12 => std::mem::take(&mut self.spent).into_iter().for_each(|socket| self.arm(socket)),
                13 => self.epoll.waker().wake(),
                14 => self.epoll.sync_ready_fd(),
                _ => {}
            }
        }
    }

    fn choose(&self) -> Option<(u16, usize)> {
        let choice = self.director.world().choices.next()?;
        Some((choice % 16, usize::from(choice / 16)))
    }

    fn note(&self, what: &str) {
        let me = self.me;
        self.director.world().note(|| format!("thread {me}: {what}"));
    }

    fn model<R>(&self, socket: usize, work: impl FnOnce(&mut Socket, u32) -> R) -> R {
        let mut world = self.director.world();
        let taken = world.rings.iter().map(|ring| ring.taken(number(socket))).sum();
        work(&mut world.model.sockets[socket], taken)
    }

    fn require(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.director.fail(what());
            self.director.step(self.me, None);
        }
    }

    /// Returns the number of sockets that a wait must report at once, if it is known.
    fn due(&self) -> Option<usize> {
        (0..PORTS).find(|socket| self.is_alone && self.model(*socket, |model, taken| model.must_be_reported(taken)))
    }

    fn wait(&mut self, events: &mut Vec<Event>, (timeout, max): Wait, has_outside: bool) {
        let due = self.due();
        self.note(&format!("waits for {timeout:?}, at most {max}, due {due:?}"));
        self.require(due.is_none() || self.epoll.is_ready(), || format!("{due:?} is ready, and the epoll is not"));
        self.require(due.is_none() || self.ready_fd.is_none_or(is_readable), || {
            format!("{due:?} is ready, and the ready_fd is not readable")
        });
        let kernel_wait = PlayWait(self.director);
        let ended = match has_outside {
            true => self.epoll.wait_with(events, max, timeout, &kernel_wait).expect("a wait"),
            false if self.epoll.wait(events, max, timeout).expect("a wait") > 0 => WaitOutcome::Events,
            false => WaitOutcome::TimedOut,
        };
        self.note(&format!("{ended:?}: {events:?}"));
        self.require((ended == WaitOutcome::Events) != events.is_empty(), || format!("{ended:?} with {events:?}"));
        self.require(events.len() <= max, || format!("more than {max}"));
        self.require(due.is_none() || ended == WaitOutcome::Events, || {
            format!("{due:?} was ready and not reported: {ended:?}")
        });
        self.is_leaving = self.leaves && ended == WaitOutcome::Events;
        for event in events.drain(..) {
            let socket = event.token as usize;
            let is_right = self.model(socket, Socket::report);
            self.require(is_right || !self.is_alone, || format!("an event of {socket}, which is out or spent"));
            self.handle(socket);
        }
    }

    fn handle(&mut self, socket: usize) {
        let has = |what| self.model(socket, |model, _| model.has(what));
        let choice = Cell::new(self.choose());
        let takes_all = has(Interest::EDGE) || has(Interest::EXCLUSIVE);
        let most = match choice.get() {
            _ if takes_all => usize::MAX,
            _ if self.is_leaving => 0,
            choice => choice.map_or(usize::MAX, |(_, of)| of % 3),
        };
        let mut read = 0;
        while read < most {
            self.director.step(self.me, None);
            match self.sockets[socket].recv_from(&mut [0; 8]) {
                Ok(_) => self.model(socket, |model, _| model.read += 1),
                Err(error) if error.is_would_block() => break,
                Err(error) => return self.director.fail(error.to_string()),
            }
            read += 1;
        }
        self.note(&format!("read {read} of {socket}"));
        if has(Interest::ONESHOT) {
            match choice.get() {
                Some((kind, _)) if kind % 2 == 0 && !self.is_leaving => self.spent.push(socket),
                _ => self.arm(socket),
            }
        }
    }

    /// Re-arms a socket if it is one-shot.
    fn arm(&self, socket: usize) {
        let interest = self.model(socket, |model, _| model.interest);
        if let Some(interest) = interest.filter(|interest| interest.contains(Interest::ONESHOT)) {
            self.change(socket, interest);
        }
    }

    fn change(&self, socket: usize, interest: Interest) {
        if self.model(socket, |model, _| model.interest.is_none() || model.has(Interest::EXCLUSIVE)) {
            return;
        }
        self.note(&format!("changes {socket} to {interest:?}"));
        self.model(socket, |model, _| model.set(Some(interest)));
        self.epoll.modify(&self.sockets[socket], socket as u64, interest).expect("it is in");
    }

    fn add_or_remove(&self, socket: usize, interest: Interest) {
        if !self.is_alone {
            return;
        }
        if self.model(socket, |model, _| model.interest.is_some()) {
            self.note(&format!("removes {socket}"));
            self.epoll.remove(&self.sockets[socket]).expect("it is in");
            self.model(socket, |model, _| model.set(None));
        } else {
            self.add(socket, interest);
        }
    }

    pub(super) fn add(&self, socket: usize, interest: Interest) {
        self.note(&format!("adds {socket} for {interest:?}"));
        self.model(socket, |model, _| model.set(Some(interest)));
        self.epoll.add(&self.sockets[socket], socket as u64, interest).expect("it is out");
    }
}

fn is_readable(ready_fd: &OwnedFd) -> bool {
    let mut one = [PollFd::from_borrowed_fd(ready_fd.as_fd(), PollFlags::IN)];
    poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polled") == 1
}

/// The numbers of a level-triggered interest and of an edge-triggered one.
pub(super) const LEVEL: u16 = 0;
pub(super) const EDGE: u16 = 1;

/// Returns the interest with which a socket is added.
pub(super) fn interest(choice: u16) -> Interest {
    interests()[usize::from(choice) % 7]
}
