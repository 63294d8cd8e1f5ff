//! Simulated world: state, event loop, and figures.

mod application;
mod arrivals;
mod check;
mod client;
mod counts;
mod cpu;
mod drive;
mod poll;
mod reply;
mod request;
mod scheduler;
mod server;
mod softirq;
mod steered;
mod taping;
mod thread;
mod tracing;
mod waiter;
mod workers;

use abey_delivery::{
    EpollConfig, ModeSettings, Nanos, Napi, NapiConfig, NapiIndex, Poller, QueueKey, SoftirqLimits, Store, WorkPool,
};

use abey_delivery::record::{Call, Recorded};

use crate::events::{Event, Events};
use crate::nic::{Arrival, Packet};
use crate::outcome::Outcome;
use crate::profile::{Cost, InputError, InterruptedCpu, Profile};
use crate::random::Random;
use crate::recording::{Recording, What};
use crate::scenario::{Responder, Scenario};
use crate::trace::Trace;
use crate::waits::Waits;
use client::Clients;
use counts::Counts;
use cpu::{Cpu, Irq};
use poll::Queue;
use server::Server;
pub use steered::{Next, run_steered};
use taping::Tape;
use thread::{Kind, Thread};
use tracing::Tracing;
use waiter::Waiter;
use workers::Workers;

/// Simulates one scenario on one kind of host.
///
/// # Errors
/// If the scenario is invalid.
///
/// # Panics
/// If the scenario enables checks and the core violates an invariant, which is a bug.
pub fn run(profile: &Profile, scenario: &Scenario) -> Result<Outcome, InputError> {
    Ok(simulate(profile, scenario, false, None)?.0)
}

/// Like [`run`], and returns a timeline of the whole run.
///
/// # Errors
/// If the scenario is invalid.
///
/// # Panics
/// As [`run`].
pub fn run_traced(profile: &Profile, scenario: &Scenario) -> Result<(Outcome, Trace), InputError> {
    let (outcome, trace) = simulate(profile, scenario, true, None)?;
    Ok((outcome, trace.unwrap_or_default()))
}

/// Runs a scenario of one queue, one CPU and one server, and records the external events of the queue and the calls
/// of the delivery core.
///
/// The run gives no meaningful figures: interrupts, softirq runs and polls take no time, and the cost of a thread's
/// poll follows the poll. So nothing happens in the middle of a poll, as in a world whose polls hold a lock.
///
/// # Errors
/// If the scenario is invalid or larger than that.
pub fn run_recorded(profile: &Profile, scenario: &Scenario) -> Result<Recording, InputError> {
    profile.validate()?;
    scenario.validate(profile)?;
    let topology = &scenario.topology;
    let sizes = [scenario.queues, topology.cpus(scenario.queues), topology.threads(scenario.queues)];
    if sizes != [1, 1, 1] {
        let allowed = "a recording is of one queue, one CPU and one server";
        return Err(InputError::Value { key: "queues", value: scenario.queues.to_string(), allowed });
    }
    let host = scenario.nic.apply(profile);
    let mut world = World::new(&host, scenario, Some(Tape::default()));
    // A socket of the datapath has its queue before its first packet.
    world.servers[0].handle_ready(world.queues[0].id);
    world.begin(None);
    world.run();
    Ok(world.recording.take().map(Tape::finish).unwrap_or_default())
}

/// Like [`run_traced`], with requests that arrive at these times in nanoseconds, each on its own connection, instead
/// of the scenario's load.
pub(crate) fn run_scripted(profile: &Profile, scenario: &Scenario, arrivals: &[u64]) -> Result<Trace, InputError> {
    Ok(simulate(profile, scenario, true, Some(arrivals))?.1.unwrap_or_default())
}

fn simulate(
    profile: &Profile,
    scenario: &Scenario,
    traced: bool,
    script: Option<&[u64]>,
) -> Result<(Outcome, Option<Trace>), InputError> {
    profile.validate()?;
    scenario.validate(profile)?;
    let host = scenario.nic.apply(profile);
    let mut world = World::new(&host, scenario, None);
    if traced {
        world.tracing = Some(Tracing::new(world.cpus.len(), world.queues.len(), world.servers.len()));
    }
    world.begin(script);
    world.run();
    let trace = world.take_trace();
    Ok((world.figures(), trace))
}

struct World<'a> {
    profile: &'a Profile,
    scenario: &'a Scenario,
    settings: ModeSettings,
    now: u64,
    events: Events,
    /// CPUs of the server, followed by those of senders that take interrupts (`InterruptedCpu::Sender`), one per
    /// queue.
    cpus: Vec<Cpu>,
    server_cpus: usize,
    /// CPUs whose activity is interrupted while an event is handled.
    touched: Vec<usize>,
    queues: Vec<Queue>,
    threads: Vec<Thread>,
    servers: Vec<Server>,
    store: Store,
    pool: WorkPool,
    workers: Workers,
    /// Whether there may be a core with two idle hyperthreads.
    idle_cores: bool,
    clients: Clients,
    counts: Counts,
    tracing: Option<Tracing>,
    recording: Option<Tape>,
    /// Nanoseconds per cycle in units of 2^-32.
    ns_per_cycle: u64,
}

impl<'a> World<'a> {
    fn new(profile: &'a Profile, scenario: &'a Scenario, recording: Option<Tape>) -> Self {
        let topology = &scenario.topology;
        let queues = scenario.queues as usize;
        let server_cpus = topology.cpus(scenario.queues) as usize;
        let cpus = server_cpus + if profile.nic.interrupts == InterruptedCpu::Sender { queues } else { 0 };
        let mut world = Self {
            profile,
            scenario,
            settings: scenario.settings,
            now: 0,
            events: Events::default(),
            cpus: (0..cpus).map(|_| Cpu::new(SoftirqLimits::default())).collect(),
            server_cpus,
            touched: Vec::with_capacity(cpus),
            queues: Vec::with_capacity(queues),
            threads: Vec::new(),
            servers: Vec::new(),
            store: Store::new(),
            pool: WorkPool::new(cpus),
            idle_cores: topology.hyperthreads,
            workers: Workers::new(!topology.unpinned_pollers),
            clients: Clients::new(profile, scenario),
            counts: Counts::default(),
            tracing: None,
            recording,
            ns_per_cycle: (1_000 << 32) / profile.processor.frequency_mhz,
        };
        for index in 0..queues {
            world.add_queue(index);
        }
        for index in 0..cpus {
            world.cpus[index].ksoftirqd = world.add_thread(Kind::Softirq(index), index, true);
            if index < server_cpus {
                let worker = world.add_thread(Kind::Worker(index), index, !topology.unpinned_pollers);
                world.workers.add(worker);
            }
        }
        for index in 0..topology.threads(scenario.queues) as usize {
            world.add_server(index);
        }
        world.add_sockets();
        world
    }

    fn add_queue(&mut self, index: usize) {
        let scenario = self.scenario;
        let config = if scenario.linux { NapiConfig::LINUX } else { NapiConfig::default() };
        let key = QueueKey { device: 1, queue: index as u32 };
        let (id, _) = self.store.attach(key, NapiIndex(index as u32)).expect("every queue is attached once");
        let near = scenario.topology.irq_cpu(index as u32, scenario.queues) as usize;
        let cpu = if self.cpus.len() > self.server_cpus { self.server_cpus + index } else { near };
        let napi = Recorded::new(Napi::new(config, self.settings.napi), self.recorder());
        let napi_thread = self.add_thread(Kind::Napi(index), near, !scenario.topology.unpinned_pollers);
        let random = Random::new(scenario.seed, 16 + index as u64);
        self.queues.push(Queue::new(self.profile, random, id, napi, cpu, napi_thread));
    }

    fn add_server(&mut self, index: usize) {
        let scenario = self.scenario;
        let thread = self.add_thread(Kind::Server(index), index % self.server_cpus, !scenario.topology.unpinned);
        let poller = Poller(index as u32);
        let epoll = if scenario.linux { EpollConfig::LINUX } else { EpollConfig::default() };
        let wait = match scenario.responder {
            Responder::RoundTrip | Responder::Receive => Waiter::socket(self.settings.socket_busy_poll, poller),
            Responder::EventLoop | Responder::Stack => Waiter::epoll(epoll, self.settings.epoll, poller),
        };
        self.servers.push(Server::new(thread, wait));
    }

    /// Adds each server's sockets to its queues.
    fn add_sockets(&mut self) {
        let spread = self.scenario.topology.spread(self.scenario.queues);
        let (queues, servers) = (self.queues.len(), self.servers.len());
        let sockets: Vec<(usize, usize)> = if spread.by_queue {
            // A server waits on its queues even before the first connection.
            (0..queues.max(servers)).map(|n| (n % queues, n % servers)).collect()
        } else {
            self.clients.sockets().collect()
        };
        for (queue, server) in sockets {
            self.servers[server].add_socket(self.queues[queue].id);
            let served = &mut self.queues[queue].servers;
            if !served.contains(&server) {
                served.push(server);
            }
        }
    }

    fn add_thread(&mut self, kind: Kind, cpu: usize, pinned: bool) -> usize {
        self.threads.push(Thread::new(kind, cpu, pinned));
        self.threads.len() - 1
    }

    fn begin(&mut self, script: Option<&[u64]>) {
        if self.scenario.check {
            self.start_monitors();
        }
        for queue in 0..self.queues.len() {
            let actions = self.queues[queue].napi.act(Call::Enable);
            self.apply_actions(queue, self.queues[queue].cpu, actions);
        }
        for server in 0..self.servers.len() {
            let thread = self.servers[server].thread;
            self.wake(thread, self.threads[thread].cpu);
        }
        self.schedule_balance();
        match script {
            Some(arrivals) => self.start_script(arrivals),
            None => self.start_clients(),
        }
        let warmup = self.scenario.warmup.as_nanos();
        self.events.push(warmup, Event::Measure);
        self.events.push(warmup + self.scenario.duration.as_nanos(), Event::End);
        self.start_touched();
    }

    fn run(&mut self) {
        while let Some((at, event)) = self.events.pop() {
            debug_assert!(at >= self.now, "time does not go back");
            self.now = at;
            match event {
                Event::Due => self.requests_due(),
                Event::Request { conn, back_to_back } => self.send_request(conn, back_to_back),
                Event::Data { conn, segments } => self.data_arrives(conn, segments),
                Event::Resend { conn, segments } => self.resend(conn, segments),
                Event::Upload { conn } => self.upload(conn),
                Event::Device { conn } => self.answer(conn),
                Event::Acks { conn, segments } => self.acks_arrive(conn, segments),
                Event::Ack { queue } => _ = self.receive(queue as usize, Packet::Ack, 0, Packet::Ack),
                Event::Transmitted { queue } => self.transmitted(queue as usize),
                Event::Moderation { queue } => {
                    let arrival = self.queues[queue as usize].rx.timer(self.now);
                    self.handle_arrival(queue as usize, arrival);
                }
                Event::Timer { queue } => self.timer_event(queue as usize),
                Event::SleepOver { queue, generation } => self.sleep_over(queue as usize, generation),
                Event::Done { cpu, generation } => self.work_done(cpu as usize, generation),
                Event::WaitOver { thread, generation } => self.wait_over(thread as usize, generation),
                Event::Balance => self.balance(),
                Event::Measure => self.measure(),
                Event::End => break,
            }
            self.publish();
            self.start_touched();
            if self.scenario.check {
                self.check();
            }
            self.trace_changes();
        }
        for cpu in 0..self.cpus.len() {
            self.touch(cpu);
        }
    }

    /// Resets the counters at the end of the warm-up.
    fn measure(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.touch(cpu);
            self.cpus[cpu].spent = [0; 5];
        }
        self.counts =
            Counts { packets_before: self.counts.packets_before + self.counts.packets(), ..Counts::default() };
        self.clients.latency.reset();
        for queue in &mut self.queues {
            queue.rx.waits = Waits::default();
        }
    }

    /// Puts `count` packets and the `last` one into the ring. Returns false if the ring has no room for all of them;
    /// it then takes none.
    fn receive(&mut self, queue: usize, before: Packet, count: u32, last: Packet) -> bool {
        let arrival = self.queues[queue].rx.arrive_after(self.now, before, count, last);
        if arrival == Arrival::Dropped {
            self.counts.drops += u64::from(count) + 1;
            return false;
        }
        self.counts.received += u64::from(count) + 1;
        let requests = u32::from(matches!(last, Packet::Data { .. }));
        self.note(What::Arrival { others: count + 1 - requests, requests });
        if let Some(monitor) = &mut self.queues[queue].monitor {
            monitor.handle_arrival(Nanos::from_nanos(self.now));
        }
        self.handle_arrival(queue, arrival);
        true
    }

    fn handle_arrival(&mut self, queue: usize, arrival: Arrival) {
        match arrival {
            Arrival::Dropped | Arrival::Quiet => {}
            Arrival::StartTimer(at) => self.events.push(at, Event::Moderation { queue: queue as u32 }),
            Arrival::Interrupt => {
                if self.profile.service_thread.is_some() {
                    // The peer signals once, and again only after the interrupt was taken and unmasked.
                    self.queues[queue].rx.mask();
                }
                self.interrupt(self.queues[queue].cpu, Irq::Nic(queue));
            }
        }
    }

    fn transmitted(&mut self, queue: usize) {
        let completion = self.queues[queue].rx.transmitted(self.now);
        self.handle_arrival(queue, completion);
    }

    /// Counts the instructions of a cost. Returns its duration.
    fn spend(&mut self, cost: Cost) -> u64 {
        self.counts.instructions += cost.instructions;
        self.time_of(cost)
    }

    /// Returns the duration of a cost on an undisturbed processor.
    fn time_of(&self, cost: Cost) -> u64 {
        let warm = cost.instructions * self.profile.processor.warm_cycles_per_1000_instructions / 1_000;
        self.cycles(warm + cost.stall_cycles)
    }

    /// Converts cycles to nanoseconds.
    fn cycles(&self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.ns_per_cycle) + (1 << 31)) >> 32) as u64
    }

    fn clock(&self) -> Nanos {
        Nanos::from_nanos(self.now)
    }
}
