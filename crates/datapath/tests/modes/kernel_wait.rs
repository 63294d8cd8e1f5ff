//! Waits with a `KernelWait`, waits for several sockets without an epoll, and an epoll's eventfd.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use abey_datapath::{EpollError, Interest, KernelWait, Readiness, Source, WaitOutcome};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::support::{HANG_LIMIT, at, connect, eventually, every_mode, mode, pair};

/// An eventfd, and signals that the test sends.
struct TestWait {
    event: OwnedFd,
    signal: Cell<bool>,
    blocked: RefCell<u32>,
}

impl TestWait {
    fn new() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        Self { event, signal: Cell::new(false), blocked: RefCell::new(0) }
    }

    fn set(&self) {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).expect("written");
    }

    fn clear(&self) {
        rustix::io::read(&self.event, &mut [0; 8]).expect("it is set");
    }
}

impl KernelWait for TestWait {
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

    fn block_signals(&self) {
        *self.blocked.borrow_mut() += 1;
    }
}

const SHORT: Option<Duration> = Some(Duration::from_millis(5));

#[test]
fn an_epoll_wait_ends_by_the_kernel_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let listener = abey_datapath::TcpListener::bind(&server, at(9)).expect("a listener");
        let epoll = server.epoll();
        epoll.add(&listener, 1, Interest::IN).expect("new");
        let (kernel, mut events) = (TestWait::new(), Vec::new());
        let mut wait = |timeout| epoll.wait_with(&mut events, 4, timeout, &kernel).expect("a wait");
        assert_eq!(wait(SHORT), WaitOutcome::TimedOut, "{mode}");
        kernel.set();
        assert_eq!(wait(Some(HANG_LIMIT)), WaitOutcome::Kernel, "{mode}");
        kernel.clear();
        kernel.signal.set(true);
        assert_eq!(wait(Some(HANG_LIMIT)), WaitOutcome::Signal, "{mode}");
        let _stream = connect(&client, at(9));
        eventually("it arrives", || listener.readiness().contains(Readiness::READABLE));
        kernel.set();
        assert_eq!(wait(Some(HANG_LIMIT)), WaitOutcome::Events, "{mode}: events are reported first");
        kernel.clear();
        // A wait does not sleep from the second round on. On a busy machine a short wait may have only one round.
        let spins = mode.settings().max_wait.is_some();
        let _accepted = listener.accept().expect("the connection");
        if spins {
            eventually("a wait that spins blocks signals", || {
                wait(SHORT);
                *kernel.blocked.borrow() > 0
            });
        } else {
            assert_eq!(*kernel.blocked.borrow(), 0, "{mode}: only a wait that spins blocks signals");
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
        let kernel = TestWait::new();
        let [one, other] = accepted.each_ref().map(|stream| stream as &dyn Source);
        let wait =
            |what: &[(&dyn Source, Readiness)], timeout| server.wait_any(what, timeout, &kernel).expect("a wait");
        let all =
            [(one, Readiness::READABLE), (other, Readiness::READABLE), (&listener as &dyn Source, Readiness::READABLE)];
        let began = Instant::now();
        assert_eq!(wait(&all, SHORT), WaitOutcome::TimedOut, "{mode}");
        assert!(began.elapsed() >= Duration::from_millis(5), "{mode}");
        assert_eq!(
            wait(&[(other, Readiness::READABLE), (one, Readiness::WRITABLE)], None),
            WaitOutcome::Events,
            "{mode}"
        );
        kernel.set();
        assert_eq!(wait(&all, None), WaitOutcome::Kernel, "{mode}");
        kernel.clear();
        kernel.signal.set(true);
        assert_eq!(wait(&all, None), WaitOutcome::Signal, "{mode}");
        for stream in &streams {
            stream.write_all(b"x").expect("written");
            assert_eq!(wait(&all, Some(HANG_LIMIT)), WaitOutcome::Events, "{mode}");
            for stream in accepted.iter().filter(|stream| stream.readiness().contains(Readiness::READABLE)) {
                stream.read_exact(&mut [0]).expect("there");
            }
        }
        let _third = connect(&client, at(9));
        assert_eq!(wait(&all, Some(HANG_LIMIT)), WaitOutcome::Events, "{mode}: a listener, on whichever shard");
        assert!(matches!(client.wait_any(&all, SHORT, &kernel), Err(EpollError::OtherRuntime)), "{mode}");
    }
}

#[test]
fn the_ready_fd_is_readable_while_there_are_events() {
    let (client, server) = pair(mode("base"), 1);
    let listener = abey_datapath::TcpListener::bind(&server, at(9)).expect("a listener");
    let epoll = server.epoll();
    epoll.add(&listener, 1, Interest::IN).expect("new");
    let ready_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    epoll.set_ready_fd(Some(ready_fd.try_clone().expect("a copy")));
    let is_set = || {
        let mut one = [PollFd::from_borrowed_fd(ready_fd.as_fd(), PollFlags::IN)];
        poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("looked") == 1
    };
    assert!(!is_set() && !epoll.is_ready());
    let _stream = connect(&client, at(9));
    eventually("the eventfd is readable", is_set);
    assert!(epoll.is_ready());
    epoll.sync_ready_fd();
    assert!(is_set(), "for a reason");
    let (here, _) = listener.accept().expect("a connection");
    assert!(is_set() && !epoll.is_ready(), "the eventfd is not synced yet");
    epoll.sync_ready_fd();
    assert!(!is_set());
    epoll.add(&here, 2, Interest::OUT | Interest::EDGE).expect("new");
    assert!(is_set());
    let mut events = Vec::new();
    assert_eq!(epoll.wait(&mut events, 4, Some(HANG_LIMIT)).expect("a wait"), 1);
    epoll.sync_ready_fd();
    assert!(!is_set(), "an edge is reported once");
}

#[test]
fn the_ready_fd_is_set_again_for_a_socket_that_was_reported_before() {
    let (client, server) = pair(mode("base"), 1);
    let here = abey_datapath::UdpSocket::bind(&server, at(9)).expect("bound");
    let there = abey_datapath::UdpSocket::bind(&client, "10.0.0.1:0".parse().expect("an address")).expect("bound");
    let epoll = server.epoll();
    epoll.add(&here, 1, Interest::IN).expect("new");
    let ready_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    epoll.set_ready_fd(Some(ready_fd.try_clone().expect("a copy")));
    for round in 0..3 {
        there.send_to(b"a", Some(at(9))).expect("sent");
        let mut one = [PollFd::from_borrowed_fd(ready_fd.as_fd(), PollFlags::IN)];
        let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
        assert_eq!(poll(&mut one, Some(&timeout)), Ok(1), "round {round}");
        assert_eq!(epoll.wait(&mut Vec::new(), 4, Some(Duration::ZERO)).expect("a wait"), 1);
        here.recv_from(&mut [0; 8]).expect("there");
        // No wait takes place before the next one comes.
        epoll.sync_ready_fd();
    }
}

#[test]
fn a_socket_is_in_the_epoll_once_under_each_alias() {
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
    let tokens = || {
        let mut events = Vec::new();
        epoll.wait(&mut events, 4, SHORT).expect("a wait");
        let mut tokens: Vec<_> = events.iter().map(|event| event.token).collect();
        tokens.sort_unstable();
        tokens
    };
    eventually("both are reported", || tokens() == [50, 60]);
    epoll.modify_as(&here, 5, 51, Interest::IN).expect("in");
    assert_eq!(tokens(), [51, 60]);
    epoll.remove_as(&here, 6).expect("in");
    assert_eq!((tokens(), epoll.len()), (vec![51], 1));
    drop(here);
    assert!(epoll.is_empty(), "a socket that is closed is in under no name");
}
