//! Random plays in every mode.

use std::panic::{AssertUnwindSafe, catch_unwind};

use abey_delivery::{Mode, Nanos};
use abey_nic::QueuePair;
use abey_nic::rss::{Rss, SYMMETRIC_KEY};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use super::app::{App, EDGE, LEVEL, interest};
use super::model::{PORTS, number};
use super::world::{Thread, World};
use super::{DIRECTED, Director};
use crate::replay::ring::{MAC, Ring, Signals};
use crate::replay::{NOW, Over};
use crate::{Runtime, UdpSocket};

/// An upper bound of the steps of a wait, and of those between two waits.
const STEPS: u8 = 30;

/// The parameters of a play.
#[derive(Clone, Debug)]
struct Play {
    mode: Mode,
    shards: usize,
    signals: Signals,
    threads: usize,
    /// Each thread has an epoll of its own.
    apart: bool,
    ready_fd: bool,
    /// The second thread ends when it receives an event.
    leaves: bool,
    interests: [u16; PORTS],
    choices: Vec<u16>,
    late: Vec<(u8, usize, usize)>,
}

fn plays(choices: usize) -> impl Strategy<Value = Play> {
    let mode = prop::sample::select(&Mode::EXAMPLES[..]).prop_map(|name| name.parse().expect("a mode"));
    let signals = prop_oneof![Just(Signals::Unmasked), Just(Signals::Level)];
    let threads = (1..=2usize, any::<bool>(), any::<bool>(), any::<bool>());
    let made = (mode, 1..=2usize, signals, threads, any::<[u16; PORTS]>());
    let late = prop::collection::vec((0..10u8, 0..2usize, 0..PORTS), 0..6);
    (made, prop::collection::vec(any::<u16>(), 0..choices), late).prop_map(|(made, choices, late)| {
        let (mode, shards, signals, (threads, apart, ready_fd, leaves), interests) = made;
        let (apart, ready_fd, leaves) =
            (apart && threads > 1, ready_fd && threads == 1, leaves && threads > 1 && !apart);
        Play { mode, shards, signals, threads, apart, ready_fd, leaves, interests, choices, late }
    })
}

impl Play {
    /// Returns a play of one thread with sockets of one kind, and datagrams at fixed steps.
    fn plain(name: &str, signals: Signals, interest: u16, late: Vec<(u8, usize, usize)>) -> Self {
        Self {
            mode: name.parse().expect("a mode"),
            shards: 1,
            signals,
            threads: 1,
            apart: false,
            ready_fd: false,
            leaves: false,
            interests: [interest; PORTS],
            choices: Vec::new(),
            late,
        }
    }

    /// Runs the play. The error is the reason of the failure, with the log.
    fn perform(&self) -> Result<(), String> {
        self.perform_by(|mut app, adds| {
            if adds {
                self.interests.iter().enumerate().for_each(|(socket, choice)| app.add(socket, interest(*choice)));
            }
            app.run();
        })
    }

    /// Runs the play with another body for the threads.
    fn perform_by(&self, part: impl Fn(App<'_>, bool) + Sync) -> Result<(), String> {
        // In new threads, because waits store state for each thread.
        std::thread::scope(|scope| scope.spawn(|| self.perform_here(&part)).join()).expect("the play ended")
    }

    fn perform_here(&self, part: &(impl Fn(App<'_>, bool) + Sync)) -> Result<(), String> {
        NOW.set(Some(Nanos::ZERO));
        let rings: Vec<_> = (0..self.shards).map(|_| Ring::default()).collect();
        let queues = rings.iter().map(|ring| Box::new(ring.signalling(self.signals)) as Box<dyn QueuePair>).collect();
        let rss = (self.shards > 1).then(|| Rss::new(SYMMETRIC_KEY, self.shards as u32));
        let builder = Runtime::builder().queues("ring", MAC, queues, rss).address([10, 0, 0, 2].into(), 24);
        let runtime = builder.settings(self.mode.settings()).build().expect("a runtime");
        let bind = |socket| UdpSocket::bind(&runtime, ([10, 0, 0, 2], u16::from(number(socket))).into());
        let sockets: Vec<_> = (0..PORTS).map(|socket| bind(socket).expect("a socket")).collect();
        sockets.iter().for_each(|socket| socket.set_nonblocking(true));
        let epolls: Vec<_> = (0..if self.apart { self.threads } else { 1 }).map(|_| runtime.epoll()).collect();
        let ready_fd =
            self.ready_fd.then(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"));
        if let Some(ready_fd) = &ready_fd {
            epolls[0].set_ready_fd(Some(ready_fd.try_clone().expect("a copy")));
        }
        let shards = runtime.all_shards().to_vec();
        let mut world = World::new(self.choices.clone(), shards, rings, runtime.work_queue.clone());
        world.late = self.late.iter().copied().collect();
        world.wakers = epolls.iter().map(crate::Epoll::waker).collect();
        world.threads = vec![Thread { is_there: true, asleep: None }; self.threads];
        let director = Director::new(world);
        std::thread::scope(|scope| {
            for me in 0..self.threads {
                let epoll = &epolls[me.min(epolls.len() - 1)];
                let (director, sockets, ready_fd) = (&director, &sockets, ready_fd.as_ref());
                scope.spawn(move || {
                    let alone = self.threads == 1;
                    let app = App {
                        director,
                        me,
                        is_alone: alone,
                        leaves: self.leaves && me > 0,
                        is_leaving: false,
                        epoll,
                        sockets,
                        ready_fd,
                        spent: Vec::new(),
                    };
                    act(app, |app| part(app, me == 0 || self.apart));
                });
            }
        });
        let mut world = director.world();
        let failure = world.failure.take();
        let log = std::mem::take(&mut world.log);
        failure.map_or(Ok(()), |why| Err(format!("{why}\n{}\n{:#?}", log.join("\n"), self.interests.map(interest))))
    }
}

/// Runs the body of a thread in a play.
fn act(app: App<'_>, part: impl FnOnce(App<'_>)) {
    let (director, me) = (app.director, app.me);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        director.enter(me);
        part(app);
    }));
    DIRECTED.set(None);
    match ended {
        Err(why) if !why.is::<Over>() => {
            let why = why.downcast_ref::<String>().cloned().or(why.downcast_ref::<&str>().map(|why| (*why).to_owned()));
            director.fail(format!("a thread failed: {why:?}"));
        }
        _ => {}
    }
    director.leave(me);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1200))]

    #[test]
    fn every_datagram_is_reported_whatever_happens_between_the_steps_of_waits(play in plays(60)) {
        let outcome = play.perform();
        prop_assert!(outcome.is_ok(), "{}", outcome.expect_err("it is not"));
    }
}

/// A datagram that was not reported is reported with the next one. So there are two, and the second comes before any one of
/// the steps that follow the first.
#[test]
fn a_second_datagram_is_reported_whichever_step_it_comes_before() {
    for (name, steps) in Mode::EXAMPLES.into_iter().flat_map(|name| (0..STEPS).map(move |steps| (name, steps))) {
        for (interest, signals) in [(LEVEL, Signals::Unmasked), (EDGE, Signals::Unmasked), (EDGE, Signals::Level)] {
            let play = Play::plain(name, signals, interest, vec![(3, 0, 0), (steps, 0, 0)]);
            play.perform().unwrap_or_else(|why| panic!("{name}, {steps} steps after, {signals:?}: {why}"));
        }
    }
}

#[test]
fn a_signal_does_not_end_a_blocking_receive_in_any_mode() {
    for name in Mode::EXAMPLES {
        let mut play = Play::plain(name, Signals::Unmasked, LEVEL, vec![(9, 0, 0)]);
        // The signal is the only event of the first steps.
        play.choices = vec![0; 8];
        let outcome = play.perform_by(|app, _| {
            app.director.world().signal = true;
            app.sockets[0].set_nonblocking(false);
            let received = app.sockets[0].recv_from(&mut [0; 8]);
            assert!(received.is_ok(), "{received:?}");
        });
        outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}
