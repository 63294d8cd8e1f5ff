//! Puts a runtime together from what was checked and opened, and starts its threads.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, mpsc};

use abey_delivery::{NapiIndex, QueueKey, Store};
use abey_nic::QueuePair;
use abey_nic::rss::Rss;
use abey_tcpip::{Config, Offloads, Settings, Stack};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::shared::NEVER;
use super::{Builder, Runtime, Shared};
use crate::clock::Clock;
use crate::error::BuildError;
use crate::kernel::{Control, Kernel};
use crate::pool::Pool;
use crate::service;
use crate::shard::{Line, Parts, Shard};
use crate::sleeper::Sleeper;
use crate::threads::Work;

/// A NIC, opened.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) station: [u8; 6],
    pub(super) queues: Vec<Box<dyn QueuePair>>,
    pub(super) rss: Option<Rss>,
    /// Other processes have some of its queues.
    pub(super) is_part: bool,
    /// The interface's number and the arrangements, where the device is shared with the kernel.
    pub(super) shared: Option<(u32, Kernel)>,
}

impl Builder {
    pub(super) fn assemble(self, device: Device) -> Result<Runtime, BuildError> {
        let clock = Clock::new();
        let pool = Arc::new(Pool::new());
        let mut store = Store::new();
        let count = device.queues.len();
        let (interface, kernel) = device.shared.map(|(interface, kernel)| (interface, Arc::new(kernel))).unzip();
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
                kernel: kernel.clone(),
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
            is_part: device.is_part,
            kernel,
            warnings: Mutex::new(Vec::new()),
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
        #[cfg(test)]
        let replay = crate::replay::now().is_some();
        #[cfg(not(test))]
        let replay = false;
        // In a replay their parts are played.
        if !replay {
            runtime.start(&device.name, &self.cpus, sleepers, self.workers)?;
        }
        runtime.start_control(&device.name, interface)?;
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
        let (entering, entered) = mpsc::channel::<()>();
        for worker in 0..workers {
            let (pool, threads, entering) = (self.pool.clone(), self.shared.threads.clone(), entering.clone());
            let thread = std::thread::Builder::new().name(format!("napi-work/{worker}")).spawn(move || {
                threads.enter(Work::Worker);
                drop(entering);
                pool.work();
            });
            self.threads.push(thread.map_err(system("start a worker"))?);
        }
        drop(entering);
        // Nothing is sent: it fails when all have entered, so that whoever asks for the threads is told of all.
        let _ = entered.recv();
        Ok(())
    }

    /// The thread that talks to the kernel about a device that is shared with it.
    fn start_control(&mut self, device: &str, interface: Option<u32>) -> Result<(), BuildError> {
        let (Some(interface), Some(kernel)) = (interface, &self.shared.kernel) else { return Ok(()) };
        let control = Control::open(kernel.clone(), interface, self.shared.shards.clone());
        let control = control.map_err(|source| BuildError::AskKernel { device: device.to_owned(), source })?;
        let threads = self.shared.threads.clone();
        let thread = std::thread::Builder::new().name("abey-kernel".to_owned()).spawn(move || {
            threads.enter(Work::Kernel);
            control.run();
        });
        self.threads.push(thread.map_err(system("start the control thread"))?);
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

pub(super) fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> BuildError {
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
