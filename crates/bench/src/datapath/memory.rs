//! The test bed of a shared-memory NIC: `abey serve kv` on one end, the load on the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use abey_delivery::Mode;
use abey_linux::counters::Count;
use abey_linux::cpu::thread_affinity;
use abey_linux::library::VERSION;

use super::preloaded::over_memory;
use super::server::DatapathServer;
use crate::app::Protocol;
use crate::cpu_time::CpuTimeSource;
use crate::load_driver::{Cpus, can_count, pin_client};
use crate::runner::{Conditions, TestBed};
use crate::server::Server;
use crate::{BenchError, ClientKind, Load, Run, TestBedSetup, World};

/// The test bed of the built-in server in a process of its own, the load in this process, and shared memory between them.
pub struct Memory {
    abey: PathBuf,
    cpus: Cpus,
    setup: TestBedSetup,
}

// Addresses on the shared-memory NIC.
pub(super) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(super) const PREFIX: u8 = 24;
const PORT: u16 = 11_211;

impl Memory {
    /// Creates the test bed. The load runs on the first and the server on the last CPU that this thread may use; `abey` is the
    /// path of the command.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] if there is only one CPU.
    pub fn new(abey: PathBuf) -> Result<Self, BenchError> {
        let allowed = thread_affinity(std::process::id())?;
        let cpus = Cpus::choose(&allowed, None)?;
        let setup = TestBedSetup {
            world: World::Datapath,
            server: format!("abey serve kv {VERSION}, 1 thread, on CPU {}", cpus.server),
            client: ClientKind::Datapath.description(cpus),
            wire: "shared-memory NIC between two processes, one queue, checksums left out".to_owned(),
        };
        Ok(Self { abey, cpus, setup })
    }

    /// Starts the server on a new NIC of this name.
    fn start(&self, nic: &str, mode: Mode, conditions: &Conditions) -> Result<DatapathServer, BenchError> {
        let mut command = Command::new(&self.abey);
        let cpu = self.cpus.server.to_string();
        command.args(["serve", "kv", "--nic", nic, "--mode", &mode.to_string(), "--cpu", &cpu, "--napi-cpu", &cpu]);
        let name = format!("abey serve kv --nic {nic} --mode {mode}");
        let listens = |server: &Server, _: &_| Ok(server.output().contains("listening on "));
        DatapathServer::start(command, name, conditions, listens, |_, _| Ok(()))
    }

    fn at_each_load(
        &self,
        nic: &str,
        (mut served, mode): (DatapathServer, Mode),
        loads: (&[Load], u64),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        pin_client(self.cpus.client)?;
        // If the server has ended, that is the error.
        let network = over_memory(nic, CLIENT, self.cpus.client);
        let network = network.map_err(|error| served.server.check().err().unwrap_or(error))?;
        let to = (SocketAddr::new(SERVER, PORT), Protocol::Memcached.workload());
        served.at_each_load(network, to, (World::Datapath, mode, &CpuTimeSource::Process), loads, conditions)
    }
}

impl TestBed for Memory {
    fn setup(&self) -> &TestBedSetup {
        &self.setup
    }

    fn lacks(&self, mode: Mode) -> Option<&'static str> {
        let blocking = mode.settings().socket_busy_poll.is_some();
        blocking.then_some("it is for blocking receives, and the server waits in epoll")
    }

    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nic = format!("memory:abey-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // The server is killed when the thread that started it ends, so the load runs in a thread of its own, which it can pin.
        let served = (self.start(&nic, mode, conditions)?, mode);
        let load = || self.at_each_load(&nic, served, (loads, seed), conditions);
        std::thread::scope(|scope| scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    fn counts_cycles(&self) -> Result<bool, BenchError> {
        can_count(self.cpus.server, Count::Cycles)
    }
}
