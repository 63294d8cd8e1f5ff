//! The test bed of the kernel's modes.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::counters::{Count, CountError, Work, WorkCounter};
use abey_linux::cpu::{CpuList, Usage, set_thread_affinity};
use abey_linux::epoll;
use abey_linux::kernel::NetnsHandle;
use abey_linux::library::{self, LibraryConfig};
use abey_linux::napi::NapiChange;
use abey_linux::netlink::Netlink;
use abey_linux::polls::TimerCounter;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_loadgen::network::Network;
use abey_loadgen::{Kernel, Phase, Report};
use abey_reconcile::{Applied, Plan, Target};
use abey_testbed::spawn::SpawnExt;

use super::proof::{ProofCounters, ProofCounts};
use crate::client::over_af_xdp;
use crate::cpu_time::{CpuTimeReading, CpuTimeSource, ServerCpuTime};
use crate::datapath::command_text;
use crate::load_driver::{LoadDriver, can_count, figures, per_query, pin_client};
use crate::runner::{Conditions, TestBed};
use crate::server::Server;
use crate::{App, BenchError, ClientKind, Figure, Figures, Load, Run, TestBedSetup, VethNetwork, World};

/// The test bed of the kernel's modes: an unmodified server behind a veth pair.
pub struct Linux {
    pub(super) network: Arc<VethNetwork>,
    pub(super) app: App,
    library: PathBuf,
    client: ClientKind,
    pub(super) cpu_time: CpuTimeSource,
    capabilities: NapiCapabilities,
    setup: TestBedSetup,
}

impl Linux {
    /// Creates the test bed; `library` is the path of `libabey.so`.
    ///
    /// # Errors
    /// [`BenchError`] if kernel or machine lack something that the measurement needs.
    pub fn new(network: Arc<VethNetwork>, app: App, library: PathBuf, client: ClientKind) -> Result<Self, BenchError> {
        // Checks early that the counters of the proof are available.
        drop(TimerCounter::open()?);
        let capabilities = napi_capabilities(&mut Netlink::open(&network.server)?)?;
        let setup = TestBedSetup {
            world: World::Linux,
            server: format!("{}, on CPU {}", app.description(), network.cpus.server),
            client: client.description(network.cpus),
            wire: network.description().to_owned(),
        };
        Ok(Self {
            cpu_time: CpuTimeSource::of_cpu(network.cpus.server)?,
            network,
            app,
            library,
            client,
            capabilities,
            setup,
        })
    }
}

impl TestBed for Linux {
    fn setup(&self) -> &TestBedSetup {
        &self.setup
    }

    fn lacks(&self, mode: Mode) -> Option<&'static str> {
        let settings = mode.settings();
        if settings.napi.hold.is_some() || mode == Mode::Workqueue {
            Some("it exists in the datapath and sim worlds only")
        } else if settings.socket_busy_poll.is_some() {
            Some("it is for blocking receives, and the servers wait in epoll")
        } else if !settings.napi.irq_suspend_timeout.is_zero() && !self.capabilities.suspend {
            Some("this kernel has no IRQ suspension (Linux 6.13)")
        } else if settings.epoll.is_some() && !epoll::supported().unwrap_or(false) {
            Some("this kernel has no busy-poll parameters per epoll instance (Linux 6.9)")
        } else if mode == Mode::ThreadedBusy && !self.capabilities.threaded_busy {
            Some("this kernel has no threaded busy polling (Linux 6.19)")
        } else {
            None
        }
    }

    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError> {
        let applied = self.apply(mode)?;
        let kthreads = self.pin_napi_threads()?;
        let mut server = self.start(mode, conditions)?;
        // The load's sockets and threads inherit namespace and CPU of the thread that creates them.
        let served = (&mut server, &kthreads[..]);
        let loads = (loads, seed);
        let runs = match self.client {
            ClientKind::Kernel => {
                self.network.client.run(|| self.at_each_load(|| Ok(Kernel), mode, loads, served, conditions))?
            }
            ClientKind::Datapath => self
                .network
                .client
                .run(|| self.at_each_load(|| over_af_xdp(&self.network), mode, loads, served, conditions))?,
        };
        drop(server);
        applied.restore()?;
        runs
    }

    fn counts_cycles(&self) -> Result<bool, BenchError> {
        can_count(self.network.cpus.server, Count::Cycles)
    }
}

impl Linux {
    /// Applies the mode's settings to the device.
    pub(super) fn apply(&self, mode: Mode) -> Result<Applied, BenchError> {
        let refused = |source| BenchError::Apply { mode, source };
        self.network.check_no_xdp()?;
        let mut kernel = NetnsHandle::open(&self.network.server)?;
        let change = NapiChange::to(&mode.settings().napi);
        let plan = Plan::new(&mut kernel, &self.network.device, &Target::Device, &change, self.capabilities)
            .map_err(refused)?;
        // No journal: the namespace ends with this process.
        plan.apply(kernel, None).map_err(refused)
    }

    /// Pins the threads of threaded NAPI to the server's CPU, and returns their IDs.
    pub(super) fn pin_napi_threads(&self) -> Result<Vec<u32>, BenchError> {
        let threads: Vec<u32> = self.network.napis()?.iter().filter_map(|napi| napi.thread).collect();
        for thread in &threads {
            set_thread_affinity(*thread, &self.network.cpus.of_server())?;
        }
        Ok(threads)
    }

    /// Starts the server on its CPU, in its namespace, and with the library if the mode needs it.
    pub(super) fn start(&self, mode: Mode, conditions: &Conditions) -> Result<Server, BenchError> {
        let mut command = self.app.command(self.target());
        let name = command_text(&command);
        command.in_netns(&self.network.server).on_cpus(&[self.network.cpus.server as usize]);
        let config = LibraryConfig { strict: true, ..LibraryConfig::new(Some(mode), &mode.settings()) };
        library::equip(&mut command, (!config.is_passive()).then_some((&*self.library, &config)), None);
        let connects = || TcpStream::connect_timeout(&self.target(), Duration::from_millis(200)).is_ok();
        Server::start(command, name, &conditions.stop, |_| Ok(self.network.server.run(connects)?))
    }

    pub(super) fn target(&self) -> SocketAddr {
        VethNetwork::address(self.app.port())
    }

    fn at_each_load<N: Network>(
        &self,
        network: impl FnOnce() -> Result<N, BenchError>,
        mode: Mode,
        (loads, seed): (&[Load], u64),
        (server, kthreads): (&mut Server, &[u32]),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        let pid = server.pid();
        pin_client(self.network.cpus.client)?;
        let to = (self.target(), self.app.protocol().workload());
        let mut driver = LoadDriver::connect(network()?, to, server, (World::Linux, mode), conditions)?;
        let mut runs = Vec::new();
        for &load in loads {
            let counters = ProofCounters::open(&self.network.device.name, kthreads, pid)?;
            let before = driver.run(load, conditions.warmup, Duration::ZERO, seed, &mut |_| {})?;
            let counts = counters.close()?;
            let proof = driver.check_proof(load, counts.prove(mode))?;
            let mut meter = Meter::new(&self.network.cpus.of_server(), self.cpu_time.for_server(pid, kthreads)?)?;
            let report = driver.run(load, conditions.duration, SETTLE_TIME, seed.wrapping_add(1), &mut |phase| {
                meter.handle_phase(phase)
            })?;
            let (work, usage, note) = meter.finish()?;
            let figures = all_figures(&report, &work, usage, &counts, &before);
            runs.push(driver.finish_run(load, &report, figures, (proof, note)));
        }
        Ok(runs)
    }
}

/// Time between the proof and the measurement, in which the queues drain and the event loop returns to its rhythm without
/// the proof's counters.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// Counters of the server's CPU, read at both ends of the measured time.
struct Meter<'a> {
    counter: WorkCounter,
    cpu: ServerCpuTime<'a>,
    start: Option<Reading>,
    end: Option<Reading>,
    failed: Option<BenchError>,
}

type Reading = (Work, CpuTimeReading);

impl<'a> Meter<'a> {
    fn new(cpus: &CpuList, cpu: ServerCpuTime<'a>) -> Result<Self, CountError> {
        let counter = WorkCounter::on_cpus(cpus, &Count::CHEAP)?;
        Ok(Self { counter, cpu, start: None, end: None, failed: None })
    }

    fn handle_phase(&mut self, phase: Phase) {
        match self.read() {
            Err(error) => self.failed = Some(error),
            Ok(reading) if phase == Phase::MeasureStart => self.start = Some(reading),
            Ok(reading) => self.end = Some(reading),
        }
    }

    fn read(&mut self) -> Result<Reading, BenchError> {
        Ok((self.counter.read()?, self.cpu.read()?))
    }

    fn finish(self) -> Result<(Work, Usage, Option<String>), BenchError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let (start, end) = self.start.zip(self.end).expect("a successful run has both phases");
        let (usage, note) = end.1.since(&start.1);
        Ok((end.0.since(&start.0), usage, note))
    }
}

fn all_figures(report: &Report, work: &Work, usage: Usage, counts: &ProofCounts, before: &Report) -> Figures {
    let mut all = figures(report, usage);
    let each = |count| work.get(count).and_then(|events| per_query(events as f64, report));
    all.set(Figure::Cycles, each(Count::Cycles));
    all.set(Figure::Instructions, each(Count::Instructions));
    all.set(Figure::ContextSwitches, each(Count::ContextSwitches));
    let wakeups = work.get(Count::WakeUps).map(|count| count as f64 / usage.interval.as_secs_f64());
    all.set(Figure::Wakeups, wakeups.filter(|rate| rate.is_finite()));
    all.set(Figure::SystemCalls, counts.system_calls.and_then(|calls| per_query(calls as f64, before)));
    all
}
