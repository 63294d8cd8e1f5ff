//! One server under one mode, measured at each load.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::apply::{Applied, Place, Plan, Target};
use abey_linux::counters::{Count, CountError, Work, WorkCounter};
use abey_linux::cpu::{CpuList, Usage, set_thread_affinity};
use abey_linux::epoll;
use abey_linux::library::{self, LibraryConfig};
use abey_linux::napi::NapiChange;
use abey_linux::netlink::Netlink;
use abey_linux::polls::TimerCounter;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_linux::spawn::CommandPlace;
use abey_load::network::Network;
use abey_load::{Kernel, Phase, Report};

use super::proof::{Testimony, Witness};
use crate::client::over_af_xdp;
use crate::cpu_time::{CpuTime, Spent, Watch};
use crate::datapath::shown;
use crate::load_run::{Driver, can_count, figures, per_query, pin_client};
use crate::matrix::{Bed, Conditions};
use crate::server::Server;
use crate::{App, BedSetup, BenchError, ClientKind, Figure, Figures, Load, Run, TestBed, World};

/// The kernel's modes: an unmodified server behind a veth pair.
pub struct Linux {
    pub(super) bed: Arc<TestBed>,
    pub(super) app: App,
    library: PathBuf,
    client: ClientKind,
    pub(super) cpu_time: CpuTime,
    able: NapiCapabilities,
    setup: BedSetup,
}

impl Linux {
    /// `library` is `libabey.so`.
    ///
    /// # Errors
    /// The kernel or the machine lacks what is needed.
    pub fn new(bed: Arc<TestBed>, app: App, library: PathBuf, client: ClientKind) -> Result<Self, BenchError> {
        // What proves a mode active must be there: to find that out later would cost what was measured until then.
        drop(TimerCounter::open()?);
        let able = napi_capabilities(&mut Netlink::open(&bed.server)?)?;
        let setup = BedSetup {
            world: World::Linux,
            server: format!("{}, on CPU {}", app.description(), bed.cpus.server),
            client: client.description(bed.cpus),
            wire: bed.description().to_owned(),
        };
        Ok(Self { cpu_time: CpuTime::of_cpu(bed.cpus.server)?, bed, app, library, client, able, setup })
    }
}

impl Bed for Linux {
    fn setup(&self) -> &BedSetup {
        &self.setup
    }

    fn lacks(&self, mode: Mode) -> Option<&'static str> {
        let settings = mode.settings();
        if settings.napi.hold.is_some() || mode == Mode::Workqueue {
            Some("it exists in the datapath and sim worlds only")
        } else if settings.socket_busy_poll.is_some() {
            Some("it is for blocking receives, and the servers wait in epoll")
        } else if !settings.napi.irq_suspend_timeout.is_zero() && !self.able.suspend {
            Some("this kernel has no IRQ suspension (Linux 6.13)")
        } else if settings.epoll.is_some() && !epoll::supported().unwrap_or(false) {
            Some("this kernel has no busy-poll parameters per epoll instance (Linux 6.9)")
        } else if mode == Mode::ThreadedBusy && !self.able.threaded_busy {
            Some("this kernel has no threaded busy polling (Linux 6.19)")
        } else {
            None
        }
    }

    /// Under the mode's settings, which are put back.
    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError> {
        let applied = self.apply(mode)?;
        let kthreads = self.pin_napi_threads()?;
        let mut server = self.start(mode, conditions)?;
        // The load's sockets and threads inherit namespace and CPU of the thread that makes them.
        let served = (&mut server, &kthreads[..]);
        let loads = (loads, seed);
        let runs = match self.client {
            ClientKind::Kernel => {
                self.bed.client.run(|| self.at_each_load(|| Ok(Kernel), mode, loads, served, conditions))?
            }
            ClientKind::Datapath => {
                self.bed.client.run(|| self.at_each_load(|| over_af_xdp(&self.bed), mode, loads, served, conditions))?
            }
        };
        drop(server);
        applied.restore()?;
        runs
    }

    fn counts_cycles(&self) -> Result<bool, BenchError> {
        can_count(self.bed.cpus.server, Count::Cycles)
    }
}

impl Linux {
    /// Gives the device the mode's settings.
    pub(super) fn apply(&self, mode: Mode) -> Result<Applied, BenchError> {
        let refused = |source| BenchError::Apply { mode, source };
        self.bed.check_is_the_kernels()?;
        let mut place = Place::open(&self.bed.server)?;
        let wanted = NapiChange::to(&mode.settings().napi);
        let plan = Plan::new(&mut place, &self.bed.device, &Target::Device, &wanted, self.able).map_err(refused)?;
        // No journal: the namespace and everything set in it vanish with this process.
        plan.apply(place, None).map_err(refused)
    }

    /// The threads of threaded NAPI belong to the server's side of the comparison.
    pub(super) fn pin_napi_threads(&self) -> Result<Vec<u32>, BenchError> {
        let threads: Vec<u32> = self.bed.napis()?.iter().filter_map(|napi| napi.thread).collect();
        for thread in &threads {
            set_thread_affinity(*thread, &self.bed.cpus.of_server())?;
        }
        Ok(threads)
    }

    /// Starts the server on its CPU, in its namespace, with the library where the mode needs it.
    pub(super) fn start(&self, mode: Mode, conditions: &Conditions) -> Result<Server, BenchError> {
        let mut command = self.app.command(self.target());
        let shown = shown(&command);
        command.in_netns(&self.bed.server).on_cpus(&[self.bed.cpus.server as usize]);
        let config = LibraryConfig { strict: true, ..LibraryConfig::new(Some(mode), &mode.settings()) };
        library::equip(&mut command, (!config.is_passive()).then_some((&*self.library, &config)), None);
        let connects = || TcpStream::connect_timeout(&self.target(), Duration::from_millis(200)).is_ok();
        Server::start(command, shown, &conditions.stop, |_| Ok(self.bed.server.run(connects)?))
    }

    pub(super) fn target(&self) -> SocketAddr {
        TestBed::address(self.app.port())
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
        pin_client(self.bed.cpus.client)?;
        let to = (self.target(), self.app.protocol().workload());
        let mut driver = Driver::connect(network()?, to, server, (World::Linux, mode), conditions)?;
        let mut runs = Vec::new();
        for &load in loads {
            let witness = Witness::open(&self.bed.device.name, kthreads, pid)?;
            let before = driver.run(load, conditions.warmup, Duration::ZERO, seed, &mut |_| {})?;
            let testimony = witness.close()?;
            let proof = driver.proved(load, testimony.judge(mode))?;
            let mut meter = Meter::new(&self.bed.cpus.of_server(), self.cpu_time.watch(pid, kthreads)?)?;
            let report =
                driver.run(load, conditions.duration, SETTLE, seed.wrapping_add(1), &mut |phase| meter.at(phase))?;
            let (work, usage, note) = meter.finish()?;
            let figures = all_figures(&report, &work, usage, &testimony, &before);
            runs.push(driver.measured(load, &report, figures, (proof, note)));
        }
        Ok(runs)
    }
}

/// Between the run that proves and the one that is measured: the queues run empty and the event loop goes back to its
/// rhythm without the witness's counters.
const SETTLE: Duration = Duration::from_millis(50);

/// Counts on the server's CPU exactly while the load is measured.
struct Meter<'a> {
    counter: WorkCounter,
    cpu: Watch<'a>,
    start: Option<Reading>,
    end: Option<Reading>,
    failed: Option<BenchError>,
}

type Reading = (Work, Spent);

impl<'a> Meter<'a> {
    fn new(cpus: &CpuList, cpu: Watch<'a>) -> Result<Self, CountError> {
        let counter = WorkCounter::on_cpus(cpus, &Count::CHEAP)?;
        Ok(Self { counter, cpu, start: None, end: None, failed: None })
    }

    fn at(&mut self, phase: Phase) {
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
        let (start, end) = self.start.zip(self.end).expect("a run that ended well has both phases");
        let (usage, note) = end.1.since(&start.1);
        Ok((end.0.since(&start.0), usage, note))
    }
}

fn all_figures(report: &Report, work: &Work, usage: Usage, testimony: &Testimony, before: &Report) -> Figures {
    let mut all = figures(report, usage);
    let each = |count| work.get(count).and_then(|events| per_query(events as f64, report));
    all.set(Figure::Cycles, each(Count::Cycles));
    all.set(Figure::Instructions, each(Count::Instructions));
    all.set(Figure::ContextSwitches, each(Count::ContextSwitches));
    let wakeups = work.get(Count::WakeUps).map(|count| count as f64 / usage.interval.as_secs_f64());
    all.set(Figure::Wakeups, wakeups.filter(|rate| rate.is_finite()));
    all.set(Figure::SystemCalls, testimony.system_calls.and_then(|calls| per_query(calls as f64, before)));
    all
}
