//! The test bed of an installed program whose socket calls are interposed by the preloaded library: over AF_XDP on the test
//! network, or over a shared-memory NIC.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abey_datapath::Runtime;
use abey_datapath::control::find_in;
use abey_delivery::Mode;
use abey_linux::counters::Count;
use abey_linux::library::{self, DatapathConfig, LibraryConfig};
use abey_loadgen::Kernel;
use abey_loadgen::network::Network;
use abey_testbed::spawn::SpawnExt;

use super::Datapath;
use super::memory::{CLIENT, PREFIX, SERVER};
use super::server::DatapathServer;
use crate::client::{CLIENT_MODE, over_af_xdp};
use crate::cpu_time::CpuTimeSource;
use crate::load_driver::{Cpus, can_count, pin_client};
use crate::runner::{Conditions, TestBed};
use crate::{App, BenchError, ClientKind, Load, Run, TestBedSetup, VethNetwork, World};

/// The wire of a preloaded program.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The test network, with AF_XDP on the server's end.
    Veth(Arc<VethNetwork>, ClientKind),
    /// A shared-memory NIC, with a datapath client on the other end.
    Memory(Cpus),
}

/// The test bed of an installed program over the datapath.
pub struct Preloaded {
    pub(super) wire: Wire,
    pub(super) app: App,
    library: PathBuf,
    pub(super) cpu_time: CpuTimeSource,
    pub(super) setup: TestBedSetup,
}

impl Preloaded {
    /// Creates the test bed; `library` is the path of `libabey.so`.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] if CPU time cannot be accounted.
    pub fn new(wire: Wire, app: App, library: PathBuf) -> Result<Self, BenchError> {
        let cpus = wire.cpus();
        let (world, client, wire_description) = match &wire {
            Wire::Veth(network, client) => {
                (World::Datapath, *client, format!("{}, AF_XDP at the server", network.description()))
            }
            Wire::Memory(_) => {
                (World::Memory, ClientKind::Datapath, "shared-memory NIC between two processes".to_owned())
            }
        };
        let setup = TestBedSetup {
            world,
            server: format!("{}, on CPU {}", app.description(), cpus.server),
            client: client.description(cpus),
            wire: wire_description,
        };
        Ok(Self { cpu_time: CpuTimeSource::of_cpu(cpus.server)?, wire, app, library, setup })
    }

    /// Starts the server. `on_connect` gets its process ID and the directory of its control socket, which is removed afterwards.
    pub(super) fn start(
        &self,
        nic: &str,
        mode: Mode,
        conditions: &Conditions,
        on_connect: impl FnOnce(u32, &Path) -> Result<(), BenchError>,
    ) -> Result<DatapathServer, BenchError> {
        let cpu = self.wire.cpus().server as usize;
        let target = self.target();
        let mut command = self.app.command(target);
        let prefix = match &self.wire {
            Wire::Veth(network, _) => {
                command.in_netns(&network.server);
                VethNetwork::PREFIX
            }
            Wire::Memory(_) => PREFIX,
        };
        command.on_cpus(&[cpu]);
        let datapath = DatapathConfig {
            nic: nic.to_owned(),
            mode,
            addresses: vec![(target.ip(), prefix)],
            gateways: Vec::new(),
            queues: None,
            cpus: vec![cpu],
            // One process on one queue needs no broker.
            broker: None,
        };
        let config =
            LibraryConfig { mode: Some(mode), datapath: Some(datapath), strict: true, ..LibraryConfig::default() };
        let name = format!("{} over {nic} under {mode}", command_text(&command));
        library::equip(&mut command, Some((&self.library, &config)), None);
        DatapathServer::start(command, name, conditions, |_, control| listens(control), on_connect)
    }

    /// Returns a unique NIC name.
    pub(super) fn next_nic() -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("memory:abey-bench-both-{}-{count}", std::process::id())
    }

    pub(super) fn target(&self) -> SocketAddr {
        match &self.wire {
            Wire::Veth(..) => VethNetwork::address(self.app.port()),
            Wire::Memory(_) => SocketAddr::new(SERVER, self.app.port()),
        }
    }

    /// Measures the server at each load. The calling thread must be in the client's namespace, if it has one.
    fn at_each_load<N: Network>(
        &self,
        network: impl FnOnce() -> Result<N, BenchError>,
        (mut served, mode): (DatapathServer, Mode),
        loads: (&[Load], u64),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        pin_client(self.wire.cpus().client)?;
        // If the server has ended, that is the error.
        let network = network().map_err(|error| served.server.check().err().unwrap_or(error))?;
        let to = (self.target(), self.app.protocol().workload());
        served.at_each_load(network, to, (self.setup.world, mode, &self.cpu_time), loads, conditions)
    }
}

impl Wire {
    pub(super) fn cpus(&self) -> Cpus {
        match self {
            Self::Veth(network, _) => network.cpus,
            Self::Memory(cpus) => *cpus,
        }
    }
}

/// Formats a command line.
pub(crate) fn command_text(command: &Command) -> String {
    format!("{command:?}").replace('"', "")
}

/// Returns whether a program in this control directory has an open datapath socket.
fn listens(control: &Path) -> Result<bool, BenchError> {
    let Some(Ok(client)) = find_in(control)?.into_iter().next() else { return Ok(false) };
    Ok(client.status().is_ok_and(|status| status.shards.iter().any(|shard| shard.sockets > 0)))
}

/// Opens a datapath on the client's end of a shared-memory NIC.
pub(super) fn over_memory(nic: &str, address: IpAddr, cpu: u32) -> Result<Datapath, BenchError> {
    let builder = Runtime::builder().nic(nic, Default::default()).mode(CLIENT_MODE);
    Ok(Datapath::new(builder.address(address, PREFIX).pin(vec![cpu as usize]).build()?))
}

impl TestBed for Preloaded {
    fn setup(&self) -> &TestBedSetup {
        &self.setup
    }

    fn lacks(&self, mode: Mode) -> Option<&'static str> {
        let blocking = mode.settings().socket_busy_poll.is_some();
        blocking.then_some("it is for blocking receives, and the servers wait in epoll")
    }

    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError> {
        let loads = (loads, seed);
        // The server is killed when the thread that started it ends, so the load runs in a thread of its own, which it can pin.
        match &self.wire {
            Wire::Veth(network, client) => {
                let served =
                    (self.start(&format!("af_xdp:{}", network.device.name), mode, conditions, |_, _| Ok(()))?, mode);
                match client {
                    ClientKind::Kernel => {
                        network.client.run(|| self.at_each_load(|| Ok(Kernel), served, loads, conditions))?
                    }
                    ClientKind::Datapath => {
                        network.client.run(|| self.at_each_load(|| over_af_xdp(network), served, loads, conditions))?
                    }
                }
            }
            Wire::Memory(cpus) => {
                let nic = Self::next_nic();
                let served = (self.start(&nic, mode, conditions, |_, _| Ok(()))?, mode);
                let network = || over_memory(&nic, CLIENT, cpus.client);
                let load = || self.at_each_load(network, served, loads, conditions);
                std::thread::scope(|scope| {
                    scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            }
        }
    }

    fn counts_cycles(&self) -> Result<bool, BenchError> {
        can_count(self.wire.cpus().server, Count::Cycles)
    }
}
