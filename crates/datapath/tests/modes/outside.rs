//! Waits that end outside the runtime too, several sockets without an epoll, and an epoll's bell.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use abey_datapath::{Ended, EpollError, Interest, Outside, Readiness, Source};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::support::{PATIENCE, at, connect, eventually, every_mode, mode, pair};

/// An eventfd outside, and signals that come when the test says so.
struct Beside {
    event: OwnedFd,
    signal: Cell<bool>,
    holds: RefCell<u32>,
}

impl Beside {
    fn new() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        Self { event, signal: Cell::new(false), holds: RefCell::new(0) }
    }

    fn ring(&self) {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).expect("written");
    }

    fn quiet(&self) {
        rustix::io::read(&self.event, &mut [0; 8]).expect("it rang");
    }
}

impl Outside for Beside {
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
        if self.signal.take() {
            return Err(rustix::io::Errno::INTR);
        }
        let mut all: Vec<_> = own.iter().map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)).collect();
        all.push(PollFd::new(&self.event, PollFlags::IN));
        poll(&mut all, timeout)?;
        let is_ready = !all.pop().expect("pushed").revents().is_empty();
        poll(own, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(is_ready)
    }

    fn hold_signals(&self) {
        *self.holds.borrow_mut() += 1;
    }
}

const SHORT: Option<Duration> = Some(Duration::from_millis(5));

#[test]
fn an_epoll_wait_ends_outside_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let listener = abey_datapath::TcpListener::bind(&server, at(9)).expect("a listener");
        let epoll = server.epoll();
        epoll.add(&listener, 1, Interest::IN).expect("new");
        let (beside, mut events) = (Beside::new(), Vec::new());
        let mut wait = |timeout| epoll.wait_with(&mut events, 4, timeout, &beside).expect("a wait");
        assert_eq!(wait(SHORT), Ended::TimedOut, "{mode}");
        beside.ring();
        assert_eq!(wait(Some(PATIENCE)), Ended::Outside, "{mode}");
        beside.quiet();
        beside.signal.set(true);
        assert_eq!(wait(Some(PATIENCE)), Ended::Signal, "{mode}");
        let _stream = connect(&client, at(9));
        eventually("it arrives", || listener.readiness().contains(Readiness::READABLE));
        beside.ring();
        assert_eq!(wait(Some(PATIENCE)), Ended::Events, "{mode}: what is there is told first");
        beside.quiet();
        // Nothing sleeps from the second round on, and on a busy machine a short wait may have one only.
        let spins = mode.settings().max_wait.is_some();
        let _accepted = listener.accept().expect("the connection");
        if spins {
            eventually("signals are held where nothing sleeps", || {
                wait(SHORT);
                *beside.holds.borrow() > 0
            });
        } else {
            assert_eq!(*beside.holds.borrow(), 0, "{mode}: signals are held only where nothing sleeps");
        }
    }
}

#[test]
fn several_sockets_are_waited_for_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 2);
        let listener = abey_datapath::TcpListener::bind(&server, at(9)).expect("a listener");
        let streams = [0, 1].map(|_| connect(&client, at(9)));
        let accepted = streams.each_ref().map(|_| listener.accept().expect("a connection").0);
        let beside = Beside::new();
        let [one, other] = accepted.each_ref().map(|stream| stream as &dyn Source);
        let wait =
            |what: &[(&dyn Source, Readiness)], timeout| server.wait_any(what, timeout, &beside).expect("a wait");
        let all =
            [(one, Readiness::READABLE), (other, Readiness::READABLE), (&listener as &dyn Source, Readiness::READABLE)];
        let began = Instant::now();
        assert_eq!(wait(&all, SHORT), Ended::TimedOut, "{mode}");
        assert!(began.elapsed() >= Duration::from_millis(5), "{mode}");
        assert_eq!(wait(&[(other, Readiness::READABLE), (one, Readiness::WRITABLE)], None), Ended::Events, "{mode}");
        beside.ring();
        assert_eq!(wait(&all, None), Ended::Outside, "{mode}");
        beside.quiet();
        beside.signal.set(true);
        assert_eq!(wait(&all, None), Ended::Signal, "{mode}");
        for stream in &streams {
            stream.write_all(b"x").expect("written");
            assert_eq!(wait(&all, Some(PATIENCE)), Ended::Events, "{mode}");
            for stream in accepted.iter().filter(|stream| stream.readiness().contains(Readiness::READABLE)) {
                stream.read_exact(&mut [0]).expect("there");
            }
        }
        let _third = connect(&client, at(9));
        assert_eq!(wait(&all, Some(PATIENCE)), Ended::Events, "{mode}: a listener, on whichever shard");
        assert!(matches!(client.wait_any(&all, SHORT, &beside), Err(EpollError::OtherRuntime)), "{mode}");
    }
}

#[test]
fn a_bell_rings_while_there_are_events() {
    let (client, server) = pair(mode("base"), 1);
    let listener = abey_datapath::TcpListener::bind(&server, at(9)).expect("a listener");
    let epoll = server.epoll();
    epoll.add(&listener, 1, Interest::IN).expect("new");
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    epoll.set_bell(Some(bell.try_clone().expect("a copy")));
    let rings = || {
        let mut one = [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("looked") == 1
    };
    assert!(!rings() && !epoll.is_ready());
    let _stream = connect(&client, at(9));
    eventually("it rings", rings);
    assert!(epoll.is_ready());
    epoll.settle_bell();
    assert!(rings(), "for a reason");
    let (here, _) = listener.accept().expect("a connection");
    assert!(rings() && !epoll.is_ready(), "nobody has looked");
    epoll.settle_bell();
    assert!(!rings());
    epoll.add(&here, 2, Interest::OUT | Interest::EDGE).expect("new");
    assert!(rings());
    let mut events = Vec::new();
    assert_eq!(epoll.wait(&mut events, 4, Some(PATIENCE)).expect("a wait"), 1);
    epoll.settle_bell();
    assert!(!rings(), "an edge is told once");
}

#[test]
fn a_bell_rings_again_for_a_socket_that_was_told_of_before() {
    let (client, server) = pair(mode("base"), 1);
    let here = abey_datapath::UdpSocket::bind(&server, at(9)).expect("bound");
    let there = abey_datapath::UdpSocket::bind(&client, "10.0.0.1:0".parse().expect("an address")).expect("bound");
    let epoll = server.epoll();
    epoll.add(&here, 1, Interest::IN).expect("new");
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    epoll.set_bell(Some(bell.try_clone().expect("a copy")));
    for round in 0..3 {
        there.send_to(b"a", Some(at(9))).expect("sent");
        let mut one = [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
        assert_eq!(poll(&mut one, Some(&patience)), Ok(1), "round {round}");
        assert_eq!(epoll.wait(&mut Vec::new(), 4, Some(Duration::ZERO)).expect("a wait"), 1);
        here.recv_from(&mut [0; 8]).expect("there");
        // Nobody waits again before the next one comes.
        epoll.settle_bell();
    }
}

#[test]
fn a_socket_is_in_once_under_each_name() {
    let (client, server) = pair(mode("base"), 1);
    let listener = abey_datapath::TcpListener::bind(&server, at(9)).expect("a listener");
    let there = connect(&client, at(9));
    let (here, _) = listener.accept().expect("a connection");
    let epoll = server.epoll();
    epoll.add_as(&here, 5, 50, Interest::IN).expect("new");
    epoll.add_as(&here, 6, 60, Interest::IN).expect("another name");
    assert!(matches!(epoll.add_as(&here, 6, 61, Interest::IN), Err(EpollError::AlreadyAdded)));
    assert!(matches!(epoll.remove(&here), Err(EpollError::NotAdded)), "no name was given");
    there.write_all(b"x").expect("written");
    let told = || {
        let mut events = Vec::new();
        epoll.wait(&mut events, 4, SHORT).expect("a wait");
        let mut tokens: Vec<_> = events.iter().map(|event| event.token).collect();
        tokens.sort_unstable();
        tokens
    };
    eventually("both are told", || told() == [50, 60]);
    epoll.modify_as(&here, 5, 51, Interest::IN).expect("in");
    assert_eq!(told(), [51, 60]);
    epoll.remove_as(&here, 6).expect("in");
    assert_eq!((told(), epoll.len()), (vec![51], 1));
    drop(here);
    assert!(epoll.is_empty(), "a socket that is closed is in under no name");
}
