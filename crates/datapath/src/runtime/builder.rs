//! Builds a runtime: everything is checked before anything is opened.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, mpsc};

use abey_delivery::{Mode, ModeSettings, NapiConfig, NapiIndex, QueueKey, SoftirqLimits, Store};
use abey_nic::QueuePair;
use abey_nic::rss::Rss;
use abey_tcpip::{Config, Offloads, Settings, Stack};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{NEVER, Runtime, Shared};
use crate::clock::Clock;
use crate::error::BuildError;
use crate::pool::Pool;
use crate::record::Recorder;
use crate::service;
use crate::shard::{Line, Parts, Shard};
use crate::sleeper::Sleeper;
use crate::threads::Work;

/// Most workers of the pool.
const MAX_WORKERS: usize = 64;

/// How a runtime is to be.
pub struct Builder {
    nic: NicSource,
    stack: Settings,
    settings: ModeSettings,
    napi: NapiConfig,
    softirq: SoftirqLimits,
    cpus: Vec<usize>,
    workers: usize,
    recorders: Vec<Recorder>,
}

enum NicSource {
    None,
    Named { name: String, options: abey_nic::Options },
    Given(Device),
}

/// A NIC, opened.
struct Device {
    name: String,
    station: [u8; 6],
    queues: Vec<Box<dyn QueuePair>>,
    rss: Option<Rss>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nic: NicSource::None,
            stack: Settings::default(),
            settings: ModeSettings::default(),
            napi: NapiConfig::default(),
            softirq: SoftirqLimits::default(),
            cpus: Vec::new(),
            workers: 1,
            recorders: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Builder")
            .field("stack", &self.stack)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// The NIC of this name (`memory:NAME`, `tap:DEV`).
    #[must_use]
    pub fn nic(mut self, name: &str, options: abey_nic::Options) -> Self {
        self.nic = NicSource::Named { name: name.to_owned(), options };
        self
    }

    /// Queue pairs that are open already, perhaps wrapped: what the device is called, the Ethernet address to have, and
    /// how frames are steered to the queues, where that is known.
    #[must_use]
    pub fn queues(mut self, name: &str, station: [u8; 6], queues: Vec<Box<dyn QueuePair>>, rss: Option<Rss>) -> Self {
        self.nic = NicSource::Given(Device { name: name.to_owned(), station, queues, rss });
        self
    }

    /// One of the host's addresses, with the length of its prefix.
    #[must_use]
    pub fn address(mut self, address: IpAddr, prefix: u8) -> Self {
        self.stack.addresses.push((address, prefix));
        self
    }

    /// Where IPv4 packets go whose destination is on no prefix.
    #[must_use]
    pub fn gateway_v4(mut self, gateway: Ipv4Addr) -> Self {
        self.stack.gateway_v4 = Some(gateway);
        self
    }

    /// Where IPv6 packets go whose destination is on no prefix.
    #[must_use]
    pub fn gateway_v6(mut self, gateway: Ipv6Addr) -> Self {
        self.stack.gateway_v6 = Some(gateway);
        self
    }

    /// The mode to begin in.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        self.settings(mode.settings())
    }

    /// Settings to begin with that have no name.
    #[must_use]
    pub fn settings(mut self, settings: ModeSettings) -> Self {
        self.settings = settings;
        self
    }

    /// What is fixed about the instances.
    #[must_use]
    pub fn napi_config(mut self, config: NapiConfig) -> Self {
        self.napi = config;
        self
    }

    /// What one softirq run may use.
    #[must_use]
    pub fn softirq_limits(mut self, limits: SoftirqLimits) -> Self {
        self.softirq = limits;
        self
    }

    /// The CPUs that the service threads are pinned to, in the order of the queues.
    #[must_use]
    pub fn pin(mut self, cpus: Vec<usize>) -> Self {
        self.cpus = cpus;
        self
    }

    /// How many workers the pool of `workqueue` has.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// What is told of every transition of the delivery core, in the order of the queues.
    #[must_use]
    pub fn recorders(mut self, recorders: Vec<Recorder>) -> Self {
        self.recorders = recorders;
        self
    }

    /// Changes the stack's settings: buffers, timeouts, limits. The link's part (address, MTU, offloads) is the NIC's.
    #[must_use]
    pub fn stack(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.stack);
        self
    }

    /// Opens the NIC and starts the threads.
    ///
    /// # Errors
    /// What cannot be; everything that can be checked is, before the NIC is opened.
    pub fn build(mut self) -> Result<Runtime, BuildError> {
        self.check()?;
        let device = match std::mem::replace(&mut self.nic, NicSource::None) {
            NicSource::None => return Err(BuildError::NoNic),
            NicSource::Given(device) => device,
            NicSource::Named { name, options } => {
                let mut nic = abey_nic::open(&name, &options)?;
                if nic.ports().is_some() {
                    return Err(BuildError::SharedWithKernel(name));
                }
                Device { name, station: nic.hardware_address(), queues: nic.take_queues(), rss: nic.rss().cloned() }
            }
        };
        let queues = device.queues.len();
        if queues == 0 {
            return Err(BuildError::NoQueues(device.name));
        }
        for (what, given) in [("CPUs", self.cpus.len()), ("recorders", self.recorders.len())] {
            if given != 0 && given != queues {
                return Err(BuildError::Count { what, given, queues });
            }
        }
        self.assemble(device)
    }

    fn check(&self) -> Result<(), BuildError> {
        self.settings.validate()?;
        if self.napi.weight == 0 {
            return Err(BuildError::ZeroWeight);
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(BuildError::Workers(self.workers));
        }
        let allowed = sched_getaffinity(None).map_err(system("look up the CPUs of this process"))?;
        if let Some(&cpu) = self.cpus.iter().find(|cpu| **cpu >= CpuSet::MAX_CPU || !allowed.is_set(**cpu)) {
            return Err(BuildError::Pin { cpu, thread: "a service thread".to_owned() });
        }
        // The station and the MTU come from the NIC; the rest can be checked without.
        let station = [2, 0, 0, 0, 0, 1];
        Config::new(Settings { station, ..self.stack.clone() })?;
        Ok(())
    }

    fn assemble(self, device: Device) -> Result<Runtime, BuildError> {
        let clock = Clock::new();
        let pool = Arc::new(Pool::new());
        let mut store = Store::new();
        let count = device.queues.len();
        let mut recorders = self.recorders.into_iter();
        let (mut shards, mut sleepers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (at, nic) in device.queues.into_iter().enumerate() {
            let index = NapiIndex(at as u32);
            let (id, _) = store.attach(QueueKey { device: 0, queue: at as u32 }, index).expect("a fresh store");
            store.handle_thread_created(id);
            let capabilities = nic.capabilities();
            let offloads = Offloads {
                receive_verified: capabilities.checksum_offload,
                transmit_filled: capabilities.checksum_offload,
            };
            let mtu = capabilities.mtu.min(abey_tcpip::MAXIMUM_MTU);
            let config = Config::new(Settings { station: device.station, mtu, offloads, ..self.stack.clone() })?;
            let service = Arc::new(Sleeper::new().map_err(system("create an eventfd"))?);
            let descriptor = nic.as_fd().try_clone_to_owned().map_err(system("duplicate the NIC's descriptor"))?;
            let line = Line::new(descriptor, &service).map_err(system("create the service thread's epoll"))?;
            sleepers.push(service.clone());
            shards.push(Shard::new(Parts {
                id,
                index,
                nic,
                line,
                service,
                stack: Stack::new(config, RandomState::new().build_hasher().finish()),
                config: self.napi,
                settings: self.settings.napi,
                softirq: self.softirq,
                recorder: recorders.next(),
                pool: pool.clone(),
                clock,
                shards: count,
            }));
        }
        let ids: Vec<_> = shards.iter().map(|shard| shard.id).collect();
        let change = store.prepare(ids, |settings| *settings = self.settings.napi).expect("the settings were checked");
        store.commit(change, &[]).expect("the threads are there");
        pool.set_shards(shards.iter().map(Arc::downgrade).collect());
        for shard in &shards {
            let others = shards.iter().filter(|other| !Arc::ptr_eq(other, shard));
            shard.set_siblings(others.map(Arc::downgrade).collect());
        }
        let shared = Arc::new(Shared {
            clock,
            shards: shards.into(),
            device: device.name.clone(),
            threads: Arc::default(),
            addresses: self.stack.addresses,
            rss: device.rss,
            store: Mutex::new(store),
            busy_poll: Mutex::new(None),
            epolls: Mutex::new(Vec::new()),
            max_wait: AtomicU64::new(NEVER),
            socket_busy_poll: AtomicU64::new(NEVER),
            next: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        shared.set_waits(&self.settings);
        // From here on dropping the runtime ends what was started.
        let mut runtime = Runtime { shared, stop: Arc::new(AtomicBool::new(false)), pool, threads: Vec::new() };
        runtime.start(&device.name, &self.cpus, sleepers, self.workers)?;
        for shard in runtime.shared.shards.iter() {
            shard.enable();
        }
        Ok(runtime)
    }
}

impl Runtime {
    fn start(
        &mut self,
        device: &str,
        cpus: &[usize],
        sleepers: Vec<Arc<Sleeper>>,
        workers: usize,
    ) -> Result<(), BuildError> {
        let mut cpus = cpus.iter().copied();
        for (shard, sleeper) in self.shared.shards.iter().zip(sleepers) {
            let name = thread_name(device, shard.id.get());
            let (shard, stop, cpu) = (shard.clone(), self.stop.clone(), cpus.next());
            let threads = self.shared.threads.clone();
            let (tell, told) = mpsc::channel();
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
                let pinned = cpu.is_none_or(|cpu| {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    sched_setaffinity(None, &set).is_ok()
                });
                threads.enter(Work::Service(shard.id));
                if tell.send(pinned).is_ok() && pinned {
                    service::run(&shard, &sleeper, &stop);
                }
            });
            self.threads.push(thread.map_err(system("start a service thread"))?);
            if told.recv() != Ok(true) {
                return Err(BuildError::Pin { cpu: cpu.unwrap_or(0), thread: name });
            }
        }
        for worker in 0..workers {
            let (pool, threads) = (self.pool.clone(), self.shared.threads.clone());
            let thread = std::thread::Builder::new().name(format!("napi-work/{worker}")).spawn(move || {
                threads.enter(Work::Worker);
                pool.work();
            });
            self.threads.push(thread.map_err(system("start a worker"))?);
        }
        Ok(())
    }
}

/// As the kernel's, `napi/<device>-<id>`, within the 15 bytes that a name may have.
fn thread_name(device: &str, id: u32) -> String {
    let id = id.to_string();
    let room = 15 - "napi/-".len() - id.len().min(9);
    let device: String =
        device.rsplit(':').next().unwrap_or(device).chars().filter(char::is_ascii_graphic).take(room).collect();
    format!("napi/{device}-{id}")
}

fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> BuildError {
    move |error: E| BuildError::System { action, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::thread_name;

    #[test]
    fn thread_names_fit() {
        assert_eq!(thread_name("af_xdp:eth0", 3), "napi/eth0-3");
        assert_eq!(thread_name("memory:a-very-long-name", 12), "napi/a-very--12");
        assert!(thread_name("memory:a-very-long-name", 12).len() <= 15);
    }
}
