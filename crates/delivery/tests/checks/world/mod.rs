//! A world in which the core runs: queues, CPUs, threads, workers and applications, reduced to what matters for delivery.
//!
//! The core is the real one. Around it, everything that real hardware and real threads could do next is a [`Step`], and
//! every poll is two steps (packets are taken; the poll is reported to the instance), so that any other step may come in
//! between. Time stands still except in [`Step::Tick`], which shifts the origin instead of the clock: states that differ only
//! in the time at which they were reached are equal.

mod app;
mod poll;
mod scope;
mod step;

use std::sync::OnceLock;

use abey_delivery::check::{Monitor, Surroundings, Violation};
use abey_delivery::fault::Injected;
use abey_delivery::{
    Actions, InterruptAction, Nanos, Napi, NapiId, NapiIndex, NapiThread, PollContext, QueueKey, Softirq, Store,
    TimerAction, WorkPool,
};

pub(crate) use app::{App, AppState};
pub(crate) use poll::InPoll;
pub(crate) use scope::{May, Scope};
pub(crate) use step::Step;

/// One unit of time, long enough to be a whole microsecond of epoll's settings.
pub(crate) const TICK: Nanos = Nanos::from_micros(1);

/// Returns `n` ticks.
pub(crate) const fn ticks(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// One queue and its instance, with the state of hardware and threads that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Instance {
    pub(crate) napi: Napi<Injected>,
    pub(crate) monitor: Monitor,
    pub(crate) packets: u16,
    /// The NIC may raise interrupts.
    pub(crate) unmasked: bool,
    /// Raised, and not handled yet.
    pub(crate) interrupt: bool,
    /// Unmasked, and the queue not checked yet.
    pub(crate) recheck: bool,
    pub(crate) timer: Option<Nanos>,
    pub(crate) thread: NapiThread,
    pub(crate) thread_poll: Option<InPoll>,
    /// The ID of the instance resolves.
    pub(crate) attached: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cpu {
    pub(crate) softirq: Softirq<Injected>,
    pub(crate) phase: CpuPhase,
}

/// The phase of the softirq of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CpuPhase {
    Idle,
    /// Raised, or the softirq thread is runnable.
    Raised,
    Running,
    Polling(InPoll),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    pub(crate) list: WorkPool,
    pub(crate) workers: Vec<Worker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Worker {
    Asleep,
    Awake,
    Polling(InPoll),
}

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The time of every step. It is constant; all instants further in the past than the longest timeout are equal.
    now: Nanos,
    pub(crate) instances: Vec<Instance>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) pool: Pool,
    pub(crate) apps: Vec<App>,
}

impl World {
    /// Returns a world in which every instance is enabled and idle, and every application has sockets on every instance.
    pub(crate) fn new(scope: &Scope) -> Self {
        let faults = Injected(scope.fault);
        let ids: Vec<NapiId> = (0..scope.instances).map(id).collect();
        let instance = || Instance {
            napi: Napi::with_faults(scope.config, scope.mode.napi, faults),
            monitor: Monitor::new(&scope.mode.napi),
            packets: 0,
            unmasked: false,
            interrupt: false,
            recheck: false,
            timer: None,
            thread: NapiThread::default(),
            thread_poll: None,
            attached: false,
        };
        let cpu = || Cpu { softirq: Softirq::with_faults(scope.limits, faults), phase: CpuPhase::Idle };
        let mut world = Self {
            now: scope.longest_timeout() + TICK,
            instances: (0..scope.instances).map(|_| instance()).collect(),
            cpus: (0..scope.cpus).map(|_| cpu()).collect(),
            pool: Pool { list: WorkPool::new(scope.workers), workers: vec![Worker::Asleep; scope.workers] },
            apps: (0..scope.apps).map(|number| App::new(scope, number, &ids)).collect(),
        };
        for instance in 0..scope.instances {
            world.enable(instance);
            world.recheck(instance);
        }
        world
    }

    /// Collects all steps that are possible next.
    pub(crate) fn steps(&self, scope: &Scope, steps: &mut Vec<Step>) {
        steps.clear();
        for (n, instance) in self.instances.iter().enumerate() {
            if instance.packets < scope.capacity {
                steps.push(Step::Arrive(n));
            }
            instance.steps(n, scope, self, steps);
        }
        for (n, cpu) in self.cpus.iter().enumerate() {
            match cpu.phase {
                CpuPhase::Idle => {}
                CpuPhase::Raised => steps.push(Step::SoftirqRun(n)),
                CpuPhase::Running => steps.push(Step::SoftirqTake(n)),
                CpuPhase::Polling(poll) => self.each_receiver(poll, steps, |to| Step::SoftirqDone { cpu: n, to }),
            }
        }
        for (n, worker) in self.pool.workers.iter().enumerate() {
            match *worker {
                Worker::Asleep => {}
                Worker::Awake => steps.push(Step::WorkerTake(n)),
                Worker::Polling(poll) => self.each_receiver(poll, steps, |to| Step::WorkerDone { worker: n, to }),
            }
        }
        for (n, app) in self.apps.iter().enumerate() {
            app.steps(n, scope, self, steps);
        }
        if scope.may.tick && self.may_tick(scope) {
            steps.push(Step::Tick);
        }
    }

    /// Makes a step, and checks the invariants.
    pub(crate) fn apply(&mut self, scope: &Scope, step: Step) -> Result<(), Violation> {
        let now = self.now;
        match step {
            Step::Arrive(n) => self.arrive(n),
            Step::Interrupt(n) | Step::SpuriousInterrupt(n) => self.interrupt(n),
            Step::Recheck(n) => self.recheck(n),
            Step::Timer(n) => self.timer(n, self.instances[n].timer.unwrap_or_default().max(now)),
            Step::SpuriousTimer(n) => self.timer(n, now),
            Step::SoftirqRun(cpu) => {
                self.cpus[cpu].softirq.begin_run(now);
                self.softirq_take(cpu)?;
            }
            Step::SoftirqTake(cpu) => self.softirq_take(cpu)?,
            Step::SoftirqDone { cpu, to } => self.softirq_done(cpu, to)?,
            Step::ThreadTake(n) => self.thread_take(n)?,
            Step::ThreadDone { instance, to } => self.thread_done(instance, to)?,
            Step::WorkerTake(n) => self.worker_take(n)?,
            Step::WorkerDone { worker, to } => self.worker_done(worker, to)?,
            Step::Wait(n) => self.apps[n].begin_wait(now, None),
            Step::WaitZero(n) => self.apps[n].begin_wait(now, Some(now)),
            Step::WaitShort(n) => self.apps[n].begin_wait(now, Some(now + TICK)),
            Step::AppNext(n) => self.app_next(n)?,
            Step::AppDone { app, to } => self.app_done(app, to)?,
            Step::Consume(n) => self.apps[n].ready = false,
            Step::Signal(n) => self.apps[n].signal(now),
            Step::Close(n) => self.close(n),
            Step::Settings { instance, nth } => {
                let settings = scope.changes[nth];
                self.instances[instance].napi.handle_settings(settings);
                self.instances[instance].monitor.handle_settings(&settings);
            }
            Step::Disable(n) => {
                let actions = self.instances[n].napi.disable();
                self.instances[n].attached = false;
                self.instances[n].monitor.handle_disable();
                self.act(n, self.home(n), actions);
            }
            Step::Enable(n) => self.enable(n),
            Step::SpuriousWake(n) => {
                self.instances[n].thread.handle_wake();
            }
            Step::Tick => self.tick(),
        }
        self.check()
    }

    /// Checks all invariants of all instances.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        (0..self.instances.len()).try_for_each(|n| {
            let instance = &self.instances[n];
            instance.monitor.check(&instance.napi, &self.surroundings(n))
        })
    }

    fn surroundings(&self, n: usize) -> Surroundings {
        let instance = &self.instances[n];
        let here = |index: NapiIndex| index.as_usize() == n;
        let softirq = self.cpus.iter().any(|cpu| match cpu.phase {
            CpuPhase::Idle => false,
            CpuPhase::Polling(poll) if poll.instance == n => true,
            _ => cpu.softirq.iter().any(here),
        });
        let worked =
            self.pool.workers.iter().any(|worker| matches!(worker, Worker::Polling(poll) if poll.instance == n));
        let workers_awake = self.pool.workers.iter().any(|worker| !matches!(worker, Worker::Asleep));
        Surroundings {
            pending: instance.packets > 0,
            interrupt_due: instance.interrupt,
            runnable: softirq
                || worked
                || (workers_awake && self.pool.list.iter().any(here))
                || !instance.thread.is_asleep(),
            timer: instance.timer,
            attended: self.apps.iter().any(|app| app.attends(id(n))),
        }
    }

    fn home(&self, instance: usize) -> usize {
        instance % self.cpus.len()
    }

    fn index(instance: usize) -> NapiIndex {
        NapiIndex(instance as u32)
    }

    /// Executes actions on this CPU.
    fn act(&mut self, n: usize, cpu: usize, actions: Actions) {
        let instance = &mut self.instances[n];
        match actions.interrupt {
            Some(InterruptAction::Mask) => instance.unmasked = false,
            Some(InterruptAction::Unmask) => {
                instance.unmasked = true;
                instance.recheck = true;
            }
            None => {}
        }
        match actions.timer {
            Some(TimerAction::Arm(at)) => instance.timer = Some(at),
            Some(TimerAction::Cancel) => instance.timer = None,
            None => {}
        }
        match actions.run {
            Some(PollContext::Softirq) => self.run_softirq(n, cpu),
            Some(PollContext::Thread | PollContext::BusyThread) => {
                instance.thread.handle_wake();
            }
            Some(PollContext::Workqueue) => self.run_pool(n),
            None => {}
        }
    }

    fn run_softirq(&mut self, n: usize, cpu: usize) {
        if self.cpus[cpu].softirq.handle_schedule(Self::index(n)) {
            self.cpus[cpu].phase = CpuPhase::Raised;
        }
    }

    fn run_pool(&mut self, n: usize) {
        if self.pool.list.handle_schedule(Self::index(n)) {
            let asleep = self.pool.workers.iter_mut().find(|worker| **worker == Worker::Asleep);
            *asleep.expect("the pool counts its idle workers") = Worker::Awake;
        }
    }

    fn arrive(&mut self, n: usize) {
        let now = self.now;
        let instance = &mut self.instances[n];
        instance.packets += 1;
        instance.monitor.handle_arrival(now);
        instance.interrupt |= instance.unmasked;
    }

    fn interrupt(&mut self, n: usize) {
        let now = self.now;
        let instance = &mut self.instances[n];
        instance.interrupt = false;
        instance.monitor.handle_interrupt(&instance.napi, instance.packets > 0);
        let actions = instance.napi.handle_interrupt(now);
        self.act(n, self.home(n), actions);
    }

    fn recheck(&mut self, n: usize) {
        let now = self.now;
        let instance = &mut self.instances[n];
        instance.recheck = false;
        let actions = instance.napi.handle_unmasked(now, instance.packets > 0);
        self.act(n, self.home(n), actions);
    }

    fn timer(&mut self, n: usize, now: Nanos) {
        let instance = &mut self.instances[n];
        if instance.timer.is_some_and(|at| at <= now) {
            instance.timer = None;
            if !instance.napi.is_owned() {
                instance.monitor.handle_timer();
            }
        }
        let actions = instance.napi.handle_timer(now);
        self.act(n, self.home(n), actions);
    }

    fn enable(&mut self, n: usize) {
        let actions = self.instances[n].napi.enable();
        self.instances[n].attached = true;
        self.act(n, self.home(n), actions);
    }

    /// Returns whether time may pass. It does not pass a deadline: timers that are due fire first. It does not pass in the
    /// middle of a softirq run either, unless the scope allows it: every step during the run is possible without it.
    pub(crate) fn may_tick(&self, scope: &Scope) -> bool {
        let in_a_run = |cpu: &Cpu| matches!(cpu.phase, CpuPhase::Running | CpuPhase::Polling(_));
        self.instances.iter().all(|instance| instance.timer.is_none_or(|at| at > self.now))
            && (scope.may.tick_in_softirq || !self.cpus.iter().any(in_a_run))
    }

    fn tick(&mut self) {
        for instance in &mut self.instances {
            instance.napi.rebase(TICK);
            instance.monitor.rebase(TICK);
            instance.timer = instance.timer.map(|at| at.saturating_sub(TICK));
        }
        for cpu in &mut self.cpus {
            cpu.softirq.rebase(TICK);
        }
        for app in &mut self.apps {
            app.rebase(TICK);
        }
    }

    /// Adds a step for each application that the packets of this poll may belong to.
    fn each_receiver(&self, poll: InPoll, steps: &mut Vec<Step>, step: impl Fn(Option<usize>) -> Step) {
        let before = steps.len();
        if poll.work > 0 {
            let open = self.apps.iter().enumerate().filter(|(_, app)| app.state != AppState::Closed);
            steps.extend(open.map(|(to, _)| step(Some(to))));
        }
        if steps.len() == before {
            steps.push(step(None));
        }
    }
}

impl Instance {
    fn steps(&self, n: usize, scope: &Scope, world: &World, steps: &mut Vec<Step>) {
        if self.interrupt {
            steps.push(Step::Interrupt(n));
        }
        if self.recheck {
            steps.push(Step::Recheck(n));
        }
        if self.timer.is_some_and(|at| at <= world.now || scope.may.untimed) {
            steps.push(Step::Timer(n));
        }
        match self.thread_poll {
            Some(poll) => world.each_receiver(poll, steps, |to| Step::ThreadDone { instance: n, to }),
            None if !self.thread.is_asleep() => steps.push(Step::ThreadTake(n)),
            None => {}
        }
        for (nth, settings) in scope.changes.iter().enumerate() {
            if settings != self.napi.settings() {
                steps.push(Step::Settings { instance: n, nth });
            }
        }
        if scope.may.disable {
            if self.napi.is_enabled() {
                steps.push(Step::Disable(n));
            } else if self.napi.is_disabled() {
                steps.push(Step::Enable(n));
            }
        }
        if scope.may.disturb {
            steps.extend([Step::SpuriousTimer(n), Step::SpuriousInterrupt(n)]);
            if self.thread.is_asleep() {
                steps.push(Step::SpuriousWake(n));
            }
        }
    }
}

/// Returns the ID that the store gives the nth instance.
fn id(n: usize) -> NapiId {
    static IDS: OnceLock<Vec<NapiId>> = OnceLock::new();
    IDS.get_or_init(|| {
        let mut store = Store::new();
        (0..8).map(|queue| store.id(QueueKey { device: 1, queue })).collect()
    })[n]
}
