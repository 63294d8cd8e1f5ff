//! `abey serve kv` on one end of a shared-memory NIC under a mode, and the load on the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use abey_delivery::Mode;
use abey_linux::counters::Count;
use abey_linux::cpu::thread_affinity;
use abey_linux::library::VERSION;

use super::preloaded::over_memory;
use super::served::Served;
use crate::app::Protocol;
use crate::cpu_time::CpuTime;
use crate::load_run::{Cpus, can_count, pin_client};
use crate::matrix::{Bed, Conditions};
use crate::server::Server;
use crate::{BedSetup, BenchError, ClientKind, Load, Run, World};

/// The built-in server in a process of its own, the load in this one, and shared memory between them.
pub struct Memory {
    abey: PathBuf,
    cpus: Cpus,
    setup: BedSetup,
}

/// Addresses on the shared-memory NIC; nobody else is on it.
pub(super) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(super) const PREFIX: u8 = 24;
const PORT: u16 = 11_211;

impl Memory {
    /// The first and the last of the CPUs that this thread may use are the client's and the server's; `abey` is the
    /// command.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] if there is one CPU only.
    pub fn new(abey: PathBuf) -> Result<Self, BenchError> {
        let allowed = thread_affinity(std::process::id())?;
        let cpus = Cpus::choose(&allowed, None)?;
        let setup = BedSetup {
            world: World::Datapath,
            server: format!("abey serve kv {VERSION}, 1 thread, on CPU {}", cpus.server),
            client: ClientKind::Datapath.description(cpus),
            wire: "shared-memory NIC between two processes, one queue, checksums left out".to_owned(),
        };
        Ok(Self { abey, cpus, setup })
    }

    /// Starts the server on a NIC of this name.
    fn start(&self, nic: &str, mode: Mode, conditions: &Conditions) -> Result<Served, BenchError> {
        let mut command = Command::new(&self.abey);
        let cpu = self.cpus.server.to_string();
        command.args(["serve", "kv", "--nic", nic, "--mode", &mode.to_string(), "--cpu", &cpu, "--napi-cpu", &cpu]);
        let shown = format!("abey serve kv --nic {nic} --mode {mode}");
        let listens = |server: &Server, _: &_| Ok(server.output().contains("listening on "));
        Served::start(command, shown, conditions, listens, |_, _| Ok(()))
    }

    fn at_each_load(
        &self,
        nic: &str,
        (mut served, mode): (Served, Mode),
        loads: (&[Load], u64),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        pin_client(self.cpus.client)?;
        // A server that has ended is the reason, whatever else is said.
        let network = over_memory(nic, CLIENT, self.cpus.client);
        let network = network.map_err(|error| served.server.check().err().unwrap_or(error))?;
        let to = (SocketAddr::new(SERVER, PORT), Protocol::Memcached.workload());
        served.at_each_load(network, to, (World::Datapath, mode, &CpuTime::OfProcess), loads, conditions)
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
        let served = (self.start(&nic, mode, conditions)?, mode);
        let load = || self.at_each_load(&nic, served, (loads, seed), conditions);
        std::thread::scope(|scope| scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    fn counts_cycles(&self) -> Result<bool, BenchError> {
        can_count(self.cpus.server, Count::Cycles)
    }
}
