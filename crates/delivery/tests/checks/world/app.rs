//! Applications: an event loop over an epoll context, or a thread that blocks on one socket.

use abey_delivery::check::Violation;
use abey_delivery::fault::Injected;
use abey_delivery::{EpollContext, EpollWait, Nanos, NapiId, PollDone, Poller, SocketBusyPoll, SocketWait, WaitStep};

use super::{InPoll, Scope, Step, World, id};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct App {
    pub(crate) state: AppState,
    waits: Waits,
    /// Its sockets have data.
    pub(crate) ready: bool,
    /// In an edge-triggered context: events that the wait has consumed.
    edges: bool,
    taken: bool,
    polling: Option<InPoll>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AppState {
    /// At work, not in a wait.
    Processing,
    /// In a wait, and running.
    Waiting,
    Asleep {
        until: Option<Nanos>,
    },
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Waits {
    Epoll { epoll: EpollContext<Injected>, wait: EpollWait },
    Socket { wait: SocketWait, last: Option<NapiId>, busy: SocketBusyPoll },
}

impl App {
    pub(super) fn new(scope: &Scope, number: usize, ids: &[NapiId]) -> Self {
        let poller = Poller(number as u32);
        let waits = match scope.mode.socket_busy_poll {
            Some(span) => {
                let busy = SocketBusyPoll { budget: 2, ..SocketBusyPoll::new(span) };
                Waits::Socket { wait: SocketWait::new(poller), last: None, busy }
            }
            None => {
                let mut epoll = EpollContext::with_faults(scope.epoll, scope.mode.epoll, Injected(scope.fault));
                ids.iter().for_each(|id| epoll.handle_add(*id));
                Waits::Epoll { epoll, wait: EpollWait::new(poller) }
            }
        };
        let edges = scope.edges;
        Self { state: AppState::Processing, waits, ready: false, edges, taken: false, polling: None }
    }

    /// Receives packets of this instance for its sockets.
    pub(super) fn receive(&mut self, napi: NapiId) {
        self.ready = true;
        match &mut self.waits {
            Waits::Epoll { epoll, .. } => epoll.handle_ready(napi),
            Waits::Socket { last, .. } => *last = Some(napi),
        }
    }

    pub(super) fn begin_wait(&mut self, now: Nanos, deadline: Option<Nanos>) {
        self.state = AppState::Waiting;
        match &mut self.waits {
            Waits::Epoll { wait, .. } => wait.begin(now, deadline),
            Waits::Socket { wait, last, busy } => wait.begin(deadline, *last, Some(*busy)),
        }
    }

    pub(super) fn signal(&mut self, now: Nanos) {
        if let Waits::Epoll { wait, .. } = &mut self.waits {
            wait.handle_signal(now);
            self.state = AppState::Waiting;
        }
    }

    pub(super) fn attends(&self, napi: NapiId) -> bool {
        let awake = matches!(self.state, AppState::Processing | AppState::Waiting);
        awake && matches!(&self.waits, Waits::Epoll { epoll, .. } if epoll.members().any(|member| member == napi))
    }

    pub(super) fn rebase(&mut self, by: Nanos) {
        match &mut self.waits {
            Waits::Epoll { wait, .. } => wait.rebase(by),
            Waits::Socket { wait, .. } => wait.rebase(by),
        }
        if let AppState::Asleep { until: Some(until) } = &mut self.state {
            *until = until.saturating_sub(by);
        }
    }

    pub(super) fn steps(&self, n: usize, scope: &Scope, world: &World, steps: &mut Vec<Step>) {
        match (self.state, self.polling) {
            (AppState::Closed, _) => {}
            (_, Some(poll)) => world.each_receiver(poll, steps, |to| Step::AppDone { app: n, to }),
            (AppState::Waiting, None) => {
                steps.push(Step::AppNext(n));
                if scope.may.disturb {
                    steps.push(Step::Signal(n));
                }
            }
            (AppState::Asleep { until }, None) => {
                if self.ready || until.is_some_and(|until| until <= world.now) || scope.may.disturb {
                    steps.push(Step::AppNext(n));
                }
            }
            (AppState::Processing, None) => {
                if self.ready && !self.edges {
                    steps.push(Step::Consume(n));
                }
                steps.push(Step::Wait(n));
                if scope.may.wait_zero {
                    steps.push(Step::WaitZero(n));
                }
                if scope.may.wait_short {
                    steps.push(Step::WaitShort(n));
                }
                if scope.may.close && matches!(self.waits, Waits::Epoll { .. }) {
                    steps.push(Step::Close(n));
                }
            }
        }
    }
}

impl World {
    fn poller_cpu(&self, app: usize) -> usize {
        app % self.cpus.len()
    }

    /// Returns the instance to which an ID resolves now.
    fn lookup(&self, napi: NapiId) -> Option<usize> {
        (0..self.instances.len()).find(|n| id(*n) == napi && self.instances[*n].attached)
    }

    /// Makes steps of a wait up to the next one that another party can observe.
    pub(super) fn app_next(&mut self, n: usize) -> Result<(), Violation> {
        while !self.app_step(n)? {}
        Ok(())
    }

    /// Makes one step of a wait. Returns whether another party can observe it, or the wait is at rest.
    fn app_step(&mut self, n: usize) -> Result<bool, Violation> {
        let now = self.now;
        let app = &mut self.apps[n];
        app.state = AppState::Waiting;
        app.taken |= app.edges && std::mem::take(&mut app.ready);
        let ready = app.ready || app.taken;
        let (step, poller) = match &mut app.waits {
            Waits::Epoll { epoll, wait } => (wait.next(epoll, now, ready), wait.poller()),
            Waits::Socket { wait, .. } => (wait.next(now, ready), wait.poller()),
        };
        match step {
            WaitStep::Poll { napi, budget, prefer } => {
                let Some(instance) = self.lookup(napi) else { return Ok(true) };
                let on = &mut self.instances[instance];
                match on.napi.begin_busy_poll(poller, budget, prefer) {
                    Some(budget) => self.apps[n].polling = Some(self.take(instance, budget)?),
                    None => on.monitor.handle_refused(prefer),
                }
                return Ok(true);
            }
            WaitStep::EndPoll { napi } => {
                let Some(instance) = self.lookup(napi) else { return Ok(false) };
                let (budget, actions) = self.instances[instance].napi.end_busy_poll(now, poller);
                self.act(instance, self.poller_cpu(n), actions);
                let Some(budget) = budget else { return Ok(false) };
                self.apps[n].polling = Some(self.take(instance, budget)?);
                return Ok(true);
            }
            WaitStep::Suspend { napi } => {
                let Some(instance) = self.lookup(napi) else { return Ok(false) };
                let on = &mut self.instances[instance];
                let actions = on.napi.suspend(now);
                on.monitor.handle_suspend(now, &on.napi, actions.timer)?;
                self.act(instance, self.poller_cpu(n), actions);
                return Ok(false);
            }
            WaitStep::Resume { napi } => {
                self.resume(n, napi);
                // The softirq that this has raised may run before the thread continues.
                return Ok(self.apps[n].edges);
            }
            WaitStep::Sleep { .. } | WaitStep::TimedOut if self.apps[n].taken => return Err(Violation::EventsLost),
            WaitStep::Sleep { until } => self.apps[n].state = AppState::Asleep { until },
            WaitStep::Deliver => {
                self.apps[n].taken = false;
                self.apps[n].state = AppState::Processing;
            }
            WaitStep::TimedOut => self.apps[n].state = AppState::Processing,
        }
        Ok(true)
    }

    pub(super) fn app_done(&mut self, n: usize, to: Option<usize>) -> Result<(), Violation> {
        let poll = self.apps[n].polling.take().expect("only offered while polling");
        let _: PollDone = self.done(poll, self.poller_cpu(n), to)?;
        if let Waits::Epoll { wait, .. } = &mut self.apps[n].waits {
            wait.handle_polled(poll.work);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, n: usize) {
        let Waits::Epoll { epoll, .. } = &mut self.apps[n].waits else { return };
        let resume = epoll.close();
        self.apps[n].state = AppState::Closed;
        self.apps[n].ready = false;
        resume.into_iter().for_each(|napi| self.resume(n, napi));
    }

    fn resume(&mut self, app: usize, napi: NapiId) {
        let Some(instance) = self.lookup(napi) else { return };
        let on = &mut self.instances[instance];
        on.monitor.handle_resume();
        let actions = on.napi.resume(self.now);
        self.act(instance, self.poller_cpu(app), actions);
    }
}
