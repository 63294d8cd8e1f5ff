//! An installed program with the datapath's face preloaded: over AF_XDP on the kernel's own test network, or over a
//! shared-memory NIC.

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
use abey_linux::spawn::CommandPlace;
use abey_load::Kernel;
use abey_load::network::Network;

use super::Datapath;
use super::bed::{CLIENT, PREFIX, SERVER};
use super::served::Served;
use crate::client::{CLIENT_MODE, over_af_xdp};
use crate::cpu_time::CpuTime;
use crate::load_run::{Cpus, can_count, pin_client};
use crate::matrix::{Bed, Conditions};
use crate::{App, BedSetup, BenchError, ClientKind, Load, Run, TestBed, World};

/// What carries the packets of a preloaded program.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The test network, whose server's end the program has by AF_XDP.
    Veth(Arc<TestBed>, ClientKind),
    /// Shared memory, between these CPUs. The load has its other end, by the datapath.
    Memory(Cpus),
}

/// An installed program whose sockets are the datapath's.
pub struct Preloaded {
    pub(super) wire: Wire,
    pub(super) app: App,
    library: PathBuf,
    pub(super) cpu_time: CpuTime,
    pub(super) setup: BedSetup,
}

impl Preloaded {
    /// `library` is `libabey.so`.
    ///
    /// # Errors
    /// CPU time cannot be counted here.
    pub fn new(wire: Wire, app: App, library: PathBuf) -> Result<Self, BenchError> {
        let cpus = wire.cpus();
        let (world, client, on) = match &wire {
            Wire::Veth(bed, client) => {
                (World::Datapath, *client, format!("{}, AF_XDP at the server", bed.description()))
            }
            Wire::Memory(_) => {
                (World::Memory, ClientKind::Datapath, "shared-memory NIC between two processes".to_owned())
            }
        };
        let setup = BedSetup {
            world,
            server: format!("{}, on CPU {}", app.description(), cpus.server),
            client: client.description(cpus),
            wire: on,
        };
        Ok(Self { cpu_time: CpuTime::of_cpu(cpus.server)?, wire, app, library, setup })
    }

    /// `reached` is told the process, and the directory of its control socket, as long as that is there.
    pub(super) fn start(
        &self,
        nic: &str,
        mode: Mode,
        conditions: &Conditions,
        reached: impl FnOnce(u32, &Path) -> Result<(), BenchError>,
    ) -> Result<Served, BenchError> {
        let cpu = self.wire.cpus().server as usize;
        let target = self.target();
        let mut command = self.app.command(target);
        let prefix = match &self.wire {
            Wire::Veth(bed, _) => {
                command.in_netns(&bed.server);
                TestBed::PREFIX
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
            // One process serves, on one queue.
            broker: None,
        };
        let config =
            LibraryConfig { mode: Some(mode), datapath: Some(datapath), strict: true, ..LibraryConfig::default() };
        let shown = format!("{} over {nic} under {mode}", shown(&command));
        library::equip(&mut command, Some((&self.library, &config)), None);
        Served::start(command, shown, conditions, |_, control| listens(control), reached)
    }

    /// A name that no other NIC has.
    pub(super) fn next_nic() -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("memory:abey-bench-both-{}-{count}", std::process::id())
    }

    pub(super) fn target(&self) -> SocketAddr {
        match &self.wire {
            Wire::Veth(..) => TestBed::address(self.app.port()),
            Wire::Memory(_) => SocketAddr::new(SERVER, self.app.port()),
        }
    }

    /// From the client's place: its namespace, if it has one, and its CPU.
    fn at_each_load<N: Network>(
        &self,
        network: impl FnOnce() -> Result<N, BenchError>,
        (mut served, mode): (Served, Mode),
        loads: (&[Load], u64),
        conditions: &Conditions,
    ) -> Result<Vec<Run>, BenchError> {
        pin_client(self.wire.cpus().client)?;
        // A server that has ended is the reason, whatever else is said.
        let network = network().map_err(|error| served.server.check().err().unwrap_or(error))?;
        let to = (self.target(), self.app.protocol().workload());
        served.at_each_load(network, to, (self.setup.world, mode, &self.cpu_time), loads, conditions)
    }
}

impl Wire {
    pub(super) fn cpus(&self) -> Cpus {
        match self {
            Self::Veth(bed, _) => bed.cpus,
            Self::Memory(cpus) => *cpus,
        }
    }
}

/// The command line in words.
pub(crate) fn shown(command: &Command) -> String {
    format!("{command:?}").replace('"', "")
}

/// Whether a program of this directory has a socket of the datapath.
fn listens(control: &Path) -> Result<bool, BenchError> {
    let Some(Ok(client)) = find_in(control)?.into_iter().next() else { return Ok(false) };
    Ok(client.status().is_ok_and(|status| status.shards.iter().any(|shard| shard.sockets > 0)))
}

/// The load's end of a shared-memory NIC.
pub(super) fn over_memory(nic: &str, address: IpAddr, cpu: u32) -> Result<Datapath, BenchError> {
    let builder = Runtime::builder().nic(nic, Default::default()).mode(CLIENT_MODE);
    Ok(Datapath::new(builder.address(address, PREFIX).pin(vec![cpu as usize]).build()?))
}

impl Bed for Preloaded {
    fn setup(&self) -> &BedSetup {
        &self.setup
    }

    fn lacks(&self, mode: Mode) -> Option<&'static str> {
        let blocking = mode.settings().socket_busy_poll.is_some();
        blocking.then_some("it is for blocking receives, and the servers wait in epoll")
    }

    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError> {
        let loads = (loads, seed);
        // The server ends with the thread that starts it, so that is this one; the load gets one that it can pin.
        match &self.wire {
            Wire::Veth(bed, client) => {
                let served =
                    (self.start(&format!("af_xdp:{}", bed.device.name), mode, conditions, |_, _| Ok(()))?, mode);
                match client {
                    ClientKind::Kernel => {
                        bed.client.run(|| self.at_each_load(|| Ok(Kernel), served, loads, conditions))?
                    }
                    ClientKind::Datapath => {
                        bed.client.run(|| self.at_each_load(|| over_af_xdp(bed), served, loads, conditions))?
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
