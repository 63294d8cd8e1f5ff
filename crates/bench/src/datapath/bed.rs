//! `abey serve kv` on one end of a shared-memory NIC under a mode, and the load on the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use abey_datapath::Runtime;
use abey_datapath::control::{Client, DIRECTORY_VARIABLE, find_in};
use abey_delivery::Mode;
use abey_linux::counters::Count;
use abey_linux::cpu::thread_affinity;
use abey_linux::library::VERSION;

use super::Datapath;
use super::meter::{Counts, Meter};
use super::proof::judge;
use crate::load_run::{Driver, can_count, figures, per_query, pin_client, two_cpus};
use crate::matrix::{Bed, Conditions};
use crate::server::Server;
use crate::{BedSetup, BenchError, Figure, Figures, Load, Run, World};

/// The built-in server in a process of its own, the load in this one, and shared memory between them.
pub struct Memory {
    abey: PathBuf,
    server_cpu: u32,
    client_cpu: u32,
    setup: BedSetup,
}

/// Addresses on the shared-memory NIC; nobody else is on it.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const PREFIX: u8 = 24;
const PORT: u16 = 11_211;

/// The load's end of the wire: it sees an answer as soon as it is there.
const CLIENT_MODE: Mode = Mode::FullBusy;

impl Memory {
    /// The first and the last of the CPUs that this thread may use are the client's and the server's; `abey` is the
    /// command.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] if there is one CPU only.
    pub fn new(abey: PathBuf) -> Result<Self, BenchError> {
        let allowed = thread_affinity(std::process::id())?;
        let (client_cpu, server_cpu) = two_cpus(&allowed)?;
        let setup = BedSetup {
            world: World::Datapath,
            server: format!("abey serve kv {VERSION}, 1 thread, on CPU {server_cpu}"),
            client: format!("over the datapath under {CLIENT_MODE}, from CPU {client_cpu}"),
            wire: "shared-memory NIC between two processes, one queue, checksums left out".to_owned(),
        };
        Ok(Self { abey, server_cpu, client_cpu, setup })
    }

    /// Starts the server on a NIC of this name; gives what its counters are asked through.
    fn start(&self, nic: &str, mode: Mode, conditions: &Conditions) -> Result<(Server, Client), BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        // For as long as it takes to connect: then not even a bench that is killed leaves a file behind.
        let control = tempfile::tempdir().map_err(io("make a temporary directory"))?;
        let mut command = Command::new(&self.abey);
        let cpu = self.server_cpu.to_string();
        command.args(["serve", "kv", "--nic", nic, "--mode", &mode.to_string(), "--cpu", &cpu, "--napi-cpu", &cpu]);
        command.env(DIRECTORY_VARIABLE, control.path());
        let shown = format!("abey serve kv --nic {nic} --mode {mode}");
        let listens = |server: &Server| Ok(server.output().contains("listening on "));
        let server = Server::start(command, shown, &conditions.stop, listens)?;
        let found = find_in(control.path())?.into_iter().next();
        let client = found.ok_or_else(|| server.failed("has no control socket".to_owned()))?;
        let client = client.map_err(|unreachable| unreachable.error)?;
        Ok((server, client))
    }

    fn at_each_load(
        &self,
        nic: &str,
        mode: Mode,
        loads: &[Load],
        seed: u64,
        (mut server, control): (Server, Client),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        let pid = server.pid();
        pin_client(self.client_cpu)?;
        let builder = Runtime::builder().nic(nic, Default::default()).mode(CLIENT_MODE);
        let runtime = builder.address(CLIENT, PREFIX).pin(vec![self.client_cpu as usize]).build();
        // A server that has ended is the reason, whatever else is said.
        let runtime = runtime.map_err(|error| server.check().err().unwrap_or(error.into()))?;
        let target = SocketAddr::new(SERVER, PORT);
        let of = (World::Datapath, mode);
        let mut driver = Driver::connect(Datapath::new(runtime), target, &mut server, of, conditions)?;
        let mut runs = Vec::new();
        for &load in loads {
            let mut meter = Meter::new(pid, &control, self.server_cpu)?;
            let report =
                driver.run(load, conditions.duration, conditions.warmup, seed, &mut |phase| meter.at(phase))?;
            let counts = meter.finish()?;
            let proof = driver.proved(load, judge(mode, &counts.datapath))?;
            runs.push(driver.measured(load, &report, all_figures(&report, &counts), proof));
        }
        Ok(runs)
    }
}

impl Bed for Memory {
    fn setup(&self) -> &BedSetup {
        &self.setup
    }

    fn lacks(&self, mode: Mode) -> Option<&'static str> {
        let blocking = mode.settings().socket_busy_poll.is_some();
        blocking.then_some("it is for blocking receives, and the server waits in epoll")
    }

    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nic = format!("memory:abey-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // The server ends with the thread that starts it, so that is this one; the load gets one that it can pin.
        let started = self.start(&nic, mode, conditions)?;
        let load = || self.at_each_load(&nic, mode, loads, seed, started, conditions);
        std::thread::scope(|scope| scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    fn counts_cycles(&self) -> Result<bool, BenchError> {
        can_count(self.server_cpu, Count::Cycles)
    }
}

fn all_figures(report: &abey_load::Report, counts: &Counts) -> Figures {
    let mut all = figures(report, counts.usage);
    let each = |count: Option<u64>| per_query(count? as f64, report);
    all.set(Figure::Cycles, each(counts.work.get(Count::Cycles)));
    all.set(Figure::Instructions, each(counts.work.get(Count::Instructions)));
    all.set(Figure::Wakeups, Some(counts.sleeps as f64 / counts.usage.interval.as_secs_f64()));
    all.set(Figure::ContextSwitches, each(Some(counts.switches)));
    all.set(Figure::SystemCalls, each(Some(counts.datapath.system_calls())));
    all
}
